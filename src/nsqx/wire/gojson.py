"""JSON objects with known fields, decoded as Go's decoder would.

That decoder matches keys without regard to case, lets the last of several win, ignores null and unknown keys, and
refuses a value of another JSON type than the field's, numbers with a fraction or an exponent included.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_INT64_LIMIT = 1 << 63


class InvalidJSON(ValueError):
    """Not JSON, not an object, or a field of the wrong type."""


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with its keys in order and repeats kept."""


def decode_fields(body: bytes, kinds: Mapping[str, type]) -> dict[str, Any]:
    """The fields of the object in ``body`` that ``kinds`` names (str, int or bool, in lower case) and that it has.

    ``null`` counts as an object without fields. Raises InvalidJSON.
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
    # bool is an int to Python and not to JSON, hence the exact comparison.
    if type(value) is not kind:
        raise InvalidJSON(f"{name} must be {kind.__name__}")
    if isinstance(value, int) and not -_INT64_LIMIT <= value < _INT64_LIMIT:
        raise InvalidJSON(f"{name} is out of range")
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
