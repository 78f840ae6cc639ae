"""The file operations that durability rests on, in one place.

A rename or a new file survives a power cut only once its directory is synced too; Go nsqd leaves that out.
"""

from __future__ import annotations

import os
import secrets


def sync_directory(path: str) -> None:
    """Make the entries of a directory durable."""
    descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes | bytearray | memoryview, position: int) -> None:
    """Write all of ``data`` at ``position``."""
    written = os.pwrite(descriptor, data, position)
    if written == len(data):
        return
    view = memoryview(data)
    while written < len(view):
        written += os.pwrite(descriptor, view[written:], position + written)


def replace_file(path: str, data: bytes, *, is_durable: bool = True) -> None:
    """Put ``data`` at ``path`` so that a crash leaves the old file or the new one; durably, unless told otherwise."""
    temporary = write_temporary(path, data, is_durable=is_durable)
    try:
        os.rename(temporary, path)
    except OSError:
        remove_if_there(temporary)
        raise
    if is_durable:
        sync_directory(os.path.dirname(path))


def write_temporary(path: str, data: bytes, *, is_durable: bool = True) -> str:
    """Write a file to be renamed to ``path``, synced if it must be durable; its name. Leaves nothing on failure."""
    temporary = f"{path}.{secrets.randbits(63)}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            write_all(descriptor, data, 0)
            if is_durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        remove_if_there(temporary)
        raise
    return temporary


def remove_if_there(path: str) -> None:
    """Remove a file that may be gone already."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
