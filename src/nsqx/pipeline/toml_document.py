"""A strict TOML reader: values are read by name and type, and a key that was not read is an error.

Errors are ConfigErrors of one line with the file, the key, the problem and the remedy. Knows nothing of pipelines.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from nsqx.errors import ConfigError
from nsqx.gotext import parse_duration_ns
from nsqx.units import NS_PER_MS

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_TYPE_NAMES = {
    str: "a text",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    list: "a list",
    dict: "a table",
}


class Section:
    """One table of the document."""

    def __init__(self, file: str, path: str, values: Mapping[str, Any]) -> None:
        self.file = file
        self.path = path
        self._values = values
        self._known: set[str] = set()

    def fail(self, key: str, what: str) -> NoReturn:
        """Raise ConfigError for a key."""
        place = ".".join(part for part in (self.path, key) if part)
        raise ConfigError(f"{self.file}: {place}: {what}" if place else f"{self.file}: {what}")

    def has(self, key: str) -> bool:
        """Return True if the key is set, and mark it as known."""
        self._known.add(key)
        return key in self._values

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text that is not empty; without a default the key is required."""
        if not self.has(key):
            if default is None:
                self.fail(key, "required, but not set")
            return default
        value = self._typed(key, str)
        if not value.strip():
            self.fail(key, "must not be empty")
        return str(value)

    def choice(self, key: str, choices: Sequence[str], default: str | None = None) -> str:
        """Return one of the choices."""
        value = self.text(key, default)
        if value not in choices:
            self.fail(key, f"invalid value {value!r}: {_suggestion(value, choices) or _one_of(choices)}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts; the value may also be a single text."""
        if not self.has(key):
            return ()
        value = self._values[key]
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or not all(isinstance(each, str) and each.strip() for each in listed):
            self.fail(key, f"must be a text or a list of texts, not {value!r}")
        return tuple(listed)

    def integer(self, key: str, default: int, least: int = 1) -> int:
        """Return an integer that is at least ``least``."""
        if not self.has(key):
            return default
        value = self._typed(key, int)
        if value < least:
            self.fail(key, f"{value} is too small, use at least {least}")
        return int(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """Return a boolean."""
        return bool(self._typed(key, bool)) if self.has(key) else default

    def duration_ms(self, key: str, default_ms: int | None = None) -> int | None:
        """Return a duration such as 500ms, 30s or 1h in milliseconds."""
        if not self.has(key):
            return default_ms
        text = self._typed(key, str)
        try:
            value_ms = parse_duration_ns(text.strip()) // NS_PER_MS
        except ValueError:
            value_ms = -1
        if value_ms <= 0:
            self.fail(key, f"{text!r} is not a duration such as 500ms, 30s or 1h")
        return value_ms

    def section(self, key: str) -> Section:
        """Return a table below this one; an empty one if it is not set."""
        value = self._typed(key, dict) if self.has(key) else {}
        return Section(self.file, f"{self.path}.{key}" if self.path else key, value)

    def tables(self, key: str) -> list[Section]:
        """Return a list of tables, ``[[key]]``; nothing if it is not set."""
        values = self._typed(key, list) if self.has(key) else []
        for value in values:
            if not isinstance(value, dict):
                self.fail(key, f"must be a list of tables, not {value!r}")
        path = f"{self.path}.{key}" if self.path else key
        return [Section(self.file, path, value) for value in values]

    def entries(self, key: str) -> list[Any]:
        """Return a list of any values; nothing if it is not set."""
        return list(self._typed(key, list)) if self.has(key) else []

    def sections(self, key: str) -> dict[str, Section]:
        """Return the named tables below ``key``, in the order of the file."""
        parent = self.section(key)
        return {name: parent.section(name) for name in parent._values}

    def settings(self) -> dict[str, str]:
        """Return all values that were not read yet, as texts in Spark's notation."""
        found: dict[str, str] = {}
        for key, value in self._flattened():
            if key.partition(".")[0] in self._known:
                continue
            if isinstance(value, (list, dict)):
                self.fail(key, "must be a text, a number, true or false")
            found[key] = str(value).lower() if isinstance(value, bool) else str(value)
        self._known.update(self._values)
        return found

    def _flattened(self) -> Iterable[tuple[str, Any]]:
        """Return nested tables as dotted names: ``spark.sql.x = 1`` is nested in TOML and one name in Spark."""

        def walk(prefix: str, values: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
            for key, value in values.items():
                if isinstance(value, dict):
                    yield from walk(f"{prefix}{key}.", value)
                else:
                    yield f"{prefix}{key}", value

        return walk("", self._values)

    def end(self, what: str = "") -> None:
        """Raise ConfigError if a key was not read; ``what`` names the section in the error."""
        for key in self._values:
            if key not in self._known:
                of = f" of {what}" if what else ""
                hint = _suggestion(key, self._known) or _one_of(sorted(self._known))
                self.fail(key, f"unknown key{of}{f': {hint}' if hint else ''}")

    def _typed(self, key: str, kind: type) -> Any:
        value = self._values[key]
        # In Python, True is an integer.
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            self.fail(key, f"must be {_TYPE_NAMES[kind]}, not {value!r}")
        return value


def _suggestion(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), 1)
    return f"did you mean {close[0]}?" if close else ""


def _one_of(known: Sequence[str]) -> str:
    return f"use one of {', '.join(known)}" if known else ""


def read_document(
    path: str,
    overrides: Mapping[str, str] | None = None,
    environment: Mapping[str, str] = os.environ,
    *,
    expands: bool = True,
) -> Section:
    """Return the document in a file, with ``overrides`` (text by dotted key) applied.

    Environment variables in texts are replaced if ``expands`` is True.
    """
    try:
        with open(path, "rb") as stream:
            values = tomllib.load(stream)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: invalid TOML: {error}") from None
    for key, text in (overrides or {}).items():
        _override(path, values, key, text)
    return Section(path, "", _expanded(path, "", values, environment) if expands else values)


def _override(path: str, values: dict[str, Any], key: str, text: str) -> None:
    *parents, last = key.split(".")
    for name in parents:
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{path}: --set {key}: {name} is not a table")
    if not last:
        raise ConfigError(f"{path}: --set {key}: invalid key, use one such as sink.out.path")
    values[last] = _value_of(text)


def _value_of(text: str) -> Any:
    """Parse a TOML value; return ``text`` itself if it is not one."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _expanded(file: str, path: str, value: Any, environment: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {
            key: _expanded(file, f"{path}.{key}" if path else key, each, environment) for key, each in value.items()
        }
    if isinstance(value, list):
        return [_expanded(file, path, each, environment) for each in value]
    if not isinstance(value, str):
        return value

    def replace_variable(match: re.Match[str]) -> str:
        found = environment.get(match[1], match[2])
        if found is None:
            raise ConfigError(
                f"{file}: {path}: environment variable {match[1]} is not set: set it, or write ${{{match[1]}:-default}}"
            )
        return found

    return _VARIABLE.sub(replace_variable, value)
