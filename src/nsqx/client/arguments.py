"""Checks for the arguments of producers and consumers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nsqx.errors import ConfigError, InvalidMessage, InvalidName
from nsqx.names import invalid_name, is_valid_name


def check_name(what: str, name: str) -> str:
    """Return ``name`` if it is valid for a topic or channel; raises InvalidName."""
    if not isinstance(name, str) or not is_valid_name(name):
        raise InvalidName(invalid_name(what, name))
    return name


def as_list(addresses: str | Iterable[str]) -> list[str]:
    """Return one or more addresses as a list without duplicates."""
    return [addresses] if isinstance(addresses, str) else list(dict.fromkeys(addresses))


def as_bytes(body: Any) -> bytes:
    """Convert a body to bytes; raises InvalidMessage."""
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise InvalidMessage(f"the body must be bytes, not {type(body).__name__}: encode it first")


def at_least_one(name: str, value: int) -> int:
    """Return ``value`` if it is an integer of at least 1; raises ConfigError."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"option {name}: must be an integer of at least 1, not {value!r}")
    return value
