"""Go's nsqd, nsqadmin and utilities with our nsqlookupd, and the same tests with Go's nsqlookupd."""

import itertools
import subprocess
from pathlib import Path

import pytest
from mixed_cluster import Admin, ask, lookup, start_nsqd

from daemons import Daemon, Fleet, program_command, wait_until

END_TIMEOUT_S = 30


@pytest.fixture
def lookupd(implementation: str, fleet: Fleet) -> Daemon:
    return fleet.nsqlookupd(implementation)


def test_topics_and_channels_are_registered_and_unregistered(lookupd: Daemon, fleet: Fleet, topic: str) -> None:
    nsqd = start_nsqd(fleet, "go", lookupd)
    nsqd.post("/topic/create", topic=topic)
    wait_until(lambda: lookup(lookupd, topic) == ({nsqd.http_port}, set()), "the topic is registered")
    nsqd.post("/channel/create", topic=topic, channel="ch")
    wait_until(lambda: lookup(lookupd, topic) == ({nsqd.http_port}, {"ch"}), "the channel is registered")
    producer = ask(lookupd, f"/lookup?topic={topic}")["producers"][0]
    assert producer["broadcast_address"] == "127.0.0.1"
    assert (producer["tcp_port"], producer["version"]) == (nsqd.tcp_port, "1.3.0")
    assert ask(lookupd, f"/channels?topic={topic}") == {"channels": ["ch"]}
    assert ask(lookupd, "/topics") == {"topics": [topic]}
    nsqd.post("/channel/delete", topic=topic, channel="ch")
    nsqd.post("/topic/delete", topic=topic)
    wait_until(lambda: lookup(lookupd, topic) == (set(), {"ch"}), "the topic has no producer and is still known")
    assert ask(lookupd, "/nodes")["producers"][0]["topics"] == []


def test_a_deleted_ephemeral_topic_is_forgotten(lookupd: Daemon, fleet: Fleet, topic: str) -> None:
    nsqd = start_nsqd(fleet, "go", lookupd)
    name = f"{topic}#ephemeral"
    nsqd.post("/topic/create", topic=name)
    nsqd.post("/channel/create", topic=name, channel="ch#ephemeral")
    wait_until(
        lambda: lookup(lookupd, f"{topic}%23ephemeral") == ({nsqd.http_port}, {"ch#ephemeral"}),
        "the topic is registered",
    )
    nsqd.post("/topic/delete", topic=name)
    wait_until(lambda: lookup(lookupd, f"{topic}%23ephemeral") is None, "the topic is forgotten")


def test_a_restarted_nsqd_is_registered_again(lookupd: Daemon, fleet: Fleet, topic: str, tmp_path: Path) -> None:
    nsqd = start_nsqd(fleet, "go", lookupd, data_path=tmp_path)
    nsqd.post("/topic/create", topic=topic)
    nsqd.post("/channel/create", topic=topic, channel="ch")
    wait_until(lambda: lookup(lookupd, topic) == ({nsqd.http_port}, {"ch"}), "the topic is registered")
    nsqd.kill()
    wait_until(lambda: lookup(lookupd, topic) == (set(), {"ch"}), "the killed nsqd is no longer registered")
    again = start_nsqd(fleet, "go", lookupd, data_path=tmp_path)
    wait_until(lambda: lookup(lookupd, topic) == ({again.http_port}, {"ch"}), "the topic of the metadata is registered")


def test_a_new_topic_starts_with_the_channels_it_has_on_other_nodes(lookupd: Daemon, fleet: Fleet, topic: str) -> None:
    """nsqd queries the HTTP address in the IDENTIFY response for the channels before the first message is delivered."""
    first, second = start_nsqd(fleet, "go", lookupd), start_nsqd(fleet, "go", lookupd)
    for channel in ("one", "two"):
        first.post("/topic/create", topic=topic)
        first.post("/channel/create", topic=topic, channel=channel)
    wait_until(lambda: lookup(lookupd, topic) == ({first.http_port}, {"one", "two"}), "the topic is registered")
    second.post("/pub", b"first message", topic=topic)
    for channel in ("one", "two"):
        wait_until(
            lambda name=channel: (second.channel_stats(topic, name) or {}).get("depth") == 1,
            "both channels have the message",
        )


def test_a_tombstoned_node_is_hidden_from_lookups(lookupd: Daemon, fleet: Fleet, topic: str) -> None:
    first, second = start_nsqd(fleet, "go", lookupd), start_nsqd(fleet, "go", lookupd)
    for nsqd in (first, second):
        nsqd.post("/topic/create", topic=topic)
    both = {first.http_port, second.http_port}
    wait_until(lambda: lookup(lookupd, topic) == (both, set()), "both are registered")
    lookupd.post("/topic/tombstone", topic=topic, node=f"127.0.0.1:{first.http_port}")
    assert lookup(lookupd, topic) == ({second.http_port}, set())
    nodes = {node["http_port"]: node for node in ask(lookupd, "/nodes")["producers"]}
    assert {port: node["tombstones"] for port, node in nodes.items()} == {
        first.http_port: [True],
        second.http_port: [False],
    }


def test_nsqd_registers_again_after_nsqlookupd_restarts(implementation: str, fleet: Fleet, topic: str) -> None:
    """nsqlookupd stores nothing on disk."""
    lookupd = fleet.nsqlookupd(implementation)
    nsqd = start_nsqd(fleet, "go", lookupd)
    nsqd.post("/topic/create", topic=topic)
    wait_until(lambda: lookup(lookupd, topic) == ({nsqd.http_port}, set()), "the topic is registered")
    assert lookupd.stop() == 0
    again = fleet.nsqlookupd(
        implementation, f"--tcp-address={lookupd.tcp_address}", f"--http-address={lookupd.http_address}"
    )
    numbers = itertools.count()

    def registered_again() -> bool:
        # nsqd notices the lost connection when a command fails. With the next command it registers everything again.
        nsqd.post("/topic/create", topic=f"{topic}.{next(numbers)}")
        return lookup(again, topic) == ({nsqd.http_port}, set())

    wait_until(registered_again, "the topic is registered again", timeout_s=40)


def test_go_nsqadmin_creates_lists_and_deletes(lookupd: Daemon, fleet: Fleet, topic: str) -> None:
    nsqd = start_nsqd(fleet, "go", lookupd)
    admin = Admin(fleet, lookupd)
    admin.call("POST", "/topics", topic=topic, channel="ch")
    assert lookup(lookupd, topic) == (set(), {"ch"})
    nsqd.post("/pub", b"hello", topic=topic)
    wait_until(lambda: lookup(lookupd, topic) == ({nsqd.http_port}, {"ch"}), "the topic is registered")
    assert admin.call("GET", "/topics") == {"topics": [topic]}
    (node,) = admin.call("GET", "/nodes")["nodes"]
    assert node["topics"] == [{"topic": topic, "tombstoned": False}]
    assert node["remote_addresses"] == [f"{lookupd.http_address}/{node['remote_address']}"]
    stats = admin.call("GET", f"/topics/{topic}")
    assert [entry["node"] for entry in stats["nodes"]] == [f"127.0.0.1:{nsqd.http_port}"]
    wait_until(lambda: admin.call("GET", f"/topics/{topic}/ch")["depth"] == 1, "the message is in the channel")
    admin.call("DELETE", f"/topics/{topic}/ch")
    wait_until(lambda: lookup(lookupd, topic) == ({nsqd.http_port}, set()), "the channel is deleted")
    admin.call("DELETE", f"/topics/{topic}")
    wait_until(lambda: lookup(lookupd, topic) is None and nsqd.topic_stats(topic) is None, "the topic is deleted")


def test_go_nsqadmin_tombstones_a_node(lookupd: Daemon, fleet: Fleet, topic: str) -> None:
    first, second = start_nsqd(fleet, "go", lookupd), start_nsqd(fleet, "go", lookupd)
    for nsqd in (first, second):
        nsqd.post("/topic/create", topic=topic)
    both = {first.http_port, second.http_port}
    wait_until(lambda: lookup(lookupd, topic) == (both, set()), "both are registered")
    Admin(fleet, lookupd).call("DELETE", f"/nodes/127.0.0.1:{first.http_port}", topic=topic)
    wait_until(lambda: lookup(lookupd, topic) == ({second.http_port}, set()), "only the second node is listed")
    assert first.topic_stats(topic) is None


def test_go_nsqadmin_lists_inactive_topics(lookupd: Daemon, fleet: Fleet, topic: str) -> None:
    lookupd.post("/channel/create", topic=topic, channel="ch")
    assert Admin(fleet, lookupd).call("GET", "/topics?inactive=true") == {"topics": {topic: ["ch"]}}


def test_nsq_stat_finds_the_nsqd(lookupd: Daemon, fleet: Fleet, topic: str) -> None:
    nsqd = start_nsqd(fleet, "go", lookupd)
    nsqd.post("/topic/create", topic=topic)
    nsqd.post("/channel/create", topic=topic, channel="ch")
    nsqd.post("/mpub", b"a\nb\nc", topic=topic)
    wait_until(lambda: lookup(lookupd, topic) == ({nsqd.http_port}, {"ch"}), "the topic is registered")
    wait_until(lambda: nsqd.channel_stats(topic, "ch")["depth"] == 3, "the messages are in the channel")
    flags = [f"-lookupd-http-address={lookupd.http_address}", f"-topic={topic}", "-channel=ch"]
    command = [*program_command("go", "nsq_stat"), *flags, "-interval=10ms", "-count=2"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=END_TIMEOUT_S)
    assert ended.returncode == 0, ended.stderr
    reports = [line.split() for line in ended.stdout.splitlines() if line.split()[0].isdigit()]
    assert [report[3] for report in reports] == ["3", "3"], ended.stdout


def test_nsq_tail_finds_the_nsqd(lookupd: Daemon, fleet: Fleet, topic: str) -> None:
    """A consumer that has only the address of nsqlookupd receives the message."""
    nsqd = start_nsqd(fleet, "go", lookupd)
    nsqd.post("/pub", b"found me", topic=topic)
    nsqd.post("/channel/create", topic=topic, channel="tail")
    wait_until(lambda: lookup(lookupd, topic) == ({nsqd.http_port}, {"tail"}), "the topic is registered")
    flags = [f"-lookupd-http-address={lookupd.http_address}", f"-topic={topic}", "-channel=tail", "-n=1"]
    ended = subprocess.run(
        [*program_command("go", "nsq_tail"), *flags], capture_output=True, text=True, timeout=END_TIMEOUT_S
    )
    assert ended.stdout == "found me\n", ended.stderr
