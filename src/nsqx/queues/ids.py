"""Message ids: unique per topic, increasing, and available without waiting.

Go nsqd refuses and sleeps if the clock was set back or the sequence of a tick is used up. This source continues with
the number after the last id: the ids are then ahead of the clock until the clock has caught up.
"""

from __future__ import annotations

from nsqx.wire.message import advance_id

# Ticks are 2^20 ns. This is the number of ticks from the Unix epoch to the epoch of NSQ's ids.
_EPOCH_TICK = 1288834974288
MAX_NODE_ID = 1023


class IdSource:
    """The source of the id numbers of one topic (see ``wire.message`` for their layout)."""

    __slots__ = ("_next", "_node_bits")

    def __init__(self, node_id: int) -> None:
        self._node_bits = node_id << 12
        self._next = 0

    def reserve(self, count: int, now_ns: int) -> int:
        """Reserve ``count`` consecutive id numbers and return the first."""
        number = (((now_ns >> 20) - _EPOCH_TICK) << 22) | self._node_bits
        if number < self._next:
            number = self._next
        self._next = advance_id(number, count)
        return number
