"""The sync of a disk queue, as a job that a thread can run while the queue is in use."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from nsqx.queues.files import DATA, META, open_file, remove_if_there, rename, sync_directory, sync_file, write_temporary
from nsqx.queues.sidecar import set_data_file_aside

if TYPE_CHECKING:
    from nsqx.queues.diskqueue import DiskQueue


# The number of a data file, the start and end of the records in it, and their checksums.
Sums = tuple[int, int, int, bytes]


class PositionSave:
    """The part of a sync that saves the positions: it replaces the meta file and syncs the directory.

    ``write_file`` is the number of the file that the meta file names as the one to write. ``finished_paths`` are the
    data files that it does not need any more; those that are also in ``bad_paths`` are set aside.
    """

    __slots__ = ("_bad_paths", "_lock", "_meta_path", "_meta_text", "finished_paths", "is_abandoned", "write_file")

    def __init__(
        self, meta_path: str, meta_text: bytes, write_file: int, finished_paths: list[str], bad_paths: set[str]
    ) -> None:
        self.write_file = write_file
        self.finished_paths = finished_paths
        self.is_abandoned = False
        self._meta_path = meta_path
        self._meta_text = meta_text
        self._bad_paths = bad_paths
        self._lock = threading.Lock()

    def run(self) -> None:
        """Replace the meta file, which must point into durable data; raises OSError."""
        temporary = write_temporary(self._meta_path, self._meta_text, META)
        with self._lock:
            if self.is_abandoned:
                remove_if_there(META, temporary)
            else:
                self._replace_meta(temporary)
        # Also after ``abandon``: records are found by the names of their files, even without the meta file.
        sync_directory(os.path.dirname(self._meta_path))

    def _replace_meta(self, temporary: str) -> None:
        """Set finished bad files aside, then replace the meta file. After it, the bad files could not be found."""
        try:
            for path in self.finished_paths:
                if path in self._bad_paths:
                    set_data_file_aside(path)
            rename(META, temporary, self._meta_path)
        except OSError:
            remove_if_there(META, temporary)
            raise

    def abandon(self) -> None:
        """Do not write the meta file any more: the caller writes or removes it."""
        with self._lock:
            self.is_abandoned = True

    @property
    def removable_paths(self) -> list[str]:
        """The finished data files that are not set aside; they can be removed after the sync succeeded."""
        return [path for path in self.finished_paths if path not in self._bad_paths]


class SyncJob:
    """One sync: the data files first, then the positions, unless ``positions`` is None.

    ``queue`` is the owner. After the run, ``error`` is None or the error. ``sums`` are the checksums of the records
    that the job makes durable; the queue saves them afterwards. ``left_paths`` are data files to sync in addition to
    those that the queue has open.
    """

    __slots__ = ("_descriptors", "error", "has_lost_data", "has_run", "left_paths", "positions", "queue", "sums")

    def __init__(self, queue: DiskQueue, descriptors: list[int], positions: PositionSave | None = None) -> None:
        """``descriptors`` are those of the data files, which the job closes."""
        self.queue = queue
        self.positions = positions
        self.sums: list[Sums] = []
        self.left_paths: list[str] = []
        self.has_run = False
        self.error: OSError | None = None
        self.has_lost_data = False  # a data file could not be synced
        self._descriptors = descriptors

    def run(self) -> None:
        """Run in any thread; never raises, sets ``error``."""
        try:
            self._sync_data()
            if self.positions is not None:
                self.positions.run()
        except OSError as error:
            self.error = error
        finally:
            self.has_run = True

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

    def abandon(self) -> None:
        """Do not save the positions any more."""
        if self.positions is not None:
            self.positions.abandon()


def _sync_path(path: str) -> None:
    """Sync a data file if it exists."""
    try:
        descriptor = open_file(DATA, path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        sync_file(DATA, descriptor)
    finally:
        os.close(descriptor)
