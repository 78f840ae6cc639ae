"""A byte string that arrives in pieces and is joined once.

Nothing is allocated ahead for what was announced, and a sender of single bytes cannot make one object of each.
"""

from __future__ import annotations

_CRUMB_SIZE = 1024


class BodyBuffer:
    """Collects pieces; ``size`` is their length together."""

    __slots__ = ("_crumbs", "_pieces", "size")

    def __init__(self) -> None:
        self._pieces: list[bytes | bytearray] = []
        self._crumbs: bytearray | None = None  # the last piece, while small ones are added to it
        self.size = 0

    def add(self, piece: bytes) -> None:
        self.size += len(piece)
        if len(piece) >= _CRUMB_SIZE:
            self._crumbs = None
            self._pieces.append(piece)
        elif self._crumbs is not None:
            self._crumbs += piece
        else:
            self._crumbs = bytearray(piece)
            self._pieces.append(self._crumbs)

    def join(self) -> bytes:
        """Everything added so far."""
        return b"".join(self._pieces)
