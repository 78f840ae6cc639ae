"""Where the files of a segment directory lie: a directory of this machine, or storage that a whole cluster sees.

Promises the one thing the source rests on: when ``write`` returns, the file is complete under its name and survives a
crash; before that nobody sees it. Knows nothing of what is in the files.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.fs as pafs

from nsqx.errors import ConfigError

LOCK_NAME = "lock"
_TEMPORARY_SUFFIX = ".tmp"
_URI = re.compile(r"([a-z][a-z0-9+.-]+)://", re.IGNORECASE)
# How long a lock file on remote storage counts, and how often its owner writes it anew.
_LEASE_S = 60.0
_RENEW_S = 15.0

Fill = Callable[[Any], None]
"""Writes the content of a file to the stream it is given."""


class Lock(Protocol):
    """A directory held against others."""

    def release(self) -> None: ...


class Storage(Protocol):
    """A flat directory of files."""

    location: str
    is_local: bool

    def create(self) -> None:
        """Make the directory, if it is not there."""

    def names(self) -> list[str]:
        """Every complete file; nothing if there is no directory."""

    def write(self, name: str, fill: Fill) -> None:
        """Make a file, durably and at once; one of that name is replaced."""

    def open(self, name: str) -> Any:
        """A file to read, as pyarrow wants it; raises FileNotFoundError."""

    def delete(self, name: str) -> None:
        """Remove a file, if it is there."""

    def lock(self, wait_s: float) -> Lock:
        """Hold the directory against every other process; raises ConfigError if another holds it."""


def open_storage(location: str) -> Storage:
    """The storage that a path or URI names; raises ConfigError."""
    match = _URI.match(location)
    if match is None:
        return LocalStorage(os.path.abspath(os.path.expanduser(location)))
    if match[1].lower() == "file":
        return LocalStorage(os.path.abspath(re.sub(r"^file://[^/]*", "", location, flags=re.IGNORECASE)))
    return RemoteStorage(location, *_remote_filesystem(location, match[1]))


def _remote_filesystem(uri: str, scheme: str) -> tuple[pafs.FileSystem, str]:
    try:
        filesystem, path = pafs.FileSystem.from_uri(uri)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        try:
            import fsspec
        except ImportError:
            raise ConfigError(f"nsq: segmentDir {uri}: {error}; pip install fsspec may help") from None
        try:
            return pafs.PyFileSystem(pafs.FSSpecHandler(fsspec.filesystem(scheme))), uri.partition("://")[2]
        except (ImportError, ValueError, OSError) as other:
            raise ConfigError(f"nsq: segmentDir {uri}: {other}") from None
    return filesystem, path


class LocalStorage:
    """A directory of this machine's file system."""

    is_local = True

    def __init__(self, path: str) -> None:
        self.location = path

    def create(self) -> None:
        """Make the directory; its entry in the parent is durable too."""
        try:
            os.makedirs(self.location, exist_ok=True)
            _sync(os.path.dirname(self.location))
        except OSError as error:
            raise ConfigError(f"nsq: segmentDir {self.location} cannot be used: {error.strerror}") from None

    def names(self) -> list[str]:
        """Every complete file."""
        try:
            return [name for name in os.listdir(self.location) if not name.endswith(_TEMPORARY_SUFFIX)]
        except FileNotFoundError:
            return []

    def write(self, name: str, fill: Fill) -> None:
        """Write beside, fsync, rename, fsync the directory."""
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
        """The file, mapped into memory."""
        return pa.memory_map(os.path.join(self.location, name))

    def delete(self, name: str) -> None:
        """Remove a file."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.location, name))

    def lock(self, wait_s: float) -> Lock:
        """An flock: the system lets go of it when the process ends, however it ends."""
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
                raise _locked(self.location, holder) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, _owner_text().encode(), 0)
        for name in os.listdir(self.location):
            if name.endswith(_TEMPORARY_SUFFIX):
                self.delete(name)
        return _FileLock(descriptor)


class _FileLock:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """Let others in."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class RemoteStorage:
    """A directory behind one of pyarrow's file systems: HDFS, S3 and their kin.

    Object stores show a file when it is complete; elsewhere it is written beside and moved. The lock is a file that its
    owner renews: weaker than a local one, but it keeps out a second query started by mistake.
    """

    is_local = False
    _APPEARS_COMPLETE = frozenset({"s3", "gcs", "abfs"})

    def __init__(self, location: str, filesystem: pafs.FileSystem, path: str) -> None:
        self.location = location
        self._filesystem = filesystem
        self._path = path.rstrip("/")
        self._is_atomic = filesystem.type_name in self._APPEARS_COMPLETE

    def create(self) -> None:
        """Make the directory."""
        try:
            self._filesystem.create_dir(self._path, recursive=True)
        except OSError as error:
            raise ConfigError(f"nsq: segmentDir {self.location} cannot be used: {error}") from None

    def names(self) -> list[str]:
        """Every complete file."""
        listed = self._filesystem.get_file_info(pafs.FileSelector(self._path, allow_not_found=True))
        return [each.base_name for each in listed if each.is_file and not each.base_name.endswith(_TEMPORARY_SUFFIX)]

    def write(self, name: str, fill: Fill) -> None:
        """Write the file; it appears as a whole."""
        path = f"{self._path}/{name}"
        target = path if self._is_atomic else path + _TEMPORARY_SUFFIX
        with self._filesystem.open_output_stream(target) as stream:
            fill(stream)
        if not self._is_atomic:
            self._filesystem.move(target, path)

    def open(self, name: str) -> Any:
        """The file."""
        return self._filesystem.open_input_file(f"{self._path}/{name}")

    def delete(self, name: str) -> None:
        """Remove a file."""
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.delete_file(f"{self._path}/{name}")

    def lock(self, wait_s: float) -> Lock:
        """A file with a lease; one whose owner stopped renewing it is taken over after a minute."""
        until_s = time.monotonic() + wait_s
        while True:
            holder = self._lease()
            if not holder:
                return _Lease(self)
            if time.monotonic() >= until_s:
                raise _locked(self.location, holder)
            time.sleep(1.0)

    def _lease(self) -> str:
        """Who holds the directory, or nothing."""
        try:
            with self.open(LOCK_NAME) as stream:
                lease = json.loads(stream.read())
            return str(lease["owner"]) if time.time() - lease["renewed_s"] < _LEASE_S else ""
        except (FileNotFoundError, ValueError, KeyError):
            return ""


class _Lease:
    def __init__(self, storage: RemoteStorage) -> None:
        self._storage = storage
        self._ending = threading.Event()
        self._renew()
        self._thread = threading.Thread(target=self._keep_renewing, name="nsq segment lease", daemon=True)
        self._thread.start()

    def _renew(self) -> None:
        text = json.dumps({"owner": _owner_text(), "renewed_s": time.time()}).encode()
        self._storage.write(LOCK_NAME, lambda stream: stream.write(text))

    def _keep_renewing(self) -> None:
        while not self._ending.wait(_RENEW_S):
            with contextlib.suppress(OSError):
                self._renew()

    def release(self) -> None:
        """Let others in."""
        if not self._ending.is_set():
            self._ending.set()
            self._thread.join()
            self._storage.delete(LOCK_NAME)


def _owner_text() -> str:
    return f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}"


def _locked(location: str, holder: str) -> ConfigError:
    return ConfigError(
        f"nsq: segmentDir {location} is in use by {holder or 'another process'}: stop that query, or give this one a"
        " segmentDir and a channel of its own"
    )


def _sync(path: str) -> None:
    """Wait until a file, or the entries of a directory, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
