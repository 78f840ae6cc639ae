"""nsqx log: lists, shows, verifies or exports the topic logs of a data directory that no nsqd uses, or trims a log.

      nsqx log ls DATA_PATH
      nsqx log ledger DATA_PATH
      nsqx log show DATA_PATH TOPIC [--offset N [--count K]]
      nsqx log verify DATA_PATH [TOPIC...]
      nsqx log export DATA_PATH [TOPIC...]
      nsqx log trim TOPIC --before=OFFSET|TIME|end

Exit codes: 0 success; 1 messages are damaged or missing; 2 the directory could not be read.
"""

from __future__ import annotations

import base64
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

import orjson

from nsqx.cli import log_trim
from nsqx.cli.command_line import read_words
from nsqx.errors import ConfigError, NSQError
from nsqx.flags import BOOL, INT, Flag, UsageError
from nsqx.nsqd.daemon import lock_data_path
from nsqx.nsqd.log_export import ExportedTopic, export_logs
from nsqx.nsqd.options import NsqdOptions
from nsqx.queues.log.staging import StagedPart, is_intact, list_staged
from nsqx.queues.log.stored import StoredLog, StoredLogs, StoredMessage
from nsqx.queues.log.verify import LogCheck, LogDamage, check_segments, commit_damages, ranges_text
from nsqx.tools.message_text import body_line, time_text
from nsqx.tools.table import print_table
from nsqx.wire import byteops

PROGRAM = "nsqx log"
VERBS = ("ls", "show", "ledger", "verify", "export")
TRIM = "trim"
WHOLE, DAMAGED, NOT_READ = 0, 1, 2
_NO_OFFSET = -1
_MAX_HOLES_SHOWN = 20

FLAGS: tuple[Flag, ...] = (
    Flag("json", BOOL, False, "print JSON", config_key="is_json"),
    Flag("offset", INT, _NO_OFFSET, "show: print the messages from this offset on"),
    Flag("count", INT, 20, "show: the number of messages to print with --offset"),
    Flag("max-bytes-per-file", INT, NsqdOptions().max_bytes_per_file, "export: the --max-bytes-per-file of nsqd"),
    *log_trim.FLAGS,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command of nsqx log; return the exit code."""
    title = f"{PROGRAM} {'|'.join(VERBS)} DATA_PATH [TOPIC...], or {PROGRAM} {TRIM} TOPIC"
    verbs = (*VERBS, TRIM)
    try:
        values, words = read_words(FLAGS, sys.argv[1:] if argv is None else argv, title, least=2, verbs=verbs)
        if words[0] == TRIM:
            return log_trim.main(words[1:], values)
    except UsageError as error:
        return error.show()
    verb, data_path, *topics = words
    run = {"ls": list_logs, "show": show_log, "ledger": show_ledger, "verify": verify_logs, "export": export}[verb]
    try:
        lock = lock_data_path(data_path)
        try:
            return run(data_path, topics, values)
        finally:
            os.close(lock)
    except NSQError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
    except OSError as error:
        print(f"{PROGRAM}: {error.filename or data_path}: {error.strerror or error}", file=sys.stderr)
    return NOT_READ


def _print_json(value: object) -> None:
    print(orjson.dumps(value).decode())


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


# ls


def list_logs(data_path: str, topics: Sequence[str], values: dict[str, Any]) -> int:
    """List the logs and the positions of their channels."""
    logs = _chosen(StoredLogs(data_path), data_path, topics)
    if values["is_json"]:
        _print_json([_summary(log) for log in logs])
        return WHOLE
    if not logs:
        print(f"{data_path} has no topic logs")
        return WHOLE
    rows = [_summary(log) for log in logs]
    _print_rows(rows, ("topic", "log", "first", "end", "messages", "bytes", "segments"), 2, ("log", "segments"))
    channels = [
        {"channel": f"{row['topic']}:{one['channel']}", **_without(one)} for row in rows for one in row["channels"]
    ]
    if channels:
        print()
        _print_rows(channels, ("channel", "position", "depth", "unfinished", "state"), 1, ("state",))
    return WHOLE


def _without(channel: dict[str, Any]) -> dict[str, Any]:
    return {
        **{key: channel[key] for key in channel if key != "channel"},
        "state": "paused" if channel["paused"] else "",
    }


def _print_rows(rows: list[dict[str, Any]], columns: Sequence[str], text_columns: int, optional: Sequence[str]) -> None:
    sys.stdout.flush()  # print_table writes to the descriptor
    print_table(columns, [[str(row[name]) for name in columns] for row in rows], text_columns, optional)


def _chosen(stored: StoredLogs, data_path: str, topics: Sequence[str]) -> list[StoredLog]:
    """Return the logs of some topics, or all without ``topics``; raises ConfigError if there is none of a topic."""
    by_topic = {log.topic: log for log in stored.logs}
    for topic in topics:
        if topic not in by_topic:
            raise ConfigError(f"{data_path} has no log of the topic {topic!r}")
    return [by_topic[topic] for topic in topics] if topics else stored.logs


def _summary(log: StoredLog) -> dict[str, Any]:
    state = log.state
    return {
        "topic": log.topic,
        "log": f"{log.identity.log_id:016x}",
        "first": log.first,
        "end": log.end,
        "messages": log.message_count,
        "bytes": sum(os.stat(segment.path).st_size for segment in log.segments)
        + sum(batch.size for batch in log.loaded.held),
        "segments": len(log.segments),
        "channels": [
            {
                "channel": channel.name,
                "position": channel.next,
                "depth": state.depth(channel.number, log.end),
                "unfinished": len(channel.holes),
                "paused": channel.is_paused,
            }
            for channel in state.channels.values()
        ],
    }


# show


def show_log(data_path: str, topics: Sequence[str], values: dict[str, Any]) -> int:
    """Show the segments and the state of a log, or some of its messages."""
    if len(topics) != 1:
        raise ConfigError("show needs one topic, for example: nsqx log show /var/lib/nsqd orders")
    (log,) = _chosen(StoredLogs(data_path), data_path, topics)
    if values["offset"] != _NO_OFFSET:
        return _show_messages(log, values["offset"], values["count"], is_json=values["is_json"])
    details = _details(log)
    if values["is_json"]:
        _print_json(details)
        return WHOLE
    print(f"{log.topic}: log {details['log']}, {_count(details['messages'], 'message')}")
    offsets = f"offsets {log.first} to {log.end - 1}" if log.end > log.first else f"next offset {log.end}"
    print(f"{offsets}, created {details['created']}")
    for name in ("unclaimed_from", "deferred", "paused_at"):
        if details[name]:
            print(f"{name.replace('_', ' ')} {details[name]}")
    for name, value in details["settings"].items():
        print(f"setting {name}={value}")
    if details["segment_files"]:
        print()
        columns = ("file", "bytes", "first", "end", "batches", "changes")
        _print_rows(details["segment_files"], columns, 1, ("changes", "batches"))
    if details["in_commit_files"]:
        print(f"batches only in commit files: {details['in_commit_files']:,}")
    if details["channels"]:
        print()
        rows = [_without(one) | {"channel": one["channel"]} for one in details["channels"]]
        _print_rows(rows, ("channel", "position", "depth", "unfinished", "state"), 1, ("state",))
    _print_holes(details["holes"])
    return WHOLE


def _print_holes(holes: list[dict[str, Any]]) -> None:
    if not holes:
        return
    print()
    rows = [{**hole, "due": hole["due"] or "-"} for hole in holes[:_MAX_HOLES_SHOWN]]
    _print_rows(rows, ("channel", "unfinished", "attempts", "due"), 1, ("due",))
    if len(holes) > _MAX_HOLES_SHOWN:
        print(f"and {_count(len(holes) - _MAX_HOLES_SHOWN, 'more unfinished message')}; --json prints all")


def _details(log: StoredLog) -> dict[str, Any]:
    state = log.state
    return {
        **_summary(log),
        "created": time_text(log.identity.created_ns),
        "unclaimed_from": None if state.channels else state.unclaimed,
        "deferred": len(state.deferred),
        "paused_at": state.paused_at if state.is_paused else None,
        "settings": state.settings,
        "in_commit_files": len(log.loaded.held),
        "segment_files": [
            {
                "file": os.path.basename(check.segment.path),
                "bytes": check.size,
                "first": check.segment.first,
                "end": check.last_end,
                "batches": check.batch_count,
                "changes": check.change_count,
            }
            for check in check_segments(log)
        ],
        "holes": [
            {
                "channel": channel.name,
                "unfinished": offset,
                "attempts": hole.attempts,
                "due": time_text(hole.due_ns) if hole.due_ns else "",
            }
            for channel in state.channels.values()
            for offset, hole in sorted(channel.holes.items())
        ],
    }


def _show_messages(log: StoredLog, offset: int, count: int, *, is_json: bool) -> int:
    if not log.first <= offset < max(log.end, 1):
        raise ConfigError(f"--offset={offset} is not in the log, which has the offsets {log.first} to {log.end - 1}")
    messages = list(islice(log.messages(offset), max(0, count)))
    channels = {number: channel.name for number, channel in log.state.channels.items()}
    if is_json:
        _print_json([_message(log, message, channels) for message in messages])
        return WHOLE
    for message in messages:
        fields = _message(log, message, channels)
        notes = "".join(f" {name}={fields[name]}" for name in ("channel", "attempts", "due") if fields[name])
        print(f"{message.offset} {fields['id']} {fields['time']}{notes}")
        print(f"  {body_line(message.body)}")
    return WHOLE


def _message(log: StoredLog, message: StoredMessage, channels: dict[int, str]) -> dict[str, Any]:
    fields = {
        "offset": message.offset,
        "id": byteops.id_text(log.identity.id_number(message.offset)).decode(),
        "timestamp": message.timestamp,
        "time": time_text(message.timestamp),
        "channel": channels.get(message.channel, ""),
        "attempts": message.attempts,
        "due": time_text(message.due_ns) if message.due_ns else "",
    }
    try:
        return {**fields, "text": message.body.decode()}
    except UnicodeDecodeError:
        return {**fields, "base64": base64.b64encode(message.body).decode()}


# ledger


def show_ledger(data_path: str, topics: Sequence[str], values: dict[str, Any]) -> int:
    """Show the last committed batch of each query, and the parts that are staged."""
    if topics:
        raise ConfigError("ledger takes no topic: all queries of a data directory are in one ledger")
    stored = StoredLogs(data_path)
    entries = list(stored.ledger.state.ledger.items()) if stored.ledger is not None else []
    queries: list[dict[str, Any]] = [
        {
            "query": query,
            "batch": entry.batch,
            "committed": time_text(entry.time_ns),
            "place": entry.place,
            "nodes": list(entry.nodes),
        }
        for query, entry in entries
    ]
    parts = [
        {
            **part.name._asdict(),
            "bytes": part.size,
            "staged": time_text(part.time_ns),
            "state": _part_state(part, stored),
        }
        for part in list_staged(data_path)
    ]
    if values["is_json"]:
        _print_json({"queries": queries, "parts": parts})
        return WHOLE
    if not queries and not parts:
        print(f"{data_path} has no ledger and no staged parts")
    if queries:
        rows = [{**row, "nodes": ",".join(row["nodes"])} for row in queries]
        _print_rows(rows, ("query", "batch", "place", "committed", "nodes"), 1, ("nodes", "place"))
    if parts:
        print(end="\n" if queries else "")
        columns = ("query", "batch", "part", "attempt", "bytes", "staged", "state")
        _print_rows(parts, columns, 1, ("staged", "attempt"))
    return WHOLE


def _part_state(part: StagedPart, stored: StoredLogs) -> str:
    if not is_intact(stored.data_path, part.name):
        return "damaged"
    entry = stored.ledger.state.ledger.find(part.name.query) if stored.ledger is not None else None
    return "committed" if entry is not None and entry.batch >= part.name.batch else "waits"


# verify


def verify_logs(data_path: str, topics: Sequence[str], values: dict[str, Any]) -> int:
    """Check every head and checksum; report what is damaged."""
    stored = StoredLogs(data_path)
    logs = _chosen(stored, data_path, topics)
    damages = commit_damages(stored)
    if topics:
        damages = [damage for damage in damages if not damage.topic or damage.topic in topics]
    for log in logs if topics else stored.with_ledger:
        damages += LogCheck(log).damages
    unidentified = [] if topics else stored.recovery.unidentified
    message_count = sum(log.message_count for log in logs)
    if values["is_json"]:
        found = [damage._asdict() for damage in damages]
        _print_json(
            {"logs": len(logs), "messages": message_count, "damages": found, "unidentified_directories": unidentified}
        )
    else:
        for directory in unidentified:
            print(f"{directory}\n  has segments, but does not say of which log\n")
        for damage in damages:
            print(_damage_text(damage) + "\n")
        end = "damaged" if damages or unidentified else "no damage"
        print(f"{data_path}: {_count(len(logs), 'log')}, {_count(message_count, 'message')}, {end}")
    return DAMAGED if damages or unidentified else WHOLE


def _damage_text(damage: LogDamage) -> str:
    lines = [damage.path]
    place = f" at byte {damage.position}" if damage.size or not damage.topic else ""
    lines.append(f"  {damage.text}{place}" + (f", {_count(damage.size, 'byte')}" if damage.size else ""))
    lines.append(f"  {damage.loss_text()}")
    return "\n".join(lines)


# export


def export(data_path: str, topics: Sequence[str], values: dict[str, Any]) -> int:
    """Move the unfinished messages of logs to disk queues."""
    done: list[ExportedTopic] = []
    for exported in export_logs(data_path, topics, values["max_bytes_per_file"], time.time_ns()):
        done.append(exported)
        if not values["is_json"]:
            print("\n".join(_export_lines(exported)))
    if values["is_json"]:
        _print_json([asdict(exported) for exported in done])
    elif not done:
        print(f"{data_path} has no topic logs")
    return DAMAGED if any(exported.damaged for exported in done) else WHOLE


def _export_lines(exported: ExportedTopic) -> Iterable[str]:
    yield f"{exported.topic}: exported, the log is kept in {exported.directory}"
    for name, count in exported.counts.items():
        if count or ":" in name:
            yield f"  {name}: {_count(count, 'message')}"
    if exported.deferred_count:
        yield f"  {exported.deferred_count:,} of them are deferred; Go's nsqd delivers them at once"
    if exported.damaged:
        count = sum(end - first for first, end in exported.damaged)
        yield f"  {_count(count, 'message')} not exported because of damage: offsets {ranges_text(exported.damaged)}"


if __name__ == "__main__":
    sys.exit(main())
