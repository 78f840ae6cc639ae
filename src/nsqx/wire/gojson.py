"""JSON objects with known fields, decoded as Go's decoder does.

Go matches keys case-insensitively, uses the last of repeated keys, and ignores null and unknown keys. It refuses a
value whose JSON type is not the field's, and an integer with a fraction or an exponent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_INT64_LIMIT = 1 << 63


class InvalidJSON(ValueError):
    """Not JSON, not an object, or a field of the wrong type."""


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as a list, with its keys in order and repeated keys kept."""


def decode_fields(body: bytes, kinds: Mapping[str, type]) -> dict[str, Any]:
    """Return those fields of the object in ``body`` that ``kinds`` names in lower case, as str, int or bool.

    A field of the kind ``object`` may have any value, because Go does not know it. ``null`` is treated as an empty
    object. Raises InvalidJSON.
    """
    try:
        text = body.decode("utf-8", "replace")
        value = json.loads(text, object_pairs_hook=_Pairs, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidJSON(str(error)) from None
    if value is None:
        return {}
    if not isinstance(value, _Pairs):
        raise InvalidJSON("not an object")
    found: dict[str, Any] = {}
    for key, field in value:
        name = key.casefold()
        kind = kinds.get(name)
        if kind is not None and field is not None:
            found[name] = _checked(name, kind, field)
    return found


def _checked(name: str, kind: type, value: Any) -> Any:
    # In Python a bool is an int, in JSON it is not; hence the exact comparison.
    if kind is object:
        return value
    if type(value) is not kind:
        raise InvalidJSON(f"{name} must be {kind.__name__}")
    if isinstance(value, int) and not -_INT64_LIMIT <= value < _INT64_LIMIT:
        raise InvalidJSON(f"{name} is out of range")
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
