"""Features that only our nsqadmin has, on clusters of Go's daemons and of ours, with TLS and authorization."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from authserver import AuthServer

from certificates import Authority
from daemons import Daemon, Fleet, wait_until

pytestmark = pytest.mark.interop

WAIT_S = 15.0


class Viewer:
    """A client that reads server-sent events."""

    def __init__(self, admin: Daemon, target: str) -> None:
        self._connection = http.client.HTTPConnection(admin.http_address, timeout=WAIT_S)
        self._connection.request("GET", target)
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200

    def next(self, wanted: str) -> Any:
        """Return the data of the next event with this name."""
        name = ""
        while line := self._answer.readline():
            key, _, value = line.decode().rstrip("\n").partition(": ")
            if key == "event":
                name = value
            elif key == "data" and name == wanted:
                return json.loads(value)
        raise AssertionError("the stream ended")

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


def operate(admin: Daemon, **fields: str) -> Any:
    answer = admin.request("POST", "/api/operations", json.dumps(fields).encode())
    assert answer.status == 200, answer
    return answer.json()


def test_operations_reach_every_node_and_the_overview_shows_the_result(
    fleet: Fleet, implementation: str, topic: str
) -> None:
    lookupd = fleet.nsqlookupd(implementation)
    nsqds = [fleet.nsqd(implementation, f"--lookupd-tcp-address={lookupd.tcp_address}") for _ in range(2)]
    admin = fleet.nsqadmin(
        "nsqx", f"--lookupd-http-address={lookupd.http_address}", "--poll-interval=100ms", "--history-window=1m"
    )
    for nsqd in nsqds:
        nsqd.post("/topic/create", topic=topic)
        nsqd.post("/channel/create", topic=topic, channel="c")
    wait_until(
        lambda: len(lookupd.request("GET", f"/lookup?topic={topic}").json().get("producers", [])) == 2,
        "both are registered",
    )
    node = admin.request("GET", "/api/nodes").json()["nodes"][0]
    first = f"{node['broadcast_address']}:{node['http_port']}"
    assert len(operate(admin, operation="pause", topic=topic, channel="c")["outcomes"]) == 2
    assert all(nsqd.channel_stats(topic, "c")["paused"] for nsqd in nsqds)
    assert operate(admin, operation="unpause", topic=topic, channel="c", node=first)["outcomes"] == [
        {"kind": "nsqd", "address": first, "error": ""}
    ]
    assert sorted(nsqd.channel_stats(topic, "c")["paused"] for nsqd in nsqds) == [False, True]

    def row() -> Any:
        rows = admin.request("GET", "/api/overview").json()["topics"]
        return next((each for each in rows if each["name"] == topic), None)

    wait_until(lambda: row() and row()["nodes"] == 2, "the overview shows both nodes")
    nsqds[0].post("/pub", b"x", topic=topic)
    wait_until(lambda: row()["channels_depth"] == 1, "the overview shows the message")
    operate(admin, operation="tombstone", topic=topic, node=first)
    assert sum(nsqd.topic_stats(topic) is None for nsqd in nsqds) == 1
    operate(admin, operation="delete", topic=topic)
    assert all(nsqd.topic_stats(topic) is None for nsqd in nsqds)


def test_a_tail_takes_no_messages_from_the_first_channel(fleet: Fleet, implementation: str, topic: str) -> None:
    nsqd = fleet.nsqd(implementation)
    nsqd.post("/mpub", b"\n".join([b"x"] * 60), topic=topic)
    viewer = Viewer(fleet.nsqadmin("nsqx", f"--nsqd-http-address={nsqd.http_address}"), f"/api/tail/{topic}")
    try:
        assert "Create a channel first." in viewer.next("status")["problems"][nsqd.http_address]
        nsqd.post("/channel/create", topic=topic, channel="c")
        while not viewer.next("status")["nodes"]:
            pass
        wait_until(lambda: nsqd.channel_stats(topic, "c")["depth"] == 60, "the channel has every message")
        nsqd.post("/pub", b"copied", topic=topic)
        assert viewer.next("message")["body"] == "copied"
        wait_until(lambda: nsqd.channel_stats(topic, "c")["depth"] == 61, "the channel has every message")
    finally:
        viewer.close()


@pytest.fixture
def auth_server() -> Iterator[AuthServer]:
    server = AuthServer()
    yield server
    server.close()


def test_a_tail_uses_tls_and_the_auth_secret(
    fleet: Fleet, implementation: str, topic: str, tmp_path: Path, auth_server: AuthServer
) -> None:
    authority = Authority(tmp_path)
    certificate = authority.sign("server")
    nsqd = fleet.nsqd(
        implementation,
        *("--tls-required=tcp-https", f"--tls-cert={certificate.cert}", f"--tls-key={certificate.key}"),
        f"--auth-http-address={auth_server.address}",
    )
    nsqd.post("/topic/create", topic=topic)
    nsqd.post("/channel/create", topic=topic, channel="c")
    options = ("tls_v1,true", f"tls_root_ca_file,{authority.cert}", "auth_secret,all")
    where = f"--nsqd-http-address={nsqd.http_address}"
    admin = fleet.nsqadmin("nsqx", where, *[f"--consumer-opt={option}" for option in options])
    viewer = Viewer(admin, f"/api/tail/{topic}")
    try:
        assert viewer.next("status")["problems"] == {}
        nsqd.post("/pub", b"confidential", topic=topic)
        assert viewer.next("message")["body"] == "confidential"
    finally:
        viewer.close()
    assert admin.request("GET", "/config/consumer_opts").status == 400, "the secret is not shown"
    plain = fleet.nsqadmin("nsqx", where)
    viewer = Viewer(plain, f"/api/tail/{topic}")
    try:
        assert viewer.next("status")["problems"]
    finally:
        viewer.close()


def test_gos_nsqd_next_to_a_log_is_not_a_failure(fleet: Fleet, topic: str) -> None:
    lookupd = fleet.nsqlookupd("go")
    flag = f"--lookupd-tcp-address={lookupd.tcp_address}"
    go, ours = fleet.nsqd("go", flag), fleet.nsqd("nsqx", flag, "--store=log")
    for nsqd in (go, ours):
        nsqd.post("/topic/create", topic=topic)
        nsqd.post("/channel/create", topic=topic, channel="c")
        nsqd.post("/pub", b"hello", topic=topic)
    admin = fleet.nsqadmin("nsqx", f"--lookupd-http-address={lookupd.http_address}")
    wait_until(lambda: len(admin.request("GET", f"/api/log/{topic}").json().get("nodes", ())) == 2, "both are listed")
    nodes = {node["node"]: node for node in admin.request("GET", f"/api/log/{topic}").json()["nodes"]}
    assert (nodes[go.http_address]["code"], nodes[go.http_address]["log"]) == ("", None)
    assert nodes[go.http_address]["config"]["code"] == "NOT_AVAILABLE"
    assert nodes[ours.http_address]["log"]["end"] == 1
    found = admin.request("GET", f"/api/browse/{topic}").json()
    assert [message["body"] for message in found["messages"]] == ["hello"]
    codes = {node["node"]: node["code"] for node in found["nodes"]}
    assert codes == {go.http_address: "NOT_AVAILABLE", ours.http_address: ""}
    body = json.dumps({"to": "end"}).encode()
    sought = admin.request("POST", f"/api/seek/{topic}/c", body)
    assert sought.status == 200
    assert {each["address"]: each["code"] for each in sought.json()["outcomes"]} == codes
    assert (go.channel_stats(topic, "c")["depth"], ours.channel_stats(topic, "c")["depth"]) == (1, 0)
