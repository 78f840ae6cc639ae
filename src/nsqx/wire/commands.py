"""Reading commands out of the bytes a client sends, in whatever pieces they come.

A pull parser in the manner of h11: ``feed`` it bytes, ask ``next`` what they hold. It knows the shape of commands and
nothing of their meaning; whoever drives it checks a line before it asks for the body that follows.

      LINE  --expect_body-->  SIZE  --accept_body-->  BODY   (IDENTIFY, AUTH, PUB, DPUB)
      LINE  --expect_body-->  SIZE  --accept_batch->  BATCH  (MPUB)

``FIN`` is most of what consumers send, so a well-formed one is recognised in place and reported as FINISH. A producer
mostly repeats its ``PUB`` line: one that the driver asked to be remembered is, if its body is there in full and within
its limit, reported as PUBLISH without passing the stages.

The outer size of an MPUB is only looked at, as in Go nsqd: where the body ends is decided by its own count and sizes.
"""

from __future__ import annotations

from typing import Final

from nsqx.errors import ProtocolError
from nsqx.wire import byteops

MAX_LINE_LENGTH: Final = 16384  # the newline included

# What ``next`` reports.
NEED_DATA: Final = 0
FINISH: Final = 1
LINE: Final = 2
SIZE: Final = 3
BODY: Final = 4
BATCH: Final = 5
PUBLISH: Final = 6

# The same, typed in the .pxd, as is what follows: the reader's own loop must not touch Python's integers.
_NEED_DATA = NEED_DATA
_FINISH = FINISH
_LINE = LINE
_SIZE = SIZE
_BODY = BODY
_BATCH = BATCH
_PUBLISH = PUBLISH

# What the reader waits for.
_AT_LINE = 0
_AT_SIZE = 1
_AT_DECISION = 2
_AT_BODY = 3
_AT_COUNT = 4
_AT_ITEMS = 5

_FINISH_LENGTH = 21
_MAX_LINE_LENGTH = MAX_LINE_LENGTH


class LineTooLong(Exception):
    """A command line outgrew the limit; NSQ closes such a connection without a word."""


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
        "count",
        "item",
        "message_id",
        "size",
        "words",
    )

    message_id: bytes  # after FINISH
    words: list[bytes]  # after LINE
    size: int  # after SIZE, BODY
    count: int  # after BATCH
    item: bytes  # after PUBLISH: the body with the size before it

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
        self.item = b""
        self.message_id = b""
        self.words = []
        self.size = 0
        self.count = 0

    def feed(self, data: bytes) -> None:
        """Add what the socket gave."""
        if self._position == self._end:
            self._buffer = data
        elif type(self._buffer) is bytearray:
            if self._position:
                del self._buffer[: self._position]
            self._buffer += data
        else:
            # The rest of a chunk: from here on appending is cheap however many chunks a body comes in.
            rest = bytearray(self._buffer[self._position : self._end])
            rest += data
            self._buffer = rest
        self._position = 0
        self._end = len(self._buffer)

    def next(self) -> int:
        """What comes next: FINISH, PUBLISH, LINE, SIZE, BODY, BATCH, or NEED_DATA if it is not there in full."""
        if self._stage == _AT_LINE:
            return self._next_line()
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
        if self._end - position >= _FINISH_LENGTH and byteops.is_finish(self._buffer, position):
            self.message_id = byteops.cut(self._buffer, position + 4, position + 20)
            self._position = position + _FINISH_LENGTH
            return _FINISH
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
        """Take the remembered line and its body if they are at ``position``; anything unusual goes by the stages."""
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
        """Report ``line``, its newline included, as PUBLISH when it comes with a body of 1 to ``max_size`` bytes."""
        self._repeated = line
        self._repeated_limit = max_size

    def expect_body(self) -> None:
        """After LINE: a size and a body follow this command."""
        self._stage = _AT_SIZE

    def accept_body(self) -> None:
        """After SIZE: the size is allowed, read that many bytes."""
        self._stage = _AT_BODY

    def take_body(self) -> bytes:
        """After BODY: the body."""
        start = self._position + 4
        self._position = start + self.size
        self._stage = _AT_LINE
        return byteops.cut(self._buffer, start, self._position)

    def take_item(self) -> bytes:
        """After BODY: the body with the size before it, as in a batch."""
        start = self._position
        self._position = start + 4 + self.size
        self._stage = _AT_LINE
        return byteops.cut(self._buffer, start, self._position)

    def accept_batch(self, max_count: int, max_item_size: int) -> None:
        """After SIZE: read a batch with at most so many messages of at most that size."""
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
        """After BATCH: the ``count`` messages, an int32 size before each."""
        start = self._position
        self._position = start + self._scan
        self._stage = _AT_LINE
        return byteops.cut(self._buffer, start, self._position)

    def take_rest(self) -> bytes:
        """Everything fed and not yet read; for a layer that takes the connection over."""
        rest = byteops.cut(self._buffer, self._position, self._end)
        self._buffer = b""
        self._position = self._end = 0
        return rest

    def missing(self) -> str:
        """What the command under way still lacks, if the client sends no more: "", "size", "body" or batch parts."""
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
        """Within a batch: which message is being read."""
        return self._item_index


def batch_truncation(reader: CommandReader) -> ProtocolError:
    """The error for an MPUB whose bytes end early."""
    missing = reader.missing()
    if missing == "size":
        return ProtocolError("E_BAD_BODY", "MPUB failed to read body size")
    if missing == "count":
        return ProtocolError("E_BAD_BODY", "MPUB failed to read message count")
    if missing == "item size":
        return ProtocolError("E_BAD_MESSAGE", f"MPUB failed to read message({reader.item_index}) body size")
    return ProtocolError("E_BAD_MESSAGE", "MPUB failed to read message body")


def max_batch_count(max_body_size: int) -> int:
    """How many messages a batch can hold: 4 bytes of count, then at least 5 for each."""
    return (max_body_size - 4) // 5


def read_batch(body: bytes, max_body_size: int, max_msg_size: int) -> tuple[bytes, int]:
    """The messages of an MPUB body, an int32 size before each, and how many; what follows them is ignored.

    Raises the ProtocolError that MPUB gives for it.
    """
    reader = CommandReader()
    reader.feed(b"\x00\x00\x00\x00" + body)
    reader.accept_batch(max_batch_count(max_body_size), max_msg_size)
    if reader.next() != BATCH:
        raise batch_truncation(reader)
    return reader.take_batch(), reader.count


def parse_digits(word: bytes) -> int | None:
    """NSQ's decimal numbers: digits only, no sign, nothing is 0, 64 bits that wrap; None for anything else."""
    if not word:
        return 0
    if not word.isdigit():
        return None
    number = 0
    # Digit by digit: int() refuses thousands of them at once, and a line has room for that many.
    for digit in word:
        number = (number * 10 + digit - 48) & 0xFFFFFFFFFFFFFFFF
    return number


def wrap_int64(number: int) -> int:
    """``number`` as Go's int64 arithmetic leaves it."""
    number &= 0xFFFFFFFFFFFFFFFF
    return number - (1 << 64) if number >> 63 else number
