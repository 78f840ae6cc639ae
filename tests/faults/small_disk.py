"""A disk that can be filled: a small tmpfs, half of it taken by a file that can be removed."""

import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

BALLAST = "ballast"


class SmallDisk:
    """A tmpfs mounted at ``directory`` until the block ends."""

    def __init__(self, directory: Path, size_kib: int = 2048) -> None:
        if os.geteuid() != 0:
            pytest.skip("mounting a small tmpfs needs root")
        self._directory = directory
        command = ["mount", "-t", "tmpfs", "-o", f"size={size_kib}k", "tmpfs", str(directory)]
        mounted = subprocess.run(command, capture_output=True, text=True)
        if mounted.returncode != 0:
            pytest.skip(f"cannot mount a tmpfs: {mounted.stderr.strip()}")
        (directory / BALLAST).write_bytes(b"\x00" * (size_kib * 512))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        subprocess.run(["umount", "--lazy", str(self._directory)], check=True, capture_output=True)

    def fill(self) -> None:
        """Take all free space."""
        with (self._directory / "filling").open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(b"\x00" * 4096)
            except OSError:
                pass

    def remount(self, mode: str) -> None:
        """Make the disk read-only (``ro``) or writable (``rw``)."""
        subprocess.run(["mount", "-o", f"remount,{mode}", str(self._directory)], check=True, capture_output=True)

    def make_room(self) -> None:
        """Remove the file that takes half of the disk."""
        (self._directory / BALLAST).unlink()
        (self._directory / "filling").unlink(missing_ok=True)
