"""The user's Python functions, which executors call for each row.

A function is given by its import path, ``module:function``; the directory of the pipeline file is searched first. Its
argument is a row as a dict. If it raises, the row goes to the dead letters and the next row is processed.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from nsqx.errors import ConfigError
from nsqx.pipeline.arrow import arrow_schema_of, rows_to_batch
from nsqx.pipeline.dead_letters import DeadLetter, DeadLetters

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]


def find_function(path: str, directory: str) -> Callable[[Row], Any]:
    """Return the function of an import path; raises ConfigError."""
    module_name, _, name = path.partition(":")
    if os.path.isdir(directory) and directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        found = getattr(importlib.import_module(module_name), name)
    except Exception as error:  # importing the user's module may raise anything
        raise ConfigError(f"{path} cannot be imported: {type(error).__name__}: {error}") from None
    if not callable(found):
        raise ConfigError(f"{path} is not a function")
    return found  # type: ignore[no-any-return]


def module_file(path: str, directory: str) -> str | None:
    """Return the file of a function's module if it is beside the pipeline file, so it must be sent to executors."""
    top = path.partition(":")[0].partition(".")[0]
    found = getattr(sys.modules.get(top), "__file__", None)
    if found is None or os.path.dirname(os.path.abspath(found)) != os.path.abspath(directory):
        return None
    return str(found)


@dataclass(frozen=True, slots=True)
class RowFunction:
    """The import path of a function; sent to executors, which import the function."""

    path: str
    directory: str
    origin: str
    dead_letters: DeadLetters | None
    """None if another sink's query, which calls the same function, writes them."""

    def call(self, function: Callable[[Row], Any], row: Row, letters: list[DeadLetter]) -> Any:
        """Return the function's result for a row; if it raises, append a dead letter and return None."""
        try:
            return function(dict(row))
        except Exception as error:  # the user's code may fail in any way
            letters.append(dead_letter_of_row(row, f"{self.path} failed: {type(error).__name__}: {error}"))
            return None

    def write_dead_letters(self, letters: list[DeadLetter]) -> None:
        """Write the dead letters."""
        if self.dead_letters is not None:
            self.dead_letters.write(self.origin, letters)


@dataclass(frozen=True, slots=True)
class MapStage:
    """A step: the function returns one row (a dict), several (a list) or none (None) for each row."""

    function: RowFunction
    schema: Any

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        function = find_function(self.function.path, self.function.directory)
        schema = arrow_schema_of(self.schema)
        letters: list[DeadLetter] = []
        for batch in batches:
            rows: list[Row] = []
            for row in batch.to_pylist():
                rows.extend(_listed(self.function.call(function, row, letters)))
            made, wrong = rows_to_batch(rows, schema)
            letters.extend(
                dead_letter_of_row(row, f"the result of {self.function.path} does not match its schema: {why}")
                for row, why in wrong
            )
            if made.num_rows:
                yield made
        self.function.write_dead_letters(letters)


@dataclass(frozen=True, slots=True)
class ForeachStage:
    """A sink: calls the function for its side effects; returns the number of rows and of failed rows."""

    function: RowFunction

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        function = find_function(self.function.path, self.function.directory)
        letters: list[DeadLetter] = []
        rows = 0
        for batch in batches:
            for row in batch.to_pylist():
                self.function.call(function, row, letters)
            rows += batch.num_rows
        self.function.write_dead_letters(letters)
        yield pa.RecordBatch.from_pylist([{"rows": rows, "failed": len(letters)}])


def dead_letter_of_row(row: Row, reason: str) -> DeadLetter:
    """Return a dead letter for a row; its value is the row as JSON."""
    value = orjson.dumps(row, default=_shown, option=orjson.OPT_NON_STR_KEYS)
    known = {name: row.get(f"_{name}") for name in ("topic", "id", "timestamp", "attempts", "node")}
    return DeadLetter(value, reason, **known)


def _shown(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _listed(made: Any) -> Iterable[Row]:
    if made is None:
        return ()
    return [made] if isinstance(made, dict) else made
