"""Clusters of our daemons and Go's: our nsqd with Go's nsqlookupd, and Go's nsqadmin and utilities with our daemons.

Go's nsqd with our nsqlookupd is tested in test_lookupd_cluster.py.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mixed_cluster import Admin, ask, lookup, start_nsqd

from daemons import Daemon, Fleet, program_command, wait_until
from rawclient import OK, RawClient

END_TIMEOUT_S = 30
# nsqd has a different connection to each nsqlookupd. NSQ 1.3.0 does not report the topology.
DIFFERING_KEYS = {"remote_address", "topology_zone", "topology_region"}
BODIES = [b"message %02d" % number for number in range(40)]


def nodes(lookupd: Daemon) -> dict[int, Any]:
    """Return the nodes of an nsqlookupd by HTTP port, without the keys that differ between two nsqlookupds."""
    found = {}
    for node in ask(lookupd, "/nodes")["producers"]:
        topics = dict(zip(node.pop("topics"), node.pop("tombstones"), strict=True))
        known = {key: value for key, value in node.items() if key not in DIFFERING_KEYS}
        found[node["http_port"]] = {**known, "topics": topics}
    return found


def test_our_nsqd_registers_with_go_nsqlookupd(fleet: Fleet, topic: str, tmp_path: Path) -> None:
    lookupd = fleet.nsqlookupd("go")
    nsqd = start_nsqd(fleet, "nsqx", lookupd, data_path=tmp_path)
    for name in (topic, f"{topic}#ephemeral"):
        nsqd.post("/topic/create", topic=name)
        nsqd.post("/channel/create", topic=name, channel="ch")
    port = nsqd.http_port
    wait_until(lambda: lookup(lookupd, topic) == ({port}, {"ch"}), "the topic is registered")
    wait_until(lambda: lookup(lookupd, f"{topic}%23ephemeral") == ({port}, {"ch"}), "the ephemeral topic is registered")
    node = nodes(lookupd)[port]
    assert (node["broadcast_address"], node["tcp_port"], node["version"]) == ("127.0.0.1", nsqd.tcp_port, "1.3.0")
    nsqd.post("/topic/delete", topic=f"{topic}#ephemeral")
    wait_until(lambda: lookup(lookupd, f"{topic}%23ephemeral") is None, "an ephemeral topic is forgotten")
    assert nsqd.stop() == 0
    wait_until(lambda: lookup(lookupd, topic) == (set(), {"ch"}), "nsqd is no longer registered")
    again = start_nsqd(fleet, "nsqx", lookupd, data_path=tmp_path)
    wait_until(
        lambda: lookup(lookupd, topic) == ({again.http_port}, {"ch"}), "nsqd has registered the topics of its metadata"
    )


def test_our_nsqd_registers_again_after_go_nsqlookupd_restarts(fleet: Fleet, topic: str) -> None:
    lookupd = fleet.nsqlookupd("go")
    nsqd = start_nsqd(fleet, "nsqx", lookupd)
    nsqd.post("/topic/create", topic=topic)
    wait_until(lambda: lookup(lookupd, topic) == ({nsqd.http_port}, set()), "the topic is registered")
    lookupd.kill()
    addresses = [f"--tcp-address={lookupd.tcp_address}", f"--http-address={lookupd.http_address}"]
    again = fleet.nsqlookupd("go", *addresses)
    nsqd.post("/topic/create", topic=f"{topic}.new")  # nsqd notices the lost connection with this command at the latest
    for name in (topic, f"{topic}.new"):
        wait_until(lambda at=name: lookup(again, at) == ({nsqd.http_port}, set()), f"{name} is registered again")


def test_our_nsqd_registers_with_go_nsqlookupd_without_a_broadcast_address(fleet: Fleet, topic: str) -> None:
    """Go's nsqd registers there too. nsqd then has no HTTP address to query for channels."""
    lookupd = fleet.nsqlookupd("go", "--broadcast-address=")
    nsqd = fleet.nsqd("nsqx", f"--lookupd-tcp-address={lookupd.tcp_address}")
    nsqd.post("/topic/create", topic=topic)
    wait_until(lambda: lookup(lookupd, topic) == ({nsqd.http_port}, set()), "the topic is registered")


def test_go_and_our_daemons_form_one_cluster(fleet: Fleet, topic: str) -> None:
    """Both nsqlookupds list the same nodes, and a new topic starts with the channels it has on other nodes."""
    lookupds = [fleet.nsqlookupd("go"), fleet.nsqlookupd("nsqx")]
    first, second, third, fourth = [start_nsqd(fleet, each, *lookupds) for each in ("go", "nsqx", "go", "nsqx")]
    for daemon, channel in ((first, "of_go"), (second, "of_nsqx")):
        daemon.post("/topic/create", topic=topic)
        daemon.post("/channel/create", topic=topic, channel=channel)
    for lookupd in lookupds:
        wait_until(
            lambda at=lookupd: (lookup(at, topic) or ((), ()))[1] >= {"of_go", "of_nsqx"}, "both channels are known"
        )
    for daemon in (third, fourth):
        daemon.post("/pub", b"first here", topic=topic)
        for channel in ("of_go", "of_nsqx"):
            wait_until(
                lambda at=daemon, name=channel: (at.channel_stats(topic, name) or {}).get("depth") == 1,
                f"{channel} has the message",
            )
    all_ports = {daemon.http_port for daemon in (first, second, third, fourth)}
    for lookupd in lookupds:
        wait_until(
            lambda at=lookupd: lookup(at, topic) == (all_ports, {"of_go", "of_nsqx"}), "all four nsqds are known"
        )
    go, ours = [nodes(lookupd) for lookupd in lookupds]
    assert go == ours


def test_go_nsqadmin_operates_our_cluster(fleet: Fleet, topic: str) -> None:
    lookupd = fleet.nsqlookupd("nsqx")
    daemons = [start_nsqd(fleet, "nsqx", lookupd) for _ in range(2)]
    admin = Admin(fleet, lookupd)
    admin.call("POST", "/topics", topic=topic, channel="ch")
    for daemon in daemons:
        daemon.post("/mpub", b"a\nb", topic=topic)
        wait_until(
            lambda at=daemon: (at.channel_stats(topic, "ch") or {}).get("depth") == 2, "the channel has both messages"
        )
    wait_until(
        lambda: lookup(lookupd, topic) == ({each.http_port for each in daemons}, {"ch"}), "the topic is registered"
    )
    assert admin.call("GET", "/topics") == {"topics": [topic]}
    listed = admin.call("GET", "/nodes")["nodes"]
    assert {node["http_port"] for node in listed} == {each.http_port for each in daemons}
    assert all(node["topics"] == [{"topic": topic, "tombstoned": False}] for node in listed)
    channel = admin.call("GET", f"/topics/{topic}/ch")
    assert (channel["depth"], channel["message_count"], len(channel["nodes"])) == (4, 4, 2)
    with RawClient(daemons[0].tcp_address) as consumer:
        assert consumer.identify(client_id="inspected") == OK
        assert consumer.sub(topic, "ch") == OK
        clients = admin.call("GET", f"/topics/{topic}/ch")["clients"]
        assert [client["client_id"] for client in clients] == ["inspected"]
    node = admin.call("GET", f"/nodes/127.0.0.1:{daemons[1].http_port}")
    assert (node["total_messages"], [each["topic_name"] for each in node["topics"]]) == (2, [topic])
    admin.call("POST", f"/topics/{topic}/ch", action="pause")
    assert all(each.channel_stats(topic, "ch")["paused"] for each in daemons)
    admin.call("POST", f"/topics/{topic}/ch", action="empty")
    assert [each.channel_stats(topic, "ch")["depth"] for each in daemons] == [0, 0]
    admin.call("POST", f"/topics/{topic}", action="pause")
    assert all(each.topic_stats(topic)["paused"] for each in daemons)
    admin.call("DELETE", f"/topics/{topic}")
    wait_until(lambda: lookup(lookupd, topic) is None, "the topic is forgotten")
    assert all(each.topic_stats(topic) is None for each in daemons)


def publish_to_two(fleet: Fleet, topic: str, *channels: str) -> tuple[Daemon, list[Daemon]]:
    """Start our nsqlookupd and two nsqds. Each nsqd has one half of BODIES in all of the channels."""
    lookupd = fleet.nsqlookupd("nsqx")
    daemons = [start_nsqd(fleet, "nsqx", lookupd) for _ in range(2)]
    for daemon, bodies in zip(daemons, (BODIES[:20], BODIES[20:]), strict=True):
        daemon.post("/topic/create", topic=topic)
        for channel in channels:
            daemon.post("/channel/create", topic=topic, channel=channel)
        daemon.post("/mpub", b"\n".join(bodies), topic=topic)
    expected = ({each.http_port for each in daemons}, set(channels))
    wait_until(lambda: lookup(lookupd, topic) == expected, "the topic is registered")
    return lookupd, daemons


def test_nsq_tail_finds_both_nodes(fleet: Fleet, topic: str) -> None:
    lookupd, _ = publish_to_two(fleet, topic, "tail")
    flags = [f"--lookupd-http-address={lookupd.http_address}", f"--topic={topic}", "--channel=tail"]
    command = [*program_command("go", "nsq_tail"), *flags, f"--n={len(BODIES)}"]
    ended = subprocess.run(command, capture_output=True, timeout=END_TIMEOUT_S)
    assert sorted(ended.stdout.splitlines()) == BODIES, ended.stderr


def test_nsq_stat_sums_up_both_nodes(fleet: Fleet, topic: str) -> None:
    lookupd, daemons = publish_to_two(fleet, topic, "ch")
    for daemon in daemons:
        wait_until(lambda at=daemon: at.channel_stats(topic, "ch")["depth"] == 20, "the messages are in the channel")
    flags = [f"--lookupd-http-address={lookupd.http_address}", f"--topic={topic}", "--channel=ch"]
    command = [*program_command("go", "nsq_stat"), *flags, "--interval=10ms", "--count=1"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=END_TIMEOUT_S)
    assert ended.returncode == 0, ended.stderr
    depth = ended.stdout.splitlines()[-1].split("|")[1].split()
    assert depth[0] == "40", ended.stdout


PYNSQ_READER = """
import asyncio, sys
import nsq

async def main():
    bodies, done = [], asyncio.Event()
    def handle(message):
        bodies.append(message.body.decode())
        if len(bodies) == int(sys.argv[3]):
            done.set()
        return True
    reader = nsq.Reader(sys.argv[2], "ch", message_handler=handle, lookupd_http_addresses=[sys.argv[1]],
                        lookupd_poll_interval=1, max_in_flight=10)
    await done.wait()
    print("\\n".join(sorted(bodies)))
    reader.close()

asyncio.run(main())
"""


def test_pynsq_reader_finds_both_nodes(fleet: Fleet, topic: str) -> None:
    if importlib.util.find_spec("nsq") is None:
        pytest.skip('pynsq missing: pip install "nsqx[peers]"')
    lookupd, _ = publish_to_two(fleet, topic, "ch")
    command = [sys.executable, "-c", PYNSQ_READER, f"http://{lookupd.http_address}", topic, str(len(BODIES))]
    ended = subprocess.run(command, capture_output=True, timeout=END_TIMEOUT_S)
    assert ended.stdout.splitlines() == BODIES, ended.stderr
