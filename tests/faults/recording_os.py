"""Reports the file operations of this process to a ``DiskModel``.

``nsqx.queues.files`` and ``nsqx.queues.failpoints`` change files only by functions of the module ``os``. A
``RecordingOS`` replaces that module in both: it makes every call and reports the change to the model. The hook of
``files`` reports the syncs, because a simulated sync takes time and covers only the changes made before it began.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from disk_model import NOTHING, DiskModel, Image, ModelFile, Node, Survival

from nsqx.queues import failpoints, files
from nsqx.queues.files import Buffer


class RecordingOS:
    """The ``os`` module with file operations that a DiskModel follows."""

    def __init__(self, disk: DiskModel) -> None:
        self._disk = disk
        self._nodes: dict[int, Node] = {}  # by inode

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Follow the operations of the package until the block ends."""
        modules: list[Any] = [files, failpoints]
        for module in modules:
            module.os = self
        try:
            yield
        finally:
            for module in modules:
                module.os = os

    def check(self) -> None:
        """Raise AssertionError if the model has not followed every change."""
        actual, expected = Image.read(self._disk.root), self._disk.present()
        assert sorted(actual.directories) == sorted(expected.directories)
        assert actual.files.keys() == expected.files.keys()
        differing = [path for path, content in actual.files.items() if content != expected.files[path]]
        assert not differing, f"the model missed a change of {differing}"

    # Syncs

    def begin_sync(self, descriptor: int) -> Callable[[], None]:
        """Begin the sync of a file or directory; call the returned function when the sync has succeeded."""
        return self._disk.begin_sync(self._nodes[os.fstat(descriptor).st_ino])

    def fail_sync(self, descriptor: int, survival: Survival = NOTHING) -> None:
        """Fail the sync of a file, which keeps the selected part; a directory keeps its unsynced names."""
        file = self._file(descriptor)
        if file is not None:
            file.fail_sync(survival)

    def fsync(self, descriptor: int) -> None:
        """Do nothing: ``begin_sync`` is the sync of the model."""

    fdatasync = fsync

    # Contents

    def _file(self, descriptor: int) -> ModelFile | None:
        node = self._nodes.get(os.fstat(descriptor).st_ino)
        return node if isinstance(node, ModelFile) else None

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        descriptor = os.open(path, flags, mode)
        node = self._disk.node(path)
        if node is None and flags & os.O_CREAT:
            node = self._disk.create(path)
        if isinstance(node, ModelFile) and flags & os.O_TRUNC:
            node.truncate(0)
        inode = os.fstat(descriptor).st_ino
        if node is not None:
            self._nodes[inode] = node
        else:
            self._nodes.pop(inode, None)  # a removed file had this number before
        return descriptor

    def pwrite(self, descriptor: int, data: Buffer, position: int) -> int:
        return self.pwritev(descriptor, [data], position)

    def pwritev(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> int:
        written = os.pwritev(descriptor, buffers, position)
        file = self._file(descriptor)
        if file is not None:
            file.write(position, b"".join(buffers)[:written])
        return written

    def ftruncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)
        file = self._file(descriptor)
        if file is not None:
            file.truncate(size)

    def posix_fallocate(self, descriptor: int, position: int, size: int) -> None:
        os.posix_fallocate(descriptor, position, size)
        file = self._file(descriptor)
        if file is not None:
            file.allocate(position + size)

    # Names

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)
        self._disk.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)
        self._disk.remove(path)

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        os.mkdir(path, mode)
        self._disk.make_directory(path)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)
        self._disk.remove(path)
