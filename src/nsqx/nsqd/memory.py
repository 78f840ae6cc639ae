"""The memory section of /stats and statsd: numbers of CPython, under the names that nsqd gives to Go's heap.

| name                     | here                                                                        |
|--------------------------|-----------------------------------------------------------------------------|
| heap_objects             | memory blocks that the object allocator has handed out                      |
| heap_in_use_bytes        | resident memory of the process (0 where the system has no /proc)            |
| gc_pause_usec_100/99/95  | the longest, 99th and 95th percentile of the last 256 garbage collections   |
| gc_total_runs            | garbage collections of every generation since the process started           |
| heap_idle_bytes, heap_released_bytes, next_gc_bytes | 0: CPython keeps no such numbers                 |

Reading them is cheap: no objects are traversed.
"""

import gc
import os
import sys
import time
from collections import deque
from typing import Any, TypedDict

# As many pauses as Go's runtime keeps.
REMEMBERED_PAUSES = 256


class MemoryStats(TypedDict):
    """The memory section of /stats, in the order of Go's nsqd."""

    heap_objects: int
    heap_idle_bytes: int
    heap_in_use_bytes: int
    heap_released_bytes: int
    gc_pause_usec_100: int
    gc_pause_usec_99: int
    gc_pause_usec_95: int
    next_gc_bytes: int
    gc_total_runs: int


class MemoryMonitor:
    """Measures garbage collections from ``start`` to ``stop``; ``stats`` reads the other numbers."""

    def __init__(self) -> None:
        self._pauses_ns: deque[int] = deque(maxlen=REMEMBERED_PAUSES)
        self._collection_started_ns = 0

    def start(self) -> None:
        """Start measuring; call it once."""
        gc.callbacks.append(self._collecting)

    def stop(self) -> None:
        """Stop measuring; no-op if not started."""
        if self._collecting in gc.callbacks:
            gc.callbacks.remove(self._collecting)

    def stats(self) -> MemoryStats:
        """Return the current numbers."""
        pauses_ns = sorted(self._pauses_ns)
        return {
            "heap_objects": sys.getallocatedblocks(),
            "heap_idle_bytes": 0,
            "heap_in_use_bytes": resident_bytes(),
            "heap_released_bytes": 0,
            "gc_pause_usec_100": percentile(100, pauses_ns) // 1000,
            "gc_pause_usec_99": percentile(99, pauses_ns) // 1000,
            "gc_pause_usec_95": percentile(95, pauses_ns) // 1000,
            "next_gc_bytes": 0,
            "gc_total_runs": sum(generation["collections"] for generation in gc.get_stats()),
        }

    def _collecting(self, phase: str, _info: dict[str, Any]) -> None:
        if phase == "start":
            self._collection_started_ns = time.perf_counter_ns()
        elif self._collection_started_ns:
            self._pauses_ns.append(time.perf_counter_ns() - self._collection_started_ns)


def percentile(percent: int, ascending: list[int]) -> int:
    """Return the value at ``percent`` of a sorted list, with nsqd's rounding of the index; 0 for an empty list."""
    if not ascending:
        return 0
    return ascending[min(int(percent / 100 * len(ascending) + 0.5), len(ascending) - 1)]


def resident_bytes() -> int:
    """Return the resident memory of the process; 0 where the system has no /proc."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
