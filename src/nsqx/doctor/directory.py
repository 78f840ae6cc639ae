"""Examines and repairs a data directory: nsqd.dat, the queues it names, other queues, topic logs, and stray files.

The caller must hold the lock of the directory, because nothing else may use it meanwhile.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nsqx.doctor.findings import DoctorReport, Finding
from nsqx.doctor.logs import LogsExamination, examine_logs, repair_logs
from nsqx.doctor.queue_files import Queue, examine_queue, repair_queue
from nsqx.errors import MetadataError
from nsqx.names import is_ephemeral, is_valid_name
from nsqx.nsqd.metadata import FILE_NAME, SavedTopic, encode_saved, load_metadata, metadata_path
from nsqx.queues.files import NSQD, replace_file, sync_directory
from nsqx.queues.recovery import data_file_numbers

if TYPE_CHECKING:
    from nsqx.doctor.quarantine import Quarantine

_META_FILE = re.compile(r"(.+)\.diskqueue\.meta\.dat")
_DUE_FILE = re.compile(r"(.+)\.deferred\.dat")
_SIDECAR = re.compile(r"(.+\.diskqueue\.\d{6,})\.crc")
_TEMPORARY = re.compile(r".+\.(?:dat|crc)\.\d+\.tmp")
_BAD = re.compile(r"(?:.+\.diskqueue\.\d{6,}\.(?:dat|crc)\.bad|nsqx\.commit\.\d+\.bad(?:\.\d+)?)")
_REPAIR = "run nsqx doctor --repair"


@dataclass(slots=True)
class Examination:
    """The results of an examination, and the data that a repair needs."""

    report: DoctorReport
    topics: list[SavedTopic] = field(default_factory=list)
    is_metadata_good: bool = True
    queues: list[Queue] = field(default_factory=list)
    orphans: list[Queue] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    logs: LogsExamination = field(default_factory=LogsExamination)

    def add(self, code: str, name: str, what: str, advice: str = _REPAIR, *, is_repairable: bool = True) -> None:
        """Add a finding."""
        self.report.findings.append(Finding(code, name, what, advice, is_repairable))


def examine(data_path: str, max_msg_size: int) -> Examination:
    """Examine everything; raises OSError if the directory cannot be read."""
    found = Examination(DoctorReport(data_path))
    entries = {entry.name for entry in os.scandir(data_path) if entry.is_file()}
    numbers = data_file_numbers(data_path)
    names = set(numbers)
    for pattern in (_META_FILE, _DUE_FILE):
        names |= {match[1] for match in map(pattern.fullmatch, entries) if match}
    _examine_metadata(found, FILE_NAME in entries, has_queues=bool(names))
    _examine_queues(found, sorted(names), numbers, max_msg_size)
    _examine_strays(found, sorted(entries))
    found.logs = examine_logs(data_path, names)
    report = found.report
    report.findings += found.logs.findings
    report.log_count, report.log_message_count = found.logs.log_count, found.logs.message_count
    report.topic_count = len(found.topics)
    report.queue_count = len(found.queues)
    report.message_count = sum(queue.message_count for queue in found.queues)
    return found


def _examine_metadata(found: Examination, is_there: bool, *, has_queues: bool) -> None:
    if not is_there:
        if has_queues:
            found.is_metadata_good = False
            found.add(
                "nsqd-missing",
                FILE_NAME,
                "it is missing, so nsqd would start without topics and would not deliver the messages here",
                f"restore it from a backup, or {_REPAIR} to create one from the names of the queues, with none paused",
            )
        return
    try:
        found.topics = load_metadata(found.report.data_path)
    except MetadataError:
        found.is_metadata_good = False
        found.add(
            "nsqd-damaged",
            FILE_NAME,
            "it is damaged, and nsqd does not start with it",
            f"restore it from a backup, or {_REPAIR} to create one from the names of the queues, with none paused",
        )
        return
    wrong = [name for topic in found.topics for name in (topic.name, *(c for c, _ in topic.channels))]
    wrong = [name for name in wrong if not is_valid_name(name)]
    if wrong:
        found.is_metadata_good = False
        found.add("nsqd-names", FILE_NAME, f"{wrong[0]!r} is not a valid name of a topic or channel: nsqd skips it")


def _examine_queues(found: Examination, names: list[str], numbers: dict[str, list[int]], max_msg_size: int) -> None:
    known = {topic.name for topic in found.topics}
    known |= {f"{topic.name}:{channel}" for topic in found.topics for channel, _ in topic.channels}
    for name in names:
        try:
            queue = examine_queue(found.report.data_path, name, numbers.get(name, []), max_msg_size)
        except OSError as error:
            found.add(
                "unreadable",
                os.path.basename(error.filename or name),
                f"it cannot be read: {error.strerror or error}",
                "make sure that this user has permission to read the file, and that the disk works",
                is_repairable=False,
            )
            continue
        found.queues.append(queue)
        found.report.findings += queue.findings
        if name not in known and found.is_metadata_good:
            found.orphans.append(queue)
            _describe_orphan(found, queue)


def _describe_orphan(found: Examination, queue: Queue) -> None:
    topic, _, channel = queue.name.partition(":")
    what = f"the channel {channel!r} of the topic {topic!r}" if channel else f"the topic {topic!r}"
    if not _has_valid_name(queue.name):
        found.add("orphan", queue.name, "the name of its files is not that of a topic or channel: nsqd ignores them")
    elif queue.message_count:
        found.add(
            "orphan",
            queue.name,
            f"{FILE_NAME} does not name {what}, which has {queue.message_count} messages here: "
            "nsqd does not deliver them until it is created again",
            f"{_REPAIR} to add it to {FILE_NAME}",
        )
    else:
        found.add("orphan", queue.name, f"{FILE_NAME} does not name {what}, which has files without messages here")


def _examine_strays(found: Examination, entries: list[str]) -> None:
    present = set(entries)
    for name in entries:
        sidecar = _SIDECAR.fullmatch(name)
        if _TEMPORARY.fullmatch(name):
            what = "a temporary file that was being written when nsqd was killed; the file it was to replace exists"
            found.add("temporary", name, what, "nothing: nsqx removes it at its next start, Go nsqd never does")
        elif _BAD.fullmatch(name):
            what = "nsqd has set it aside because parts of it could not be read; the other messages were delivered"
            found.add("set-aside", name, what, "inspect it, or move it away: nsqd does not read it any more")
        elif sidecar and f"{sidecar[1]}.dat" not in present:
            found.add("checksums-stray", name, "checksums of a missing data file", "nothing: nsqx removes it")
        else:
            continue
        found.strays.append(name)


def repair(found: Examination, quarantine: Quarantine) -> list[str]:
    """Repair what can be repaired; return a list of the actions. Raises OSError if something cannot be written."""
    done: list[str] = []
    for name in found.strays:
        quarantine.put(name)
        done.append(f"{name}: set aside")
    for queue in found.queues:
        done += repair_queue(queue, quarantine)
    if found.logs.is_repair_needed:
        done += repair_logs(found.logs, found.report.data_path, quarantine)
    for queue in found.orphans:
        if not queue.message_count or not _has_valid_name(queue.name):
            done += _set_queue_aside(queue, quarantine)
    if not found.is_metadata_good or any(queue.message_count for queue in found.orphans):
        done.append(_write_metadata(found, quarantine))
    sync_directory(found.report.data_path)
    return done


def _has_valid_name(queue_name: str) -> bool:
    topic, _, channel = queue_name.partition(":")
    return is_valid_name(topic) and (not channel or is_valid_name(channel))


def _set_queue_aside(queue: Queue, quarantine: Quarantine) -> list[str]:
    for path in [file.path for file in queue.files] + queue.finished_paths:
        quarantine.put_data_file(path)
    quarantine.put_if_there(os.path.basename(queue.meta_path))
    quarantine.put_if_there(f"{queue.name}.deferred.dat")
    return [f"{queue.name}: set aside"]


def _write_metadata(found: Examination, quarantine: Quarantine) -> str:
    """Write nsqd.dat with the topics it named and those found by their files."""
    topics: dict[str, SavedTopic] = {topic.name: topic for topic in found.topics if is_valid_name(topic.name)}
    for queue in found.queues:
        name, _, channel = queue.name.partition(":")
        is_wanted = queue.message_count or not found.is_metadata_good
        if not is_wanted or not _has_valid_name(queue.name) or is_ephemeral(name):
            continue
        topic = topics.setdefault(name, SavedTopic(name, paused=False))
        if channel and channel not in dict(topic.channels):
            topic.channels.append((channel, False))
    quarantine.copy_if_there(FILE_NAME)
    for topic in topics.values():
        topic.channels = [(name, paused) for name, paused in topic.channels if is_valid_name(name)]
    replace_file(metadata_path(found.report.data_path), encode_saved(topics.values()), NSQD)
    return f"{FILE_NAME}: names {len(topics)} topics"
