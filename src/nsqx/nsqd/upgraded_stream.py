"""The layers that an upgrade puts between a socket and a session: TLS, compression, or both.

No I/O: ``feed`` takes bytes from the socket, ``next_piece`` returns decoded input, and ``take_output`` returns bytes
that the layers send themselves. The client gets an OK through every layer that is added.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from nsqx.net.compression import Deflate
from nsqx.net.layers import Layers
from nsqx.net.snappy import Snappy
from nsqx.net.tls import TLSLayer
from nsqx.net.tls_server import iana_cipher_name
from nsqx.wire import frames

if TYPE_CHECKING:
    from nsqx.nsqd.client import Client
    from nsqx.nsqd.effects import Upgrade


class UpgradedStream:
    """The layers of one upgrade. The session may continue when ``is_ready``, which is after a TLS handshake."""

    __slots__ = ("_layers", "_output", "_pieces", "_tls", "_upgrade", "is_ready")

    def __init__(self, upgrade: Upgrade, context: ssl.SSLContext | None) -> None:
        self.is_ready = False
        self._upgrade = upgrade
        self._layers = Layers()
        self._output = b""
        self._pieces: Iterator[bytes] | None = None  # input that is not decoded yet
        self._tls: TLSLayer | None = None
        if upgrade.tls:
            assert context is not None
            self._tls = TLSLayer(context, server_side=True)
            self._layers.push(self._tls, b"")
        else:
            self._compress(b"")

    @property
    def has_input(self) -> bool:
        """True if ``next_piece`` may return more."""
        return self._pieces is not None

    def feed(self, data: bytes) -> None:
        """Add bytes from the socket. Raises TLSFailed if they end the handshake."""
        pieces = self._layers.receive(data)
        if not self.is_ready:
            self._shake_hands(pieces)
        elif self._pieces is None:
            self._pieces = pieces
        else:
            self._pieces = chain(self._pieces, pieces)

    def next_piece(self) -> bytes | None:
        """Return a part of the decoded input, or None if none is left. Raises BadCompression and TLSFailed."""
        if self._pieces is None:
            return None
        piece = next(self._pieces, None)
        if piece is None:
            self._pieces = None
        return piece

    def encode(self, data: bytes) -> bytes:
        """Encode output for the socket."""
        return self._layers.send(data)

    def take_output(self) -> bytes:
        """Return the bytes that the layers send themselves."""
        output, self._output = self._output, b""
        return output + self._layers.take_output()

    def note(self, client: Client) -> None:
        """Store the parameters of the layers in ``client``, under the names that Go nsqd uses."""
        client.snappy, client.deflate = self._upgrade.snappy, self._upgrade.deflate
        if self._tls is None:
            return
        client.tls = True
        client.tls_version = self._tls.version.replace("TLSv", "TLS")
        if client.tls_version == "TLS1":
            client.tls_version = "TLS1.0"
        client.tls_cipher_suite = iana_cipher_name(self._tls.cipher)
        client.tls_negotiated_protocol_is_mutual = True
        client.tls_common_name = self._tls.peer_common_name

    def _shake_hands(self, pieces: Iterator[bytes]) -> None:
        assert self._tls is not None
        rest = b"".join(pieces)
        if self._tls.is_done:
            self._output = self._layers.take_output() + self._layers.send(frames.OK)
            self._compress(rest)

    def _compress(self, rest: bytes) -> None:
        """Add the compression layer, if any. ``rest`` is input for it."""
        pieces = iter((rest,))
        if self._upgrade.snappy or self._upgrade.deflate:
            layer = Snappy() if self._upgrade.snappy else Deflate(self._upgrade.deflate_level)
            pieces = self._layers.push(layer, rest)
            self._output += self._layers.send(frames.OK)
        if rest:
            self._pieces = pieces
        self.is_ready = True
