"""Recovery: the logs that an earlier process left, after a clean end, a crash or a power cut.

Three sources are combined. Segments contain everything that a checkpoint or a direct write has put there. Commit
files contain the rest of what was acknowledged. A batch that is in both is used once: an offset names one message, and
a serial one change of the state.

After a crash without a power cut, the operating system has every completed write. After a power cut, any part of what
was not synced may be missing, and offsets that consumers have seen may be gone. The log then continues at its lease.

Batches follow each other without a gap: messages by offset, changes by serial. After a power cut, a segment may have a
later part of a write without an earlier one. What follows the first missing part was not durable and is not used: it
may be the end of a story without its beginning, as a change of a channel that does not exist. If the missing part was
durable, it is damage, and everything that is left is used.

Nothing is cut off or overwritten. If a segment is not intact, its log continues in a new segment, to which the intact
batches are copied.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from nsqx.queues.files import COMMIT, read_file
from nsqx.queues.log.batch import DELETED, DELTA, MESSAGES, BatchHead, LogBatch, salvage
from nsqx.queues.log.commit_file import (
    FRAMES_AT,
    SERIAL_BITS,
    CommitHeader,
    Frame,
    FrameScanner,
    commit_paths,
    header_of_frames,
    is_header_damaged,
    read_commit_file,
)
from nsqx.queues.log.identity import LogIdentity, load_identity
from nsqx.queues.log.index import SegmentIndex
from nsqx.queues.log.log import DIRECTORY_SUFFIX, LEDGER_DIRECTORY, log_directory
from nsqx.queues.log.segment import LogSegment, SegmentPart, SegmentReader, SegmentWriter, identity_in, list_segments
from nsqx.queues.log.state import LogState, skipped_end

if TYPE_CHECKING:
    from nsqx.queues.positions import QueueLog

NO_BOOT_ID = bytes(16)
_NO_SERIAL = 1 << 63  # above all others
_BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"


def read_boot_id() -> bytes:
    """Return 16 bytes that change with every start of the machine, or NO_BOOT_ID if they are unknown."""
    try:
        return bytes.fromhex(read_file(COMMIT, _BOOT_ID_PATH).decode().strip().replace("-", ""))
    except (OSError, ValueError):
        return NO_BOOT_ID


class DamagedFrames(NamedTuple):
    """Frames of a commit file that are damaged or missing: their serials, and where they are or should be."""

    path: str
    position: int
    first: int
    end: int


@dataclass
class LoadedLog:
    """A log as it was left. ``held`` are the batches that are not known to be durable in segments."""

    writer: SegmentWriter
    state: LogState
    held: list[LogBatch]
    needs_checkpoint: bool
    skips_to: int  # consumers may have seen offsets below it that are lost
    torn: list[tuple[LogSegment, SegmentPart]]  # bytes that a crash may have cut short, so they were never acknowledged
    lost: list[tuple[int, int]]  # first and end of the segments that are missing


class _BadPart(NamedTuple):
    """Bytes of a segment that are no intact batch, and the offset and the serial that were expected there."""

    segment: LogSegment
    part: SegmentPart
    offset: int
    serial: int
    is_newest: bool  # the segment


@dataclass
class _Source:
    """What is known about a log before its segments are read."""

    identity: LogIdentity
    directory: str
    is_new: bool = False  # the directory or the file ``id`` is missing
    has_directory: bool = True  # False if the directory is that of another log of the topic
    batches: list[LogBatch] = field(default_factory=list)  # in commit files
    # Up to which offset and serial the segments were durable when the log was first named in the commit files.
    durable: tuple[int, int] | None = None
    is_deleted: bool = False


class Recovery:
    """Reads a data directory. The results are in the attributes after ``run``."""

    def __init__(self, data_path: str, boot_id: bytes, lease_step: int, logger: QueueLog) -> None:
        self.logs: list[LoadedLog] = []
        self.paths: list[str] = []  # of commit files, oldest generation first
        self.generation = 0
        self.highest_id = 0
        self.is_clean = True
        self.damaged_count = 0  # messages, and changes of the state
        self.damaged_frames: list[DamagedFrames] = []
        self.damaged_files: list[str] = []  # commit files whose header is damaged; they must not be written to
        self.missing_file = ""  # a text, if a commit file is missing
        self.is_tail_damaged = False  # the last changes of any log may be among the damaged frames
        self.unidentified: list[str] = []  # directories with segments of an unknown log
        self.deleted_directories: list[tuple[str, int]] = []  # with log ids
        self._data_path = data_path
        self._boot_id = boot_id
        self.lease_step = lease_step
        self._logger = logger
        self.is_same_boot = False  # no power cut, so no completed write is lost
        self._sources: dict[int, _Source] = {}

    def run(self, segment_size: int) -> None:
        """Read everything. Raises OSError."""
        self._find_directories()
        self._read_commit_files()
        for source in self._sources.values():
            if source.is_deleted:
                if not source.is_new:
                    self.deleted_directories.append((source.directory, source.identity.log_id))
            else:
                self.logs.append(_LogLoader(source, self, segment_size).load())

    def report(self, topic: str, text: str, count: int) -> None:
        """Report damage."""
        self.damaged_count += count
        self._logger.error("LOG(%s): damaged - %s", topic, text)

    # Directories

    def _find_directories(self) -> None:
        for name in sorted(os.listdir(self._data_path)):
            directory = os.path.join(self._data_path, name)
            is_of_log = name.endswith(DIRECTORY_SUFFIX) or name == LEDGER_DIRECTORY
            if not is_of_log or not os.path.isdir(directory):
                continue
            try:
                identity: LogIdentity | None = load_identity(directory)
                is_new = False
            except (FileNotFoundError, ValueError) as error:
                identity = identity_in(directory)
                is_new = True
                if identity is not None:
                    self.report(identity.topic, f"the file id: {error}", 0)
                elif list_segments(directory, 0):
                    self.unidentified.append(directory)
                    self._logger.error("LOG(%s): cannot be identified - %s", name, error)
            if identity is not None:
                self._sources[identity.log_id] = _Source(identity, directory, is_new)

    # Commit files

    def _read_commit_files(self) -> None:
        found: list[tuple[CommitHeader, bytes, str]] = []
        is_any_unknown = False  # a file has frames of an unknown generation
        for path in commit_paths(self._data_path):
            header, data = read_commit_file(path)
            if is_header_damaged(data):
                self.damaged_files.append(path)
                header = header_of_frames(data)
                is_any_unknown = is_any_unknown or header is None
            else:
                self.paths.append(path)
            if header is not None:
                found.append((header, data, path))
        found.sort(key=lambda entry: entry[0])
        generations = {path: header.generation for header, _, path in found}
        self.paths.sort(key=lambda path: generations.get(path, 0))
        if found:
            self._use_files(found, is_any_unknown)
        else:
            self.is_clean = not (self._sources or self.damaged_files)
            self._report_files({}, 0)
            if self._sources and not (self.damaged_files or self.paths):
                self._report_missing_file("there is no commit file", 0)

    def _use_files(self, found: list[tuple[CommitHeader, bytes, str]], is_any_unknown: bool) -> None:
        newest = found[-1][0]
        self.generation = newest.generation
        self.highest_id = max(header.highest_id for header, _, _ in found)
        self.is_clean = newest.is_clean and not is_any_unknown
        self.is_same_boot = self._is_boot_of(newest) and not is_any_unknown
        generations = {path: header.generation for header, _, path in found}
        self._report_files(generations, newest.generation + 1 if self.is_clean else newest.oldest_in_use)
        if self.is_clean:
            return
        is_complete = newest.oldest_in_use in generations.values() or len(self.paths) > len(found)
        if not is_complete and newest.boot_id != NO_BOOT_ID and not self.damaged_files:
            # After a failed sync, there is no boot id, and a file may have been removed.
            self._report_missing_file(f"the commit file of generation {newest.oldest_in_use} is missing", 1)
        self._read_frames([entry for entry in found if entry[0].generation >= newest.oldest_in_use])

    def _report_missing_file(self, text: str, count: int) -> None:
        self.missing_file = text
        self.is_tail_damaged = True
        self.report("*", f"{text}; messages that were only there are lost", count)

    def _report_files(self, generations: dict[str, int], oldest_in_use: int) -> None:
        """Report commit files with a damaged header. ``generations`` are those that their frames tell."""
        for path in self.damaged_files:
            name = os.path.basename(path)
            if path not in generations:
                text = f"the header of {name}, and no frame in it can be used"
            elif generations[path] < oldest_in_use:
                self._logger.error("LOG(*): damaged - the header of %s, which was not in use", name)
                continue
            else:
                text = f"the header of {name}; its frames are used as far as they are intact"
            self.report("*", text, 1)
            self.is_tail_damaged = True

    def _is_boot_of(self, header: CommitHeader) -> bool:
        return header.boot_id == self._boot_id != NO_BOOT_ID

    def _read_frames(self, files: list[tuple[CommitHeader, bytes, str]]) -> None:
        known = [source.identity for source in self._sources.values()]
        scanned = [(header, FrameScanner(data, header, known).frames(), path) for header, data, path in files]
        # Serials below which all frames of a generation are durable.
        durable: dict[int, int] = {}
        for header, frames, _ in scanned:
            for serial in (header.synced_below, *(frame.synced_below for frame in frames)):
                generation = serial >> SERIAL_BITS
                durable[generation] = max(serial, durable.get(generation, 0))
        for header, frames, path in scanned:
            for frame in self._usable(header, frames, path, durable.get(header.generation, header.first_serial)):
                self._add_frame(frame)

    def _add_frame(self, frame: Frame) -> None:
        self.highest_id = max(self.highest_id, frame.highest_id)
        for identity, durable in frame.identities:
            if identity.log_id not in self._sources:
                directory = log_directory(self._data_path, identity.topic)
                is_other = any(source.directory == directory for source in self._sources.values())
                self._sources[identity.log_id] = _Source(identity, directory, is_new=True, has_directory=not is_other)
            source = self._sources[identity.log_id]
            source.durable = source.durable or durable
        for log_id, batch in frame.entries:
            source = self._sources[log_id]
            source.durable = source.durable or (0, 0)
            if batch.kind == DELETED:
                source.is_deleted = True
            else:
                source.batches.append(batch)

    def _usable(self, header: CommitHeader, frames: list[Frame], path: str, durable: int) -> list[Frame]:
        """Return the frames that were certainly written, and report those that were damaged later."""
        is_same_boot = self._is_boot_of(header)
        usable: list[Frame] = []
        serial, position = header.first_serial, FRAMES_AT
        for frame in frames:
            is_last = frame is frames[-1]
            if frame.serial > serial:
                # Nothing is left of the frames in between.
                if not is_same_boot and serial >= durable:
                    return usable
                self._report_frames(DamagedFrames(path, position, serial, frame.serial))
            if not frame.is_whole:
                is_written = is_same_boot and (frame.is_written or not is_last)
                if not is_written and frame.serial >= durable:
                    return usable
                self._report_frames(DamagedFrames(path, frame.position, frame.serial, frame.serial + 1))
            usable.append(frame)
            serial, position = frame.serial + 1, frame.position + frame.size
        if serial < durable:
            self._report_frames(DamagedFrames(path, position, serial, durable))
        return usable

    def _report_frames(self, damaged: DamagedFrames) -> None:
        self.damaged_frames.append(damaged)
        self.is_tail_damaged = True
        name = os.path.basename(damaged.path)
        self.report("*", f"frames {damaged.first} to {damaged.end - 1} of {name}, at byte {damaged.position}", 1)


class _LogLoader:
    """Reads the segments of one log, and combines them with its batches in commit files."""

    def __init__(self, source: _Source, recovery: Recovery, segment_size: int) -> None:
        self._source = source
        self._identity = source.identity
        self._recovery = recovery
        self._segment_size = segment_size
        self._segments: list[LogSegment] = []
        self._state = LogState(source.identity.lease)  # durable in segments
        self._uncertain: list[LogBatch] = []  # in the newest segment, in order, but perhaps not durable
        # In the newest segment after a bad part, or after the end of another one; with the number of bad parts before.
        self._later: list[tuple[int, LogBatch]] = []
        self._snapshot_first = 0  # of the segment whose snapshot is used
        self._segment_end: int | None = None  # of the segment that is being read, if it is not the newest
        self._is_intact = True  # the newest segment
        self._is_certain = source.durable is None  # some of its batches are known to be durable
        self._is_damaged = recovery.is_tail_damaged
        self._bad_parts: list[_BadPart] = []
        self._torn: list[tuple[LogSegment, SegmentPart]] = []
        self._seen_end = 0  # the offset after the last message that was read
        self._seen_serial = 0  # of the last change that was read
        # Changes from this serial on are not used. After a bad part of a segment that is not the newest, an earlier
        # recovery may not have used them. Then their serials were given again.
        self._end_serial = _NO_SERIAL
        self._durable_size = 0  # bytes of the segment that is being read that were durable, or of the newest one
        self._synced_below = source.durable[0] if source.durable is not None else 0

    def load(self) -> LoadedLog:
        """Return the log. Raises OSError."""
        source = self._source
        if source.has_directory and os.path.isdir(source.directory):
            self._segments = list_segments(source.directory, self._identity.log_id)
        self._read_segments()
        usable_count = self._report()
        writer = SegmentWriter(source.directory, self._identity, self._state, self._segments, self._segment_size)
        writer.is_new = source.is_new
        if self._segments and self._is_intact and self._is_certain and not self._uncertain:
            writer.continue_at(os.stat(self._segments[-1].path).st_size)
        else:
            # A sync of an earlier process may have failed, so another sync of the same data proves nothing.
            writer.must_roll = bool(self._segments)
        state = self._state.copy()
        for batch in self._uncertain:
            state.add(batch)
        later = [batch for bad_count, batch in self._later if bad_count <= usable_count]
        missing = _missing([*later, *source.batches], state)
        for batch in missing:
            state.add(batch)
        needs_checkpoint = source.durable is not None or writer.must_roll or writer.is_new
        lost = self._lost_segments(writer, state)
        skips_to = self._skips_to(state)
        return LoadedLog(writer, state, self._uncertain + missing, needs_checkpoint, skips_to, self._torn, lost)

    def _lost_segments(self, writer: SegmentWriter, state: LogState) -> list[tuple[int, int]]:
        """Return first and end of the segments that are missing, although they were not finished; report them."""
        present = {segment.first for segment in self._segments}
        listed = [*self._state.segments, self._snapshot_first]
        removed_end = listed[0] if state.is_finished(listed[0]) else 0
        lost = []
        for first, end in pairwise(listed):
            if first in present:
                continue
            if state.is_finished(end):
                removed_end = end
                continue
            lost.append((first, end))
            count = sum(stop - start for start, stop in state.present_between(max(first, state.first), end))
            self._recovery.report(self._identity.topic, f"the segment from offset {first} on is missing", count)
        writer.remove_below(removed_end)  # a power cut may have brought segments back
        return lost

    def _skips_to(self, state: LogState) -> int:
        if self._is_damaged:
            return max(state.lease, state.end) + self._recovery.lease_step  # the newest lease may be lost too
        if self._recovery.is_clean or self._recovery.is_same_boot:
            return 0
        return state.lease if state.lease > state.end else 0

    def _read_segments(self) -> None:
        """Read the newest segment, and older ones if its snapshot is not intact."""
        start = len(self._segments)
        while start > 0:
            start -= 1
            with SegmentReader(self._segments[start]) as reader:
                snapshot = reader.snapshot()
            if snapshot is not None:
                self._state.load(snapshot)
                self._snapshot_first = self._segments[start].first
                self._seen_serial = snapshot.first
                break
            self._is_intact = False
        for index, segment in enumerate(self._segments[start:], start + 1):
            self._state.skip_to(segment.first)
            # A segment may continue after the start of the next one.
            self._segment_end = self._segments[index].first if index < len(self._segments) else None
            with SegmentReader(segment) as reader:
                self._read_segment(segment, reader)
            self._end_serial = _NO_SERIAL

    def _serial_after(self, segment: LogSegment) -> int:
        """Return the lowest serial of the changes in later segments and in commit files."""
        serials = [batch.first for batch in self._source.batches if batch.kind == DELTA]
        for later in self._segments[self._segments.index(segment) + 1 :]:
            with SegmentReader(later) as reader:
                heads = [part.head for part in reader.parts(0) if part.head is not None]
                serials += [head.first for head in heads if head.kind == DELTA]
        return min(serials, default=_NO_SERIAL)

    def _read_segment(self, segment: LogSegment, reader: SegmentReader) -> None:
        is_newest = self._segment_end is None
        segment.index = SegmentIndex()
        self._durable_size = 0
        for part in reader.parts(0):
            head = part.head
            if head is not None and head.unsynced:
                self._durable_size = max(self._durable_size, part.start - head.unsynced + 1)
            if head is not None and head.has_offsets:
                segment.index.add(head.first, part.start, head.timestamp)
                if head.kind == MESSAGES and not head.extension_size and part.is_complete and self._skips(head):
                    self._state.add(LogBatch(MESSAGES, head.first, head.item_count, head.timestamp, b"", b""))
                    continue
            batch = reader.batch(part)
            if batch is not None:
                self._note_synced_below(batch.synced_below)
                self._add(batch, is_newest)
                continue
            offset = max(self._state.end, self._seen_end)
            self._bad_parts.append(_BadPart(segment, part, offset, self._seen_serial + 1, is_newest))
            if is_newest:
                self._is_intact = False
            else:
                self._end_serial = self._serial_after(segment)
            if head is not None:
                for one in salvage(head, reader.tail(part)):
                    self._add(one, is_newest)

    def _skips(self, head: BatchHead) -> bool:
        """True if the items of a batch need no check, because they are known to be durable."""
        if not self._is_intact or self._uncertain or self._segment_end is not None:
            return False
        if self._source.durable is None or head.first + head.item_count <= self._source.durable[0]:
            self._is_certain = True
            return True
        return False

    def _add(self, batch: LogBatch, is_newest: bool) -> None:
        if not batch.has_offsets and batch.kind != DELTA:
            return
        if batch.kind == DELTA and batch.first >= self._end_serial:
            return
        self._seen_end = max(self._seen_end, batch.end if batch.has_offsets else skipped_end(batch))
        if not batch.has_offsets:
            self._seen_serial = max(self._seen_serial, batch.first)
        is_beyond = self._segment_end is not None and batch.has_offsets and batch.end > self._segment_end
        if is_beyond or (is_newest and not self._is_intact):
            self._later.append((len(self._bad_parts), batch))
        elif is_newest and (self._uncertain or not self._is_durable(batch)):
            self._uncertain.append(batch)
        else:
            self._is_certain = self._is_certain or is_newest
            self._state.add(batch)

    def _is_durable(self, batch: LogBatch) -> bool:
        """True if a batch was durable in a segment before its log was named in the commit files."""
        if self._source.durable is None:
            return True
        end, serial = self._source.durable
        return batch.end <= end if batch.has_offsets else batch.first <= serial

    def _note_synced_below(self, synced_below: int) -> None:
        """Note that all messages below an offset, and what is before them in the segment, are durable."""
        if synced_below <= self._synced_below:
            return
        self._synced_below = synced_below
        durable_count = 0
        for index, batch in enumerate(self._uncertain):
            if batch.has_offsets and batch.end <= synced_below:
                durable_count = index + 1
        for batch in self._uncertain[:durable_count]:
            self._is_certain = True
            self._state.add(batch)
        del self._uncertain[:durable_count]

    def _report(self) -> int:
        """Report damaged parts, except for those that a crash may have cut short.

        Return the number of bad parts after which batches are used. If frames are damaged, the contents of any part may
        have been durable there, so everything is used.
        """
        is_damage_proven = bool(self._bad_parts) and self._has_gap_before_frames()
        usable_count = len(self._bad_parts)
        for index, bad in enumerate(self._bad_parts):
            part = bad.part
            if is_damage_proven or self._was_durable(bad) or (self._recovery.is_same_boot and not part.is_cut_short):
                self._is_damaged = True
                text = f"{part.end - part.start} bytes from offset {bad.offset} on"
                self._recovery.report(self._identity.topic, text, part.head.item_count if part.head is not None else 1)
            else:
                self._torn.append((bad.segment, part))
                if bad.is_newest and not self._recovery.is_tail_damaged:
                    usable_count = min(usable_count, index)
        return usable_count

    def _was_durable(self, bad: _BadPart) -> bool:
        if self._source.durable is None or bad.offset < self._synced_below:
            return True
        if bad.is_newest and bad.part.start < self._durable_size:
            return True
        end, serial = self._source.durable
        return bad.offset <= end and bad.serial <= serial

    def _has_gap_before_frames(self) -> bool:
        """True if batches are missing before those in commit files.

        A frame is written only if everything before it is durable in the segment, or is in frames too.
        """
        state = self._state.copy()
        for batch in self._uncertain:
            state.add(batch)
        skipped = {skipped_end(batch) for batch in self._source.batches if batch.kind == DELTA}
        end, serial = state.end, state.serial
        for batch in _missing(self._source.batches, state):
            if batch.has_offsets:
                if batch.first > end and batch.first not in skipped:
                    return True
                end = batch.end
            else:
                if batch.first > serial + 1:
                    return True
                serial = batch.first
        return False


def _missing(batches: Iterable[LogBatch], state: LogState) -> list[LogBatch]:
    """Return the batches that the state does not include, each once: messages by offset, then changes by serial."""
    messages = [batch for batch in batches if batch.has_offsets]
    changes = [batch for batch in batches if not batch.has_offsets]
    found = []
    end, serial = state.end, state.serial
    # If a batch was damaged in one of the files, the whole one comes first.
    for batch in sorted(messages, key=lambda batch: (batch.first, -batch.count)):
        if batch.first >= end:
            found.append(batch)
            end = batch.end
    for batch in sorted(changes, key=lambda batch: batch.first):
        if batch.kind == DELTA and batch.first > serial:
            found.append(batch)
            serial = batch.first
    return found
