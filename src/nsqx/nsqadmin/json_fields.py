"""Fields of the JSON that nsqd and nsqlookupd answer, as Go would decode them: absent is empty, another type an error.

Knows nothing of what the fields mean.
"""

from __future__ import annotations

from typing import Any

from nsqx.nsqadmin.upstream import UpstreamFailed


def integer(document: dict[str, Any], key: str) -> int:
    """A field that Go would decode into an int; absent and null are 0."""
    value = document.get(key)
    if value is None:
        return 0
    if type(value) is not int:
        raise UpstreamFailed(f"json: field {key} is not an integer")
    return value


def text(document: dict[str, Any], key: str) -> str:
    """A field that Go would decode into a string; absent and null are empty."""
    value = document.get(key)
    if value is None:
        return ""
    if type(value) is not str:
        raise UpstreamFailed(f"json: field {key} is not a string")
    return value


def switch(document: dict[str, Any], key: str) -> bool:
    """A field that Go would decode into a bool; absent and null are false."""
    value = document.get(key)
    if value is None:
        return False
    if type(value) is not bool:
        raise UpstreamFailed(f"json: field {key} is not a boolean")
    return value


def items(document: Any, key: str) -> list[Any] | None:
    """A list field; None if it is absent or null."""
    if not isinstance(document, dict):
        raise UpstreamFailed("json: not an object")
    value = document.get(key)
    if value is not None and type(value) is not list:
        raise UpstreamFailed(f"json: field {key} is not a list")
    return value


def objects(document: Any, key: str) -> list[dict[str, Any]] | None:
    """A list field whose elements are objects; None if it is absent or null."""
    found = items(document, key)
    if found is not None and not all(isinstance(each, dict) for each in found):
        raise UpstreamFailed(f"json: field {key} has elements that are no objects")
    return found


def strings(document: Any, key: str) -> list[str]:
    """A list of strings, empty if it is absent or null."""
    found = items(document, key) or []
    if not all(isinstance(each, str) for each in found):
        raise UpstreamFailed(f"json: field {key} has elements that are no strings")
    return found
