"""The names of the files that nsq_to_file writes: tokens, date directives, revisions."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import datetime

from nsqx.tools.utility import UtilityFailed

REVISION = "<REV>"

_DIRECTIVE = re.compile("%(.)")
# Those that need no locale; the rest of strftime stays as it is written.
_DIRECTIVES = frozenset("mdHIMSyZz")
_MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def format_time(text: str, moment: datetime) -> str:
    """``text`` with its date directives filled in; unknown ones are left alone, names are English."""

    def fill(found: re.Match[str]) -> str:
        directive = found[1]
        if directive in "Bb":
            name = _MONTHS[moment.month - 1]
            return name if directive == "B" else name[:3]
        if directive in "Aa":
            name = _DAYS[moment.weekday()]
            return name if directive == "A" else name[:3]
        if directive == "p":
            return "PM" if moment.hour >= 12 else "AM"
        if directive == "Y":
            return f"{moment.year:04d}"
        if directive in _DIRECTIVES:
            return moment.strftime(f"%{directive}")
        return "%" if directive == "%" else found[0]

    return _DIRECTIVE.sub(fill, text)


def host_identifier(text: str, hostname: str) -> str:
    """What stands for ``<HOST>``: the short host name, or ``text`` with its tokens replaced."""
    short = hostname.partition(".")[0]
    return text.replace("<SHORT_HOST>", short).replace("<HOSTNAME>", hostname) if text else short


@dataclass(frozen=True, slots=True)
class FileNames:
    """How the files of one topic are called; ``<DATETIME>`` and ``<REV>`` are still open in ``pattern``."""

    pattern: str
    datetime_format: str

    def at(self, moment: datetime) -> str:
        """The name at a moment, its revision open: when it changes, the file does."""
        return self.pattern.replace("<DATETIME>", format_time(self.datetime_format, moment))


def file_names(
    filename_format: str,
    datetime_format: str,
    *,
    topic: str,
    host: str,
    gzip: bool,
    needs_revision: bool,
) -> FileNames:
    """The names for a topic; raises UtilityFailed if a revision is needed and has no place."""
    if needs_revision and REVISION not in filename_format:
        raise UtilityFailed("missing <REV> in --filename-format when gzip, rotation, or work dir enabled")
    pattern = filename_format if needs_revision else filename_format.replace(REVISION, "")
    pattern = pattern.replace("<TOPIC>", topic).replace("<HOST>", host).replace("<PID>", str(os.getpid()))
    if gzip and not pattern.endswith(".gz"):
        pattern += ".gz"
    if ".." in pattern.split("/"):
        # A topic may be called ".."; whoever publishes to it must not choose the directory.
        raise UtilityFailed(f"file name {pattern} would leave the output directory")
    return FileNames(pattern, datetime_format)


def with_revision(name: str, revision: int) -> str:
    """``name`` with its revision filled in."""
    return name.replace(REVISION, f"-{revision:06d}")
