"""Making a disk queue durable, apart from the queue so that a thread can do it while the queue goes on."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from nsqx.queues.files import remove_if_there, sync_directory, write_temporary

if TYPE_CHECKING:
    from nsqx.queues.diskqueue import DiskQueue


class SyncJob:
    """One sync: data files first, then the meta file that points into them, then files no longer pointed to.

    ``queue`` is whose job it is. Once it has run, ``error`` is None or why it failed.
    """

    __slots__ = (
        "_abandoned",
        "_descriptors",
        "_lock",
        "_meta_path",
        "_meta_text",
        "error",
        "finished_paths",
        "has_lost_data",
        "queue",
    )

    def __init__(
        self, queue: DiskQueue, meta_path: str, meta_text: bytes, descriptors: list[int], finished_paths: list[str]
    ) -> None:
        self.queue = queue
        self.error: OSError | None = None
        self.has_lost_data = False  # a data file could not be synced
        self.finished_paths = finished_paths
        self._meta_path = meta_path
        self._meta_text = meta_text
        self._descriptors = descriptors
        self._abandoned = False
        self._lock = threading.Lock()

    def run(self) -> None:
        """Do it, in whatever thread; never raises, see ``error``."""
        try:
            self._sync_data()
            temporary = write_temporary(self._meta_path, self._meta_text)
            with self._lock:
                if self._abandoned:
                    remove_if_there(temporary)
                    return
                try:
                    os.rename(temporary, self._meta_path)
                except OSError:
                    remove_if_there(temporary)
                    raise
                for path in self.finished_paths:
                    remove_if_there(path)
            sync_directory(os.path.dirname(self._meta_path))
        except OSError as error:
            self.error = error

    def _sync_data(self) -> None:
        failure: OSError | None = None
        for descriptor in self._descriptors:
            try:
                os.fsync(descriptor)
            except OSError as error:
                failure = error
            finally:
                os.close(descriptor)
        if failure is not None:
            self.has_lost_data = True
            raise failure

    @property
    def is_abandoned(self) -> bool:
        """True if it leaves the meta file alone."""
        return self._abandoned

    def abandon(self) -> None:
        """Leave the meta file alone from now on: whoever calls this writes or removes it."""
        with self._lock:
            self._abandoned = True
