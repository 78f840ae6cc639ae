"""nsqd.dat: written as Go writes it, and checked when it is read."""

import json

import pytest

from broker_bench import Bench
from nsqx.errors import MetadataError
from nsqx.net.steps import finish
from nsqx.nsqd.metadata import SavedTopic, encode_metadata, load_metadata, metadata_path, metadata_steps


def test_the_file_equals_go_nsqds_byte_for_byte(tmp_path):
    bench = Bench(tmp_path)
    topic = bench.broker.topic("t")
    topic.channel("c")
    topic.channel("d").pause()
    bench.broker.topic("lonely").pause()
    assert encode_metadata(bench.broker.topics.values()) == (
        b'{"topics":[{"name":"t","paused":false,"channels":[{"name":"c","paused":false},{"name":"d","paused":true}]},'
        b'{"name":"lonely","paused":true,"channels":null}],"version":"1.3.0"}'
    )


def test_the_file_without_topics(tmp_path):
    assert encode_metadata([]) == b'{"topics":null,"version":"1.3.0"}'


def test_ephemeral_topics_and_channels_are_left_out(tmp_path):
    bench = Bench(tmp_path)
    bench.broker.topic("t").channel("c#ephemeral")
    bench.broker.topic("e#ephemeral").channel("c")
    assert encode_metadata(bench.broker.topics.values()) == (
        b'{"topics":[{"name":"t","paused":false,"channels":null}],"version":"1.3.0"}'
    )


def test_saved_topics_are_loaded(tmp_path):
    bench = Bench(tmp_path)
    bench.broker.topic("t").channel("c").pause()
    (tmp_path / "nsqd.dat").write_bytes(encode_metadata(bench.broker.topics.values()))
    assert metadata_path(str(tmp_path)) == str(tmp_path / "nsqd.dat")
    assert load_metadata(str(tmp_path)) == [SavedTopic("t", False, [("c", True)])]


def test_without_a_file_there_are_no_topics(tmp_path):
    assert load_metadata(str(tmp_path)) == []


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({}, []),
        ({"topics": None}, []),
        ({"topics": []}, []),
        ({"topics": [{"name": "t"}]}, [SavedTopic("t", False)]),
        ({"topics": [{"name": "t", "paused": True, "channels": None, "new": 1}]}, [SavedTopic("t", True)]),
        ({"topics": [{"channels": [{"paused": True}]}]}, [SavedTopic("", False, [("", True)])]),
        ({"topics": [{"name": "t", "channels": [{"name": "c"}]}]}, [SavedTopic("t", False, [("c", False)])]),
    ],
)
def test_absent_fields_have_their_defaults(tmp_path, content, expected):
    (tmp_path / "nsqd.dat").write_text(json.dumps(content))
    assert load_metadata(str(tmp_path)) == expected


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"1", b'{"topics":1}', b'{"topics":[1]}', b'{"topics":[{"name":1}]}', b"\xff",
     b'{"topics":[{"name":"t","channels":[null]}]}', b'{"topics":{"name":"t"}}'],
)  # fmt: skip
def test_an_invalid_file_prevents_the_start_with_advice(tmp_path, content):
    (tmp_path / "nsqd.dat").write_bytes(content)
    with pytest.raises(MetadataError, match="nsqd.dat.*backup"):
        load_metadata(str(tmp_path))


def test_an_unreadable_file_is_an_error(tmp_path):
    (tmp_path / "nsqd.dat").mkdir()
    with pytest.raises(MetadataError, match="failed to read metadata"):
        load_metadata(str(tmp_path))


def test_each_topic_and_channel_takes_a_step(tmp_path):
    bench = Bench(tmp_path)
    for number in range(10):
        for channel in range(5):
            bench.broker.topic(f"t{number}").channel(f"c{channel}")
    assert sum(1 for _ in metadata_steps(bench.broker.topics)) == 10 * 5 + 10


def test_a_topic_deleted_between_the_steps_is_left_out(tmp_path):
    bench = Bench(tmp_path)
    bench.broker.topic("t")
    bench.broker.topic("u")
    steps = metadata_steps(bench.broker.topics)
    next(steps)
    bench.broker.delete_topic("u")
    assert finish(steps) == b'{"topics":[{"name":"t","paused":false,"channels":null}],"version":"1.3.0"}'
