"""Arguments of producers and consumers, checked; each check has one clear error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nsqx.errors import ConfigError, InvalidMessage, InvalidName
from nsqx.names import is_valid_name


def check_name(what: str, name: str) -> str:
    """A topic or channel name, as it came; raises InvalidName."""
    if not isinstance(name, str) or not is_valid_name(name):
        raise InvalidName(
            f"{what} name {name!r} is not valid: 1 to 64 of . _ - a-z A-Z 0-9 expected, perhaps with #ephemeral"
        )
    return name


def as_list(addresses: str | Iterable[str]) -> list[str]:
    """One address or several, without repeats."""
    return [addresses] if isinstance(addresses, str) else list(dict.fromkeys(addresses))


def as_bytes(body: Any) -> bytes:
    """A body, as bytes; raises InvalidMessage."""
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise InvalidMessage(f"a body must be bytes, not {type(body).__name__}: encode it first")


def at_least_one(name: str, value: int) -> int:
    """A count, as it came; raises ConfigError."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"option {name}: an integer from 1 up expected, not {value!r}")
    return value
