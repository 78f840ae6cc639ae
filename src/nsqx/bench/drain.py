"""The consuming loop: parses frames, returns one FIN for each message, and measures how late each message is.

This is the hot module of the load generator. It knows frames and nothing of sockets. The body of a timed message starts
with the time, in nanoseconds of the local monotonic clock, at which it should have been published or is due.
"""

from __future__ import annotations

from array import array

from nsqx.bench.failure import BenchFailed
from nsqx.wire import byteops, encode
from nsqx.wire.requests import NOP
from nsqx.wire.responses import ERROR, HEARTBEAT, MESSAGE, NEED_DATA, FrameReader

# Typed in the .pxd for the loop of ``take``.
_NEED_DATA = NEED_DATA
_MESSAGE = MESSAGE


class Drain:
    """Counts and finishes the messages of one connection, and optionally measures their lateness."""

    __slots__ = ("_answers", "_is_timed", "_reader", "count", "lateness_ns")

    count: int
    lateness_ns: array[int]

    def __init__(self, is_timed: bool = False) -> None:
        self.count = 0
        self.lateness_ns = array("q")
        self._is_timed = is_timed
        self._reader = FrameReader()
        self._answers = bytearray()

    def take(self, data: bytes, now_ns: int) -> bytearray:
        """Count the messages in ``data`` and return the commands to send."""
        reader = self._reader
        reader.feed(data)
        self._answers = answers = bytearray()
        while True:
            event = reader.next()
            if event == _MESSAGE:
                self.count += 1
                encode.append_finish(answers, reader.message_id())
                if self._is_timed:
                    self.lateness_ns.append(now_ns - byteops.int64_at(reader.message_body(), 0))
            elif event == _NEED_DATA:
                return answers
            else:
                self._take_other(event)

    def _take_other(self, event: int) -> None:
        if event == ERROR:
            raise BenchFailed(f"the broker answered {self._reader.data.decode(errors='replace')}")
        if event == HEARTBEAT:
            self._answers += NOP
