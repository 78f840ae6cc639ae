"""Disk space that is reserved for the exit, when messages in memory are written to disk.

The space belongs to an unnamed file, so the file system frees it when the process is killed.
"""

from __future__ import annotations

import os
import tempfile
from typing import IO


class DiskReserve:
    """Holds disk space from ``take`` to ``release``."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None

    def take(self, directory: str, size: int) -> None:
        """Reserve ``size`` bytes in the file system of ``directory``; raises OSError if there is not enough space."""
        file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115 - open until ``release``
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError:
            file.close()
            raise
        self._file = file

    def release(self) -> None:
        """Free the reserved space."""
        if self._file is not None:
            self._file.close()
            self._file = None
