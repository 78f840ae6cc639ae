"""Server-side TLS: contexts, certificate loading, and Go's names of cipher suites."""

from __future__ import annotations

import re
import ssl

from nsqx.errors import ConfigError
from nsqx.net.ciphers import CIPHERS, OLD_CIPHERS
from nsqx.net.tls_any_certificate import AnyCertificateContext

_GO_VERSIONS = {
    0x0301: ssl.TLSVersion.TLSv1,
    0x0302: ssl.TLSVersion.TLSv1_1,
    0x0303: ssl.TLSVersion.TLSv1_2,
    0x0304: ssl.TLSVersion.TLSv1_3,
}
_CERTIFICATE = re.compile(rb"-----BEGIN (TRUSTED |X509 )?CERTIFICATE-----")
_PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")


def server_context(
    certificate_file: str,
    key_file: str,
    min_version: int,
    client_policy: ssl.VerifyMode = ssl.CERT_NONE,
    *,
    client_ca_file: str = "",
) -> ssl.SSLContext:
    """Return a context for listeners and upgrades; raises ConfigError.

    ``min_version`` is a version number of the TLS protocol. ``client_policy`` decides whether a client may or must send
    a certificate, which is verified with ``client_ca_file``, or with the system's authorities if that is empty.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _GO_VERSIONS[min_version]
    context.options |= ssl.OP_NO_RENEGOTIATION  # clients could use renegotiation to waste CPU time
    context.set_ciphers(OLD_CIPHERS if context.minimum_version < ssl.TLSVersion.TLSv1_2 else CIPHERS)
    load_certificate(context, certificate_file, key_file)
    if client_policy != ssl.CERT_NONE:
        context.verify_mode = client_policy
        try:
            if client_ca_file:
                context.load_verify_locations(client_ca_file)
            else:
                context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
        except (OSError, ValueError) as error:
            raise ConfigError(f"failed to build TLS config - {client_ca_file}: {_reason(error)}") from None
    return context


def any_certificate_context(
    certificate_file: str, key_file: str, min_version: int, *, client_ca_file: str = ""
) -> ssl.SSLContext:
    """Return a context that requires a client certificate and accepts any; raises ConfigError.

    ``client_ca_file``, or the system's authorities, only decide which certificates ``getpeercert`` shows as verified.
    """
    context = AnyCertificateContext(_GO_VERSIONS[min_version], client_ca_file)
    load_certificate(context, certificate_file, key_file)
    return context


def trusting_context(ca_file: str) -> ssl.SSLContext:
    """Return a client's context that trusts ``ca_file``, or the system's authorities; raises ConfigError."""
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
        context.set_ciphers(CIPHERS)
        return context
    except (OSError, ValueError) as error:
        raise ConfigError(f"failed to build client TLS config - {ca_file}: {_reason(error)}") from None


def load_certificate(context: ssl.SSLContext, certificate_file: str, key_file: str) -> None:
    """Load a certificate into a context; a replacement applies to later connections; raises ConfigError."""
    try:
        _check_pem(certificate_file, _CERTIFICATE, "certificate")
        _check_pem(key_file, _PRIVATE_KEY, "private key")
        # Try a temporary context first: a mismatched pair must not damage the context in use.
        trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trial.set_ciphers(CIPHERS)
        trial.load_cert_chain(certificate_file, key_file, _no_password)
        context.load_cert_chain(certificate_file, key_file, _no_password)
    except (OSError, ValueError) as error:
        names = f"{certificate_file} {key_file}"
        raise ConfigError(f"failed to build TLS config - {names}: {_reason(error)}") from None


def _check_pem(path: str, begin: re.Pattern[bytes], noun: str) -> None:
    """Raise ConfigError if a PEM file lacks the expected block; OpenSSL's own error would only be "PEM lib"."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise ConfigError(f"failed to build TLS config - open {path}: {error.strerror}") from None
    if not begin.search(content):
        raise ConfigError(f"failed to build TLS config - {path}: no {noun} in PEM format found")
    if begin is _PRIVATE_KEY and b"ENCRYPTED" in content:
        raise ConfigError(f"failed to build TLS config - {path}: the private key is encrypted: decrypt it first")


def _no_password() -> bytes:
    """Return an empty password; otherwise OpenSSL would ask for one on the terminal."""
    return b""


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "damaged PEM data").replace("_", " ").lower()
    return getattr(error, "strerror", None) or str(error)


def iana_cipher_name(name: str) -> str:
    """Convert OpenSSL's name of a cipher suite to the registered one: TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256."""
    if name.startswith("TLS_") or not name:
        return name
    exchange, separator, cipher = re.sub(r"(AES|CAMELLIA|ARIA)(\d+)", r"\1_\2", name).partition("-")
    while separator and not re.match(r"(AES|CAMELLIA|ARIA|CHACHA20|DES|RC4)", cipher):
        more, separator, cipher = cipher.partition("-")
        exchange = f"{exchange}_{more}"
    if re.match(r"(AES|CAMELLIA|ARIA)", exchange):  # OpenSSL omits a plain RSA key exchange from the name
        exchange, cipher = "RSA", f"{exchange}-{cipher}"
    cipher = cipher.replace("-", "_")
    if cipher == "CHACHA20_POLY1305":
        cipher += "_SHA256"
    elif "GCM" not in cipher and "CCM" not in cipher and "POLY" not in cipher:
        head, _, mac = cipher.rpartition("_")
        cipher = f"{head}_CBC_{mac}"
    return f"TLS_{exchange}_WITH_{cipher}"
