"""Disk space that is kept free for the exit, when the messages in memory must go to disk.

The space belongs to a file without a name, so nothing is left behind when the process is killed.
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
        """Reserve ``size`` bytes in the file system of ``directory``; raises OSError if it has less."""
        file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115 - open until ``release``
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError:
            file.close()
            raise
        self._file = file

    def release(self) -> None:
        """Give the space back."""
        if self._file is not None:
            self._file.close()
            self._file = None
