"""TLS that demands a certificate of the client and takes any, one that signs itself too.

Python's ssl module asks for a client's certificate only in order to verify it, so this policy goes through pyOpenSSL.
What is here has the shape of ssl's own classes: a context and what its ``wrap_bio`` gives serve asyncio, uvloop and
``TLSLayer`` like any other. pyOpenSSL is imported only when such a context is made.
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
# Type, version, and the length of what follows in two bytes.
_RECORD_HEAD = 5


def _pyopenssl() -> Any:
    try:
        return importlib.import_module("OpenSSL.SSL")
    except ImportError:
        raise ConfigError(
            "--tls-client-auth-policy=require needs pyOpenSSL: pip install pyopenssl, or use require-verify"
        ) from None


class AnyCertificateContext(ssl.SSLContext):
    """A server's context. Its certificate can be replaced for connections to come, as ssl's can."""

    # What ssl.SSLContext makes of its arguments before __init__ sees them.
    def __new__(cls, min_version: ssl.TLSVersion, client_ca_file: str = "") -> AnyCertificateContext:  # noqa: ARG004
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, min_version: ssl.TLSVersion, client_ca_file: str = "") -> None:
        """``client_ca_file`` refuses nobody; it only tells which certificates ``getpeercert`` vouches for."""
        self._ssl = _pyopenssl()
        self._client_ca_file = client_ca_file
        self._context: Any = None
        self.minimum_version = min_version
        self.set_ciphers(CIPHERS)

    def load_cert_chain(self, certfile: Any, keyfile: Any = None, password: Any = None) -> None:
        """As ssl's; connections that exist keep what they had."""
        super().load_cert_chain(certfile, keyfile, password)
        openssl = self._ssl
        context = openssl.Context(openssl.TLS_SERVER_METHOD)
        try:
            is_old = self.minimum_version < ssl.TLSVersion.TLSv1_2
            context.set_cipher_list(OLD_CIPHERS.encode() if is_old else CIPHERS.encode())
            context.set_min_proto_version(int(self.minimum_version))
            context.set_options(openssl.OP_NO_TICKET | openssl.OP_NO_COMPRESSION | openssl.OP_NO_RENEGOTIATION)
            # A resumed session is not asked for its certificate again.
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
        context.set_verify(openssl.VERIFY_PEER | openssl.VERIFY_FAIL_IF_NO_PEER_CERT, _take_any)
        self._context = context

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = True,
        server_hostname: str | bytes | None = None,  # noqa: ARG002
        session: Any = None,  # noqa: ARG002
    ) -> AnyCertificateObject:
        """A server's end of a connection."""
        assert server_side, "a client verifies its server"
        return AnyCertificateObject(self._ssl, self._context, incoming, outgoing)


def _take_any(connection: Any, _certificate: Any, _error: int, _depth: int, is_good: int) -> bool:
    """OpenSSL asks this for every certificate of a chain, and again for whatever is wrong with one."""
    if not is_good:
        connection.get_app_data().is_verified = False
    return True


class AnyCertificateObject(ssl.SSLObject):
    """One connection, between two memory buffers; raises what ssl's own raises."""

    def __init__(self, openssl: Any, context: Any, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
        self._ssl = openssl
        self._incoming = incoming
        self._outgoing = outgoing
        self._record_head = b""
        self._record_rest_size = 0
        self._connection = openssl.Connection(context, None)
        self._connection.set_app_data(self)
        self._connection.set_accept_state()
        self.is_verified = True  # until a certificate turns out not to be

    # What is done

    def do_handshake(self, block: bool = False) -> None:  # noqa: ARG002
        """Go on with the handshake."""
        self._do(self._connection.do_handshake)

    def read(self, len: int = 1024, buffer: Any = None) -> Any:  # noqa: A002
        """At most ``len`` bytes, or how many were put into ``buffer``; none at the end of what the peer says."""
        try:
            if buffer is not None:
                return self._do(lambda: self._connection.recv_into(buffer, len or None))
            return self._do(lambda: self._connection.recv(min(len, _RECEIVE_SIZE)))
        except ssl.SSLZeroReturnError:
            return 0 if buffer is not None else b""

    def write(self, data: Any) -> int:
        """How much of ``data`` was taken."""
        taken: int = self._do(lambda: self._connection.send(data))
        return taken

    def unwrap(self) -> None:
        """Say goodbye; SSLWantReadError until the peer has too."""
        if not self._do(self._connection.shutdown) and not self._do(self._connection.shutdown):
            raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "The operation did not complete")

    def _do(self, step: Callable[[], _T]) -> _T:
        """Let OpenSSL do a step, give it what came in as it asks for it, and take out what it has to say."""
        try:
            while True:
                try:
                    return step()
                except self._ssl.WantReadError:
                    if not self._give_record():
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

    def _give_record(self) -> bool:
        """Give OpenSSL one record, or what there is of it; False if nothing is there.

        No more than one, because loops ask ``incoming`` whether there is more to read.
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

    # What was agreed

    def version(self) -> str | None:
        """The protocol version, such as ``TLSv1.3``."""
        name: str = self._connection.get_protocol_version_name()
        return None if name == "Unknown" else name

    def cipher(self) -> tuple[str, str, int] | None:
        """The cipher suite: its name, the version it is of, its bits."""
        name = self._connection.get_cipher_name()
        if name is None:
            return None
        return name, self._connection.get_cipher_version(), self._connection.get_cipher_bits()

    def compression(self) -> str | None:
        """None: it is never used."""
        return None

    def selected_alpn_protocol(self) -> str | None:
        """None: nothing is offered."""
        return None

    def pending(self) -> int:
        """Bytes that can be read at once."""
        count: int = self._connection.pending()
        return count

    @property
    def peer_subject(self) -> _Subject:
        """Whose certificate the peer showed, in the form of ``getpeercert``; nobody vouches for it."""
        certificate = self._connection.get_peer_certificate(as_cryptography=True)
        if certificate is None:
            return ()
        return tuple(
            tuple((_ATTRIBUTES.get(each.oid.dotted_string, each.oid.dotted_string), str(each.value)) for each in names)
            for names in certificate.subject.rdns
        )

    def getpeercert(self, binary_form: bool = False) -> Any:
        """As ssl's: without contents unless the certificate was verified."""
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
