"""File operations: every operation that reads or changes the broker's files goes through this module.

Each call names the kind of its file. Kind and operation together are a failpoint, such as ``data.write`` or
``meta.rename``. If a hook is set, it is called before every operation. It can make the operation fail or do half of it,
wait, or end the process (see ``failpoints``). Without a hook this costs one comparison per operation, and operations
are per batch, never per message.

A rename or a new file survives a power cut only after its directory is synced too. Go nsqd does not do that.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from typing import NamedTuple

# Kinds of files: records, checksums, positions, due times, topics and channels, and directories.
DATA, SUMS, META, DUE, NSQD, DIRECTORY = "data", "sums", "meta", "due", "nsqd", "directory"
# Kinds of files of topic logs: commit files, segments with the identity of their log, and indexes of segments.
COMMIT, SEGMENT, INDEX = "commit", "segment", "index"
# Parts of transactions that are not committed yet.
STAGE = "stage"
KINDS = (DATA, SUMS, META, DUE, NSQD, DIRECTORY, COMMIT, SEGMENT, INDEX, STAGE)
OPEN, READ, WRITE, CUT, SYNC, RENAME, UNLINK = "open", "read", "write", "cut", "sync", "rename", "unlink"
WRITEV, DATASYNC, PREALLOCATE, MAKE, REMOVE = "writev", "datasync", "preallocate", "make", "remove"
OPERATIONS = (
    OPEN, READ, WRITE, CUT, SYNC, RENAME, UNLINK, WRITEV, DATASYNC, PREALLOCATE, MAKE, REMOVE,
)  # fmt: skip
_MAX_BUFFERS = 1024  # in one pwritev: IOV_MAX of Linux

Buffer = bytes | bytearray | memoryview


class FileOperation(NamedTuple):
    """An operation that is about to run. Writes and syncs have a descriptor, the others a path."""

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
    """Call ``hook`` before every operation from now on; None removes the hook."""
    global _hook
    _hook = hook


def open_file(kind: str, path: str, flags: int) -> int:
    """Open a file and return its descriptor; a new file is accessible to its owner only."""
    if _hook is not None:
        _hook(FileOperation(kind, OPEN, path))
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def read_at(kind: str, descriptor: int, size: int, position: int) -> bytes:
    """Return up to ``size`` bytes at ``position``; fewer at the end of the file."""
    if _hook is not None:
        _hook(FileOperation(kind, READ, descriptor=descriptor, position=position))
    return os.pread(descriptor, size, position)


def read_file(kind: str, path: str, size: int = -1) -> bytes:
    """Return the content of a file, or its first ``size`` bytes."""
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


def write_buffers(kind: str, descriptor: int, buffers: Sequence[Buffer], position: int) -> None:
    """Write all bytes of ``buffers``, one after the other, at ``position``."""
    if _hook is not None:
        _hook(FileOperation(kind, WRITEV, descriptor=descriptor, data=b"".join(buffers), position=position))
    start = 0
    while start < len(buffers):
        part = buffers[start : start + _MAX_BUFFERS] if len(buffers) > _MAX_BUFFERS else buffers
        size = 0
        for buffer in part:
            size += len(buffer)
        written = os.pwritev(descriptor, part, position)
        if written < size:
            rest = memoryview(b"".join(part))
            while written < size:
                written += os.pwrite(descriptor, rest[written:], position + written)
        position += size
        start += _MAX_BUFFERS


def preallocate(kind: str, descriptor: int, size: int) -> None:
    """Reserve the space of the first ``size`` bytes of a file; a shorter file is filled with zeros."""
    if _hook is not None:
        _hook(FileOperation(kind, PREALLOCATE, descriptor=descriptor, position=size))
    os.posix_fallocate(descriptor, 0, size)


def cut_file(kind: str, descriptor: int, length: int) -> None:
    """Truncate a file to ``length`` bytes."""
    if _hook is not None:
        _hook(FileOperation(kind, CUT, descriptor=descriptor, position=length))
    os.ftruncate(descriptor, length)


def sync_file(kind: str, descriptor: int) -> None:
    """Make the content of a file durable. Times and permissions of data files are not needed, so they may follow."""
    if _hook is not None:
        _hook(FileOperation(kind, SYNC, descriptor=descriptor))
    if kind == DATA:
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)


def sync_data(kind: str, descriptor: int) -> None:
    """Make the bytes and the size of a file durable, but not its times."""
    if _hook is not None:
        _hook(FileOperation(kind, DATASYNC, descriptor=descriptor))
    os.fdatasync(descriptor)


def rename(kind: str, source: str, target: str) -> None:
    """Rename a file, replacing an existing ``target``."""
    if _hook is not None:
        _hook(FileOperation(kind, RENAME, source))
    os.rename(source, target)


def remove_if_there(kind: str, path: str) -> None:
    """Remove a file if it exists."""
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


def make_directory(path: str) -> None:
    """Create a directory if it does not exist, accessible to its owner only."""
    if _hook is not None:
        _hook(FileOperation(DIRECTORY, MAKE, path))
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass


def remove_directory(path: str) -> None:
    """Remove an empty directory."""
    if _hook is not None:
        _hook(FileOperation(DIRECTORY, REMOVE, path))
    os.rmdir(path)


def replace_file(path: str, data: bytes, kind: str = NSQD, *, is_durable: bool = True) -> None:
    """Replace ``path`` atomically: a crash leaves the old or the new file. Durable unless ``is_durable`` is False."""
    temporary = write_temporary(path, data, kind, is_durable=is_durable)
    try:
        rename(kind, temporary, path)
    except OSError:
        remove_if_there(kind, temporary)
        raise
    if is_durable:
        sync_directory(os.path.dirname(path))


def write_temporary(path: str, data: bytes, kind: str, *, is_durable: bool = True) -> str:
    """Write a file that will be renamed to ``path``, and return its name; on failure the file is removed."""
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
