"""Message ids: unique per topic, ever growing, and never waited for.

Where Go nsqd refuses and sleeps (clock stepped back, sequence used up within a tick) this source goes on counting
from the last id it gave: the ids then run ahead of the clock until the clock has caught up.
"""

from __future__ import annotations

from nsqx.wire.message import advance_id

# Ticks are 2^20 ns; this many lie between the Unix epoch and the epoch of NSQ's ids.
_EPOCH_TICK = 1288834974288
MAX_NODE_ID = 1023


class IdSource:
    """Gives out the id numbers of one topic (see ``wire.message`` for their layout)."""

    __slots__ = ("_next", "_node_bits")

    def __init__(self, node_id: int) -> None:
        self._node_bits = node_id << 12
        self._next = 0

    def reserve(self, count: int, now_ns: int) -> int:
        """The first of ``count`` consecutive id numbers that nobody else gets."""
        number = (((now_ns >> 20) - _EPOCH_TICK) << 22) | self._node_bits
        if number < self._next:
            number = self._next
        self._next = advance_id(number, count)
        return number
