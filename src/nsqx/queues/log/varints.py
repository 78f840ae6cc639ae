"""Numbers of variable size: seven bits per byte, lowest first; the top bit says that more bytes follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqx.queues.files import Buffer


def append_number(out: bytearray, number: int) -> None:
    """Append a number that is not negative."""
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def append_bytes(out: bytearray, data: Buffer) -> None:
    """Append the size of ``data`` and ``data``."""
    append_number(out, len(data))
    out += data


class NumberReader:
    """Reads numbers and bytes in the order in which they were appended. Raises IndexError at the end of the data."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def is_at_end(self) -> bool:
        """True if everything has been read."""
        return self._position >= len(self._data)

    def number(self) -> int:
        """Return the next number."""
        number = shift = 0
        while True:
            byte = self._data[self._position]
            self._position += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7

    def data(self) -> bytes:
        """Return the next bytes, which were appended with their size."""
        size = self.number()
        self._position += size
        if self._position > len(self._data):
            raise IndexError("a value ends after the end of the data")
        return self._data[self._position - size : self._position]

    def rest(self) -> bytes:
        """Return everything that has not been read."""
        start, self._position = self._position, len(self._data)
        return self._data[start:]
