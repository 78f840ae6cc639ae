"""Garbage collection in Spark's Python workers."""

from __future__ import annotations

import functools
import gc


@functools.cache
def spare_collections() -> None:
    """Exclude all existing objects from garbage collection, once per process.

    Spark's worker runs a full collection after every task. It visits every object, mostly those of imported modules,
    and can take longer than a small task. These objects live as long as the worker, so visiting them is useless.
    """
    gc.freeze()
