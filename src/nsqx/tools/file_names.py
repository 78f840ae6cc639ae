"""The names of the files that nsq_to_file writes: tokens, date directives, revisions."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import datetime

from nsqx.tools.utility import UtilityFailed

REVISION = "<REV>"

_DIRECTIVE = re.compile("%(.)")
# Directives that do not depend on the locale; others are not replaced.
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
    """Return ``text`` with its date directives replaced, with English names; unknown directives stay."""

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
    """Return the value of ``<HOST>``: the short host name, or ``text`` with its tokens replaced."""
    short = hostname.partition(".")[0]
    return text.replace("<SHORT_HOST>", short).replace("<HOSTNAME>", hostname) if text else short


@dataclass(frozen=True, slots=True)
class FileNames:
    """The file names of one topic; ``pattern`` still contains ``<DATETIME>`` and ``<REV>``."""

    pattern: str
    datetime_format: str

    def at(self, moment: datetime) -> str:
        """Return the name at a moment, with ``<REV>``; a changed name means that the file must be rotated."""
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
    """Return the file names of a topic; raises UtilityFailed if the format needs <REV> and does not have it."""
    if needs_revision and REVISION not in filename_format:
        raise UtilityFailed("missing <REV> in --filename-format when gzip, rotation, or work dir enabled")
    pattern = filename_format if needs_revision else filename_format.replace(REVISION, "")
    pattern = pattern.replace("<TOPIC>", topic).replace("<HOST>", host).replace("<PID>", str(os.getpid()))
    if gzip and not pattern.endswith(".gz"):
        pattern += ".gz"
    if ".." in pattern.split("/"):
        # A topic may be named "..": its name must not select a directory outside of the output directory.
        raise UtilityFailed(f"file name {pattern} would leave the output directory")
    return FileNames(pattern, datetime_format)


def with_revision(name: str, revision: int) -> str:
    """Return ``name`` with its revision inserted."""
    return name.replace(REVISION, f"-{revision:06d}")
