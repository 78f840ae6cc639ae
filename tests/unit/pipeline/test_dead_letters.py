"""A dead letter is stored once, with the message and the reason."""

import base64
import json
from datetime import UTC, datetime

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'nsqx[spark]'")

import pyarrow.dataset  # noqa: E402

from nsqx.pipeline.dead_letters import DeadLetter, DeadLetters, envelope  # noqa: E402
from nsqx.pipeline.state import PipelineState  # noqa: E402
from nsqx.spark.options import ClusterAddresses  # noqa: E402

WHEN = datetime(2026, 11, 15, 10, tzinfo=UTC)
LETTER = DeadLetter(b"no json", "is none", "orders", "0d1f", WHEN, 1, "127.0.0.1:4150")


def letters_in(directory):
    found = pyarrow.dataset.dataset(directory).to_table().to_pylist()
    return sorted(found, key=lambda letter: letter["id"])


def test_a_repeated_task_replaces_its_dead_letters(tmp_path):
    place = DeadLetters("shop", "", str(tmp_path / "dead"), ClusterAddresses((), (), ()))
    other = DeadLetter(b"\xff", "is not UTF-8", "orders", "0d20", WHEN, 2, "127.0.0.1:4150")
    place.write("source.orders", [LETTER, other])
    place.write("source.orders", [other, LETTER])
    place.write("source.orders", [])
    assert letters_in(tmp_path / "dead") == [
        {
            "value": b"no json",
            "topic": "orders",
            "id": "0d1f",
            "timestamp": WHEN,
            "attempts": 1,
            "node": "127.0.0.1:4150",
            "reason": "is none",
            "origin": "source.orders",
            "pipeline": "shop",
        },
        {
            "value": b"\xff",
            "topic": "orders",
            "id": "0d20",
            "timestamp": WHEN,
            "attempts": 2,
            "node": "127.0.0.1:4150",
            "reason": "is not UTF-8",
            "origin": "source.orders",
            "pipeline": "shop",
        },
    ]
    place.write("sink.files", [LETTER])
    assert len(letters_in(tmp_path / "dead")) == 3


def test_dead_letters_are_counted_once_for_each_sink(tmp_path):
    state = PipelineState(str(tmp_path / "state"))
    state.create()
    for sink, letters in (("my_files", [LETTER, LETTER]), ("my_files", [LETTER]), ("totals", [LETTER])):
        place = DeadLetters("shop", "", str(tmp_path / "dead"), ClusterAddresses((), (), ()), state.location, sink)
        place.write("source.orders", letters)
    assert state.new_dead_letters() == {"my_files": 3, "totals": 1}
    assert state.new_dead_letters() == {}


def test_dead_letters_on_a_topic_are_json():
    record = json.loads(envelope("shop", "source.orders", LETTER))
    assert record["value"] == "no json"
    assert record["reason"] == "is none"
    assert record["timestamp"] == "2026-11-15T10:00:00+00:00"
    record = json.loads(envelope("shop", "source.orders", DeadLetter(b"\xff\x00", "is not UTF-8")))
    assert base64.b64decode(record["value_base64"]) == b"\xff\x00"
    assert "value" not in record
    assert record["topic"] is None
