"""Layers between a socket and a protocol: TLS and compression, stacked.

A layer turns bytes into bytes, for a client or a server; it does not know sockets or asyncio. The output of ``unwrap``
is bounded, because a few bytes of compressed data can expand to gigabytes: it returns at most ``limit`` bytes at a time
and reports whether more are left. The reader can close the connection in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

PIECE_SIZE = 256 * 1024


class Layer(Protocol):
    """One layer."""

    @property
    def has_more(self) -> bool:
        """True if ``unwrap(b"", limit)`` would return more of the received data."""

    def wrap(self, data: bytes) -> bytes:
        """Encode ``data`` for the peer."""

    def unwrap(self, data: bytes, limit: int) -> bytes:
        """Decode received bytes; return about ``limit`` bytes at most."""

    def take_output(self) -> bytes:
        """Return bytes that the layer itself sends to its peer, such as a handshake."""


class Layers:
    """A stack of layers; the first is next to the socket."""

    __slots__ = ("_layers", "_piece_size")

    def __init__(self, piece_size: int = PIECE_SIZE) -> None:
        self._layers: list[Layer] = []
        self._piece_size = piece_size

    def push(self, layer: Layer, received: bytes) -> Iterator[bytes]:
        """Add ``layer`` at the end away from the socket; it decodes ``received``, the output of the other layers."""
        self._layers.append(layer)
        return self._unwrap(len(self._layers) - 1, received)

    def send(self, data: bytes) -> bytes:
        """Encode ``data`` for the socket."""
        for layer in reversed(self._layers):
            data = layer.wrap(data)
        return data

    def receive(self, data: bytes) -> Iterator[bytes]:
        """Decode bytes from the socket, in pieces."""
        return self._unwrap(0, data)

    def take_output(self) -> bytes:
        """Return the bytes that the layers themselves send to their peers."""
        output = b""
        for layer in reversed(self._layers):
            if output:
                output = layer.wrap(output)
            output += layer.take_output()
        return output

    def _unwrap(self, depth: int, data: bytes) -> Iterator[bytes]:
        if depth == len(self._layers):
            yield data
            return
        layer = self._layers[depth]
        piece = layer.unwrap(data, self._piece_size)
        while piece or layer.has_more:
            if piece:
                yield from self._unwrap(depth + 1, piece)
            if not layer.has_more:
                return
            piece = layer.unwrap(b"", self._piece_size)
