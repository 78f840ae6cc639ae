"""Keeps garbage collections short in a process with many long-lived objects.

A full collection visits every object that is not frozen and blocks the process: more than 100 ms with ten thousand
topics. Therefore objects are frozen after a full collection that many of them survive, and the next one visits only new
objects. A frozen object is still freed with its last reference; only reference cycles of frozen objects leak. Topics,
channels and connections leave no cycles when they end. Few collections freeze, so few short-lived objects are frozen by
accident.
"""

from __future__ import annotations

import gc
from time import thread_time
from typing import Any

# Python's defaults, except for the last: a full collection follows every second one of the middle generation, so that
# it has at most about 15,000 new objects to visit.
_THRESHOLDS = (700, 10, 1)
# A full collection of this many objects takes a few milliseconds. One very large list or dict takes as long; only the
# duration reveals that case.
_MANY = 10_000
_LONG_S = 0.002

_started_s = 0.0


def keep_collections_short() -> None:
    """Freeze all existing objects, and later the survivors of every full collection that visits many objects."""
    gc.set_threshold(*_THRESHOLDS)
    gc.collect()
    gc.freeze()
    # Python postpones a full collection until the new objects exceed a quarter of the last survivors. This second
    # collection leaves no survivors, so that the rule does not apply.
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
