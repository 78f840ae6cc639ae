"""Python functions of the user on rows, in executors: what SQL cannot say.

A function is named by import path, ``module:function``; the directory of the pipeline file is looked in first. It is
given a row as a dict. If it raises, the row goes to the dead letters, and the others go on.
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
    """The function of an import path; raises ConfigError."""
    module_name, _, name = path.partition(":")
    if os.path.isdir(directory) and directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        found = getattr(importlib.import_module(module_name), name)
    except Exception as error:  # whatever a foreign module does when it is imported
        raise ConfigError(f"{path} cannot be imported: {type(error).__name__}: {error}") from None
    if not callable(found):
        raise ConfigError(f"{path} is no function")
    return found  # type: ignore[no-any-return]


def module_file(path: str, directory: str) -> str | None:
    """The file of a function's module if it lies beside the pipeline, from where executors have to be given it."""
    top = path.partition(":")[0].partition(".")[0]
    found = getattr(sys.modules.get(top), "__file__", None)
    if found is None or os.path.dirname(os.path.abspath(found)) != os.path.abspath(directory):
        return None
    return str(found)


@dataclass(frozen=True, slots=True)
class RowFunction:
    """A function and where it is found; goes to executors, which import it themselves."""

    path: str
    directory: str
    origin: str
    dead_letters: DeadLetters | None
    """None if another sink's query, which calls the same function, keeps them."""

    def call(self, function: Callable[[Row], Any], row: Row, letters: list[DeadLetter]) -> Any:
        """What the function makes of a row; if it raises, a letter more."""
        try:
            return function(dict(row))
        except Exception as error:  # the user's code may fail in any way
            letters.append(letter_of(row, f"{self.path} failed: {type(error).__name__}: {error}"))
            return None

    def set_aside(self, letters: list[DeadLetter]) -> None:
        """Keep what failed."""
        if self.dead_letters is not None:
            self.dead_letters.write(self.origin, letters)


@dataclass(frozen=True, slots=True)
class MapStage:
    """A step: every row becomes one row, none (None) or several (a list)."""

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
                letter_of(row, f"{self.function.path} gave what is not in its schema: {why}") for row, why in wrong
            )
            if made.num_rows:
                yield made
        self.function.set_aside(letters)


@dataclass(frozen=True, slots=True)
class ForeachStage:
    """A sink: the function is called for what it does. Gives the number of rows done and failed."""

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
        self.function.set_aside(letters)
        yield pa.RecordBatch.from_pylist([{"rows": rows, "failed": len(letters)}])


def letter_of(row: Row, reason: str) -> DeadLetter:
    """A row that is no message any more: its value is the row as JSON."""
    value = orjson.dumps(row, default=_shown, option=orjson.OPT_NON_STR_KEYS)
    known = {name: row.get(f"_{name}") for name in ("topic", "id", "timestamp", "attempts", "node")}
    return DeadLetter(value, reason, **known)


def _shown(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _listed(made: Any) -> Iterable[Row]:
    if made is None:
        return ()
    return [made] if isinstance(made, dict) else made
