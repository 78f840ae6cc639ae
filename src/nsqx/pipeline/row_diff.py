"""Comparison of the rows of a test with the expected ones, without regard to their order."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import orjson

_DIGITS = 12
"""Numbers are equal if so many digits are."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RowDiff:
    """The difference between expected and found rows; only columns that an expected row names are compared."""

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    unknown_columns: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.unknown_columns)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the difference: - for a missing row, + for one that is not expected."""
        yield from (f"- {row}" for row in self.missing)
        yield from (f"+ {row}" for row in self.unexpected)


def compare_rows(expected: Sequence[Row], found: Sequence[Row], columns: Sequence[str]) -> RowDiff:
    """Return the difference between expected rows and those found, which have these columns.

    A column that only some of the expected rows name is NULL in the others.
    """
    named = tuple(dict.fromkeys(name for row in expected for name in row))
    unknown = tuple(name for name in named if name not in columns)
    if unknown:
        return RowDiff((), (), unknown)
    compared = named or tuple(columns)
    wanted = Counter(_shown(row, compared, _kinds(found)) for row in expected)
    there = Counter(_shown(row, compared, {}) for row in found)
    return RowDiff(tuple(sorted((wanted - there).elements())), tuple(sorted((there - wanted).elements())))


def _kinds(rows: Sequence[Row]) -> dict[str, type]:
    """Return the Python types of the columns."""
    return {name: type(value) for row in rows for name, value in row.items() if value is not None}


def _shown(row: Row, columns: Sequence[str], kinds: Mapping[str, type]) -> str:
    """Return a row as text that is equal for equal rows."""
    values = ((name, _parsed(row.get(name), kinds.get(name))) for name in columns)
    return ", ".join(f"{name}={orjson.dumps(_plain(value)).decode()}" for name, value in values)


def _parsed(value: Any, kind: type | None) -> Any:
    """Return an expected text as a time if the column has times."""
    if isinstance(value, str) and kind in (datetime, date):
        try:
            return datetime.fromisoformat(value) if kind is datetime else date.fromisoformat(value)
        except ValueError:
            return value
    return value


def _plain(value: Any) -> Any:
    """Return a value as one of JSON, with equal numbers and times in one notation."""
    if isinstance(value, (bool, str)) or value is None:
        return value
    if isinstance(value, (int, float, Decimal)):
        return _number(value)
    if isinstance(value, datetime):
        return (value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value).isoformat(" ")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {str(name): _plain(value[name]) for name in sorted(value, key=str)}
    if isinstance(value, Sequence):
        # Arrow returns a map as pairs.
        if value and all(isinstance(each, tuple) and len(each) == 2 for each in value):
            return _plain(dict(value))
        return [_plain(each) for each in value]
    return str(value)


def _number(value: float | Decimal) -> Any:
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else str(value)
    rounded = float(f"{value:.{_DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 2**53 else rounded
