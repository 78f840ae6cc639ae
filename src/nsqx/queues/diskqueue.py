"""A queue of messages in files that Go nsqd reads and writes too.

Files, in the data directory:

      <name>.diskqueue.000000.dat    records: int32 length, message (see ``wire.message``); no other framing
      <name>.diskqueue.meta.dat      the read and write positions (see ``positions``)
      <name>.diskqueue.000000.crc    checksums of the records (see ``sidecar``); Go nsqd ignores them
      <name>.diskqueue.000000.dat.bad    set aside because it could not be read completely

A file is full when the next record would exceed max-bytes-per-file.

Differences from Go's disk queue:

- Records are collected in memory and written with one ``write_pending``. The caller calls it before it acknowledges
  anything. Records that cannot be written stay in memory, and the write is retried.
- ``fsync`` is not called here: ``begin_sync`` returns a SyncJob that a thread can run while the queue is in use. A
  record is durable only when a completed sync covers it; ``when_durable`` calls back then. A sync can leave out the
  meta file if the one on disk names the file that is written.
- The saved read position is that of the oldest message that was read and not finished. So a crash loses no message
  that was in flight, but some finished messages may be delivered again. A file is removed when all its messages are
  finished.
- A record that does not match its checksum is skipped, and so are unreadable bytes up to the next record with a
  checksum. If there is none, the rest of the file is given up. Such files are kept as .bad files when finished.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain

from nsqx.errors import DiskQueueError
from nsqx.queues import checksums
from nsqx.queues.durability import DurableCallback, RecordDurability
from nsqx.queues.files import DATA, META, cut_file, open_file, read_at, replace_file, write_all
from nsqx.queues.positions import PositionFinder, QueueLog, data_path, meta_path
from nsqx.queues.queue_view import QueueView
from nsqx.queues.record_reader import AT_END, DAMAGED, NOT_NOW, READ_SIZE, RecordReader
from nsqx.queues.recovery import data_file_numbers
from nsqx.queues.removal import RemoveFiles, remove_now
from nsqx.queues.sidecar import MAX_COUNT, add_sums, prepare_sidecar
from nsqx.queues.sync import PositionSave, Sums, SyncJob
from nsqx.wire import byteops
from nsqx.wire.message import HEADER_LENGTH, Batch, QueuedMessage

_MAX_SUMS_SIZE = checksums.ENTRY_SIZE * MAX_COUNT // 2


def _ignore() -> None:
    pass


class DiskQueue:
    """A first-in, first-out queue on disk. Not thread-safe; only its SyncJobs can run in other threads."""

    __slots__ = (
        "_bad_paths",
        "_directory",
        "_finished_paths",
        "_finishes_all",
        "_full_descriptors",
        "_is_announced",
        "_job",
        "_left_paths",
        "_log",
        "_max_file_size",
        "_max_record_size",
        "_named_file",
        "_oldest_at",
        "_oldest_file",
        "_oldest_ns",
        "_on_pending",
        "_operations",
        "_pending",
        "_pending_count",
        "_prepared_file",
        "_read_file",
        "_read_serial",
        "_reader",
        "_records",
        "_remove_files",
        "_sums",
        "_sums_start",
        "_sync_wanted",
        "_unfinished",
        "_unsaved_sums",
        "_write_descriptor",
        "_write_file",
        "_write_position",
        "depth",
        "failure",
        "lost_count",
        "name",
    )

    def __init__(
        self,
        name: str,
        directory: str,
        max_file_size: int,
        max_message_size: int,
        log: QueueLog,
        on_pending: Callable[[], object],
        file_numbers: list[int] | None = None,
        remove_files: RemoveFiles = remove_now,
    ) -> None:
        """Open the queue ``name``, with the messages that an earlier process left.

        ``on_pending`` is called when records wait for ``write_pending``, once between two calls of it.
        ``file_numbers`` are the numbers of the existing data files, if the caller has listed the directory already.
        ``remove_files`` removes files that are no longer needed; when it is called, the meta file does not name them.
        """
        self.name = name
        self.depth = 0
        self.lost_count = 0  # records that ``close`` could not write
        self._directory = directory
        self._max_file_size = max_file_size
        self._log = log
        self._on_pending = on_pending
        self._remove_files = remove_files
        self._read_file = 0
        self._max_record_size = HEADER_LENGTH + max_message_size
        self._reader = RecordReader(name, self._max_record_size, log)
        self._write_file = 0
        self._write_position = 0
        self._pending = bytearray()
        self._pending_count = 0
        self._is_announced = False
        self._read_serial = 0
        # The positions of the records of unfinished messages, by read serial; oldest first.
        self._unfinished: dict[int, tuple[int, int]] = {}
        self._oldest_file = 0
        # The file and position for which ``oldest_time_ns`` has read the timestamp, and that timestamp.
        self._oldest_at = (-1, -1)
        self._oldest_ns = -1
        self._finishes_all = False  # as soon as the pending records are written
        # The error of the last write or sync; None if it succeeded.
        self.failure: DiskQueueError | None = None
        self._write_descriptor = -1
        self._prepared_file = -1  # the data file whose sidecar is ready for new records
        # Checksums of the records written since the last sync: in the current file, and in the files before it.
        self._sums = bytearray()
        self._sums_start = 0
        self._unsaved_sums: list[Sums] = []
        self._bad_paths: set[str] = set()
        self._left_paths: list[str] = []  # files of an earlier process, which may have been killed before a sync
        self._operations = 0  # writes, reads and finishes since the positions were saved
        self._sync_wanted = False  # files changed since then
        self._job: SyncJob | None = None
        self._records = RecordDurability()
        # The file that the meta file on disk names as the one to write, after a sync of both; -1 if unknown.
        self._named_file = -1
        self._full_descriptors: list[int] = []
        self._finished_paths: list[str] = []
        self._load(data_file_numbers(directory).get(name, []) if file_numbers is None else file_numbers)

    # Paths

    def _meta_path(self) -> str:
        return meta_path(self._directory, self.name)

    def _data_path(self, number: int) -> str:
        return data_path(self._directory, self.name, number)

    # Opening

    def _load(self, file_numbers: list[int]) -> None:
        positions = PositionFinder(self._directory, self.name, file_numbers, self._max_record_size, self._log).find()
        self.depth = positions.depth
        self._read_file = positions.read_file
        self._reader.go_to(self._data_path(self._read_file), positions.read_position)
        self._write_file, self._write_position = positions.write_file, positions.write_position
        self._oldest_file = self._read_file
        self._left_paths = [self._data_path(number) for number in file_numbers if number >= self._read_file]
        self._sync_wanted = positions.is_corrected
        # Files that an earlier process had read completely, but did not remove before it ended.
        finished = [self._data_path(number) for number in file_numbers if number < self._read_file]
        if finished:
            self._remove(finished)
        self._check_tail()

    # Writing

    def put_message(self, message: QueuedMessage) -> None:
        """Append one message; ``write_pending`` writes it."""
        self._make_room(len(message.body))
        byteops.append_record(self._pending, message.timestamp, message.attempts, message.id, message.body)
        self._note_appended()

    def put_batch(self, batch: Batch) -> None:
        """Append all messages of a batch, which is then empty; ``write_pending`` writes them."""
        while batch.count:
            size = byteops.int32_at(batch.data, batch.position)
            self._make_room(size)
            start = batch.position + 4
            byteops.append_record_from(self._pending, batch.timestamp, batch.number, batch.data, start, start + size)
            self._note_appended()
            batch.skip()

    def _note_appended(self) -> None:
        self._pending_count += 1
        self.depth += 1
        if not self._is_announced:
            self._is_announced = True
            self._on_pending()

    def _make_room(self, body_size: int) -> None:
        position = self._write_position + len(self._pending)
        is_full = position > 0 and position + 4 + HEADER_LENGTH + body_size > self._max_file_size
        # If the write fails, the file exceeds its size limit when the records are written later.
        if is_full and self._try_write_pending():
            self._roll()

    def write_pending(self) -> None:
        """Hand the records put since the last call to the operating system.

        Raises DiskQueueError on failure. The records stay in the queue and are written and delivered later. A client
        that gets the error and publishes again causes duplicates.
        """
        self._is_announced = False
        loss = self._records.new_loss()  # of records that were written early because a file was full
        is_written = self._try_write_pending()
        self._records.note_checked()
        if loss is not None:
            self.failure = loss
        if self.failure is not None and (loss is not None or not is_written):
            raise self.failure

    def _try_write_pending(self) -> bool:
        if not self._pending_count:
            return True
        try:
            if self._write_descriptor < 0:
                self._open_write_file()
            write_all(DATA, self._write_descriptor, self._pending, self._write_position)
        except OSError as error:
            self._cut_torn_write()
            self.failure = DiskQueueError(f"{error.strerror or error}")
            return False
        self._written()
        self.failure = None
        return True

    def _written(self) -> None:
        """Update the state after the pending records were written."""
        if len(self._sums) >= _MAX_SUMS_SIZE:
            self._sums = bytearray()  # no sync for a long time: give up the checksums of these records
        if not self._sums:
            self._sums_start = self._write_position
        checksums.append_sums(self._sums, self._pending, self._pending_count)
        is_next = self._read_file == self._write_file and self._reader.position == self._write_position
        if is_next and len(self._pending) <= READ_SIZE:
            self._reader.preload(self._pending)
        self._write_position += len(self._pending)
        self._records.written += self._pending_count
        self._operations += self._pending_count
        self._pending, self._pending_count = bytearray(), 0
        if self._finishes_all:
            self._forget_unfinished()

    def _open_write_file(self) -> None:
        if self._prepared_file != self._write_file:
            self._prepare_sidecar()
        path = self._data_path(self._write_file)
        self._write_descriptor = open_file(DATA, path, os.O_RDWR | os.O_CREAT)
        self._log.info("DISKQUEUE(%s): writeOne() opened %s", self.name, path)
        if self._write_position == 0:
            self._sync_wanted = True  # for the new directory entry
            self._named_file = -1

    def _prepare_sidecar(self) -> None:
        """Remove old checksums of the part that is written next; if that fails, write to a new file."""
        try:
            prepare_sidecar(self._data_path(self._write_file), self._write_position)
        except OSError as error:
            self._log.warn("DISKQUEUE(%s) cannot prepare checksums - %s", self.name, error)
            if self._write_position > 0:
                self._roll()
        self._prepared_file = self._write_file

    def _cut_torn_write(self) -> None:
        """After a failed write, truncate the file to the complete records."""
        if self._write_descriptor < 0:
            return
        try:
            cut_file(DATA, self._write_descriptor, self._write_position)
        except OSError as error:
            self._log.error("DISKQUEUE(%s) cannot cut back a torn write - %s", self.name, error)

    def _roll(self) -> None:
        """Continue in a new file; the next sync makes the old one durable and closes it.

        The meta file names the new file before the first write to it. After a crash, nsqx and Go nsqd look for records
        that the meta file does not cover only in the file that it names. A running sync would restore the old
        positions, so that job is abandoned and does not write the meta file.
        """
        if self._write_descriptor >= 0:
            self._full_descriptors.append(self._write_descriptor)
            self._write_descriptor = -1
        self._unsaved_sums += self._take_sums()
        self._write_file += 1
        self._write_position = 0
        if self._job is not None:
            self._job.abandon()
        self._sync_wanted = True
        self._save_meta()

    def _take_sums(self) -> list[Sums]:
        """Remove and return the checksums collected for the current file; a list of none or one."""
        if not self._sums:
            return []
        taken, self._sums = bytes(self._sums), bytearray()
        return [(self._write_file, self._sums_start, self._write_position, taken)]

    # Reading

    def has_readable(self) -> bool:
        """True if there is a written message that was not read, so that ``get`` may return one."""
        if self._read_file == self._write_file:
            return self._reader.position < self._write_position
        return self._read_file < self._write_file

    def get(self) -> QueuedMessage | None:
        """Remove and return the oldest written message; None if there is none or it cannot be read now."""
        size = self._next_size()
        if size == 0:
            return None
        position = self._reader.position
        message = self._reader.take(size)
        self._read_serial += 1
        message.record = self._read_serial
        self._unfinished[self._read_serial] = (self._read_file, position)
        self.depth -= 1
        self._operations += 1
        return message

    def view(self) -> QueueView:
        """Return the messages that ``get`` would return, for a reader that changes nothing."""
        return QueueView(
            self.name,
            self._directory,
            self._max_record_size,
            self._read_file,
            self._reader.position,
            self._write_file,
            self._write_position,
            bytes(self._pending),
        )

    def finish(self, record: int) -> bool:
        """Stop keeping the message of ``record``; True if nothing else waited for a sync before."""
        self._unfinished.pop(record, None)
        self._operations += 1
        return self._operations == 1 and not self._sync_wanted

    def rewind(self) -> None:
        """Go back to the oldest unfinished message: it and all messages after it are read again."""
        file, position, read_since = self._oldest_needed()
        if not read_since:
            return
        self._unfinished.clear()
        self._read_file = file
        self._reader.go_to(self._data_path(file), position)
        self.depth += read_since
        self._operations += 1

    def finish_all(self) -> None:
        """Finish every message that was read, once the pending records are written."""
        self._finishes_all = True
        if not self._pending_count:
            self._forget_unfinished()

    def _forget_unfinished(self) -> None:
        self._finishes_all = False
        if self._unfinished:
            self._unfinished.clear()
            self._operations += 1

    def peek_timestamp(self) -> int:
        """Return the timestamp of the message that ``get`` would return, or -1 if it would return None."""
        return self._reader.timestamp() if self._next_size() else -1

    def oldest_time_ns(self) -> int:
        """Return when the first unread message was published; 0 if there is none, -1 if it is unknown.

        Changes nothing. Reads at most a few bytes of a file, and none if the same message is asked for again.
        """
        if not self.depth:
            return 0
        if not self.has_readable():
            return byteops.int64_at(self._pending, 4) if self._pending_count else -1
        in_memory = self._reader.timestamp_in_memory()
        if in_memory >= 0:
            return in_memory
        at = (self._read_file, self._reader.position)
        if at != self._oldest_at:
            self._oldest_at = at
            self._oldest_ns = self._first_timestamp()
        return self._oldest_ns

    def _first_timestamp(self) -> int:
        """Read the timestamp of the first unread record from its file; -1 if that is not possible."""
        position = self._reader.position
        for number in range(self._read_file, min(self._read_file + 2, self._write_file + 1)):
            try:
                descriptor = open_file(DATA, self._data_path(number), os.O_RDONLY)
                try:
                    start = read_at(DATA, descriptor, 12, position)
                finally:
                    os.close(descriptor)
            except OSError:
                return -1
            if len(start) == 12:
                return byteops.int64_at(start, 4)
            position = 0  # the rest of this file was read
        return -1

    def _next_size(self) -> int:
        """Return the size of the next message in the reader, or 0 if there is none."""
        while self.has_readable():
            is_last = self._read_file == self._write_file
            size = self._reader.next_size(self._write_position if is_last else -1)
            if size > 0:
                return size
            if size == NOT_NOW:
                return 0
            if size == DAMAGED:
                self._skip_damaged(self._reader.reason)
            elif size == AT_END and not is_last:
                self._next_read_file()
            else:
                self._set_file_aside(self._reader.reason)
        self._check_tail()
        return 0

    def _skip_damaged(self, reason: str) -> None:
        """Continue at the next record with a checksum, or give up the rest of the file."""
        following = self._reader.next_known()
        if following < 0:
            self._set_file_aside(reason)
            return
        path = self._data_path(self._read_file)
        self._log.error(
            "DISKQUEUE(%s) corrupt record at %d of %s - %s, not delivered, reading on at %d",
            self.name,
            self._reader.position,
            path,
            reason,
            following,
        )
        self._bad_paths.add(path)
        self._reader.skip_to(following)
        self.depth -= 1
        self._operations += 1
        self._sync_wanted = True

    def _set_file_aside(self, reason: str) -> None:
        """Stop reading a file and continue with the next; it is renamed when its messages are finished."""
        path = self._data_path(self._read_file)
        self._log.error("DISKQUEUE(%s) reading at %d of %s - %s", self.name, self._reader.position, path, reason)
        if self._read_file == self._write_file:
            self._roll()
        self._log.warn("DISKQUEUE(%s) jump to next file and saving bad file as %s.bad", self.name, path)
        self._bad_paths.add(path)
        self._next_read_file()

    def _next_read_file(self) -> None:
        self._read_file += 1
        self._reader.go_to(self._data_path(self._read_file), 0)
        self._sync_wanted = True
        self._check_tail()

    def _check_tail(self) -> None:
        """Correct the depth and the positions at the end of the queue, where nothing may be left to read."""
        if self.has_readable():
            return
        if self.depth != self._pending_count:
            found = self.depth - self._pending_count
            kind = "negative depth" if found < 0 else "positive depth"
            meaning = "metadata corruption" if found < 0 else "data loss"
            self._log.error("DISKQUEUE(%s) %s at tail (%d), %s, resetting 0...", self.name, kind, found, meaning)
            self.depth = self._pending_count
            self._sync_wanted = True
        if (self._read_file, self._reader.position) != (self._write_file, self._write_position):
            self._log.error(
                "DISKQUEUE(%s) read position %d,%d is beyond write position %d,%d, corruption, "
                "skipping to next writeFileNum and resetting 0...",
                self.name,
                self._read_file,
                self._reader.position,
                self._write_file,
                self._write_position,
            )
            self._skip_to_fresh_file()

    # Durability

    def has_unsynced(self) -> bool:
        """True if there was a write, read or finish since the positions were saved."""
        return self._sync_wanted or self._operations > 0

    def are_positions_due(self, sync_every: int) -> bool:
        """True if the positions must be saved because of the count of operations or because files changed."""
        return self._sync_wanted or self._operations >= sync_every

    def unsynced_count(self) -> int:
        """Return the number of written records that no completed sync covers."""
        return self._records.unsynced_count

    def put_serial(self) -> int:
        """Return the number of the newest record that was put."""
        return self._records.written + self._pending_count

    def is_lost(self, serial: int) -> bool:
        """True if the record of this number may be lost because the sync that covered it failed."""
        return self._records.is_lost(serial)

    def when_durable(self, callback: DurableCallback) -> None:
        """Call back with None when a completed sync covers every record put so far, or with the error if one fails.

        Emptying the queue covers its records too, because they are not needed any more. The caller must start a sync.
        """
        self._records.wait_for(self.put_serial(), callback)

    def is_awaited(self) -> bool:
        """True if a callback waits for written records to be durable, so that a sync is needed."""
        return self._records.is_awaited

    def begin_sync(self, *, saves_positions: bool = True) -> SyncJob | None:
        """Return a job that makes all written records durable, and saves the positions; None if a sync is running.

        Without ``saves_positions`` the job syncs only the data, if the meta file on disk names the file that is
        written: records after the saved write position of that file are found after a power cut. The job can run in any
        thread. When it has run, the queue's own thread must call ``end_sync``. Raises OSError if the job cannot be
        created.
        """
        if self._job is not None:
            return None
        self._records.begin_sync()
        try:
            current = [os.dup(self._write_descriptor)] if self._write_descriptor >= 0 else []
        except OSError as error:
            self._records.fail(DiskQueueError(f"{error.strerror or error}"))
            raise
        if saves_positions or self._named_file != self._write_file:
            self._job = self._full_job(current)
        else:
            self._job = SyncJob(self, current)
        self._job.sums, self._unsaved_sums = self._unsaved_sums + self._take_sums(), []
        return self._job

    def _full_job(self, current: list[int]) -> SyncJob:
        """Return a job that also saves the positions, and forget that this is needed."""
        descriptors, self._full_descriptors = self._full_descriptors + current, []
        file, _, _ = self._oldest_needed()
        finished = self._finished_paths + [self._data_path(number) for number in range(self._oldest_file, file)]
        self._finished_paths, self._oldest_file = [], file
        meta_text = self._meta_text()
        positions = PositionSave(self._meta_path(), meta_text, self._write_file, finished, self._bad_paths)
        job = SyncJob(self, descriptors, positions)
        job.left_paths, self._left_paths = self._left_paths, []
        self._operations = 0
        self._sync_wanted = False
        return job

    def end_sync(self, job: SyncJob) -> None:
        """Apply the result of a job and call the waiting callbacks; after a failed job the next one tries again."""
        if self._job is not job:
            return
        self._job = None
        self._save_sums(job)
        if job.error is not None:
            self._sync_failed(job, job.error)
            return
        if not self._pending_count:
            self.failure = None
        if job.positions is not None:
            self._positions_saved(job.positions)
        self._records.confirm()

    def _positions_saved(self, positions: PositionSave) -> None:
        if positions.is_abandoned:
            self._sync_wanted = True
            self._finished_paths = positions.finished_paths + self._finished_paths
            return
        self._named_file = positions.write_file
        if positions.removable_paths:
            self._remove(positions.removable_paths, is_durable=True)

    def _sync_failed(self, job: SyncJob, error: OSError) -> None:
        self.failure = DiskQueueError(f"{error.strerror or error}")
        self._named_file = -1  # the next sync must save the positions, or fail again
        self._sync_wanted = True
        self._left_paths += job.left_paths
        if job.positions is not None:
            self._finished_paths = job.positions.finished_paths + self._finished_paths
        if job.has_lost_data:
            self._abandon_write_file()
            self._records.lose(self.failure)
        else:
            self._records.fail(self.failure)

    def _save_sums(self, job: SyncJob) -> None:
        """Save the checksums of the records that a job made durable, except for finished files."""
        if not job.has_run or job.has_lost_data:
            return
        for number, start, end, sums in job.sums:
            if number < self._oldest_file:
                continue
            try:
                add_sums(self._data_path(number), start, end, sums)
            except OSError as error:
                self._log.warn("DISKQUEUE(%s) cannot save checksums - %s", self.name, error)
            if number == self._read_file:
                self._reader.note_growth()

    def _abandon_write_file(self) -> None:
        """Continue in a new file: data of a failed fsync may be lost, and a second fsync would report success."""
        self._sums = bytearray()
        self._unsaved_sums.clear()
        if self._write_descriptor >= 0:
            os.close(self._write_descriptor)
            self._write_descriptor = -1
            self._roll()

    def _oldest_needed(self) -> tuple[int, int, int]:
        """Return file and position of the oldest unfinished record, and the number of records read since."""
        for record, (file, position) in self._unfinished.items():
            return file, position, self._read_serial - record + 1
        return self._read_file, self._reader.position, 0

    def _meta_text(self) -> bytes:
        file, position, read_since = self._oldest_needed()
        return b"%d\n%d,%d\n%d,%d\n" % (
            self.depth - self._pending_count + read_since,
            file,
            position,
            self._write_file,
            self._write_position,
        )

    def close(self) -> None:
        """Write and sync everything and release the files; raises DiskQueueError on failure."""
        try:
            self.write_pending()
        finally:
            # Records that cannot be written now are lost; the written ones are still synced.
            self.lost_count = self._pending_count
            self.depth -= self._pending_count
            self._pending, self._pending_count = bytearray(), 0
            self._abandon_job()
            try:
                if self.has_unsynced():
                    job = self.begin_sync()
                    assert job is not None
                    job.run()
                    if job.error is not None:
                        # Keep the old meta file: it names durable records, which the new positions would leave out.
                        raise DiskQueueError(f"{job.error.strerror or job.error}")
                    self.end_sync(job)
            finally:
                self._close_files()

    def _close_files(self) -> None:
        self._reader.close()
        if self._write_descriptor >= 0:
            os.close(self._write_descriptor)
            self._write_descriptor = -1
        for descriptor in self._full_descriptors:
            os.close(descriptor)
        self._full_descriptors.clear()

    def _abandon_job(self) -> None:
        if self._job is not None:
            self._job.abandon()
            if self._job.positions is not None:
                self._finished_paths = self._job.positions.finished_paths + self._finished_paths
            self._save_sums(self._job)
            self._job = None
            self._sync_wanted = True

    def detach(self) -> None:
        """Do not announce pending records any more: the caller closes the queue."""
        self._on_pending = _ignore

    def is_syncing(self) -> bool:
        """True if a job that ``begin_sync`` returned has not ended."""
        return self._job is not None

    def release_idle_files(self) -> None:
        """Close descriptors that an empty and synced queue does not need; they are opened again on use."""
        if self.depth == 0 and self._job is None and not self.has_unsynced():
            self._close_files()

    # Emptying

    def empty(self, *, is_deleted: bool = False) -> None:
        """Discard all messages and remove the files."""
        self._records.discard(self.put_serial())
        self._pending, self._pending_count = bytearray(), 0
        self._abandon_job()
        self._bad_paths.clear()
        try:
            self._sync_wanted = self._skip_to_fresh_file(is_deleted=is_deleted)
            self._operations = 0
        finally:
            self._records.answer_discarded()

    def delete(self) -> None:
        """Remove the queue with all its files; it must not be used afterwards."""
        self.empty(is_deleted=True)
        self._sync_wanted = False  # a sync that ends later must not start another one, which would write the meta file
        self._close_files()
        self._on_pending = _ignore  # breaks the reference cycle with the owner

    def _skip_to_fresh_file(self, *, is_deleted: bool = False) -> bool:
        """Continue after all existing files and remove them; True if there may be any. Saves the meta file first."""
        self._close_files()
        numbers = range(min(self._oldest_file, self._read_file), self._write_file + 1)
        paths = chain(self._finished_paths, map(partial(data_path, self._directory, self.name), numbers))
        has_files = self._write_position > 0 or len(self._finished_paths) + len(numbers) > 1
        self._finished_paths = []
        self._unfinished.clear()
        self._sums = bytearray()
        self._unsaved_sums.clear()
        self._write_file = max(self._write_file, self._read_file) + 1
        self._write_position = 0
        self._read_file = self._oldest_file = self._write_file
        self._reader.go_to(self._data_path(self._read_file), 0)
        self.depth = self._pending_count
        self._sync_wanted = True
        if has_files:
            self._save_meta()
        if has_files or is_deleted:
            self._remove(paths, is_deleted=is_deleted)
        return has_files

    def _remove(self, paths: Iterable[str], *, is_deleted: bool = False, is_durable: bool = False) -> None:
        """Remove files that the meta file does not name, now, later, or at the next start."""
        try:
            self._remove_files(self._directory, self.name, paths, is_deleted=is_deleted, is_durable=is_durable)
        except OSError as error:
            self._log.error("DISKQUEUE(%s) cannot remove files, left to the next start - %s", self.name, error)

    def _save_meta(self) -> None:
        """Save the positions without a sync; if that fails, the next sync saves them."""
        try:
            replace_file(self._meta_path(), self._meta_text(), META, is_durable=False)
        except OSError as error:
            self._log.error("DISKQUEUE(%s) failed to save metadata - %s", self.name, error)
