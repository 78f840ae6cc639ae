"""Examines and repairs the files of one disk queue.

A repair never changes a file that has records: it writes a new file in its place and sets the old one aside.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from nsqx.doctor.findings import Finding
from nsqx.doctor.records import FilePart, file_parts, file_size
from nsqx.queues.checksums import append_sums
from nsqx.queues.due_times import due_times_path, load_due_times
from nsqx.queues.files import DATA, META, SUMS, rename, replace_file
from nsqx.queues.positions import Positions, data_path, meta_path
from nsqx.queues.sidecar import add_sums, check_sidecar, sidecar_path

if TYPE_CHECKING:
    from nsqx.doctor.quarantine import Quarantine

_META = re.compile(rb"(-?\d{1,18})\n(\d{1,18}),(\d{1,18})\n(\d{1,18}),(\d{1,18})\n")
_REPAIR = "nsqx doctor --repair"


@dataclass(slots=True)
class DataFile:
    """The unread part of one data file."""

    number: int
    path: str
    size: int
    start: int
    parts: list[FilePart]

    @property
    def count(self) -> int:
        """The number of deliverable messages."""
        return sum(part.count for part in self.parts if part.is_readable)

    @property
    def is_whole(self) -> bool:
        """True if everything in it can be delivered."""
        return all(part.is_readable for part in self.parts)


@dataclass(slots=True)
class Queue:
    """A disk queue: the topic ``t`` or the channel ``t:c``."""

    name: str
    directory: str
    findings: list[Finding] = field(default_factory=list)
    files: list[DataFile] = field(default_factory=list)
    finished_paths: list[str] = field(default_factory=list)
    bad_sidecars: list[str] = field(default_factory=list)
    has_bad_due_times: bool = False
    last_number: int = -1

    @property
    def message_count(self) -> int:
        """The number of waiting messages that can be delivered."""
        return sum(file.count for file in self.files)

    @property
    def meta_path(self) -> str:
        """The path of the meta file."""
        return meta_path(self.directory, self.name)

    def data_path(self, number: int) -> str:
        """Return the path of a data file."""
        return data_path(self.directory, self.name, number)

    def add(
        self, code: str, path: str, what: str, advice: str = f"run {_REPAIR}", *, is_repairable: bool = True
    ) -> None:
        """Add a finding."""
        self.findings.append(Finding(code, os.path.basename(path), what, advice, is_repairable))


def examine_queue(directory: str, name: str, numbers: list[int], max_msg_size: int) -> Queue:
    """Examine every file of a queue; raises OSError if one cannot be read."""
    queue = Queue(name, directory, last_number=max(numbers, default=-1))
    positions = _examine_meta(queue, numbers)
    first = positions.read_file if positions is not None else 0
    for number in numbers:
        if number < first:
            queue.finished_paths.append(queue.data_path(number))
            queue.add(
                "data-finished",
                queue.data_path(number),
                "all its messages were delivered and finished; nsqd stopped before it removed the file",
                "nothing: nsqx removes it at its next start, Go nsqd never does",
            )
        else:
            _examine_data_file(queue, number, positions, max_msg_size)
        _examine_sidecar(queue, number)
    if positions is not None:
        _compare_positions(queue, numbers, positions)
        queue.last_number = max(queue.last_number, positions.write_file)
    _examine_due_times(queue)
    return queue


def _examine_meta(queue: Queue, numbers: list[int]) -> Positions | None:
    try:
        with open(queue.meta_path, "rb") as file:
            text = file.read(200)
    except FileNotFoundError:
        text = None
    match = _META.match(text) if text is not None else None
    positions = Positions(*map(int, match.groups())) if match else None
    if positions is not None and positions.read_file > max(numbers, default=0) + 1:
        positions = None
    if positions is None and numbers:
        state = "missing" if text is None else "damaged" if text else "empty"
        queue.add(
            f"meta-{state}",
            queue.meta_path,
            f"the positions of the queue are {state}: it is unknown which of its messages were delivered",
            f"run {_REPAIR}: everything in the data files counts as undelivered, so some messages may be delivered "
            "again (nsqx does the same at its start; Go nsqd would lose them all)",
        )
    return positions


def _examine_data_file(queue: Queue, number: int, positions: Positions | None, max_msg_size: int) -> None:
    path = queue.data_path(number)
    size = file_size(path)
    start = positions.read_position if positions is not None and number == positions.read_file else 0
    if start > size:
        queue.add(
            "position-beyond-end",
            path,
            f"it has {size} bytes, but was read up to byte {start}: its end is lost, or the position is wrong",
            f"run {_REPAIR}: all of the file counts as undelivered",
        )
        start = 0
    file = DataFile(number, path, size, start, file_parts(path, start))
    queue.files.append(file)
    for part in file.parts:
        if not part.is_readable:
            _describe_damage(queue, file, part)
    largest = max((part.largest for part in file.parts), default=0)
    if largest > max_msg_size:
        queue.add(
            "message-too-large",
            path,
            f"it has a message of {largest} bytes; Go nsqd with --max-msg-size={max_msg_size} would not read it and "
            "the messages after it in the file",
            f"nothing: nsqx delivers it. Start Go nsqd with --max-msg-size={largest} or more until the queue is empty",
            is_repairable=False,
        )


def _describe_damage(queue: Queue, file: DataFile, part: FilePart) -> None:
    length = part.end - part.start
    if part.count:
        what = f"{part.count} message(s) from byte {part.start} on are damaged: their checksums differ"
        code = "data-damaged"
    elif part.end == file.size:
        what = f"the last {length} bytes are not a complete message: a write was interrupted, or the end is damaged"
        code = "data-torn"
    else:
        what = f"{length} bytes from byte {part.start} on cannot be read as messages; the bytes after them can"
        code = "data-unreadable"
    queue.add(code, file.path, what, f"run {_REPAIR}: the other messages are kept, and the current file is set aside")


def _compare_positions(queue: Queue, numbers: list[int], positions: Positions) -> None:
    """Compare the positions in the meta file with the data files."""
    present = set(numbers)
    expected_last = positions.write_file if positions.write_position else positions.write_file - 1
    missing = [number for number in range(positions.read_file, expected_last + 1) if number not in present]
    for number in missing[:5]:
        queue.add(
            "data-missing",
            queue.data_path(number),
            "the file and its messages are missing",
            f"restore it from a backup, or run {_REPAIR} to continue without it",
        )
    if len(missing) > 5:
        queue.add("data-missing", queue.meta_path, f"{len(missing) - 5} more data files are missing", f"run {_REPAIR}")
    sizes = {file.number: file.size for file in queue.files}
    size = sizes.get(positions.write_file, 0)
    if positions.write_file in present and size < positions.write_position:
        queue.add(
            "data-short",
            queue.data_path(positions.write_file),
            f"it has {size} bytes, but was written up to byte {positions.write_position}: its end is lost",
        )
    elif size > positions.write_position or max(numbers, default=0) > positions.write_file:
        queue.add(
            "meta-behind",
            queue.meta_path,
            "messages were written after the positions were last saved: nsqd was killed, or the machine crashed",
            "nothing: nsqx finds them at its start. Go nsqd finds them too, but shows a wrong depth",
        )
    elif positions.depth != queue.message_count and not missing and all(file.is_whole for file in queue.files):
        queue.add(
            "depth-wrong",
            queue.meta_path,
            f"it counts {positions.depth} messages, but there are {queue.message_count}",
            f"run {_REPAIR}, or ignore it: the messages are delivered in any case",
        )


def _examine_sidecar(queue: Queue, number: int) -> None:
    path = queue.data_path(number)
    problem = check_sidecar(path)
    if problem:
        queue.bad_sidecars.append(path)
        queue.add(
            "checksums-damaged",
            sidecar_path(path),
            f"the checksums of a data file cannot be used: {problem}",
            f"run {_REPAIR} to create new ones; without them, damage to the data file may not be detected",
        )


def _examine_due_times(queue: Queue) -> None:
    path = due_times_path(queue.directory, queue.name)
    try:
        load_due_times(queue.directory, queue.name)
    except ValueError:
        queue.has_bad_due_times = True
        queue.add(
            "due-times-damaged",
            path,
            "the due times of deferred messages cannot be read",
            f"run {_REPAIR}: the messages are delivered at once",
        )


def repair_queue(queue: Queue, quarantine: Quarantine) -> list[str]:
    """Repair a queue; return a list of the actions. The positions are saved last, so a failed repair can be rerun."""
    done: list[str] = []
    if queue.has_bad_due_times:
        quarantine.put(f"{queue.name}.deferred.dat")
        done.append(f"{queue.name}: deferred messages are delivered at once")
    codes = {finding.code for finding in queue.findings if finding.is_repairable}
    if codes - {"due-times-damaged", "checksums-damaged"}:
        done += _rebuild(queue, quarantine)
    for path in queue.bad_sidecars:
        if os.path.exists(path) and check_sidecar(path):
            quarantine.put_if_there(os.path.basename(sidecar_path(path)))
            _make_sidecar(path)
            done.append(f"{os.path.basename(path)}: new checksums")
    return done


def _rebuild(queue: Queue, quarantine: Quarantine) -> list[str]:
    done: list[str] = []
    for path in queue.finished_paths:
        quarantine.put_data_file(path)
    kept: list[DataFile] = []
    for file in queue.files:
        if not file.is_whole:
            _rewrite(file, quarantine)
            done.append(f"{os.path.basename(file.path)}: {file.count} messages kept")
        elif file.count == 0:
            quarantine.put_data_file(file.path)
        if file.count:
            kept.append(file)
    _close_gaps(queue, kept)
    end = queue.last_number + 1
    read_file, read_position = (kept[0].number, kept[0].start) if kept else (end, 0)
    text = f"{queue.message_count}\n{read_file},{read_position}\n{end},0\n"
    quarantine.copy_if_there(os.path.basename(queue.meta_path))
    replace_file(queue.meta_path, text.encode(), META)
    done.append(f"{queue.name}: {queue.message_count} messages wait")
    return done


def _close_gaps(queue: Queue, kept: list[DataFile]) -> None:
    """Rename files so that their numbers have no gap: nsqd treats a gap as a loss."""
    for file, follower in reversed(list(pairwise(kept))):
        path = queue.data_path(follower.number - 1)
        if file.path != path:
            for kind, old, new in ((DATA, file.path, path), (SUMS, sidecar_path(file.path), sidecar_path(path))):
                if os.path.exists(old):
                    rename(kind, old, new)
            file.number, file.path = follower.number - 1, path


def _rewrite(file: DataFile, quarantine: Quarantine) -> None:
    """Replace a data file by one with its readable records, and set the old one aside."""
    with open(file.path, "rb") as old:
        data = old.read()
    content = b"".join(data[part.start : part.end] for part in file.parts if part.is_readable)
    quarantine.copy_if_there(os.path.basename(file.path))
    quarantine.put_if_there(os.path.basename(sidecar_path(file.path)))
    if content:
        replace_file(file.path, content, DATA)
        _make_sidecar(file.path)
    else:
        quarantine.put_data_file(file.path)
    file.start = 0


def _make_sidecar(path: str) -> None:
    """Write the checksums of the readable records of a data file."""
    with open(path, "rb") as file:
        data = file.read()
    for part in file_parts(path, 0):
        if part.is_readable:
            sums = bytearray()
            append_sums(sums, bytearray(data[part.start : part.end]), part.count)
            add_sums(path, part.start, part.end, bytes(sums))
