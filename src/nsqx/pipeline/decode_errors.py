"""The reasons why records could not be decoded: Spark only reports that a record is wrong, not which field.

Called only for rejected records, so it need not be fast. Schemas are Spark's, in their JSON form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

_LONGEST_SHOWN = 60
_INTEGERS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_NUMBERS = ("float", "double")
_WORDS = {"integer": "INT", "long": "BIGINT", "short": "SMALLINT", "byte": "TINYINT"}

NOT_UTF8 = "the value is not UTF-8"


def explain_json_error(value: bytes | None, schema: Mapping[str, Any]) -> str:
    """Return the reason why ``value`` is not a JSON object of this schema."""
    if not value:
        return "the value is empty"
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        return NOT_UTF8
    try:
        found = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        return f"the value is not JSON: {error}"
    if not isinstance(found, dict):
        return f"the value is JSON but not an object: {_shown(found)}"
    return next(_misfits("", found, schema), "the value does not match the schema")


def _misfits(path: str, value: Any, kind: Any) -> Iterator[str]:
    """Yield a message for each part of ``value`` that is not of type ``kind``."""
    if value is None or kind == "string":
        return
    if isinstance(kind, Mapping):
        yield from _misfits_inside(path, value, kind)
    elif not _fits(value, kind):
        yield f"field {path}: {_WORDS.get(kind, str(kind).upper())} expected, found {_shown(value)}"


def _misfits_inside(path: str, value: Any, kind: Mapping[str, Any]) -> Iterator[str]:
    name = kind["type"]
    wanted = {"struct": dict, "map": dict, "array": list}.get(name)
    if wanted is not None and not isinstance(value, wanted):
        yield f"field {path}: {name.upper()} expected, found {_shown(value)}"
    elif name == "struct":
        for field in kind["fields"]:
            inner = f"{path}.{field['name']}" if path else field["name"]
            yield from _misfits(inner, value.get(field["name"]), field["type"])
    elif name == "array":
        for place, each in enumerate(value):
            yield from _misfits(f"{path}[{place}]", each, kind["elementType"])
    elif name == "map":
        for key, each in value.items():
            yield from _misfits(f"{path}.{key}", each, kind["valueType"])


def _fits(value: Any, kind: str) -> bool:
    if kind in _INTEGERS:
        limit = 1 << (_INTEGERS[kind] - 1)
        return isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit
    if kind in _NUMBERS:
        return (isinstance(value, (int, float)) and not isinstance(value, bool)) or value in (
            "NaN",
            "Infinity",
            "-Infinity",
        )
    if kind == "boolean":
        return isinstance(value, bool)
    # Times, dates, decimals and binaries are strings in JSON; only Spark can tell which of them are valid.
    return False


def unknown_fields(value: bytes, schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the fields of a JSON object that are not in the schema; nothing if the value is not an object."""
    try:
        found = orjson.loads(value)
    except orjson.JSONDecodeError:
        return
    if isinstance(found, dict):
        yield from _unknown_inside("", found, schema)


def _unknown_inside(path: str, value: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[str]:
    known = {field["name"].lower(): field["type"] for field in schema["fields"]}
    for name, each in value.items():
        inner = f"{path}.{name}" if path else name
        kind = known.get(name.lower())
        if kind is None:
            yield inner
        elif isinstance(kind, Mapping) and kind["type"] == "struct" and isinstance(each, dict):
            yield from _unknown_inside(inner, each, kind)


def _shown(value: Any) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
