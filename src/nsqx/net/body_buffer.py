"""A byte string that arrives in pieces and is joined once.

No memory is reserved for an announced size. A client that sends single bytes does not create one object per byte.
"""

from __future__ import annotations

_CRUMB_SIZE = 1024


class BodyBuffer:
    """Collects pieces; ``size`` is their total length."""

    __slots__ = ("_pieces", "_small_pieces", "size")

    def __init__(self) -> None:
        self._pieces: list[bytes | bytearray] = []
        self._small_pieces: bytearray | None = None  # the last piece, while small ones are added to it
        self.size = 0

    def add(self, piece: bytes) -> None:
        self.size += len(piece)
        if len(piece) >= _CRUMB_SIZE:
            self._small_pieces = None
            self._pieces.append(piece)
        elif self._small_pieces is not None:
            self._small_pieces += piece
        else:
            self._small_pieces = bytearray(piece)
            self._pieces.append(self._small_pieces)

    def join(self) -> bytes:
        """Return everything added so far."""
        return b"".join(self._pieces)
