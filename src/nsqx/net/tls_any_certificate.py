"""TLS that requires a client certificate and accepts any, including self-signed ones.

Python's ssl module requests a client certificate only to verify it, so this policy uses pyOpenSSL. The classes have the
interface of ssl's own: asyncio, uvloop and ``TLSLayer`` use the context and the result of ``wrap_bio`` as usual.
pyOpenSSL is imported only when such a context is created.
"""

from __future__ import annotations

import importlib
import ssl
from collections.abc import Callable
from typing import Any, TypeVar

from nsqx.errors import ConfigError
from nsqx.net.ciphers import CIPHERS, OLD_CIPHERS

_Subject = tuple[tuple[tuple[str, str], ...], ...]
_T = TypeVar("_T")
_RECEIVE_SIZE = 256 * 1024
# Type, version, and the length of the content in two bytes.
_RECORD_HEAD = 5


def _pyopenssl() -> Any:
    try:
        return importlib.import_module("OpenSSL.SSL")
    except ImportError:
        raise ConfigError(
            "--tls-client-auth-policy=require needs pyOpenSSL: pip install pyopenssl, or use require-verify"
        ) from None


class AnyCertificateContext(ssl.SSLContext):
    """A server's context. A new certificate can be loaded for later connections, as with ssl's context."""

    # ssl.SSLContext.__new__ does not accept these arguments.
    def __new__(cls, min_version: ssl.TLSVersion, client_ca_file: str = "") -> AnyCertificateContext:  # noqa: ARG004
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, min_version: ssl.TLSVersion, client_ca_file: str = "") -> None:
        """``client_ca_file`` rejects no client; it decides which certificates ``getpeercert`` shows as verified."""
        self._ssl = _pyopenssl()
        self._client_ca_file = client_ca_file
        self._context: Any = None
        self.minimum_version = min_version
        self.set_ciphers(CIPHERS)

    def load_cert_chain(self, certfile: Any, keyfile: Any = None, password: Any = None) -> None:
        """Load a certificate like ssl's method; existing connections keep the old one."""
        super().load_cert_chain(certfile, keyfile, password)
        openssl = self._ssl
        context = openssl.Context(openssl.TLS_SERVER_METHOD)
        try:
            is_old = self.minimum_version < ssl.TLSVersion.TLSv1_2
            context.set_cipher_list(OLD_CIPHERS.encode() if is_old else CIPHERS.encode())
            context.set_min_proto_version(int(self.minimum_version))
            context.set_options(openssl.OP_NO_TICKET | openssl.OP_NO_COMPRESSION | openssl.OP_NO_RENEGOTIATION)
            # A resumed session would not send its certificate again.
            context.set_session_cache_mode(openssl.SESS_CACHE_OFF)
            context.set_session_id(b"nsqd")
            context.use_certificate_chain_file(certfile)
            context.use_privatekey_file(keyfile)
            if self._client_ca_file:
                context.load_verify_locations(self._client_ca_file)
            else:
                context.set_default_verify_paths()
        except openssl.Error as error:
            raise _ssl_error(error) from None
        context.set_verify(openssl.VERIFY_PEER | openssl.VERIFY_FAIL_IF_NO_PEER_CERT, _accept_any)
        self._context = context

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = True,
        server_hostname: str | bytes | None = None,  # noqa: ARG002
        session: Any = None,  # noqa: ARG002
    ) -> AnyCertificateObject:
        """Return the server's side of a connection."""
        assert server_side, "a client verifies its server"
        return AnyCertificateObject(self._ssl, self._context, incoming, outgoing)


def _accept_any(connection: Any, _certificate: Any, _error: int, _depth: int, is_good: int) -> bool:
    """Accept a certificate; OpenSSL calls this for every certificate of a chain and for every error."""
    if not is_good:
        connection.get_app_data().is_verified = False
    return True


class AnyCertificateObject(ssl.SSLObject):
    """One connection between two memory buffers; raises the exceptions of ssl's own object."""

    def __init__(self, openssl: Any, context: Any, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
        self._ssl = openssl
        self._incoming = incoming
        self._outgoing = outgoing
        self._record_head = b""
        self._record_rest_size = 0
        self._connection = openssl.Connection(context, None)
        self._connection.set_app_data(self)
        self._connection.set_accept_state()
        self.is_verified = True  # until verification fails

    # Data

    def do_handshake(self, block: bool = False) -> None:  # noqa: ARG002
        """Continue the handshake."""
        self._do(self._connection.do_handshake)

    def read(self, len: int = 1024, buffer: Any = None) -> Any:  # noqa: A002
        """Return at most ``len`` bytes, or the number of bytes read into ``buffer``; empty at the end of the stream."""
        try:
            if buffer is not None:
                return self._do(lambda: self._connection.recv_into(buffer, len or None))
            return self._do(lambda: self._connection.recv(min(len, _RECEIVE_SIZE)))
        except ssl.SSLZeroReturnError:
            return 0 if buffer is not None else b""

    def write(self, data: Any) -> int:
        """Encrypt ``data`` and return the number of bytes accepted."""
        taken: int = self._do(lambda: self._connection.send(data))
        return taken

    def unwrap(self) -> None:
        """Send close_notify; raise SSLWantReadError until the peer has sent its own."""
        if not self._do(self._connection.shutdown) and not self._do(self._connection.shutdown):
            raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "The operation did not complete")

    def _do(self, step: Callable[[], _T]) -> _T:
        """Run an OpenSSL call, feed it records as it needs them, and collect its output."""
        try:
            while True:
                try:
                    return step()
                except self._ssl.WantReadError:
                    if not self._feed_record():
                        raise
        except self._ssl.WantReadError:
            if self._incoming.eof:
                raise ssl.SSLEOFError(ssl.SSL_ERROR_EOF, "EOF occurred in violation of protocol") from None
            raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "The operation did not complete") from None
        except self._ssl.ZeroReturnError:
            raise ssl.SSLZeroReturnError(ssl.SSL_ERROR_ZERO_RETURN, "TLS connection has been closed") from None
        except self._ssl.SysCallError:
            raise ssl.SSLEOFError(ssl.SSL_ERROR_EOF, "EOF occurred in violation of protocol") from None
        except self._ssl.Error as error:
            raise _ssl_error(error) from None
        finally:
            self._take_output()

    def _feed_record(self) -> bool:
        """Feed OpenSSL one record, or the part that has arrived; return False if there is none.

        Only one, because event loops check ``incoming`` for unread data.
        """
        if not self._record_rest_size:
            head = self._incoming.read(_RECORD_HEAD - len(self._record_head))
            if not head:
                return False
            self._connection.bio_write(head)
            self._record_head += head
            if len(self._record_head) < _RECORD_HEAD:
                return False
            self._record_rest_size = int.from_bytes(self._record_head[3:], "big")
            self._record_head = b""
        rest = self._incoming.read(self._record_rest_size)
        if rest:
            self._connection.bio_write(rest)
            self._record_rest_size -= len(rest)
        return bool(rest)

    def _take_output(self) -> None:
        try:
            while True:
                self._outgoing.write(self._connection.bio_read(_RECEIVE_SIZE))
        except self._ssl.WantReadError:
            pass

    # Negotiated parameters

    def version(self) -> str | None:
        """The protocol version, such as ``TLSv1.3``."""
        name: str = self._connection.get_protocol_version_name()
        return None if name == "Unknown" else name

    def cipher(self) -> tuple[str, str, int] | None:
        """The cipher suite: its name, its protocol version, and its bits."""
        name = self._connection.get_cipher_name()
        if name is None:
            return None
        return name, self._connection.get_cipher_version(), self._connection.get_cipher_bits()

    def compression(self) -> str | None:
        """None: compression is never used."""
        return None

    def selected_alpn_protocol(self) -> str | None:
        """None: ALPN is not offered."""
        return None

    def pending(self) -> int:
        """The number of bytes that can be read at once."""
        count: int = self._connection.pending()
        return count

    @property
    def peer_subject(self) -> _Subject:
        """The subject of the peer's certificate in the form of ``getpeercert``; not verified."""
        certificate = self._connection.get_peer_certificate(as_cryptography=True)
        if certificate is None:
            return ()
        return tuple(
            tuple((_ATTRIBUTES.get(each.oid.dotted_string, each.oid.dotted_string), str(each.value)) for each in names)
            for names in certificate.subject.rdns
        )

    def getpeercert(self, binary_form: bool = False) -> Any:
        """Return the certificate like ssl's method: empty unless it was verified."""
        certificate = self._connection.get_peer_certificate(as_cryptography=True)
        if certificate is None:
            return None
        if binary_form:
            encoding = importlib.import_module("cryptography.hazmat.primitives.serialization").Encoding
            return certificate.public_bytes(encoding.DER)
        return {"subject": self.peer_subject} if self.is_verified else {}


_ATTRIBUTES = {"2.5.4.3": "commonName", "2.5.4.10": "organizationName", "2.5.4.11": "organizationalUnitName"}


def _ssl_error(error: Any) -> ssl.SSLError:
    reasons = [reason for _, _, reason in error.args[0]] if error.args and isinstance(error.args[0], list) else []
    reason = reasons[0] if reasons else "unknown error"
    converted = ssl.SSLError(ssl.SSL_ERROR_SSL, reason)
    converted.reason = reason.replace(" ", "_").upper()
    return converted
