"""The age of the oldest message and the numbers of the node, in /stats and /metrics of a running nsqd."""

from pathlib import Path
from typing import Any

import pytest

from daemons import Daemon, Fleet, wait_until
from rawclient import OK, RawClient

FLAGS = ("--store-rule=classic*=classic", "--store-rule=log*=log", "--mem-queue-size=0")


def channel(nsqd: Daemon, topic: str) -> Any:
    return nsqd.channel_stats(topic, "c")


def make(nsqd: Daemon, topic: str) -> None:
    nsqd.post("/topic/create", topic=topic)
    nsqd.post("/channel/create", topic=topic, channel="c")


@pytest.mark.parametrize("topic", ["classic.t", "log.t"])
def test_the_age_of_waiting_messages_grows_and_ends_with_them(fleet: Fleet, tmp_path: Path, topic: str) -> None:
    nsqd = fleet.nsqd("nsqx", *FLAGS, data_path=tmp_path)
    make(nsqd, topic)
    assert channel(nsqd, topic)["oldest_ms"] == 0
    nsqd.post("/pub", b"first", topic=topic)
    wait_until(lambda: channel(nsqd, topic)["oldest_ms"] > 300, "the message grows old")
    nsqd.post("/pub", b"second", topic=topic)
    assert channel(nsqd, topic)["oldest_ms"] > 300
    nsqd.stop()
    nsqd = fleet.nsqd("nsqx", *FLAGS, data_path=tmp_path)
    wait_until(lambda: channel(nsqd, topic).get("oldest_ms", 0) > 300, "the age is known after a restart")
    metrics = nsqd.request("GET", "/metrics").body.decode()
    assert f'nsq_channel_oldest_seconds{{topic="{topic}",channel="c"}}' in metrics
    with RawClient(nsqd.tcp_address) as consumer:
        consumer.sub(topic, "c")
        consumer.rdy(1)
        first = consumer.read_message().id
        assert channel(nsqd, topic)["oldest_ms"] > 300, "a message in flight counts"
        consumer.fin(first)
        second = consumer.read_message().id
        assert channel(nsqd, topic)["oldest_ms"] > 0
        consumer.rdy(0)
        consumer.fin(second)
        wait_until(lambda: channel(nsqd, topic)["oldest_ms"] == 0, "nothing waits")


@pytest.mark.parametrize("topic", ["classic.d", "log.d"])
def test_deferred_messages_do_not_count(fleet: Fleet, topic: str) -> None:
    nsqd = fleet.nsqd("nsqx", *FLAGS)
    make(nsqd, topic)
    with RawClient(nsqd.tcp_address) as producer:
        assert producer.dpub(topic, 60_000, b"later") == OK
    nsqd.post("/pub", b"now", topic=topic)
    with RawClient(nsqd.tcp_address) as consumer:
        consumer.sub(topic, "c")
        consumer.rdy(1)
        message_id = consumer.read_message().id
        consumer.rdy(0)
        consumer.req(message_id, 60_000)
        wait_until(lambda: channel(nsqd, topic)["deferred_count"] == 2, "both are deferred")
        assert channel(nsqd, topic)["oldest_ms"] == 0


@pytest.mark.parametrize("topic", ["classic.n", "log.n"])
def test_a_topic_without_channels_has_an_age(fleet: Fleet, topic: str) -> None:
    nsqd = fleet.nsqd("nsqx", *FLAGS)
    nsqd.post("/pub", b"waiting", topic=topic)
    wait_until(lambda: nsqd.topic_stats(topic)["oldest_ms"] > 50, "the message grows old")


def test_the_numbers_of_the_node(fleet: Fleet) -> None:
    nsqd = fleet.nsqd("nsqx")
    with RawClient(nsqd.tcp_address) as client:
        client.sub("t", "c")
        node = nsqd.request("GET", "/stats?format=json&include_mem=false").json()["node"]
        assert node["connections"] == 1
        assert node["memory_bytes"] > 10_000_000
        assert 0 < node["disk_free_bytes"] <= node["disk_size_bytes"]
        assert node["nsqx_version"]
    metrics = nsqd.request("GET", "/metrics").body.decode()
    assert "\nnsq_disk_free_bytes " in metrics
