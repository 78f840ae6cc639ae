"""Layers between a socket and a protocol: TLS and compression, stacked.

A layer only turns bytes into bytes; it knows neither sockets nor asyncio, and serves a client's side and a server's
alike. What comes out of ``unwrap`` is bounded: a few bytes of compressed data may stand for gigabytes, so it gives at
most ``limit`` bytes at a time and says whether there are more. Whoever reads them can refuse in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

PIECE_SIZE = 256 * 1024


class Layer(Protocol):
    """One layer."""

    @property
    def has_more(self) -> bool:
        """True if ``unwrap(b"", limit)`` would give more of what was received."""

    def wrap(self, data: bytes) -> bytes:
        """What to send in order to say ``data``."""

    def unwrap(self, data: bytes, limit: int) -> bytes:
        """What the peer said, by all that was received; about ``limit`` bytes at most."""

    def take_output(self) -> bytes:
        """What this layer itself has to say to its peer."""


class Layers:
    """A stack of layers, the one next to the socket first."""

    __slots__ = ("_layers", "_piece_size")

    def __init__(self, piece_size: int = PIECE_SIZE) -> None:
        self._layers: list[Layer] = []
        self._piece_size = piece_size

    def push(self, layer: Layer, received: bytes) -> Iterator[bytes]:
        """Put ``layer`` on top, away from the socket; what the others have let through already is now its to read."""
        self._layers.append(layer)
        return self._unwrap(len(self._layers) - 1, received)

    def send(self, data: bytes) -> bytes:
        """What the socket is to send in order to say ``data``."""
        for layer in reversed(self._layers):
            data = layer.wrap(data)
        return data

    def receive(self, data: bytes) -> Iterator[bytes]:
        """What the peer said, in pieces, by what the socket received."""
        return self._unwrap(0, data)

    def take_output(self) -> bytes:
        """What the layers themselves have to say to their peers."""
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
