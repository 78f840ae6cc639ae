"""Fields of the JSON answers of nsqd and nsqlookupd, decoded as Go does: absent is empty, a wrong type is an error.

Does not know the meaning of the fields.
"""

from __future__ import annotations

from typing import Any

from nsqx.errors import RequestFailed


def integer(document: dict[str, Any], key: str) -> int:
    """Return a field that Go decodes into an int; absent and null are 0."""
    value = document.get(key)
    if value is None:
        return 0
    if type(value) is not int:
        raise RequestFailed(f"json: field {key} is not an integer")
    return value


def text(document: dict[str, Any], key: str) -> str:
    """Return a field that Go decodes into a string; absent and null are empty."""
    value = document.get(key)
    if value is None:
        return ""
    if type(value) is not str:
        raise RequestFailed(f"json: field {key} is not a string")
    return value


def switch(document: dict[str, Any], key: str) -> bool:
    """Return a field that Go decodes into a bool; absent and null are false."""
    value = document.get(key)
    if value is None:
        return False
    if type(value) is not bool:
        raise RequestFailed(f"json: field {key} is not a boolean")
    return value


def items(document: Any, key: str) -> list[Any] | None:
    """Return a list field; None if absent or null."""
    if not isinstance(document, dict):
        raise RequestFailed("json: not an object")
    value = document.get(key)
    if value is not None and type(value) is not list:
        raise RequestFailed(f"json: field {key} is not a list")
    return value


def objects(document: Any, key: str) -> list[dict[str, Any]] | None:
    """Return a list field whose elements are objects; None if absent or null."""
    found = items(document, key)
    if found is not None and not all(isinstance(each, dict) for each in found):
        raise RequestFailed(f"json: field {key} has elements that are not objects")
    return found


def strings(document: Any, key: str) -> list[str]:
    """Return a list of strings; empty if absent or null."""
    found = items(document, key) or []
    if not all(isinstance(each, str) for each in found):
        raise RequestFailed(f"json: field {key} has elements that are not strings")
    return found
