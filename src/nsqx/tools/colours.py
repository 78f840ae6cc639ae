"""Colours on a terminal, only where they carry meaning: red for what is wrong, yellow for what needs attention.

A pipe, ``NO_COLOR`` and ``TERM=dumb`` turn them off. Text on stderr and stdout is decided separately.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TextIO

BOLD, DIM, RED, GREEN, YELLOW = "1", "2", "31", "32", "33"

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def has_colours(stream: TextIO | None = None) -> bool:
    """Return True if a stream, by default stdout, shows colours."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return (stream or sys.stdout).isatty()


def paint(text: str, colour: str, *, stream: TextIO | None = None) -> str:
    """Return a text in a colour, if the stream shows colours."""
    return f"\x1b[{colour}m{text}\x1b[0m" if text and has_colours(stream) else text


def visible(text: str) -> str:
    """Return a text without its colours."""
    return _ESCAPES.sub("", text)


def warning_colour(line: str) -> str:
    """Return a line for stderr; its first word is yellow if it is a warning."""
    word, _, rest = line.partition(" ")
    return f"{paint(word, YELLOW, stream=sys.stderr)} {rest}" if word == "WARNING:" else line
