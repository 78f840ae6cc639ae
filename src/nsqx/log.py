"""The daemons' log: one line a call on stderr, laid out as the Go daemons print it.

    [nsqd] 2026/11/15 08:17:11.123456 INFO: text
    prefix date       local time      level

Levels keep Go's numbers, because GET /config/log_level answers with them. A log that cannot be written is no reason
to stop serving: write errors are swallowed.
"""

import sys
from datetime import datetime
from typing import Final, TextIO

DEBUG: Final = 1
INFO: Final = 2
WARN: Final = 3
ERROR: Final = 4
FATAL: Final = 5

# What a line and a flag's default show; parse_level takes "warn", not "warning".
LEVEL_NAMES: Final = {DEBUG: "DEBUG", INFO: "INFO", WARN: "WARNING", ERROR: "ERROR", FATAL: "FATAL"}

_LEVELS: Final = {"debug": DEBUG, "info": INFO, "warn": WARN, "error": ERROR, "fatal": FATAL}


def parse_level(text: str) -> int:
    """The level called ``text`` in any case; ValueError carries nsqd's text."""
    level = _LEVELS.get(text.lower())
    if level is None:
        raise ValueError(f"invalid log level '{text}' (debug, info, warn, error, fatal)")
    return level


def _one_line(text: str) -> str:
    """What others sent cannot start a line of its own, nor talk to a terminal."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


class Log:
    """Writes lines of at least ``level``, which may be set at any time.

    Text is printf-style and formatted only if the line is written; without arguments it is taken as it is.
    """

    __slots__ = ("_stream", "level", "prefix")

    def __init__(self, prefix: str, level: int, stream: TextIO | None = None) -> None:
        self.prefix = prefix
        self.level = level
        self._stream = stream

    @property
    def info_enabled(self) -> bool:
        """True if ``info`` writes."""
        return self.level <= INFO

    def debug(self, text: str, *arguments: object) -> None:
        if self.level <= DEBUG:
            self._write(DEBUG, text, arguments)

    def info(self, text: str, *arguments: object) -> None:
        if self.level <= INFO:
            self._write(INFO, text, arguments)

    def warn(self, text: str, *arguments: object) -> None:
        if self.level <= WARN:
            self._write(WARN, text, arguments)

    def error(self, text: str, *arguments: object) -> None:
        if self.level <= ERROR:
            self._write(ERROR, text, arguments)

    def fatal(self, text: str, *arguments: object) -> None:
        """Log at the highest level; ending the process is the caller's decision."""
        if self.level <= FATAL:
            self._write(FATAL, text, arguments)

    def _write(self, level: int, text: str, arguments: tuple[object, ...]) -> None:
        if arguments:
            text = _one_line(text % arguments)
        # One write for the whole line, so that lines of several threads do not mix.
        line = f"{self.prefix}{datetime.now():%Y/%m/%d %H:%M:%S.%f} {LEVEL_NAMES[level]}: {text}"
        if not line.endswith("\n"):
            line += "\n"
        stream = self._stream if self._stream is not None else sys.stderr
        if stream is None:  # started without a stderr
            return
        try:
            stream.write(line)
            stream.flush()
        except (OSError, ValueError):  # ValueError: the stream was closed
            pass
