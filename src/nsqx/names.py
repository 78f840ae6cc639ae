"""The rule that topic and channel names obey."""

import re

EPHEMERAL_SUFFIX = "#ephemeral"
MAX_NAME_LENGTH = 64

_VALID = re.compile(r"[.a-zA-Z0-9_-]+(?:#ephemeral)?", re.ASCII)


def is_valid_name(name: str) -> bool:
    """True if ``name`` may name a topic or a channel: 1 to 64 characters, the suffix included."""
    return len(name) <= MAX_NAME_LENGTH and _VALID.fullmatch(name) is not None


def is_ephemeral(name: str) -> bool:
    """True if what bears this name lives in memory only and goes away with its last user."""
    return name.endswith(EPHEMERAL_SUFFIX)
