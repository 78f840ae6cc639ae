"""Replacing a file as a whole: after a crash it has either its old or its new content."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable


def replace_file(path: str, pieces: Iterable[bytes]) -> None:
    """Write a file and sync it, then rename it into place; creates its directory. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        os.makedirs(os.path.dirname(os.path.abspath(path)), mode=0o700)
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def set_aside(path: str) -> str:
    """Rename a damaged file, replacing an earlier one, and return its new path."""
    aside = f"{path}.invalid"
    with contextlib.suppress(OSError):
        os.replace(path, aside)
    return aside
