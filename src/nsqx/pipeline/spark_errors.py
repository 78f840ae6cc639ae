"""Spark's exceptions as one line for users, without stack, plan and error class."""

from __future__ import annotations

import re

_CLASS = re.compile(r"^\s*\[[A-Z0-9_.]+\]\s*")
_SQLSTATE = re.compile(r"\s*SQLSTATE:\s*\w+")
_POSITION = re.compile(r"[;,(]?\s*line (\d+),? pos (\d+)\)?;?")
# If Spark quotes a Python traceback, its last line has the message.
_PYTHON_ERROR = re.compile(
    r"^(?:[\w.]+\.)?(\w+(?:Error|Lost|Failed|Exception|Message|Closed|Connected)): (.+)$", re.MULTILINE
)
_LONGEST = 500


def explain(error: BaseException) -> str:
    """Return the message of an exception in one line."""
    text = str(error).strip()
    python_errors = _PYTHON_ERROR.findall(text) if "Traceback (most recent call last)" in text else []
    if python_errors:
        return _shortened(python_errors[-1][1].removeprefix("nsq: "))
    first = _CLASS.sub("", text.partition("\n")[0] or text)
    position = _POSITION.search(text)
    first = _POSITION.sub("", _SQLSTATE.sub("", first)).strip().rstrip(";")
    if position is not None:
        first += f" (line {position[1]}, column {int(position[2]) + 1})"
    return _shortened(first or type(error).__name__)


def condition_of(error: BaseException) -> str:
    """Return Spark's name of the error, such as TABLE_OR_VIEW_NOT_FOUND, or an empty text."""
    getter = getattr(error, "getCondition", None)
    return str(getter() or "") if callable(getter) else ""


def parameter_of(error: BaseException, name: str) -> str:
    """Return one of the parameters of Spark's message, or an empty text."""
    getter = getattr(error, "getMessageParameters", None)
    found = getter() if callable(getter) else None
    return str((found or {}).get(name, ""))


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
