"""The log of the daemons: one line per call on stderr, in the format of the Go daemons.

    [nsqd] 2026/11/15 08:17:11.123456 INFO: text
    prefix date       local time      level

The levels have Go's numbers, because GET /config/log_level returns them. Write errors are ignored: a daemon keeps
serving when it cannot log.
"""

import sys
from datetime import datetime
from typing import Final, TextIO

DEBUG: Final = 1
INFO: Final = 2
WARN: Final = 3
ERROR: Final = 4
FATAL: Final = 5

# Names in log lines and flag defaults. parse_level accepts "warn", not "warning".
LEVEL_NAMES: Final = {DEBUG: "DEBUG", INFO: "INFO", WARN: "WARNING", ERROR: "ERROR", FATAL: "FATAL"}

_LEVELS: Final = {"debug": DEBUG, "info": INFO, "warn": WARN, "error": ERROR, "fatal": FATAL}


def parse_level(text: str) -> int:
    """Parse the name of a level, in any case; raises ValueError with nsqd's text."""
    level = _LEVELS.get(text.lower())
    if level is None:
        raise ValueError(f"invalid log level '{text}' (debug, info, warn, error, fatal)")
    return level


def _one_line(text: str) -> str:
    """Escape control characters, so text from a client cannot start a new line or control a terminal."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


class Log:
    """Writes lines of at least ``level``, which can be set at any time.

    Text is printf-style and is formatted only if the line is written. Without arguments it is not formatted.
    """

    __slots__ = ("_stream", "level", "prefix")

    def __init__(self, prefix: str, level: int, stream: TextIO | None = None) -> None:
        self.prefix = prefix
        self.level = level
        self._stream = stream

    def named(self, name: str) -> "Log":
        """Return a log for a part: its lines begin with the name."""
        return Log(f"{self.prefix}{name}: ", self.level, self._stream)

    @property
    def info_enabled(self) -> bool:
        """True if ``info`` writes a line."""
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
        """Log at the highest level. The process keeps running."""
        if self.level <= FATAL:
            self._write(FATAL, text, arguments)

    def _write(self, level: int, text: str, arguments: tuple[object, ...]) -> None:
        if arguments:
            text = _one_line(text % arguments)
        # One write per line, so lines of several threads do not mix.
        line = f"{self.prefix}{datetime.now():%Y/%m/%d %H:%M:%S.%f} {LEVEL_NAMES[level]}: {text}"
        if not line.endswith("\n"):
            line += "\n"
        stream = self._stream if self._stream is not None else sys.stderr
        if stream is None:  # the process has no stderr
            return
        try:
            stream.write(line)
            stream.flush()
        except (OSError, ValueError):  # ValueError: the stream was closed
            pass
