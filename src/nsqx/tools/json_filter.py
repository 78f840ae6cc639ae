"""The JSON filter of nsq_to_nsq: which messages are forwarded, and with which fields."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import Enum
from typing import Any

from nsqx.gotext import parse_float

# The characters that Go's encoder escapes.
_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


class Verdict(Enum):
    """The result of the filter."""

    PASS = "pass"
    DROP = "drop"
    """The message does not match."""
    UNREADABLE = "unreadable"
    """The message is not a JSON object."""
    RETRY = "retry"
    """The field whose value is required is missing."""


class JSONFilter:
    """Passes objects that have a required field, optionally with a required value, and selects fields."""

    def __init__(self, required_field: str = "", required_value: str = "", fields: Sequence[str] = ()) -> None:
        """Empty parameters mean that nothing is required, or that all fields are kept."""
        self._required_field = required_field
        self._required_value = required_value
        self._required_number = _number(required_value)
        self._fields = tuple(fields)

    @property
    def is_needed(self) -> bool:
        """True if the filter has any condition or field selection."""
        return bool(self._required_field or self._fields)

    def apply(self, body: bytes) -> tuple[Verdict, bytes]:
        """Return the verdict on a message, and the body to forward."""
        if not self.is_needed:
            return Verdict.PASS, body
        try:
            value = json.loads(body.decode("utf-8", "replace"), parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            return Verdict.UNREADABLE, b""
        if value is None:
            value = {}
        if not isinstance(value, dict):
            return Verdict.UNREADABLE, b""
        verdict = self._judge(value)
        if verdict is not Verdict.PASS or not self._fields:
            return verdict, body
        return verdict, _encode({name: value[name] for name in sorted(set(self._fields)) if name in value})

    def _judge(self, value: dict[str, Any]) -> Verdict:
        if not self._required_field:
            return Verdict.PASS
        if self._required_field not in value:
            return Verdict.RETRY if self._required_value else Verdict.DROP
        if not self._required_value or self._matches(value[self._required_field]):
            return Verdict.PASS
        return Verdict.DROP

    def _matches(self, found: Any) -> bool:
        if isinstance(found, str):
            return found == self._required_value
        if isinstance(found, bool) or not isinstance(found, int | float) or self._required_number is None:
            return False
        return found == self._required_number


def _number(text: str) -> float | None:
    try:
        return parse_float(text) if text else None
    except ValueError:
        return None


def _encode(value: Any) -> bytes:
    # The escaped characters occur only inside strings.
    text = _written(value).translate(_ESCAPES)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _written(value: Any) -> str:
    """Return JSON in Go's format: sorted keys, whole numbers without a fraction, short exponents."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{_written(name)}:{_written(value[name])}" for name in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    if isinstance(value, float):
        if value.is_integer() and abs(value) < 1e21:
            return str(int(value))
        return repr(value).replace("e-0", "e-")
    return json.dumps(value, ensure_ascii=False)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
