"""What every utility shares: how it reads its flags, writes to stderr and fails.

Lines on stderr look as those of Go's log package, because people grep for them:

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
from datetime import datetime
from typing import Any

from nsqx.client.options import USER_AGENT
from nsqx.errors import NSQError
from nsqx.flags import Flag, VersionRequested, parse, resolve
from nsqx.gotext import quote
from nsqx.version import NSQ_VERSION

CLIENT_LOGGER = "nsqx.client"

_LEVELS = {logging.DEBUG: "DBG", logging.INFO: "INF", logging.WARNING: "WRN", logging.ERROR: "ERR"}
_DIAL_ERRORS = (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT, errno.ECONNRESET)
_DIALLED = re.compile(rf"(\S+): (?:\[Errno \d+\] )?({'|'.join(map(os.strerror, _DIAL_ERRORS))})")


class UtilityFailed(NSQError):
    """A utility cannot go on; the text is one line for the user, and the exit code is 1."""


def say(text: str) -> None:
    """Write one line to stderr."""
    line = f"{datetime.now():%Y/%m/%d %H:%M:%S} {text}\n"
    try:
        # Looked up at each call: while progress is shown, rich stands in for stderr.
        sys.stderr.write(line)
        sys.stderr.flush()
    except (OSError, ValueError):  # nobody is there to read it
        pass


def read_flags(flags: Sequence[Flag], argv: Sequence[str], program: str) -> dict[str, Any]:
    """Every option's value by key; raises UsageError or VersionWanted."""
    given, words = parse(flags, argv, program)
    if given.get("version"):
        raise VersionRequested
    if words:
        say(f"flags end at {quote(words[0])}: this word and the words after it are ignored")
    return resolve(flags, given, {}).values


def check_positive(values: dict[str, Any], *names: str) -> None:
    """Refuse a duration that is not positive."""
    for name in names:
        if values[name.replace("-", "_")] <= 0:
            raise UtilityFailed(f"--{name} should be positive")


def check_not_negative(values: dict[str, Any], *names: str) -> None:
    """Refuse a negative duration."""
    for name in names:
        if values[name.replace("-", "_")] < 0:
            raise UtilityFailed(f"--{name} must not be negative")


def user_agent(program: str) -> str:
    """How a utility introduces itself to nsqd."""
    return f"{program}/{NSQ_VERSION} {USER_AGENT}"


def strerror(error: OSError) -> str:
    """The system's words for ``error``, in lower case as Go has them."""
    text = os.strerror(error.errno) if error.errno else str(error)
    return text[:1].lower() + text[1:]


def explain(error: object) -> str:
    """The text of an error; that of a failed connection reads as Go's."""
    return _DIALLED.sub(lambda found: f"dial tcp {found[1]}: connect: {found[2].lower()}", str(error))


def write_stdout(data: bytes) -> None:
    """Write all of ``data``; raises BrokenPipeError if nobody reads it, else UtilityFailed."""
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
    """Writes what the client library logs among a utility's own lines."""

    def emit(self, record: logging.LogRecord) -> None:
        say(f"{_LEVELS.get(record.levelno, 'ERR')} {explain(record.getMessage())}")


@contextmanager
def client_log() -> Iterator[None]:
    """Show what the client library logs while the block runs."""
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
    """Keep what the client library logs in a list instead of showing it: for calls whose failure tells it all."""
    logger = logging.getLogger(CLIENT_LOGGER)
    kept = _Kept()
    logger.addFilter(kept)
    try:
        yield kept.texts
    finally:
        logger.removeFilter(kept)
