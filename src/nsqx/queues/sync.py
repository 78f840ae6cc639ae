"""Making a disk queue durable, apart from the queue so that a thread can do it while the queue goes on."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from nsqx.queues.files import DATA, META, open_file, remove_if_there, rename, sync_directory, sync_file, write_temporary
from nsqx.queues.sidecar import set_data_file_aside

if TYPE_CHECKING:
    from nsqx.queues.diskqueue import DiskQueue


# The number of a data file, from where to where in it records lie, and their checksums.
Sums = tuple[int, int, int, bytes]


class SyncJob:
    """One sync: data files first, then the meta file that points into them. What it no longer points to may go then.

    ``queue`` is whose job it is. Once it has run, ``error`` is None or why it failed. ``sums`` are the checksums of
    what it makes durable, for the queue to save when it has. ``left_paths`` are data files to be synced besides those
    that the queue has open.
    """

    __slots__ = (
        "_abandoned",
        "_descriptors",
        "_lock",
        "_meta_path",
        "_meta_text",
        "bad_paths",
        "error",
        "finished_paths",
        "has_lost_data",
        "has_run",
        "left_paths",
        "queue",
        "sums",
    )

    def __init__(
        self,
        queue: DiskQueue,
        meta_path: str,
        meta_text: bytes,
        descriptors: list[int],
        finished_paths: list[str],
        bad_paths: set[str],
    ) -> None:
        """``bad_paths`` are those data files that are to be set aside, not removed, when they are finished."""
        self.queue = queue
        self.bad_paths = bad_paths
        self.sums: list[Sums] = []
        self.left_paths: list[str] = []
        self.has_run = False
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
            temporary = write_temporary(self._meta_path, self._meta_text, META)
            with self._lock:
                if self._abandoned:
                    remove_if_there(META, temporary)
                else:
                    self._replace_meta(temporary)
            # After ``abandon`` too: the records are found by the names of their files, whatever the meta file says.
            sync_directory(os.path.dirname(self._meta_path))
        except OSError as error:
            self.error = error
        finally:
            self.has_run = True

    def _replace_meta(self, temporary: str) -> None:
        """Point to what is needed, and put away what is not; bad files first, as those may not be found again."""
        try:
            for path in self.finished_paths:
                if path in self.bad_paths:
                    set_data_file_aside(path)
            rename(META, temporary, self._meta_path)
        except OSError:
            remove_if_there(META, temporary)
            raise

    def _sync_data(self) -> None:
        failure: OSError | None = None
        for descriptor in self._descriptors:
            try:
                sync_file(DATA, descriptor)
            except OSError as error:
                failure = error
            finally:
                os.close(descriptor)
        if failure is not None:
            self.has_lost_data = True
            raise failure
        for path in self.left_paths:
            _sync_path(path)

    @property
    def removable_paths(self) -> list[str]:
        """The finished data files that are not set aside; they may go when the job has succeeded."""
        return [path for path in self.finished_paths if path not in self.bad_paths]

    @property
    def is_abandoned(self) -> bool:
        """True if it leaves the meta file alone."""
        return self._abandoned

    def abandon(self) -> None:
        """Leave the meta file alone from now on: whoever calls this writes or removes it."""
        with self._lock:
            self._abandoned = True


def _sync_path(path: str) -> None:
    """Sync a data file that may be gone."""
    try:
        descriptor = open_file(DATA, path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        sync_file(DATA, descriptor)
    finally:
        os.close(descriptor)
