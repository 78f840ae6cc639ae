"""Keeps memory that the process frees, because a daemon under load needs it again at once.

The allocator of glibc returns free memory at the end of the heap to the kernel as soon as there are more than 128 KiB,
and takes large blocks from the kernel one by one. Output buffers of consumers grow and shrink by more than that in
every turn of the event loop. The kernel then clears the same pages again and again: a quarter of the broker's CPU time
with ten channels.
"""

from __future__ import annotations

import ctypes

# Parameters of mallopt in <malloc.h>.
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3

# So much free memory at the end of the heap is kept.
_KEPT_SIZE = 64 * 1024 * 1024
# The heap grows by so much at a time.
_GROWTH_SIZE = 4 * 1024 * 1024
# Smaller blocks are taken from the heap.
_LARGE_SIZE = 8 * 1024 * 1024


def keep_freed_memory() -> bool:
    """Set the limits of the allocator; return False, and change nothing, if it is not that of glibc."""
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018  (only glibc has it)
        mallopt = library.mallopt
    except (AttributeError, OSError, TypeError):
        return False
    sizes = {_M_TRIM_THRESHOLD: _KEPT_SIZE, _M_TOP_PAD: _GROWTH_SIZE, _M_MMAP_THRESHOLD: _LARGE_SIZE}
    return all(mallopt(parameter, size) == 1 for parameter, size in sizes.items())
