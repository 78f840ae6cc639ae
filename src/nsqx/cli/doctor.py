"""nsqx doctor: checks a data directory of nsqx's or Go's nsqd, explains its problems, and repairs them.

      nsqx doctor [--repair] [--json] DATA_PATH

Exit codes: 0 no problems, or all are repaired; 1 problems were found; 2 the directory could not be examined.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

import orjson

from nsqx.cli.command_line import read_words
from nsqx.doctor.directory import examine, repair
from nsqx.doctor.quarantine import Quarantine
from nsqx.errors import ConfigError, NSQError
from nsqx.flags import BOOL, INT, Flag, UsageError
from nsqx.nsqd.daemon import lock_data_path
from nsqx.nsqd.metadata import FILE_NAME
from nsqx.nsqd.options import NsqdOptions

if TYPE_CHECKING:
    from nsqx.doctor.findings import DoctorReport

PROGRAM = "nsqx doctor"
SOUND, FOUND, NOT_EXAMINED = 0, 1, 2

FLAGS: tuple[Flag, ...] = (
    Flag("repair", BOOL, False, "repair problems; replaced files are moved to a dated directory in DATA_PATH"),
    Flag("json", BOOL, False, "print the report as JSON", config_key="is_json"),
    Flag("max-msg-size", INT, NsqdOptions().max_msg_size, "the --max-msg-size of nsqd"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Examine a directory, and repair it with --repair; return the exit code."""
    try:
        values, words = read_words(FLAGS, sys.argv[1:] if argv is None else argv, f"{PROGRAM} DATA_PATH", most=1)
    except UsageError as error:
        return error.show()
    if not words:
        return _fail("DATA_PATH is required, for example: nsqx doctor /var/lib/nsqd")
    try:
        _check_is_one_nsqd(words[0])
        report = _examine_and_repair(words[0], values["max_msg_size"], is_repair=values["repair"])
    except NSQError as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"{error.filename or words[0]}: {error.strerror or error}")
    print(
        orjson.dumps({**asdict(report), "is_sound": report.is_sound}).decode() if values["is_json"] else _text(report)
    )
    return SOUND if report.is_sound else FOUND


def _fail(reason: str) -> int:
    print(f"{PROGRAM}: {reason}", file=sys.stderr)
    return NOT_EXAMINED


def _check_is_one_nsqd(data_path: str) -> None:
    """Raise ConfigError if the directory contains the data directories of several nsqds, as that of nsqx up."""
    entries = [os.path.join(data_path, name) for name in sorted(os.listdir(data_path))]
    below = [entry for entry in entries if os.path.exists(os.path.join(entry, FILE_NAME))]
    if below and not any(map(os.path.isfile, entries)):
        raise ConfigError(f"{data_path} is not the data directory of one nsqd: examine {' and '.join(below)}")


def _examine_and_repair(data_path: str, max_msg_size: int, *, is_repair: bool) -> DoctorReport:
    """Examine, repair with ``is_repair``, and examine again; raises NSQError or OSError."""
    lock = lock_data_path(data_path)
    try:
        found = examine(data_path, max_msg_size)
        if found.report.is_sound or not is_repair:
            return found.report
        quarantine = Quarantine(data_path, datetime.now().strftime("%Y%m%d-%H%M%S"))
        repairs = repair(found, quarantine)
        after = examine(data_path, max_msg_size).report
        after.repairs, after.set_aside_in = repairs, quarantine.path
        return after
    finally:
        os.close(lock)


def _text(report: DoctorReport) -> str:
    lines = [
        f"{report.data_path}: {_count(report.topic_count, 'topic')}, {_count(report.queue_count, 'queue')}, "
        f"{_count(report.message_count, 'message')} on disk"
    ]
    if report.log_count:
        lines[0] += f", {_count(report.log_count, 'log')} with {_count(report.log_message_count, 'message')}"
    if report.repairs:
        lines += ["", "Repaired:", *(f"  {line}" for line in report.repairs)]
        if report.set_aside_in:
            lines.append(f"  replaced files are in {report.set_aside_in}")
    if report.findings:
        lines += ["", "Found:"]
        for finding in report.findings:
            lines += [f"  {finding.name}", f"    {finding.what}", f"    what to do: {finding.advice}"]
    else:
        lines += ["", "No problems left." if report.repairs else "No problems found."]
    return "\n".join(lines)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


if __name__ == "__main__":
    sys.exit(main())
