"""The broker's one way to its files: every operation that changes or reads them goes through here.

Each call names the kind of file it is about. Kind and operation together are a failpoint, such as ``data.write`` or
``meta.rename``: a hook that is set is told of every operation before it happens, and may fail it, do half of it, wait,
or end the process (see ``failpoints``). Without a hook that costs one comparison for each operation, and operations
are per batch, never per message.

A rename or a new file survives a power cut only once its directory is synced too; Go nsqd leaves that out.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from typing import NamedTuple

# Kinds of files: records, their checksums, positions, due times, topics and channels, and the directory of them all.
DATA, SUMS, META, DUE, NSQD, DIRECTORY = "data", "sums", "meta", "due", "nsqd", "directory"
KINDS = (DATA, SUMS, META, DUE, NSQD, DIRECTORY)
OPEN, READ, WRITE, CUT, SYNC, RENAME, UNLINK = "open", "read", "write", "cut", "sync", "rename", "unlink"
OPERATIONS = (OPEN, READ, WRITE, CUT, SYNC, RENAME, UNLINK)

Buffer = bytes | bytearray | memoryview


class FileOperation(NamedTuple):
    """What is about to be done. Writes and syncs have a descriptor, the others a path."""

    kind: str
    name: str
    path: str = ""
    descriptor: int = -1
    data: Buffer = b""
    position: int = 0

    @property
    def point(self) -> str:
        """The name of the failpoint."""
        return f"{self.kind}.{self.name}"


Hook = Callable[[FileOperation], object]

_hook: Hook | None = None


def set_hook(hook: Hook | None) -> None:
    """Tell ``hook`` of every operation from now on, or nobody."""
    global _hook
    _hook = hook


def open_file(kind: str, path: str, flags: int) -> int:
    """A descriptor of the file, made for its owner only if it is new."""
    if _hook is not None:
        _hook(FileOperation(kind, OPEN, path))
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def read_at(kind: str, descriptor: int, size: int, position: int) -> bytes:
    """Up to ``size`` bytes; fewer at the end of the file."""
    if _hook is not None:
        _hook(FileOperation(kind, READ, descriptor=descriptor, position=position))
    return os.pread(descriptor, size, position)


def read_file(kind: str, path: str, size: int = -1) -> bytes:
    """All of a file, or its first ``size`` bytes."""
    if _hook is not None:
        _hook(FileOperation(kind, READ, path))
    with open(path, "rb") as file:
        return file.read(size)


def write_all(kind: str, descriptor: int, data: Buffer, position: int) -> None:
    """Write all of ``data`` at ``position``."""
    if _hook is not None:
        _hook(FileOperation(kind, WRITE, descriptor=descriptor, data=data, position=position))
    written = os.pwrite(descriptor, data, position)
    if written == len(data):
        return
    view = memoryview(data)
    while written < len(view):
        written += os.pwrite(descriptor, view[written:], position + written)


def cut_file(kind: str, descriptor: int, length: int) -> None:
    """Leave the first ``length`` bytes of a file."""
    if _hook is not None:
        _hook(FileOperation(kind, CUT, descriptor=descriptor, position=length))
    os.ftruncate(descriptor, length)


def sync_file(kind: str, descriptor: int) -> None:
    """Make the bytes of a file durable."""
    if _hook is not None:
        _hook(FileOperation(kind, SYNC, descriptor=descriptor))
    os.fsync(descriptor)


def rename(kind: str, source: str, target: str) -> None:
    """Give a file another name, replacing what has it."""
    if _hook is not None:
        _hook(FileOperation(kind, RENAME, source))
    os.rename(source, target)


def remove_if_there(kind: str, path: str) -> None:
    """Remove a file that may be gone already."""
    if _hook is not None:
        _hook(FileOperation(kind, UNLINK, path))
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def sync_directory(path: str) -> None:
    """Make the entries of a directory durable."""
    descriptor = open_file(DIRECTORY, path or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync_file(DIRECTORY, descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: str, data: bytes, kind: str = NSQD, *, is_durable: bool = True) -> None:
    """Put ``data`` at ``path`` so that a crash leaves the old file or the new one; durably, unless told otherwise."""
    temporary = write_temporary(path, data, kind, is_durable=is_durable)
    try:
        rename(kind, temporary, path)
    except OSError:
        remove_if_there(kind, temporary)
        raise
    if is_durable:
        sync_directory(os.path.dirname(path))


def write_temporary(path: str, data: bytes, kind: str, *, is_durable: bool = True) -> str:
    """Write a file to be renamed to ``path``, synced if it must be durable; its name. Leaves nothing on failure."""
    temporary = f"{path}.{secrets.randbits(63)}.tmp"
    descriptor = open_file(kind, temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        try:
            write_all(kind, descriptor, data, 0)
            if is_durable:
                sync_file(kind, descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        remove_if_there(kind, temporary)
        raise
    return temporary


if "NSQX_FAILPOINTS" in os.environ:
    from nsqx.queues.failpoints import failpoints_of

    set_hook(failpoints_of(os.environ["NSQX_FAILPOINTS"]))
