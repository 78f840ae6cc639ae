"""The parser of test files: sample messages and expected rows, in a file beside that of the pipeline.

    [test.only_large_orders.messages]
    orders = [{ order_id = 1, amount = 120.5 }, "no json"]

    [test.only_large_orders.expect]
    files = [{ order_id = 1 }]
    dead_letters = [{ value = "no json" }]

``[[test.NAME.batch]]`` instead of ``messages`` splits the messages into batches. Needs no Spark.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import orjson

from nsqx.errors import ConfigError
from nsqx.pipeline.toml_document import Section, read_document

if TYPE_CHECKING:
    from nsqx.pipeline.model import Pipeline

DEAD_LETTERS = "dead_letters"
FIRST_TIME = datetime(2026, 1, 1, tzinfo=UTC)
"""The time of publishing of the first message; each further message is one second later."""
_META = ("_topic", "_id", "_timestamp", "_attempts", "_node")
_BODIES = ("_value", "_value_base64")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PipelineCase:
    """One test: the messages of each batch by source, and the expected rows by sink."""

    name: str
    batches: tuple[Mapping[str, Sequence[Row]], ...]
    """The messages with the columns of the data source."""
    expected: Mapping[str, Sequence[Row]]
    """Rows by sink. Sinks without an entry are not compared."""
    dead_letters: Sequence[Row]


def case_file_of(pipeline_file: str) -> str:
    """Return the path of the test file of a pipeline file."""
    return f"{os.path.splitext(pipeline_file)[0]}.test.toml"


def read_cases(pipeline: Pipeline, path: str) -> list[PipelineCase]:
    """Return the tests in a file; raises ConfigError."""
    if not os.path.exists(path):
        raise ConfigError(
            f"{path} does not exist: write tests to it, such as [test.first.messages] and [test.first.expect]"
        )
    document = read_document(path, expands=False)
    cases = [_read_case(pipeline, name, section) for name, section in document.sections("test").items()]
    document.end()
    if not cases:
        document.fail("test", "a test is required: add tables such as [test.first.messages] and [test.first.expect]")
    return cases


def _read_case(pipeline: Pipeline, name: str, section: Section) -> PipelineCase:
    if section.has("messages") == section.has("batch"):
        section.fail("messages", "set either messages or [[batch]], which is a table for each batch")
    batches = section.tables("batch") if section.has("batch") else [section.section("messages")]
    numbers = _Numbers()
    messages = tuple(_read_batch(pipeline, each, numbers) for each in batches)
    expect = section.section("expect")
    expected = {sink: _read_rows(expect, sink) for sink in pipeline.sinks if expect.has(sink)}
    letters = _read_rows(expect, DEAD_LETTERS) if expect.has(DEAD_LETTERS) else []
    expect.end()
    section.end()
    if not expected and not letters:
        section.fail("expect", f"set the expected rows of a sink: use one of {', '.join(pipeline.sinks)}")
    return PipelineCase(name, messages, expected, letters)


def _read_batch(pipeline: Pipeline, section: Section, numbers: _Numbers) -> Mapping[str, Sequence[Row]]:
    found: dict[str, list[Row]] = {}
    for name, source in pipeline.sources.items():
        topic = source.topics[0] if source.topics else "topic"
        entries = section.entries(name) if section.has(name) else []
        found[name] = [_message(section, name, entry, topic, numbers) for entry in entries]
    section.end("messages, which are named after their source")
    return found


def _read_rows(section: Section, key: str) -> list[Row]:
    rows = section.entries(key)
    for row in rows:
        if not isinstance(row, dict):
            section.fail(key, f'a row must be a table such as {{ user = "ann" }}, not {row!r}')
    return rows


class _Numbers:
    """Numbers the messages of a test, for their ids and times."""

    def __init__(self) -> None:
        self.count = 0


def _message(section: Section, key: str, entry: Any, topic: str, numbers: _Numbers) -> Row:
    """Return a message with the columns of the data source; a table is a JSON object, a text is the body."""
    if not isinstance(entry, (str, dict)):
        section.fail(key, f"a message must be a table or a text, not {entry!r}")
    given = entry if isinstance(entry, dict) else {"_value": entry}
    number, numbers.count = numbers.count, numbers.count + 1
    row: Row = {
        "_topic": topic,
        "_id": f"{number:016x}",
        "_timestamp": FIRST_TIME + timedelta(seconds=number),
        "_attempts": 1,
        "_node": "127.0.0.1:4150",
    }
    for name in given:
        if name.startswith("_") and name not in (*_META, *_BODIES):
            section.fail(key, f"unknown name {name}: use one of {', '.join((*_META, *_BODIES))}")
    row.update({name: given[name] for name in _META if name in given})
    if isinstance(row["_timestamp"], datetime) and row["_timestamp"].tzinfo is None:
        row["_timestamp"] = row["_timestamp"].replace(tzinfo=UTC)
    return {"value": _body(section, key, given), **{name.removeprefix("_"): value for name, value in row.items()}}


def _body(section: Section, key: str, given: Row) -> bytes:
    fields = {name: value for name, value in given.items() if not name.startswith("_")}
    bodies = [name for name in _BODIES if name in given]
    if len(bodies) + bool(fields) > 1:
        section.fail(key, f"{bodies[0]} is the whole body: remove {', '.join([*fields, *bodies[1:]])}")
    if not bodies:
        return orjson.dumps(fields)
    text = str(given[bodies[0]])
    if bodies[0] == "_value":
        return text.encode()
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        section.fail(key, f"_value_base64 {text!r} is not base64")
