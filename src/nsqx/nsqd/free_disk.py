"""The limit of --min-free-disk: log topics refuse publishes while the disk has less free space than this."""

from __future__ import annotations

import os
from collections.abc import Callable

from nsqx.errors import DiskQueueError
from nsqx.units import NS_PER_S

# The free space is measured again after this time.
_MEASURE_EVERY_NS = NS_PER_S


def low_space(text: str) -> DiskQueueError:
    """Return the error of a disk that is full or nearly full."""
    error = DiskQueueError(text)
    error.is_space_low = True
    return error


class FreeDisk:
    """The free space of a file system, measured at most once a second, and only if there are publishes.

    ``is_low`` is the last result. If the space cannot be measured, it counts as enough: a write will show the error.
    """

    __slots__ = ("_directory", "_free_bytes", "_is_measured", "_least_bytes", "_measured_ns", "_statvfs", "is_low")

    def __init__(
        self, directory: str, least_bytes: int, statvfs: Callable[[str], os.statvfs_result] = os.statvfs
    ) -> None:
        """Check the file system of ``directory``. With 0 ``least_bytes`` there is no limit."""
        self.is_low = False
        self._directory = directory or "."
        self._least_bytes = least_bytes
        self._statvfs = statvfs
        self._free_bytes = 0
        self._is_measured = False
        self._measured_ns = 0

    def refuse_if_low(self, now_ns: int) -> None:
        """Raise DiskQueueError if too little space is free. ``now_ns`` is the time, always by the same clock."""
        if not self._least_bytes:
            return
        # A wall clock may have been set back.
        if not self._is_measured or not 0 <= now_ns - self._measured_ns < _MEASURE_EVERY_NS:
            self._measure()
            self._is_measured = True
            self._measured_ns = now_ns
        if self.is_low:
            raise low_space(f"{self._free_bytes} bytes of disk are free, --min-free-disk is {self._least_bytes}")

    def _measure(self) -> None:
        try:
            found = self._statvfs(self._directory)
        except OSError:
            self.is_low = False
            return
        self._free_bytes = found.f_bavail * found.f_frsize
        self.is_low = self._free_bytes < self._least_bytes
