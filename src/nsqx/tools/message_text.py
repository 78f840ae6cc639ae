"""Messages as text: bodies without control characters, and times."""

from __future__ import annotations

from datetime import UTC, datetime


def body_line(body: bytes) -> str:
    """Return a body as one line; bytes that are not UTF-8 and control characters are escaped."""
    text = body.decode(errors="backslashreplace")
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def time_text(time_ns: int) -> str:
    """Return a time in UTC with microseconds."""
    return datetime.fromtimestamp(time_ns / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
