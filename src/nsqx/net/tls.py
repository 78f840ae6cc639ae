"""TLS as a layer, for connections that start unencrypted and are upgraded, on the client or the server.

The handshake needs no separate call: received bytes go through ``unwrap``, bytes to send come from ``take_output``, and
``wrap`` buffers data until the handshake is complete.
"""

from __future__ import annotations

import ssl
from typing import Any, Protocol

from nsqx.errors import ConfigError, NSQError
from nsqx.net.ciphers import CIPHERS
from nsqx.net.tls_any_certificate import AnyCertificateObject

VERSIONS = {
    "ssl3.0": ssl.TLSVersion.SSLv3,
    "tls1.0": ssl.TLSVersion.TLSv1,
    "tls1.1": ssl.TLSVersion.TLSv1_1,
    "tls1.2": ssl.TLSVersion.TLSv1_2,
    "tls1.3": ssl.TLSVersion.TLSv1_3,
}


class TLSFailed(NSQError):
    """The handshake failed, or the data is not TLS; the text is OpenSSL's."""


class ClientTLSOptions(Protocol):
    """The options that ``client_context`` reads."""

    @property
    def tls_root_ca_file(self) -> str: ...
    @property
    def tls_insecure_skip_verify(self) -> bool: ...
    @property
    def tls_cert(self) -> str: ...
    @property
    def tls_key(self) -> str: ...
    @property
    def tls_min_version(self) -> str: ...


def client_context(options: ClientTLSOptions) -> ssl.SSLContext:
    """Return a client's context; raises ConfigError."""
    try:
        context = ssl.create_default_context(cafile=options.tls_root_ca_file or None)
        context.set_ciphers(CIPHERS)
        if options.tls_insecure_skip_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if options.tls_min_version:
            context.minimum_version = VERSIONS[options.tls_min_version]
        if options.tls_cert:
            context.load_cert_chain(options.tls_cert, options.tls_key)
    except (OSError, ValueError) as error:
        names = " ".join(filter(None, (options.tls_root_ca_file, options.tls_cert, options.tls_key)))
        raise ConfigError(f"TLS files {names}: {error}") from None
    return context


class TLSLayer:
    """TLS on one connection."""

    __slots__ = ("_early", "_in", "_is_done", "_object", "_out", "has_ended", "has_more")

    def __init__(self, context: ssl.SSLContext, *, server_side: bool = False, server_hostname: str = "") -> None:
        """``server_hostname`` is the name that a client expects in the certificate."""
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        hostname = None if server_side else server_hostname
        self._object = context.wrap_bio(self._in, self._out, server_side=server_side, server_hostname=hostname)
        self._is_done = False
        self._early = b""
        self.has_more = False
        self.has_ended = False  # the peer has sent close_notify
        self._do_handshake()

    @property
    def is_done(self) -> bool:
        """True once the handshake is complete."""
        return self._is_done

    @property
    def ssl_object(self) -> ssl.SSLObject:
        """The SSL object, which holds the peer's certificate."""
        return self._object

    @property
    def version(self) -> str:
        """The negotiated protocol version, such as ``TLSv1.3``."""
        return self._object.version() or ""

    @property
    def cipher(self) -> str:
        """The negotiated cipher suite."""
        cipher = self._object.cipher()
        return cipher[0] if cipher else ""

    @property
    def peer_common_name(self) -> str:
        """The last common name in the peer's certificate.

        The certificate is verified, unless the context accepts any certificate.
        """
        if isinstance(self._object, AnyCertificateObject):
            subject: Any = self._object.peer_subject
        else:
            subject = dict(self._object.getpeercert() or {}).get("subject", ())
        names = [value for attributes in subject for name, value in attributes if name == "commonName"]
        return names[-1] if names else ""

    def wrap(self, data: bytes) -> bytes:
        """Encrypt ``data``; return nothing during the handshake."""
        if not self._is_done:
            self._early += data
            return self._out.read()
        view = memoryview(data)
        while view:
            view = view[self._object.write(view) :]
        return self._out.read()

    def unwrap(self, data: bytes, limit: int) -> bytes:
        """Decrypt received bytes; return at most ``limit`` bytes; raises TLSFailed."""
        if data:
            self._in.write(data)
        if not self._is_done:
            self._do_handshake()
            if not self._is_done:
                return b""
        return self._read(limit)

    def take_output(self) -> bytes:
        """Return handshake messages, alerts, and data buffered during the handshake."""
        if self._is_done and self._early:
            early, self._early = self._early, b""
            return self.wrap(early)
        return self._out.read()

    def end(self) -> bytes:
        """Return the close_notify alert."""
        try:
            self._object.unwrap()
        except ssl.SSLError:
            pass  # the peer has not answered yet, or the connection is broken
        return self._out.read()

    def _do_handshake(self) -> None:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise TLSFailed(f"TLS: {_reason(error)}") from error
        self._is_done = True

    def _read(self, limit: int) -> bytes:
        pieces: list[bytes] = []
        size = 0
        self.has_more = False
        try:
            while size < limit:
                piece = self._object.read(limit - size)
                if not piece:
                    self.has_ended = True
                    break
                pieces.append(piece)
                size += len(piece)
            else:
                self.has_more = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.has_ended = True
        except ssl.SSLError as error:
            raise TLSFailed(f"TLS: {_reason(error)}") from error
        return b"".join(pieces)


def _reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not trusted: {error.verify_message}"
    return (error.reason or str(error)).replace("_", " ").lower()
