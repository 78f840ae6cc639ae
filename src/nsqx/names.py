"""The rules for names of topics, channels and producers."""

import re

EPHEMERAL_SUFFIX = "#ephemeral"
MAX_NAME_LENGTH = 64
NAME_PATTERN = "[.a-zA-Z0-9_-]+(?:#ephemeral)?"

_VALID = re.compile(NAME_PATTERN, re.ASCII)
_VALID_PRODUCER = re.compile("[.a-zA-Z0-9_-]{1,64}", re.ASCII)


def is_valid_name(name: str) -> bool:
    """True if ``name`` is valid for a topic or channel: 1 to 64 characters, including the suffix."""
    return len(name) <= MAX_NAME_LENGTH and _VALID.fullmatch(name) is not None


def invalid_name(what: str, name: object) -> str:
    """Return the error about an invalid name of a ``what``: topic or channel."""
    return f"invalid {what} name {name!r}: use 1 to 64 of a-z A-Z 0-9 . _ -, optionally with #ephemeral at the end"


def is_valid_producer(name: str) -> bool:
    """True if ``name`` is valid for a producer: 1 to 64 characters, as a topic without a suffix."""
    return _VALID_PRODUCER.fullmatch(name) is not None


def is_ephemeral(name: str) -> bool:
    """True if a topic or channel of this name is kept in memory only and is deleted with its last user."""
    return name.endswith(EPHEMERAL_SUFFIX)
