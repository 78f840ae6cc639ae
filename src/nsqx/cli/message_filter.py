"""Conditions on messages: a text that the body contains, a regular expression, or a field of a JSON body.

    TEXT            the body contains the text, in upper or lower case
    /REGEX/         the regular expression matches somewhere in the body
    .path           the JSON body has the field; .user.id is a field of an object, .items.0 the first of a list
    .path=VALUE     its value is equal; also != < <= > >= for numbers and texts, and ~ for texts that contain VALUE

A body that is not JSON, or that does not have the field, meets only a condition with ``!=``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import orjson

from nsqx.errors import ConfigError
from nsqx.wire.body_search import BodySearch

Condition = Callable[[bytes], bool]

_FIELD = re.compile(r"(\.[^=!<>~]+?)\s*(?:(=|!=|<=|>=|<|>|~)\s*(.*))?", re.DOTALL)
_MISSING = object()


def parse_filter(text: str) -> Condition:
    """Return the condition of a text; raises ConfigError."""
    if not text:
        raise ConfigError("--filter is empty: use TEXT, /REGEX/ or .field=VALUE")
    if len(text) > 1 and text[0] == text[-1] == "/":
        return _regex(text[1:-1])
    if text[0] != ".":
        return BodySearch(text).finds
    found = _FIELD.fullmatch(text)
    if found is None or "" in found[1][1:].split("."):
        raise ConfigError(f'invalid --filter "{text}": use .field=VALUE, with = != < <= > >= or ~')
    return _field(found[1], found[2] or "", found[3] or "")


def _regex(pattern: str) -> Condition:
    try:
        compiled = re.compile(pattern.encode())
    except re.error as error:
        raise ConfigError(f'invalid --filter "/{pattern}/": {error}') from None
    return lambda body: compiled.search(body) is not None


def _field(path: str, operator: str, text: str) -> Condition:
    compare = _COMPARISONS[operator]

    def holds(body: bytes) -> bool:
        value = field_of(body, path)
        return operator == "!=" if value is _MISSING else compare(value, text)

    return holds


def field_of(body: bytes, path: str) -> Any:
    """Return the field of a JSON body at a path, such as .user.id; a private object if there is none."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return _MISSING
    for name in path[1:].split("."):
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return _MISSING
    return value


def field_text(body: bytes, path: str) -> str:
    """Return the field of a JSON body as text, "" if there is none."""
    value = field_of(body, path)
    return "" if value is _MISSING else value_text(value)


def value_text(value: object) -> str:
    """Return a value of a JSON document as text: a string as it is, others as JSON."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _compared(value: object, text: str) -> tuple[Any, Any] | None:
    """Return both sides as numbers if both are, else as texts; None if the value is not one of them."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value), float(text)
    except ValueError:
        return str(value), text


def _is_equal(value: object, text: str) -> bool:
    if isinstance(value, str):
        return value == text
    pair = _compared(value, text)
    return orjson.dumps(value).decode() == text if pair is None else bool(pair[0] == pair[1])


def _ordered(holds: Callable[[Any, Any], bool]) -> Callable[[object, str], bool]:
    def compare(value: object, text: str) -> bool:
        pair = _compared(value, text)
        return pair is not None and holds(*pair)

    return compare


_COMPARISONS: dict[str, Callable[[object, str], bool]] = {
    "": lambda _value, _text: True,
    "=": _is_equal,
    "!=": lambda value, text: not _is_equal(value, text),
    "~": lambda value, text: text.lower() in value_text(value).lower(),
    "<": _ordered(lambda left, right: left < right),
    "<=": _ordered(lambda left, right: left <= right),
    ">": _ordered(lambda left, right: left > right),
    ">=": _ordered(lambda left, right: left >= right),
}
