"""Reads commands from the bytes that a client sends, in chunks of any size.

A pull parser like h11: ``feed`` adds bytes, ``next`` reports what they contain. It knows the syntax of commands, not
their meaning. The caller checks a line before it requests the body that follows.

      LINE  --expect_body-->  SIZE  --accept_body-->  BODY   (IDENTIFY, AUTH, PUB, DPUB)
      LINE  --expect_body-->  SIZE  --accept_batch->  BATCH  (MPUB)

Consumers send mostly ``FIN``, so a well-formed FIN is recognised directly and reported as FINISH, with the number of
its id. A producer mostly repeats its ``PUB`` line. A line that the caller has passed to ``remember`` is reported as
PUBLISH, without the stages above, if its body is complete and within the limit.

As in Go nsqd, the outer size of an MPUB is only checked. The count and the sizes in the body decide where it ends.
"""

from __future__ import annotations

from typing import Final

from nsqx.errors import ProtocolError
from nsqx.wire import byteops

MAX_LINE_LENGTH: Final = 16384  # including the newline

# The results of ``next``.
NEED_DATA: Final = 0
FINISH: Final = 1
LINE: Final = 2
SIZE: Final = 3
BODY: Final = 4
BATCH: Final = 5
PUBLISH: Final = 6

# The same, typed in the .pxd like the constants below: the reader's loop must not use Python integers.
_NEED_DATA = NEED_DATA
_FINISH = FINISH
_LINE = LINE
_SIZE = SIZE
_BODY = BODY
_BATCH = BATCH
_PUBLISH = PUBLISH

# The part that the reader expects next.
_AT_LINE = 0
_AT_SIZE = 1
_AT_DECISION = 2
_AT_BODY = 3
_AT_COUNT = 4
_AT_ITEMS = 5

_FINISH_LENGTH = 21
_MAX_LINE_LENGTH = MAX_LINE_LENGTH


class LineTooLong(Exception):
    """A command line is longer than the limit; NSQ closes such a connection without an answer."""


class CommandReader:
    """Splits one connection's bytes into command lines and bodies."""

    __slots__ = (
        "_buffer",
        "_end",
        "_item_index",
        "_max_count",
        "_max_item_size",
        "_position",
        "_repeated",
        "_repeated_limit",
        "_scan",
        "_stage",
        "_upper_digits",
        "_upper_number",
        "count",
        "id_number",
        "item",
        "size",
        "words",
    )

    id_number: int  # after FINISH
    words: list[bytes]  # after LINE
    size: int  # after SIZE, BODY
    count: int  # after BATCH
    item: bytes  # after PUBLISH: the body with its size before it

    def __init__(self) -> None:
        self._buffer: bytes | bytearray = b""
        self._position = 0
        self._end = 0
        self._stage = _AT_LINE
        self._scan = 0
        self._item_index = 0
        self._max_count = 0
        self._max_item_size = 0
        self._repeated = b""
        self._repeated_limit = 0
        # The first 8 digits of the id of the last FIN, and their number or -1: they are seldom different for the next.
        self._upper_digits = 0
        self._upper_number = -1
        self.item = b""
        self.id_number = 0
        self.words = []
        self.size = 0
        self.count = 0

    def feed(self, data: bytes) -> None:
        """Add bytes from the socket."""
        if self._position == self._end:
            self._buffer = data
        elif type(self._buffer) is bytearray:
            if self._position:
                del self._buffer[: self._position]
            self._buffer += data
        else:
            # The start of an incomplete command: a bytearray makes appending further chunks cheap.
            rest = bytearray(self._buffer[self._position : self._end])
            rest += data
            self._buffer = rest
        self._position = 0
        self._end = len(self._buffer)

    def next(self) -> int:
        """Return FINISH, PUBLISH, LINE, SIZE, BODY or BATCH, or NEED_DATA if the next part is incomplete."""
        if self._stage == _AT_LINE:
            buffer = self._buffer
            position = self._position
            if self._end - position >= _FINISH_LENGTH and byteops.is_finish(buffer, position):
                if byteops.int64_at(buffer, position + 4) != self._upper_digits:
                    self._upper_digits = byteops.int64_at(buffer, position + 4)
                    self._upper_number = byteops.hex32_at(buffer, position + 4)
                lower_number = byteops.hex32_at(buffer, position + 12)
                if self._upper_number >= 0 and lower_number >= 0:
                    self.id_number = self._upper_number << 32 | lower_number
                    self._position = position + _FINISH_LENGTH
                    return _FINISH
            return self._next_line()
        return self._next_part()

    def _next_part(self) -> int:
        available = self._end - self._position
        if self._stage == _AT_SIZE:
            if available < 4:
                return _NEED_DATA
            self.size = byteops.int32_at(self._buffer, self._position)
            self._stage = _AT_DECISION
            return _SIZE
        if self._stage == _AT_BODY:
            return _NEED_DATA if available < 4 + self.size else _BODY
        if self._stage == _AT_COUNT or self._stage == _AT_ITEMS:
            return self._next_batch()
        raise AssertionError("a size was reported and neither accepted nor refused")

    def _next_line(self) -> int:
        position = self._position
        if self._repeated_limit and self._take_repeated(position):
            return _PUBLISH
        newline = byteops.newline_at(self._buffer, position, self._end)
        if newline < 0:
            if self._end - position >= _MAX_LINE_LENGTH:
                raise LineTooLong
            return _NEED_DATA
        if newline - position >= _MAX_LINE_LENGTH:
            raise LineTooLong
        self._position = newline + 1
        self.words = byteops.cut(self._buffer, position, newline).removesuffix(b"\r").split(b" ")
        return _LINE

    def _take_repeated(self, position: int) -> bool:
        """Take the remembered line and its body if they are at ``position``; False if not, or if they are unusual."""
        if not byteops.begins_with(self._buffer, self._repeated, position, self._end):
            return False
        start = position + len(self._repeated)
        if self._end - start < 4:
            return False
        size = byteops.int32_at(self._buffer, start)
        if size <= 0 or size > self._repeated_limit or self._end - start - 4 < size:
            return False
        self._position = start + 4 + size
        self.item = byteops.cut(self._buffer, start, self._position)
        return True

    def remember(self, line: bytes, max_size: int) -> None:
        """Report ``line`` (with its newline) as PUBLISH if a body of 1 to ``max_size`` bytes follows."""
        self._repeated = line
        self._repeated_limit = max_size

    def expect_body(self) -> None:
        """After LINE: read the size and body that follow this command."""
        self._stage = _AT_SIZE

    def accept_body(self) -> None:
        """After SIZE: accept the size, and read that many bytes."""
        self._stage = _AT_BODY

    def take_body(self) -> bytes:
        """After BODY: return the body."""
        start = self._position + 4
        self._position = start + self.size
        self._stage = _AT_LINE
        return byteops.cut(self._buffer, start, self._position)

    def take_item(self) -> bytes:
        """After BODY: return the body with its size before it, as in a batch."""
        start = self._position
        self._position = start + 4 + self.size
        self._stage = _AT_LINE
        return byteops.cut(self._buffer, start, self._position)

    def accept_batch(self, max_count: int, max_item_size: int) -> None:
        """After SIZE: read a batch of at most ``max_count`` messages of at most ``max_item_size`` bytes."""
        self._position += 4
        self._max_count = max_count
        self._max_item_size = max_item_size
        self._item_index = 0
        self._stage = _AT_COUNT

    def _next_batch(self) -> int:
        if self._stage == _AT_COUNT:
            if self._end - self._position < 4:
                return _NEED_DATA
            self.count = byteops.int32_at(self._buffer, self._position)
            if self.count <= 0 or self.count > self._max_count:
                raise ProtocolError("E_BAD_BODY", f"MPUB invalid message count {self.count}")
            self._position += 4
            self._scan = 0
            self._stage = _AT_ITEMS
        buffer = self._buffer
        start = self._position + self._scan
        end = self._end
        index = self._item_index
        count = self.count
        max_size = self._max_item_size
        while index < count and end - start >= 4:
            size = byteops.int32_at(buffer, start)
            if size <= 0:
                raise ProtocolError("E_BAD_MESSAGE", f"MPUB invalid message({index}) body size {size}")
            if size > max_size:
                raise ProtocolError("E_BAD_MESSAGE", f"MPUB message too big {size} > {max_size}")
            if end - start < 4 + size:
                break
            start += 4 + size
            index += 1
        self._scan = start - self._position
        self._item_index = index
        return _BATCH if index == count else _NEED_DATA

    def take_batch(self) -> bytes:
        """After BATCH: return the ``count`` messages, an int32 size before each."""
        start = self._position
        self._position = start + self._scan
        self._stage = _AT_LINE
        return byteops.cut(self._buffer, start, self._position)

    def take_rest(self) -> bytes:
        """Remove and return the unread bytes, for a layer that takes over the connection."""
        rest = byteops.cut(self._buffer, self._position, self._end)
        self._buffer = b""
        self._position = self._end = 0
        return rest

    def missing(self) -> str:
        """Return the missing part of the current command: "size", "body", "count", "item size", "item body" or ""."""
        available = self._end - self._position
        if self._stage == _AT_SIZE:
            return "size"
        if self._stage == _AT_BODY:
            return "body"
        if self._stage == _AT_COUNT:
            return "count"
        if self._stage == _AT_ITEMS:
            return "item size" if available - self._scan < 4 else "item body"
        return ""

    @property
    def item_index(self) -> int:
        """The index of the message that is being read in a batch."""
        return self._item_index


def batch_truncation(reader: CommandReader) -> ProtocolError:
    """Return the error for a truncated MPUB."""
    missing = reader.missing()
    if missing == "size":
        return ProtocolError("E_BAD_BODY", "MPUB failed to read body size")
    if missing == "count":
        return ProtocolError("E_BAD_BODY", "MPUB failed to read message count")
    if missing == "item size":
        return ProtocolError("E_BAD_MESSAGE", f"MPUB failed to read message({reader.item_index}) body size")
    return ProtocolError("E_BAD_MESSAGE", "MPUB failed to read message body")


def max_batch_count(max_body_size: int) -> int:
    """Return the most messages that fit into a batch: 4 bytes for the count, then at least 5 for each."""
    return (max_body_size - 4) // 5


def read_batch(body: bytes, max_body_size: int, max_msg_size: int) -> tuple[bytes, int]:
    """Return the messages of an MPUB body, an int32 size before each, and their number; bytes after them are ignored.

    Raises the ProtocolError of MPUB if the body is invalid.
    """
    reader = CommandReader()
    reader.feed(b"\x00\x00\x00\x00" + body)
    reader.accept_batch(max_batch_count(max_body_size), max_msg_size)
    if reader.next() != BATCH:
        raise batch_truncation(reader)
    return reader.take_batch(), reader.count


def parse_digits(word: bytes) -> int | None:
    """Parse a decimal number as NSQ does: digits only, empty is 0, wraps at 64 bits; None if it is invalid."""
    if not word:
        return 0
    if not word.isdigit():
        return None
    number = 0
    # Digit by digit, because int() refuses thousands of digits, which a line has room for.
    for digit in word:
        number = (number * 10 + digit - 48) & 0xFFFFFFFFFFFFFFFF
    return number


def wrap_int64(number: int) -> int:
    """Wrap ``number`` like Go's int64 arithmetic."""
    number &= 0xFFFFFFFFFFFFFFFF
    return number - (1 << 64) if number >> 63 else number
