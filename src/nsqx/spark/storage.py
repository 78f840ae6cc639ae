"""The storage of a segment directory: a local directory, or remote storage that all machines of a cluster can read.

The source depends on one guarantee: when ``write`` returns, the file is complete and survives a crash, and before that
no reader sees it. Knows nothing of the content of the files.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.fs as pafs

from nsqx.errors import ConfigError
from nsqx.spark.exclusive_create import CreateOnce, exclusive_creation
from nsqx.spark.lease import DirectoryInUse, owner_text, take_lease
from nsqx.spark.s3_urls import for_python

LOCK_NAME = "lock"
STATE_NAME = "state.json"
_LATEST_STATE_NAME = "state.latest"
_TEMPORARY_SUFFIX = ".tmp"
_URI = re.compile(r"([a-z][a-z0-9+.-]+)://", re.IGNORECASE)

Fill = Callable[[Any], None]
"""Writes the content of a file to a stream."""


class StorageUnusable(ConfigError):
    """A location cannot be used; ``problem`` has the location and the reason."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"nsq: segmentDir {problem}")
        self.problem = problem


class Lock(Protocol):
    """The lock of a directory, and a record that only the holder of the lock can replace."""

    # True once another process has taken over, which is possible only on remote storage.
    is_lost: bool

    @property
    def epoch(self) -> int:
        """The number of this holder, if the lock can be lost: later holders have higher epochs. Otherwise 0."""

    def load(self) -> dict[str, Any]:
        """Return the record; empty if there is none."""

    def save(self, record: dict[str, Any]) -> None:
        """Replace the record durably; raises LeaseLost if another process has taken over."""

    def advance(self, record: dict[str, Any]) -> None:
        """Replace the record, on local storage without a sync; raises LeaseLost if another process has taken over."""

    def verify(self) -> None:
        """Raise LeaseLost if another process has taken over."""

    def release(self) -> None:
        """Release the lock."""


class Storage(Protocol):
    """A flat directory of files."""

    location: str
    is_local: bool

    def create(self) -> None:
        """Create the directory if it does not exist; raises StorageUnusable."""

    def names(self, folder: str = "") -> list[str]:
        """Return the names of all complete files of the directory or of a folder in it; nothing if it is missing."""

    def write(self, name: str, fill: Fill) -> None:
        """Create or replace a file durably and atomically."""

    def open(self, name: str) -> Any:
        """Open a file for reading with pyarrow; raises FileNotFoundError."""

    def read(self, name: str) -> bytes:
        """Return the content of a small file; raises FileNotFoundError."""

    def delete(self, name: str) -> None:
        """Remove a file; no-op if it does not exist."""

    def lock(self, wait_s: float) -> Lock:
        """Lock the directory against all other processes; raises DirectoryInUse if another one holds it.

        If the lock is a lease whose holder does not renew it, this waits longer than ``wait_s``.
        """


def open_storage(location: str) -> Storage:
    """Return the storage for a path or URI; raises ConfigError."""
    location = for_python(location)
    match = _URI.match(location)
    if match is None:
        return LocalStorage(os.path.abspath(os.path.expanduser(location)))
    if match[1].lower() == "file":
        return LocalStorage(os.path.abspath(re.sub(r"^file://[^/]*", "", location, flags=re.IGNORECASE)))
    return RemoteStorage(location, *remote_filesystem(location))


def remote_filesystem(uri: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system for a URI, and the path in it; raises StorageUnusable."""
    try:
        filesystem, path = pafs.FileSystem.from_uri(uri)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        try:
            import fsspec
        except ImportError:
            raise StorageUnusable(f"{uri}: {error}; pip install fsspec may help") from None
        try:
            scheme, _, path = uri.partition("://")
            return pafs.PyFileSystem(pafs.FSSpecHandler(fsspec.filesystem(scheme))), path
        except (ImportError, ValueError, OSError) as other:
            raise StorageUnusable(f"{uri}: {other}") from None
    return filesystem, path


class LocalStorage:
    """A directory in the local file system."""

    is_local = True

    def __init__(self, path: str) -> None:
        self.location = path

    def create(self) -> None:
        """Create the directory, and sync its entry in the parent directory."""
        try:
            os.makedirs(self.location, exist_ok=True)
            _sync(os.path.dirname(self.location))
        except OSError as error:
            raise StorageUnusable(f"{self.location} cannot be used: {error.strerror}") from None

    def names(self, folder: str = "") -> list[str]:
        """Return the names of all complete files."""
        try:
            listed = os.listdir(os.path.join(self.location, folder))
            return [name for name in listed if not name.endswith(_TEMPORARY_SUFFIX)]
        except FileNotFoundError:
            return []

    def write(self, name: str, fill: Fill) -> None:
        """Write a temporary file, fsync it, rename it, fsync the directory."""
        path = os.path.join(self.location, name)
        temporary = path + _TEMPORARY_SUFFIX
        try:
            with pa.OSFile(temporary, "wb") as stream:
                fill(stream)
            _sync(temporary)
            os.rename(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        _sync(self.location)

    def open(self, name: str) -> Any:
        """Open the file as a memory map."""
        return pa.memory_map(os.path.join(self.location, name))

    def read(self, name: str) -> bytes:
        """Return the content of a small file; raises FileNotFoundError."""
        with open(os.path.join(self.location, name), "rb") as stream:
            return stream.read()

    def delete(self, name: str) -> None:
        """Remove a file."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.location, name))

    def lock(self, wait_s: float) -> Lock:
        """Lock the directory with flock, which the operating system releases when the process ends or crashes."""
        path = os.path.join(self.location, LOCK_NAME)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        until_s = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() < until_s:
                    time.sleep(0.05)
                    continue
                holder = os.pread(descriptor, 1000, 0).decode(errors="replace").strip()
                os.close(descriptor)
                raise DirectoryInUse(self.location, holder) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, owner_text().encode(), 0)
        for name in os.listdir(self.location):
            if name.endswith(_TEMPORARY_SUFFIX):
                self.delete(name)
        return _FileLock(self, descriptor)


class _FileLock:
    """An flock, and the record in two files: a durable one, and a newer one that is not synced."""

    is_lost = False
    epoch = 0

    def __init__(self, storage: LocalStorage, descriptor: int) -> None:
        self._storage = storage
        self._descriptor = descriptor
        self._latest = -1
        self._serial = 0

    def load(self) -> dict[str, Any]:
        """Return the newer of the two records."""
        record = self._read(STATE_NAME)
        if record is None:
            raise ConfigError(
                f"nsq: {STATE_NAME} in segmentDir {self._storage.location} is not a JSON object: restore that file, or"
                " set segmentDir to an empty directory"
            )
        latest = self._read(_LATEST_STATE_NAME) or {}
        if latest.get("identity") == record.get("identity") and latest.get("serial", 0) > record.get("serial", 0):
            record = latest
        self._serial = record.pop("serial", 0)
        return record

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            found = json.loads(self._storage.read(name))
        except FileNotFoundError:
            return {}
        except ValueError:
            return None
        return found if isinstance(found, dict) else None

    def save(self, record: dict[str, Any]) -> None:
        """Replace the durable record."""
        content = self._encode(record)
        self._storage.write(STATE_NAME, lambda stream: stream.write(content))

    def advance(self, record: dict[str, Any]) -> None:
        """Replace the newer record in place, without a sync."""
        if self._latest < 0:
            path = os.path.join(self._storage.location, _LATEST_STATE_NAME)
            self._latest = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        content = self._encode(record)
        os.pwrite(self._latest, content.ljust(os.fstat(self._latest).st_size), 0)

    def _encode(self, record: dict[str, Any]) -> bytes:
        self._serial += 1
        return json.dumps({**record, "serial": self._serial}).encode()

    def verify(self) -> None:
        """No-op: the operating system keeps the lock as long as the process lives."""

    def release(self) -> None:
        """Release the lock."""
        for descriptor in (self._latest, self._descriptor):
            if descriptor >= 0:
                os.close(descriptor)
        self._latest = self._descriptor = -1


class RemoteStorage:
    """A directory in one of pyarrow's file systems, such as HDFS or S3.

    Object stores show a file only when it is complete. On other storage, a temporary file is written and renamed. The
    lock is a lease.
    """

    is_local = False
    _APPEARS_COMPLETE = frozenset({"s3", "gcs", "abfs"})

    def __init__(self, location: str, filesystem: pafs.FileSystem, path: str) -> None:
        self.location = location
        self._filesystem = filesystem
        self._path = path.rstrip("/")
        self._is_atomic = filesystem.type_name in self._APPEARS_COMPLETE
        self._create_once: CreateOnce | None = None

    def create(self) -> None:
        """Create the directory."""
        try:
            self._filesystem.create_dir(self._path, recursive=True)
        except OSError as error:
            raise StorageUnusable(f"{self.location} cannot be used: {error}") from None

    def names(self, folder: str = "") -> list[str]:
        """Return the names of all complete files."""
        path = f"{self._path}/{folder}" if folder else self._path
        listed = self._filesystem.get_file_info(pafs.FileSelector(path, allow_not_found=True))
        return [each.base_name for each in listed if each.is_file and not each.base_name.endswith(_TEMPORARY_SUFFIX)]

    def write(self, name: str, fill: Fill) -> None:
        """Create or replace the file atomically."""
        path = f"{self._path}/{name}"
        target = path if self._is_atomic else path + _TEMPORARY_SUFFIX
        with self._filesystem.open_output_stream(target) as stream:
            fill(stream)
        if not self._is_atomic:
            self._filesystem.move(target, path)

    def open(self, name: str) -> Any:
        """Open the file for reading."""
        return self._filesystem.open_input_file(f"{self._path}/{name}")

    def read(self, name: str) -> bytes:
        """Return the content of a small file; raises FileNotFoundError."""
        with self.open(name) as stream:
            return bytes(stream.read())

    def delete(self, name: str) -> None:
        """Remove a file."""
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.delete_file(f"{self._path}/{name}")

    def create_once(self, name: str, content: bytes) -> bool:
        """Create a file; return False if it exists."""
        if self._create_once is None:
            self._create_once = exclusive_creation(self.location, self._filesystem, self._path)
        return self._create_once(f"{self._path}/{name}", content)

    def lock(self, wait_s: float) -> Lock:
        """Take the lease of the directory, which a thread renews until it is released."""
        lease = take_lease(self, wait_s)
        lease.keep_renewing()
        return lease


def _sync(path: str) -> None:
    """Fsync a file or a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
