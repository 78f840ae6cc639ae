"""Short garbage collections in a process with many long-lived objects.

A full collection visits every object that is not frozen, and nothing else runs meanwhile: with ten thousand topics that
takes more than 100 ms. Where many objects have survived a full collection they are therefore frozen, so that the next
one visits only what is new. Frozen objects are freed when their last reference goes, as any others; only reference
cycles among them are not found. Topics, channels and connections leave no cycles when they end, and few collections
freeze, so that other objects of the moment hardly ever become frozen garbage.
"""

from __future__ import annotations

import gc
from time import thread_time
from typing import Any

# Python's defaults, but for the last number: a full collection follows every second one of the middle generation, so
# that it has at most some 15,000 new objects to visit.
_THRESHOLDS = (700, 10, 1)
# A full collection that visits so many objects takes a few milliseconds. So does one that visits a single list or dict
# with very many entries, which only the time tells.
_MANY = 10_000
_LONG_S = 0.002

_started_s = 0.0


def keep_collections_short() -> None:
    """Freeze what exists, and from now on what survives a full collection where that is much."""
    gc.set_threshold(*_THRESHOLDS)
    gc.collect()
    gc.freeze()
    # Full collections are put off until there is a quarter more than survived the last one: let that be nothing.
    gc.collect()
    if _freeze_survivors not in gc.callbacks:
        gc.callbacks.append(_freeze_survivors)


def _freeze_survivors(phase: str, info: dict[str, Any]) -> None:
    global _started_s
    if info["generation"] < 2:
        return
    if phase == "start":
        _started_s = thread_time()
    elif thread_time() - _started_s >= _LONG_S or len(gc.get_objects(2)) >= _MANY:
        gc.freeze()
