"""What is done once in each of Spark's Python workers."""

from __future__ import annotations

import functools
import gc


@functools.cache
def spare_collections() -> None:
    """Make the full garbage collection cheap that Spark's worker does after every task.

    It looks at every object there is, mostly what was imported, and can take longer than a small task. What is there
    now lives as long as the worker, so it need not be looked at again.
    """
    gc.freeze()
