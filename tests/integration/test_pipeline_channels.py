"""A pipeline finds out whether its topics have logs, and creates the channels of its sinks, with real daemons."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'nsqx[spark]'")

from types import SimpleNamespace  # noqa: E402

from daemons import require_go, wait_until  # noqa: E402
from nsqx.errors import ConfigError  # noqa: E402
from nsqx.pipeline.channels import make_channels  # noqa: E402
from nsqx.pipeline.log_mode import create_topic_in_logs, first_offsets, reads_logs, set_log_positions  # noqa: E402
from nsqx.pipeline.parser import read_pipeline  # noqa: E402
from nsqx.pipeline.state import PipelineState, start_file  # noqa: E402

FILE = """
[pipeline]
name = "test"
[source.messages]
topic = "orders"
format = "raw"
$more
[sink.a]
from = "messages"
type = "topic"
topic = "out"
[sink.b]
from = "messages"
type = "json"
path = "b"
"""


def pipeline_of(directory, *, nsqd=(), lookupd=(), more=""):
    path = directory / "test.toml"
    path.write_text(FILE.replace("$more", more))
    return read_pipeline(str(path), nsqd=nsqd, lookupd=lookupd)


def state_of(pipeline):
    state = PipelineState(pipeline.state)
    state.create()
    return state


def planned(pipeline):
    sources = tuple(pipeline.sources.values())
    return [SimpleNamespace(sink=sink, sources=sources) for sink in pipeline.sinks.values()]


def is_registered(lookupd, topic):
    answer = lookupd.request("GET", "/lookup", query={"topic": topic})
    return answer.status == 200 and bool(answer.json()["producers"])


def source_and_sink(pipeline, name="a"):
    return pipeline.sources["messages"], pipeline.sinks[name]


@pytest.mark.parametrize("implementation", ["go", "nsqx"])
@pytest.mark.parametrize("exists", [True, False], ids=["topic", "no-topic"])
@pytest.mark.parametrize("finds", ["nsqd", "lookupd"])
def test_channels_of_topics_without_a_log(fleet, tmp_path, implementation, exists, finds):
    if implementation == "go":
        require_go()
    lookupd = fleet.nsqlookupd(implementation)
    store = [] if implementation == "go" else ["--store=classic"]
    nsqd = fleet.nsqd(implementation, f"--lookupd-tcp-address={lookupd.tcp_address}", *store)
    if exists:
        nsqd.post("/pub", b"x", topic="orders")
        wait_until(lambda: is_registered(lookupd, "orders"), "nsqd has registered the topic", timeout_s=60)
    place = {"nsqd": [nsqd.tcp_address]} if finds == "nsqd" else {"lookupd": [lookupd.http_address]}
    pipeline = pipeline_of(tmp_path, **place)
    state = state_of(pipeline)
    assert not reads_logs(pipeline, *source_and_sink(pipeline))
    make_channels(pipeline, state, planned(pipeline))
    assert state.read(start_file(pipeline.sinks["a"])) is None
    if finds == "nsqd":
        assert not create_topic_in_logs(pipeline, "out")
    elif exists:
        assert {each["channel_name"] for each in nsqd.topic_stats("orders")["channels"]} == {"test.a", "test.b"}


def test_a_backfill_needs_a_log(fleet, tmp_path):
    nsqd = fleet.nsqd("nsqx", "--store=classic")
    nsqd.post("/pub", b"x", topic="orders")
    pipeline = pipeline_of(tmp_path, nsqd=[nsqd.tcp_address], more='backfill = "archive"')
    with pytest.raises(ConfigError, match=r"source\.messages\.backfill: every nsqd that has the topic must have a log"):
        make_channels(pipeline, state_of(pipeline), planned(pipeline))


def test_channels_of_logs_begin_at_their_beginning_and_keep_their_position(fleet, tmp_path):
    nsqd = fleet.nsqd("nsqx", "--store=log")
    for number in range(5):
        nsqd.post("/pub", b"%d" % number, topic="orders")
    # The first channel takes the backlog, so a channel that nsqd creates later would begin at the end.
    nsqd.post("/channel/create", topic="orders", channel="other")
    pipeline = pipeline_of(tmp_path, nsqd=[nsqd.tcp_address])
    state = state_of(pipeline)
    source, sink = source_and_sink(pipeline)
    assert reads_logs(pipeline, source, sink)
    make_channels(pipeline, state, planned(pipeline))
    starts = state.read(start_file(sink))
    ((key, first),) = starts.items()
    assert (key.partition("/")[0], first) == ("orders", 0)
    assert [nsqd.channel_stats("orders", f"test.{name}")["depth"] for name in "ab"] == [5, 5]
    assert set_log_positions(pipeline, source, sink, {key: 3}) == []
    assert set_log_positions(pipeline, source, sink, {"orders/0123456789abcdef": 3}) == ["orders/0123456789abcdef"]
    make_channels(pipeline, state, planned(pipeline))
    assert state.read(start_file(sink)) == {key: 3}
    assert nsqd.channel_stats("orders", "test.a")["depth"] == 2
    nsqd.request("POST", "/log/trim", query={"topic": "orders", "before": "2"})
    assert first_offsets(pipeline, source, sink) == {key: 2}


def test_a_query_that_has_begun_with_a_channel_goes_on_with_it(fleet, tmp_path):
    nsqd = fleet.nsqd("nsqx", "--store=log")
    nsqd.post("/pub", b"x", topic="orders")
    pipeline = pipeline_of(tmp_path, nsqd=[nsqd.tcp_address])
    segments = PipelineState(f"{pipeline.state}/a/segments-messages")
    segments.create()
    segments.write("state.json", {})
    assert not reads_logs(pipeline, *source_and_sink(pipeline, "a"))
    assert reads_logs(pipeline, *source_and_sink(pipeline, "b"))


def test_a_topic_is_created_in_the_logs_of_all_nsqds(fleet, tmp_path):
    nsqds = [fleet.nsqd("nsqx", "--store=log") for _ in range(2)]
    addresses = [nsqd.tcp_address for nsqd in nsqds]
    assert create_topic_in_logs(pipeline_of(tmp_path, nsqd=addresses), "out")
    assert all(nsqd.topic_stats("out") for nsqd in nsqds)
    classic = fleet.nsqd("nsqx", "--store=classic").tcp_address
    assert not create_topic_in_logs(pipeline_of(tmp_path, nsqd=[*addresses, classic]), "out")
    gone = fleet.nsqd("nsqx", "--store=log")
    gone.stop()
    assert not create_topic_in_logs(pipeline_of(tmp_path, nsqd=[*addresses, gone.tcp_address]), "out")
