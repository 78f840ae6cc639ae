"""Removes data files in a thread, because a large file or very many small ones take seconds.

A queue releases its files in two steps. First it saves a meta file that does not need them any more. Then they are
removed here, later. If the process ends in between, the next start finds files before the read position of a meta file
and removes them. For the same reason the meta file of a deleted queue is removed last, when the removal of the data
files is durable. Without it, all their messages would count as unread.

A queue that is created again under the name of a deleted one finds that meta file, so it continues with higher file
numbers. None of its files is ever one that waits here for removal.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Protocol

from nsqx.queues.files import META, open_file, remove_if_there, sync_directory, sync_file
from nsqx.queues.positions import QueueLog, meta_path
from nsqx.queues.sidecar import remove_data_file


class RemoveFiles(Protocol):
    """Removes data files of a queue, now or later. Some of them may not exist any more."""

    def __call__(
        self, directory: str, name: str, paths: Iterable[str], *, is_deleted: bool, is_durable: bool
    ) -> object:
        """Remove ``paths``. ``is_deleted``: remove the meta file after them, because the queue is deleted.

        ``is_durable``: the meta file that does not need the data files has been synced.
        """


def remove_now(directory: str, name: str, paths: Iterable[str], *, is_deleted: bool, is_durable: bool) -> None:
    """Remove the files at once; raises OSError."""
    if not is_durable:
        _sync_meta(meta_path(directory, name))
    for path in paths:
        remove_data_file(path)
    if is_deleted:
        sync_directory(directory)
        remove_if_there(META, meta_path(directory, name))


class FileRemover:
    """Removes files in its own thread, in the order of the calls."""

    def __init__(self, log: QueueLog) -> None:
        self._log = log
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="remover")
        self._newest: Future[None] | None = None
        self._is_closing = False
        # The meta files of deleted queues that are still to be removed, with the number of the deletion.
        self._lock = threading.Lock()
        self._deleted: dict[str, int] = {}
        self._deletion = 0

    def remove(
        self, directory: str, name: str, paths: Iterable[str], *, is_deleted: bool, is_durable: bool = False
    ) -> None:
        """Remove files soon; no-op after ``close``. Errors are logged; the next start removes the remaining files."""
        if self._is_closing:
            return
        meta, deletion = meta_path(directory, name), 0
        if is_deleted:
            with self._lock:
                self._deletion += 1
                deletion = self._deleted[meta] = self._deletion
        self._newest = self._thread.submit(self._remove, meta, paths, deletion, is_durable)

    def reopen(self, directory: str, name: str) -> None:
        """Keep the meta file of a deleted queue if it still exists, because a queue of that name is about to open."""
        with self._lock:
            self._deleted.pop(meta_path(directory, name), None)

    def close(self, timeout_s: float) -> None:
        """Wait for the removals, at most ``timeout_s``; the next start removes the remaining files."""
        if self._newest is not None:
            wait([self._newest], timeout_s)
        self._is_closing = True
        self._thread.shutdown()

    def _remove(self, meta: str, paths: Iterable[str], deletion: int, is_durable: bool) -> None:
        try:
            if not is_durable:
                _sync_meta(meta)
            for path in paths:
                if self._is_closing:
                    return
                remove_data_file(path)
            if deletion:
                sync_directory(os.path.dirname(meta))
            with self._lock:
                if deletion and self._deleted.get(meta) == deletion:
                    del self._deleted[meta]
                    remove_if_there(META, meta)
        except OSError as error:
            self._log.error("cannot remove files that are no longer needed, left to the next start - %s", error)


def _sync_meta(path: str) -> None:
    """Make the meta file durable before the first file is removed."""
    try:
        descriptor = open_file(META, path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        sync_file(META, descriptor)
    finally:
        os.close(descriptor)
    sync_directory(os.path.dirname(path))
