"""Shared parts of all utilities: reading flags, writing to stderr, and errors.

Lines on stderr have the format of Go's log package, because operators search for them:

    2026/11/15 08:17:11 text
"""

from __future__ import annotations

import errno
import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nsqx.errors import NSQError, RequestFailed
from nsqx.flags import Flag, VersionRequested, parse, resolve
from nsqx.gotext import quote
from nsqx.tools.colours import warning_colour
from nsqx.version import NSQ_VERSION

CLIENT_LOGGER = "nsqx.client"

_LEVELS = {logging.DEBUG: "DBG", logging.INFO: "INF", logging.WARNING: "WRN", logging.ERROR: "ERR"}
_DIAL_ERRORS = (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT, errno.ECONNRESET)
_DIALLED = re.compile(rf"(\S+): (?:\[Errno \d+\] )?({'|'.join(map(os.strerror, _DIAL_ERRORS))})")


class UtilityFailed(NSQError):
    """A utility cannot continue; the text is one line for the user, and the exit code is 1."""


@dataclass(slots=True)
class LineStyle:
    """How lines on stderr are written."""

    program: str = ""
    """The nsqx command that runs, whose lines on a terminal have no time; empty for a program of NSQ."""

    @property
    def is_plain(self) -> bool:
        """True if the lines have no time, and no words of Go."""
        return bool(self.program) and sys.stderr.isatty()


LINE_STYLE = LineStyle()
"""The style of this process."""


def log_line(text: str) -> None:
    """Write one line to stderr."""
    line = f"{warning_colour(text)}\n" if LINE_STYLE.is_plain else f"{datetime.now():%Y/%m/%d %H:%M:%S} {text}\n"
    try:
        # sys.stderr is read at each call, because rich replaces it while a progress line is shown.
        sys.stderr.write(line)
        sys.stderr.flush()
    except (OSError, ValueError):  # stderr is closed
        pass


def error_line(error: NSQError) -> None:
    """Write the error with which the program ends to stderr."""
    if LINE_STYLE.program:
        text = error.plain if isinstance(error, RequestFailed) else plain_words(error)
        log_line(f"{LINE_STYLE.program}: {text}" if LINE_STYLE.is_plain else text)
    else:
        log_line(explain(error))


def read_flags(flags: Sequence[Flag], argv: Sequence[str], program: str) -> dict[str, Any]:
    """Return the values of all options by key; raises UsageError or VersionRequested."""
    given, words = parse(flags, argv, program)
    if given.get("version"):
        raise VersionRequested
    if words:
        log_line(f"flags end at {quote(words[0])}: this word and the words after it are ignored")
    return resolve(flags, given, {}).values


def check_positive(values: dict[str, Any], *names: str) -> None:
    """Raise UtilityFailed if a duration is not positive."""
    for name in names:
        if values[name.replace("-", "_")] <= 0:
            raise UtilityFailed(f"--{name} should be positive")


def check_not_negative(values: dict[str, Any], *names: str) -> None:
    """Raise UtilityFailed if a duration is negative."""
    for name in names:
        if values[name.replace("-", "_")] < 0:
            raise UtilityFailed(f"--{name} must not be negative")


def user_agent(program: str) -> str:
    """Return the user agent of a utility."""
    # Imported here, because most commands do not need the client library.
    from nsqx.client.options import USER_AGENT

    return f"{program}/{NSQ_VERSION} {USER_AGENT}"


def strerror(error: OSError) -> str:
    """Return the system's text for ``error`` with a lower-case first letter, as in Go."""
    text = os.strerror(error.errno) if error.errno else str(error)
    return text[:1].lower() + text[1:]


def counted(number: int, noun: str) -> str:
    """Return a number of things in words, as in "1 message" and "1,200 messages"."""
    return f"{number:,} {noun}{'s'[: number != 1]}"


def plain_words(error: object) -> str:
    """Return the text of an error; a failed connection is described without the number of the error."""
    return _DIALLED.sub(lambda found: f"{found[1]}: {found[2].lower()}", str(error))


def explain(error: object) -> str:
    """Return the text of an error; a failed connection is described in Go's wording."""
    return _DIALLED.sub(lambda found: f"dial tcp {found[1]}: connect: {found[2].lower()}", str(error))


def write_stdout(data: bytes) -> None:
    """Write all of ``data``; raises BrokenPipeError if stdout is closed, and UtilityFailed for other errors."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(sys.stdout.fileno(), view) :]
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = f"write /dev/stdout: {strerror(error)}"
        raise UtilityFailed(f"ERROR: failed to write to os.Stdout - {reason}") from error


class ClientLog(logging.Handler):
    """Writes the client library's log to stderr, in the format of the utility's own lines."""

    def emit(self, record: logging.LogRecord) -> None:
        words = plain_words if LINE_STYLE.program else explain
        log_line(f"{_LEVELS.get(record.levelno, 'ERR')} {words(record.getMessage())}")


@contextmanager
def client_log() -> Iterator[None]:
    """Write the client library's log to stderr while the block runs."""
    logger = logging.getLogger(CLIENT_LOGGER)
    handler = ClientLog(logging.INFO)
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before


class _Kept(logging.Filter):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def filter(self, record: logging.LogRecord) -> bool:
        self.texts.append(record.getMessage())
        return False


@contextmanager
def kept_client_log() -> Iterator[list[str]]:
    """Collect the client library's log in a list instead of showing it, for calls whose error contains the reason."""
    logger = logging.getLogger(CLIENT_LOGGER)
    kept = _Kept()
    logger.addFilter(kept)
    try:
        yield kept.texts
    finally:
        logger.removeFilter(kept)
