"""Removing data files in a thread: a large file, or very many small ones, take seconds.

A queue gives its files up in two steps. First its meta file says that they hold nothing that is needed; then they are
removed here, later. If the process ends in between, the next start finds files below the read position of a meta file
and removes them. The meta file of a deleted queue goes last, for the same reason.

A queue that is created again under the name of a deleted one finds that meta file, so it goes on with higher file
numbers: none of its files is ever one that waits here to be removed.
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
    """Removes the data files of a queue, some of which may be gone already, now or later."""

    def __call__(
        self, directory: str, name: str, paths: Iterable[str], *, is_deleted: bool, is_durable: bool
    ) -> object:
        """``is_deleted``: the queue has ended, and its meta file goes after the data files.

        ``is_durable``: the meta file that says that they are not needed has been synced.
        """


def remove_now(directory: str, name: str, paths: Iterable[str], *, is_deleted: bool, is_durable: bool) -> None:
    """Remove the files at once; raises OSError."""
    if not is_durable:
        _sync_meta(meta_path(directory, name))
    for path in paths:
        remove_data_file(path)
    if is_deleted:
        remove_if_there(META, meta_path(directory, name))


class FileRemover:
    """Removes files in a thread of its own, in the order in which they were given up."""

    def __init__(self, log: QueueLog) -> None:
        self._log = log
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="remover")
        self._newest: Future[None] | None = None
        self._is_closing = False
        # The meta files that are to go, with the number of the deletion that they belong to.
        self._lock = threading.Lock()
        self._deleted: dict[str, int] = {}
        self._deletion = 0

    def remove(
        self, directory: str, name: str, paths: Iterable[str], *, is_deleted: bool, is_durable: bool = False
    ) -> None:
        """Remove files soon. What cannot be removed is logged and left to the next start, as all is after ``close``."""
        if self._is_closing:
            return
        meta, deletion = meta_path(directory, name), 0
        if is_deleted:
            with self._lock:
                self._deletion += 1
                deletion = self._deleted[meta] = self._deletion
        self._newest = self._thread.submit(self._remove, meta, paths, deletion, is_durable)

    def reopen(self, directory: str, name: str) -> None:
        """Keep the meta file of a deleted queue, if it still exists: a queue of that name is about to be opened."""
        with self._lock:
            self._deleted.pop(meta_path(directory, name), None)

    def close(self, timeout_s: float) -> None:
        """Wait for the files to be removed, but not for ever; what is left goes at the next start."""
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
            with self._lock:
                if deletion and self._deleted.get(meta) == deletion:
                    del self._deleted[meta]
                    remove_if_there(META, meta)
        except OSError as error:
            self._log.error("cannot remove files that are no longer needed, left to the next start - %s", error)


def _sync_meta(path: str) -> None:
    """Make it durable that the files are not needed, before the first of them is gone."""
    try:
        descriptor = open_file(META, path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        sync_file(META, descriptor)
    finally:
        os.close(descriptor)
    sync_directory(os.path.dirname(path))
