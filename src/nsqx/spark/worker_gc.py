"""Garbage collection in Spark's Python workers."""

from __future__ import annotations

import gc
import itertools

# The first task also imports modules after its call. Not in every task, because the garbage of a task would stay too.
_FREEZES = 2
_calls = itertools.count(1)


def spare_collections() -> None:
    """Exclude all existing objects from garbage collection, in the first two tasks of a process.

    Spark's worker runs a full collection after every task. It visits every object, mostly those of imported modules,
    and can take longer than a small task. These objects live as long as the worker, so visiting them is useless.
    """
    if next(_calls) <= _FREEZES:
        gc.freeze()
