"""Examines and repairs the topic logs of a data directory: segments, their indexes, identities, and commit files.

A repair opens the logs as nsqd does at its start. So all intact messages of commit files and damaged segments are in
segments then, and the messages that are lost are known as lost. After that, damaged bytes are removed from segments.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nsqx.doctor.findings import Finding
from nsqx.queues.files import COMMIT, INDEX, SEGMENT, STAGE, read_file, remove_if_there, replace_file
from nsqx.queues.log.batch import salvage
from nsqx.queues.log.commit_file import BAD_SUFFIX
from nsqx.queues.log.segment import LogSegment, SegmentReader
from nsqx.queues.log.staging import STAGED_DIRECTORY, StagedPart, is_intact, list_staged
from nsqx.queues.log.stored import StoredLogs, open_offline
from nsqx.queues.log.verify import LogCheck, LogDamage, SegmentCheck, commit_damages

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nsqx.doctor.quarantine import Quarantine
    from nsqx.queues.log.log import TopicLog

_REPAIR = "run nsqx doctor --repair"
_READ_BYTES = 4 * 1024 * 1024


@dataclass(slots=True)
class LogsExamination:
    """The logs of a directory, and what is wrong with them."""

    log_count: int = 0
    message_count: int = 0
    checks: list[LogCheck] = field(default_factory=list)
    commit_damages: list[LogDamage] = field(default_factory=list)
    damaged_parts: list[StagedPart] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_repair_needed(self) -> bool:
        """True if a repair would change something."""
        return any(finding.is_repairable for finding in self.findings)

    def add(self, code: str, path: str, what: str, advice: str = _REPAIR, *, is_repairable: bool = True) -> None:
        """Add a finding."""
        self.findings.append(Finding(code, path, what, advice, is_repairable))


def examine_logs(data_path: str, queue_names: Iterable[str]) -> LogsExamination:
    """Examine every byte of the logs; ``queue_names`` are the disk queues beside them. Raises OSError."""
    stored = StoredLogs(data_path)
    found = LogsExamination(len(stored.logs), sum(log.message_count for log in stored.logs))
    found.checks = [LogCheck(log) for log in stored.with_ledger]
    found.commit_damages = commit_damages(stored)
    for damage in found.commit_damages:
        _describe(found, "commit-damaged", damage, data_path)
    for check in found.checks:
        _describe_log(found, check, data_path)
    for directory in stored.recovery.unidentified:
        found.add(
            "log-unidentified",
            os.path.relpath(directory, data_path),
            "it has segments of a topic log, but neither its file id nor a segment says of which log: nsqd ignores it",
            "restore the file id from a backup, or move the directory away",
            is_repairable=False,
        )
    _describe_queues(found, {check.log.topic for check in found.checks}, queue_names)
    found.damaged_parts = [part for part in list_staged(data_path) if not is_intact(data_path, part.name)]
    for part in found.damaged_parts:
        found.add(
            "part-damaged",
            os.path.join(STAGED_DIRECTORY, part.name.file_name),
            "a staged part of a transaction is damaged; its messages are in no log",
            f"nothing: its query cannot commit it, and stages batch {part.name.batch} again when it restarts. "
            f"Or {_REPAIR} to set the file aside",
        )
    return found


def _describe_log(found: LogsExamination, check: LogCheck, data_path: str) -> None:
    for damage in check.damages:
        code = "log-id" if damage.path.endswith("id") else "log-damaged" if damage.size else "log-missing"
        _describe(found, code, damage, data_path)
    for segment, part in check.log.loaded.torn:
        found.add(
            "log-torn",
            os.path.relpath(segment.path, data_path),
            f"the last {part.end - part.start} bytes are not a complete batch: a write was interrupted, "
            "and none of its messages was acknowledged",
            f"nothing: nsqx ignores them at its start. Or {_REPAIR} to move them to a .torn file",
        )
    for segment in check.damaged_indexes:
        path = os.path.relpath(segment.index_path, data_path)
        found.add("log-index", path, "the index of a segment is damaged", "nothing: nsqx builds it again when needed")


def _describe(found: LogsExamination, code: str, damage: LogDamage, data_path: str) -> None:
    place = f" from byte {damage.position} on" if damage.size else ""
    what = f"{damage.text}{place}: {damage.loss_text()}"
    advice = f"restore it from a backup, or {_REPAIR} to continue without what is lost: the current file is kept"
    found.add(code, os.path.relpath(damage.path, data_path), what, advice)


def _describe_queues(found: LogsExamination, topics: set[str], queue_names: Iterable[str]) -> None:
    beside: dict[str, list[str]] = {}
    for name in sorted(queue_names):
        topic = name.partition(":")[0]
        if topic in topics:
            beside.setdefault(topic, []).append(name)
    for topic, names in beside.items():
        found.add(
            "log-beside-queues",
            f"{topic}.topic",
            f"the topic has a log, and disk queues too ({', '.join(names)}): a conversion to another store has not "
            "ended, or Go's nsqd ran on this directory. It did not see the messages of the log, and wrote new ones to "
            "disk queues",
            "start nsqx nsqd: it moves all messages to one store. Before Go's nsqd runs again, run nsqx log export",
            is_repairable=False,
        )


def repair_logs(found: LogsExamination, data_path: str, quarantine: Quarantine) -> list[str]:
    """Repair the logs; return a list of the actions. Raises OSError."""
    done: list[str] = []
    for part in found.damaged_parts:
        name = os.path.join(STAGED_DIRECTORY, part.name.file_name)
        quarantine.copy_file(os.path.join(data_path, name), _name(os.path.join(data_path, name), data_path))
        remove_if_there(STAGE, os.path.join(data_path, name))
        done.append(f"{name}: set aside")
    for path in sorted({damage.path for damage in found.commit_damages if os.path.isfile(damage.path)}):
        quarantine.copy_if_there(os.path.basename(path))
        done.append(f"{os.path.basename(path)}: set aside")
    for check in found.checks:
        for segment in check.damaged_indexes:
            quarantine.copy_file(segment.index_path, _name(segment.index_path, data_path))
            remove_if_there(INDEX, segment.index_path)
            done.append(f"{_name(segment.index_path, data_path)}: set aside, nsqx builds a new index when needed")
    for check in found.checks:
        for one in check.segments:
            _keep_damaged(one, check.torn, data_path, quarantine)
    done += _note_losses(data_path)
    for damage in found.commit_damages:
        remove_if_there(COMMIT, damage.path + BAD_SUFFIX)  # of a damaged header; the quarantine has it
    for check in found.checks:
        for one in check.segments:
            path = one.segment.path
            if one.bad and os.path.exists(path):
                replace_file(path, _intact_bytes(one.segment), SEGMENT)
                remove_if_there(INDEX, one.segment.index_path)
                done.append(f"{os.path.relpath(path, data_path)}: damaged bytes removed")
    return done


def _keep_damaged(one: SegmentCheck, torn: set[tuple[str, int]], data_path: str, quarantine: Quarantine) -> None:
    """Copy a damaged segment into the quarantine; of a segment that was only cut short, its last bytes."""
    path = one.segment.path
    starts = [part.start for part, _ in one.bad]
    if not all((path, start) in torn for start in starts):
        quarantine.copy_file(path, _name(path, data_path))
    elif starts:
        quarantine.write(f"{_name(path, data_path)}.torn", read_file(SEGMENT, path)[min(starts) :])


def _name(path: str, data_path: str) -> str:
    """Return the name of a file of a log in the quarantine."""
    return os.path.relpath(path, data_path).replace(os.sep, ".")


def _note_losses(data_path: str) -> list[str]:
    """Open the logs as nsqd does, and read everything; messages that cannot be read are lost from then on."""
    done = []
    store = open_offline(data_path)
    try:
        for log in store.logs.values():
            lost_count = _lose_unreadable(log)
            if lost_count:
                done.append(f"{log.topic}: continues without {lost_count} lost messages")
    finally:
        store.close()
    return done


def _lose_unreadable(log: TopicLog) -> int:
    offset = min(log.first, log.state.floor)
    lost_count = 0
    while offset < log.written:
        batch = log.batch_at(offset)
        if batch is not None:
            offset = batch.end
            continue
        job = log.begin_read(offset, _READ_BYTES)
        job.run()
        lost_count += log.end_read(job)
        offset = job.next
    return lost_count


def _intact_bytes(segment: LogSegment) -> bytes:
    """Return the intact batches of a segment, and batches of the intact messages of damaged ones."""
    kept: list[bytes] = []
    with SegmentReader(segment) as reader:
        for part in reader.parts(0):
            if reader.batch(part) is not None:
                kept.append(reader.read(part.start, part.end - part.start))
            elif part.head is not None:
                for one in salvage(part.head, reader.tail(part)):
                    kept += map(bytes, one.buffers(segment.seed, one.synced_below))
    return b"".join(kept)
