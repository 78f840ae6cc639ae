"""nsqadmin's features beyond Go's, with real daemons or with a fake upstream that counts requests."""

import asyncio
import gzip
import http.client
import json
import re
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import orjson
import pytest

from daemons import Daemon, Fleet, wait_until
from nsqx.log import ERROR, Log
from nsqx.net.address import TCPAddress
from nsqx.net.http_client import HTTPAnswer, request
from nsqx.net.http_server import HTTPServer
from nsqx.net.listen import bind
from nsqx.net.requests import Request
from nsqx.net.responses import EMPTY, json_response
from nsqx.net.router import Router
from nsqx.nsqadmin import admin_cluster
from nsqx.nsqadmin import daemon as nsqadmin
from nsqx.nsqadmin import server as nsqadmin_server
from nsqx.nsqadmin.options import NsqadminOptions
from rawclient import RawClient

WAIT_S = 15.0
TOKEN = "0123456789abcdef"
OTHER_TOKEN = "fedcba9876543210"


class Stream:
    """A viewer of server-sent events."""

    def __init__(self, admin: Daemon, target: str, **headers: str) -> None:
        self._connection = http.client.HTTPConnection(admin.http_address, timeout=WAIT_S)
        self._connection.request("GET", target, headers=headers)
        self._answer = self._connection.getresponse()
        self.status = self._answer.status
        self.headers = {name.lower(): value for name, value in self._answer.getheaders()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._answer.close()
        self._connection.close()

    def read(self) -> tuple[str, Any] | None:
        """Return the name and data of the next event; None at the end of the stream."""
        fields: dict[str, str] = {}
        while line := self._answer.readline().decode().rstrip("\n"):
            name, _, value = line.partition(": ")
            fields[name] = value
        if "event" in fields:
            return fields["event"], json.loads(fields["data"])
        return self.read() if fields else None

    def wait_for(self, condition: Callable[[str, Any], bool]) -> Any:
        """Return the data of the first event that meets the condition."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            event = self.read()
            assert event is not None, "the stream ended"
            if condition(*event):
                return event[1]
        raise AssertionError("the expected event did not arrive")


class Nodes:
    """One nsqlookupd and two nsqds."""

    def __init__(self, fleet: Fleet) -> None:
        self.lookupd = fleet.nsqlookupd("nsqx")
        flag = f"--lookupd-tcp-address={self.lookupd.tcp_address}"
        self.nsqds = [fleet.nsqd("nsqx", flag), fleet.nsqd("nsqx", flag)]


class Cluster:
    """Nodes, and nsqadmins on request."""

    def __init__(self, nodes: Nodes, admins: Fleet) -> None:
        self.lookupd = nodes.lookupd
        self.nsqds = nodes.nsqds
        self.admins = admins

    def admin(self, *flags: str) -> Daemon:
        where = f"--lookupd-http-address={self.lookupd.http_address}"
        return self.admins.nsqadmin("nsqx", where, "--poll-interval=100ms", "--history-window=1m", *flags)

    def make_topic(self, topic: str, *channels: str) -> None:
        """Create a topic on both nodes; wait until nsqlookupd knows it."""
        for nsqd in self.nsqds:
            nsqd.post("/topic/create", topic=topic)
            for channel in channels:
                nsqd.post("/channel/create", topic=topic, channel=channel)
        wait_until(lambda: len(self._producers(topic)) == 2, "nsqlookupd knows both nodes")

    def _producers(self, topic: str) -> list[Any]:
        producers: list[Any] = self.lookupd.request("GET", f"/lookup?topic={topic}").json().get("producers", [])
        return producers


@pytest.fixture(scope="module")
def shared_nodes() -> Iterator[Nodes]:
    fleet = Fleet()
    yield Nodes(fleet)
    fleet.close()


@pytest.fixture
def cluster(shared_nodes: Nodes, fleet: Fleet) -> Cluster:
    """A cluster with the nodes of all tests, for a test that uses only its own topic."""
    return Cluster(shared_nodes, fleet)


@pytest.fixture
def own_cluster(fleet: Fleet) -> Cluster:
    """A cluster for a test that stops nodes, or counts everything that they have."""
    return Cluster(Nodes(fleet), fleet)


def post(admin: Daemon, target: str, document: Any = None, **headers: str) -> Any:
    body = b"" if document is None else json.dumps(document).encode()
    return admin.request("POST", target, body, headers)


class TestLive:
    def test_a_stream_sends_changes_of_topics(self, own_cluster: Cluster, topic: str) -> None:
        own_cluster.make_topic(topic, "c")
        admin = own_cluster.admin()
        with Stream(admin, "/api/stream") as stream:
            assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
            stream.wait_for(lambda _, data: any(row["name"] == topic for row in data["topics"]))
            for nsqd in own_cluster.nsqds:
                nsqd.post("/mpub", b"a\nb\nc", topic=topic)

            def is_reported(name: str, data: Any) -> bool:
                rows = [row for row in data["topics"] if row["name"] == topic]
                return name == "delta" and bool(rows) and rows[0]["message_count"] == 6 and rows[0]["rate"] > 0

            event = stream.wait_for(is_reported)
            assert event["nodes"] == 2
            assert event["totals"]["message_count"] == 6
            row = next(row for row in event["topics"] if row["name"] == topic)
            assert (row["channels"], row["nodes"], row["paused"]) == (1, 2, False)
            admin.request("DELETE", f"/api/topics/{topic}")
            stream.wait_for(lambda name, data: name == "delta" and topic in data["removed"])

    def test_a_stream_follows_a_topic_or_a_channel(self, own_cluster: Cluster, topic: str) -> None:
        own_cluster.make_topic(topic, "c")
        admin = own_cluster.admin()
        with (
            Stream(admin, f"/api/stream?topics={topic}") as of_topic,
            Stream(admin, f"/api/stream?topics={topic}&channel=c") as of_channel,
            RawClient(own_cluster.nsqds[0].tcp_address) as client,
        ):
            client.identify(client_id="watched", feature_negotiation=True)
            client.sub(topic, "c")
            own_cluster.nsqds[0].post("/pub", b"x", topic=topic)
            event = of_topic.wait_for(lambda name, data: name == "delta" and data["topic"]["message_count"] == 1)
            assert [row["name"] for row in event["channels"]] == ["c"]
            detail = of_topic.wait_for(lambda name, data: name == "detail" and data["message_count"] == 1)
            assert len(detail["nodes"]) == 2
            event = of_channel.wait_for(
                lambda name, data: name == "delta" and bool(data["channel"]) and data["channel"]["depth"] == 1
            )
            assert event["channel"]["topic"] == topic
            detail = of_channel.wait_for(lambda name, data: name == "detail" and bool(data["clients"]))
            assert detail["clients"][0]["client_id"] == "watched"

    def test_a_stream_of_an_unknown_topic(self, cluster: Cluster) -> None:
        admin = cluster.admin()
        with Stream(admin, "/api/stream?topics=nowhere") as stream:
            data = stream.wait_for(lambda name, _: name == "snapshot")
            assert data["topic"] is None
            detail = stream.wait_for(lambda name, _: name == "detail")
            assert detail["message"].startswith("UPSTREAM_ERROR: ")
        assert admin.request("GET", "/api/stream?topics=a%20b").json() == {"message": "INVALID_TOPIC"}
        assert admin.request("GET", "/api/stream?topics=a&channel=a%20b").json() == {"message": "INVALID_CHANNEL"}

    def test_history_and_overview(self, own_cluster: Cluster, topic: str) -> None:
        own_cluster.make_topic(topic, "c")
        admin = own_cluster.admin()
        with Stream(admin, "/api/stream") as stream:
            stream.wait_for(lambda _, data: any(row["name"] == topic for row in data["topics"]))
            own_cluster.nsqds[0].post("/mpub", b"a\nb\nc", topic=topic)
            stream.wait_for(lambda _, data: data["totals"].get("channels_depth") == 3)
        history = admin.request("GET", f"/api/history/topics/{topic}").json()
        assert history["interval_s"] == 0.1
        assert list(history["series"]) == [
            *("rate", "rate_out", "depth", "in_flight", "deferred", "requeued", "timed_out", "clients"),
            *("missing_nodes", "channels_depth"),
        ]
        assert history["series"]["channels_depth"][-1] == 3
        assert max(value or 0 for value in history["series"]["rate"]) > 0
        assert len(history["times_s"]) == len(history["series"]["rate"])
        assert history["times_s"] == sorted(history["times_s"])
        history = admin.request("GET", f"/api/history/topics/{topic}/c").json()
        assert history["series"]["depth"][-1] == 3
        assert history["channel"] == "c"
        last_s = history["times_s"][-1]
        later = admin.request("GET", f"/api/history/topics/{topic}/c?since={last_s + 0.001}").json()
        assert all(each > last_s for each in later["times_s"])
        overview = admin.request("GET", "/api/overview").json()
        row = next(row for row in overview["topics"] if row["name"] == topic)
        assert row["channels_depth"] == 3
        assert max(value or 0 for value in row["sparkline"]) > 0
        for target, code in (
            ("/api/history/topics/nowhere", "TOPIC_NOT_FOUND"),
            (f"/api/history/topics/{topic}/nowhere", "CHANNEL_NOT_FOUND"),
        ):
            answer = admin.request("GET", target)
            assert (answer.status, answer.json()) == (404, {"message": code})
        assert admin.request("GET", f"/api/history/topics/{topic}?since=x").status == 400

    def test_a_failing_node_is_reported(self, own_cluster: Cluster, topic: str) -> None:
        own_cluster.make_topic(topic)
        admin = own_cluster.admin()
        with Stream(admin, "/api/stream") as stream:
            stream.wait_for(lambda _, data: any(row["nodes"] == 2 for row in data["topics"]))
            own_cluster.lookupd.kill()
            event = stream.wait_for(lambda _, data: bool(data["message"]))
            assert event["message"].startswith(f"WARNING: nsqlookupd {own_cluster.lookupd.http_address}: ")
            assert event["totals"]["topics"] == 1, "the last values are still shown"

    def test_a_stopped_node_is_missing(self, own_cluster: Cluster, topic: str) -> None:
        own_cluster.make_topic(topic)
        admin = own_cluster.admin()
        leaving = own_cluster.nsqds[1]
        with Stream(admin, "/api/stream") as stream:
            assert stream.wait_for(lambda _, data: data["nodes"] == 2)["missing"] == []
            leaving.kill()
            event = stream.wait_for(lambda _, data: data["nodes"] == 1)
            assert [each["address"] for each in event["missing"]] == [leaving.http_address]
            assert event["missing"][0]["last_seen_s"] > 0
        health = admin.request("GET", "/api/health").json()
        assert (health["nodes"], [each["address"] for each in health["missing"]]) == (1, [leaving.http_address])

    def test_without_polling_there_is_no_history(self, cluster: Cluster) -> None:
        admin = cluster.admin("--poll-interval=0")
        for target in (
            "/api/overview",
            "/api/health",
            "/api/stream",
            "/api/history/topics/t",
            "/api/history/topics/t/c",
        ):
            answer = admin.request("GET", target)
            assert (answer.status, answer.json()) == (404, {"message": "HISTORY_DISABLED"})
        assert admin.request("GET", "/api/topics").status == 200

    def test_streams_end_when_nsqadmin_stops(self, cluster: Cluster, topic: str) -> None:
        cluster.make_topic(topic)
        admin = cluster.admin()
        with Stream(admin, "/api/stream") as stream, Stream(admin, f"/api/tail/{topic}") as tail:
            assert stream.read() is not None
            assert tail.read() is not None
            assert admin.stop() == 0
            while stream.read() is not None:
                pass
            while tail.read() is not None:
                pass


def health_of(admin: Daemon) -> Any:
    return admin.request("GET", "/api/health").json()


class TestCreating:
    def test_a_created_topic_is_listed_at_once(self, cluster: Cluster, topic: str) -> None:
        # The next poll is a minute away.
        flags = (f"--lookupd-http-address={cluster.lookupd.http_address}", "--poll-interval=1m")
        admin = cluster.admins.nsqadmin("nsqx", *flags)
        with Stream(admin, "/api/stream") as stream:
            stream.wait_for(lambda _, data: data["number"] >= 0)
            assert post(admin, "/api/operations", {"operation": "create", "topic": topic}).status == 200
            event = stream.wait_for(lambda _, data: topic in [row["name"] for row in data["topics"]])
            assert next(row for row in event["topics"] if row["name"] == topic)["nodes"] == 0
            assert post(admin, "/api/operations", {"operation": "delete", "topic": topic}).status == 200
            stream.wait_for(lambda name, data: name == "delta" and topic in data["removed"])


class TestInventory:
    """A known nsqd that stops is missing until it is forgotten."""

    @pytest.mark.parametrize("way", ["nsqlookupd", "named"])
    def test_a_restarted_nsqadmin_remembers_missing_nodes(
        self, own_cluster: Cluster, fleet: Fleet, tmp_path: Path, topic: str, way: str
    ) -> None:
        own_cluster.make_topic(topic, "c")
        kept, lost = own_cluster.nsqds
        lost.post("/mpub", b"\n".join([b"stranded"] * 7), topic=topic)
        kept.post("/pub", b"x", topic=topic)
        wait_until(lambda: lost.channel_stats(topic, "c")["depth"] == 7, "the messages are in the channel")
        addresses = [f"--nsqd-http-address={each.http_address}" for each in own_cluster.nsqds]
        flags = [f"--lookupd-http-address={own_cluster.lookupd.http_address}"] if way == "nsqlookupd" else addresses
        flags += ["--poll-interval=100ms", "--history-window=1m", f"--state-file={tmp_path}/state/nodes.json"]
        admin = fleet.nsqadmin("nsqx", *flags)
        wait_until(lambda: health_of(admin)["totals"].get("channels_depth") == 8, "nsqadmin knows both")
        assert health_of(admin)["missing"] == []
        lost.kill()
        (missing,) = wait_until(lambda: health_of(admin)["missing"], "one is missing")
        assert (missing["address"], missing["stranded"]) == (lost.http_address, 7)
        seen_s = missing["last_seen_s"]
        assert admin.stop() == 0
        admin = fleet.nsqadmin("nsqx", *flags)
        (missing,) = wait_until(lambda: health_of(admin)["missing"], "it is still missing")
        assert (missing["address"], missing["stranded"]) == (lost.http_address, 7)
        assert missing["last_seen_s"] == seen_s
        row = next(row for row in admin.request("GET", "/api/overview").json()["topics"] if row["name"] == topic)
        assert (row["nodes"], row["missing_nodes"], row["stranded"]) == (1, 1, 7)
        history = admin.request("GET", f"/api/history/topics/{topic}").json()
        assert history["series"]["missing_nodes"][-1] == 1
        nodes = {each["address"]: each for each in admin.request("GET", "/api/inventory").json()["nodes"]}
        assert nodes[lost.http_address]["is_missing"]
        assert nodes[lost.http_address]["stranded_topics"] == [
            {"topic": topic, "stranded": 7, "waiting": 0, "channels": {"c": 7}}
        ]
        assert not nodes[kept.http_address]["is_missing"]

    def test_a_killed_nsqadmin_remembers_missing_nodes(self, own_cluster: Cluster, tmp_path: Path, topic: str) -> None:
        own_cluster.make_topic(topic, "c")
        state = f"--state-file={tmp_path}/nodes.json"
        admin = own_cluster.admin(state)
        wait_until(lambda: (tmp_path / "nodes.json").exists(), "the inventory is saved before the exit")
        wait_until(lambda: health_of(admin)["nodes"] == 2, "both are known")
        admin.kill()
        own_cluster.nsqds[1].kill()
        admin = own_cluster.admin(state)
        wait_until(
            lambda: [each["address"] for each in health_of(admin)["missing"]] == [own_cluster.nsqds[1].http_address],
            "it is missing",
        )

    def test_a_topic_on_the_lost_node_only_is_still_listed(self, own_cluster: Cluster, topic: str) -> None:
        lost = own_cluster.nsqds[1]
        lost.post("/pub", b"x", topic=topic)
        admin = own_cluster.admin()
        with Stream(admin, "/api/stream") as stream:
            stream.wait_for(lambda _, data: data["totals"].get("depth") == 1)
            lost.kill()
            event = stream.wait_for(lambda _, data: bool(data["missing"]))
            assert topic not in event["removed"]
            row = next(row for row in event["topics"] if row["name"] == topic)
            assert (row["nodes"], row["missing_nodes"], row["stranded"]) == (0, 1, 1)
            assert event["totals"]["stranded"] == 1

    def test_an_unlisted_running_node_differs_from_a_stopped_one(self, own_cluster: Cluster, fleet: Fleet) -> None:
        admin = own_cluster.admin()
        wait_until(lambda: health_of(admin)["nodes"] == 2, "both are known")
        other = fleet.nsqlookupd("nsqx").http_address
        own_cluster.nsqds[1].kill()
        admin.request("PUT", "/config/nsqlookupd_http_addresses", json.dumps([other]).encode())

        def reasons() -> dict[str, str]:
            return {each["address"]: each["reason"] for each in health_of(admin)["missing"]}

        running, gone = (each.http_address for each in own_cluster.nsqds)
        wait_until(lambda: "but it answers" in reasons().get(running, ""), "one is found running")
        assert reasons()[gone] == "No nsqlookupd lists it any more."

    def test_only_an_administrator_may_forget_a_node(self, own_cluster: Cluster, tmp_path: Path, topic: str) -> None:
        own_cluster.make_topic(topic)
        audit_log, state = tmp_path / "audit", tmp_path / "nodes.json"
        admin = own_cluster.admin(f"--audit-log={audit_log}", f"--state-file={state}", "--admin-user=ann")
        ann = {"X-Forwarded-User": "ann"}
        kept, lost = (each.http_address for each in own_cluster.nsqds)
        wait_until(lambda: health_of(admin)["nodes"] == 2, "both are known")
        own_cluster.nsqds[1].kill()
        wait_until(lambda: health_of(admin)["missing"], "one is missing")
        forget = b'{"action": "forget"}'
        for target, body, headers, status, code in (
            (lost, forget, {"X-Forwarded-User": "eve"}, 403, "FORBIDDEN"),
            (lost, forget, {**ann, "Origin": "http://evil.example"}, 403, "CROSS_ORIGIN"),
            (lost, b'{"action": "explode"}', ann, 400, "INVALID_ACTION"),
            (kept, forget, ann, 409, "NODE_IS_LISTED"),
            ("127.0.0.1:1", forget, ann, 404, "NODE_NOT_FOUND"),
        ):
            answer = admin.request("POST", f"/api/nodes/{target}", body, headers)
            assert (answer.status, answer.json()) == (status, {"message": code})
        assert [each["address"] for each in health_of(admin)["missing"]] == [lost]
        answer = admin.request("POST", f"/api/nodes/{lost}", forget, ann)
        assert (answer.status, answer.json()) == (200, {"message": ""})
        assert health_of(admin)["missing"] == []
        wait_until(lambda: lost not in state.read_text(), "it is forgotten on disk")
        last = json.loads(audit_log.read_text().splitlines()[-1])
        assert (last["action"], last["node"], last["outcome"], last["user"]) == ("forget_node", lost, "done", "ann")

    def test_an_unwritable_state_file_is_logged_once(self, own_cluster: Cluster, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("not a directory")
        admin = own_cluster.admin(f"--state-file={tmp_path}/file/nodes.json")
        admin.wait_for_log(
            r"WARNING: cannot write --state-file .*: Not a directory; the list of nodes is kept in memory"
        )
        wait_until(lambda: health_of(admin)["nodes"] == 2, "nsqadmin works without the file")
        own_cluster.nsqds[1].kill()
        wait_until(lambda: health_of(admin)["missing"], "one is missing")
        assert admin.stop() == 0
        assert admin.log.count("cannot write --state-file") == 1


class TestTrouble:
    def test_messages_without_a_consumer_are_trouble(self, own_cluster: Cluster, topic: str) -> None:
        own_cluster.make_topic(topic, "c")
        admin = own_cluster.admin()
        wait_until(lambda: health_of(admin)["number"] > 0, "a first poll")
        assert health_of(admin)["trouble"]["count"] == 0
        own_cluster.nsqds[0].post("/pub", b"x", topic=topic)
        found = wait_until(lambda: (now := health_of(admin)["trouble"])["count"] and now, "trouble is found")
        assert found["no_consumer"] == 1
        assert found["worst"] == [{"topic": topic, "channel": "c", "kinds": ["no_consumer"], "depth": 1}]

    def test_messages_that_time_out_are_trouble(self, own_cluster: Cluster, topic: str) -> None:
        own_cluster.make_topic(topic, "c")
        admin = own_cluster.admin()
        with RawClient(own_cluster.nsqds[0].tcp_address) as client:
            client.identify(feature_negotiation=True, msg_timeout=1000)
            client.sub(topic, "c")
            client.rdy(1)
            own_cluster.nsqds[0].post("/pub", b"x", topic=topic)
            wait_until(lambda: health_of(admin)["trouble"]["timing_out"] == 1, "a timeout is noticed")


class TestOperations:
    @staticmethod
    def operate(admin: Daemon, operation: str, topic: str, channel: str = "", node: str = "") -> Any:
        fields = {"operation": operation, "topic": topic, "channel": channel, "node": node}
        return post(admin, "/api/operations", fields)

    def test_an_operation_on_the_whole_cluster(self, cluster: Cluster, topic: str) -> None:
        cluster.make_topic(topic, "c")
        admin = cluster.admin()
        everywhere = [{"kind": "nsqd", "address": each.http_address, "error": ""} for each in cluster.nsqds]
        for operation, is_paused in (("pause", True), ("unpause", False)):
            answer = self.operate(admin, operation, topic, "c")
            assert (answer.status, answer.json()["message"]) == (200, "")
            assert sorted(answer.json()["outcomes"], key=str) == sorted(everywhere, key=str)
            assert {nsqd.channel_stats(topic, "c")["paused"] for nsqd in cluster.nsqds} == {is_paused}
        for nsqd in cluster.nsqds:
            nsqd.post("/pub", b"x", topic=topic)
            wait_until(lambda nsqd=nsqd: nsqd.channel_stats(topic, "c")["depth"] == 1, "the message is in the channel")
        assert len(self.operate(admin, "empty", topic, "c").json()["outcomes"]) == 2
        assert [nsqd.channel_stats(topic, "c")["depth"] for nsqd in cluster.nsqds] == [0, 0]
        kinds = [each["kind"] for each in self.operate(admin, "delete", topic, "c").json()["outcomes"]]
        assert kinds == ["nsqlookupd", "nsqd", "nsqd"]
        assert not any(nsqd.topic_stats(topic)["channels"] for nsqd in cluster.nsqds)
        assert self.operate(admin, "create", topic, "made").status == 200
        assert all(nsqd.channel_stats(topic, "made") for nsqd in cluster.nsqds)
        assert self.operate(admin, "delete", topic).status == 200
        assert not any(nsqd.topic_stats(topic) for nsqd in cluster.nsqds)
        done = admin.request("GET", "/api/activity").json()["activity"]
        assert [each["action"] for each in done] == [
            *("delete_topic", "create_channel", "delete_channel", "empty_channel", "unpause_channel", "pause_channel")
        ]

    def test_an_operation_on_one_node(self, cluster: Cluster, topic: str) -> None:
        cluster.make_topic(topic, "c")
        admin = cluster.admin()
        first, second = (nsqd.http_address for nsqd in cluster.nsqds)
        outcome = [{"kind": "nsqd", "address": second, "error": ""}]
        assert self.operate(admin, "pause", topic, node=second).json()["outcomes"] == outcome
        assert [nsqd.topic_stats(topic)["paused"] for nsqd in cluster.nsqds] == [False, True]
        assert self.operate(admin, "delete", topic, "c", second).json()["outcomes"] == outcome
        assert [nsqd.channel_stats(topic, "c") is None for nsqd in cluster.nsqds] == [False, True]
        kinds = [each["kind"] for each in self.operate(admin, "tombstone", topic, node=first).json()["outcomes"]]
        assert kinds == ["nsqlookupd", "nsqd"]
        assert [nsqd.topic_stats(topic) is None for nsqd in cluster.nsqds] == [True, False]
        assert self.operate(admin, "create", "only.here", "d", first).status == 200
        assert [nsqd.topic_stats("only.here") is None for nsqd in cluster.nsqds] == [False, True]
        assert cluster.nsqds[0].channel_stats("only.here", "d") is not None

    def test_an_operation_reports_the_nodes_where_it_failed(self, cluster: Cluster, topic: str) -> None:
        cluster.make_topic(topic)
        admin = cluster.admin()
        cluster.nsqds[0].post("/channel/create", topic=topic, channel="c")
        answer = self.operate(admin, "pause", topic, "c")
        errors = {each["address"]: each["error"] for each in answer.json()["outcomes"]}
        assert answer.status == 200
        assert errors[cluster.nsqds[0].http_address] == ""
        assert "CHANNEL_NOT_FOUND" in errors[cluster.nsqds[1].http_address]
        assert answer.json()["message"].startswith("WARNING: ")
        answer = self.operate(admin, "pause", topic, "nowhere")
        assert answer.status == 502
        assert all("CHANNEL_NOT_FOUND" in each["error"] for each in answer.json()["outcomes"])
        outcomes = [each["outcome"] for each in admin.request("GET", "/api/activity").json()["activity"]]
        assert outcomes == ["failed", "partly"]

    def test_invalid_operations_are_rejected(self, cluster: Cluster, topic: str) -> None:
        cluster.make_topic(topic)
        admin = cluster.admin()
        for (operation, *rest), status, code in (
            (("explode", topic), 400, "INVALID_OPERATION"),
            (("pause", "a b"), 400, "INVALID_TOPIC"),
            (("pause", topic, "a b"), 400, "INVALID_CHANNEL"),
            (("tombstone", topic, "c"), 400, "INVALID_CHANNEL"),
            (("tombstone", topic), 400, "INVALID_NODE"),
            (("pause", topic, "", "127.0.0.1:1"), 404, "NODE_NOT_FOUND"),
        ):
            answer = self.operate(admin, operation, *rest)
            assert (answer.status, answer.json()) == (status, {"message": code})
        answer = self.operate(admin, "pause", "nowhere")
        assert (answer.status, "TOPIC_NOT_FOUND" in answer.json()["message"]) == (502, True)

    def test_operations_without_nsqlookupd(self, own_cluster: Cluster, topic: str) -> None:
        addresses = [f"--nsqd-http-address={nsqd.http_address}" for nsqd in own_cluster.nsqds]
        admin = own_cluster.admins.nsqadmin("nsqx", *addresses)
        assert len(self.operate(admin, "create", topic, "c").json()["outcomes"]) == 2
        assert all(nsqd.channel_stats(topic, "c") for nsqd in own_cluster.nsqds)
        own_cluster.nsqds[0].kill()
        answer = self.operate(admin, "pause", topic)
        assert [each["address"] for each in answer.json()["outcomes"]] == [own_cluster.nsqds[1].http_address]
        assert answer.json()["message"].startswith("WARNING: Get ")


def text_of(status: Any) -> str:
    """Return all problems in the status of a tail."""
    return " ".join(status["problems"].values())


class TestFollowingTakesNothing:
    """Following a topic never changes which messages a consumer gets."""

    def test_a_backlog_is_kept_for_the_first_channel(self, cluster: Cluster, topic: str) -> None:
        cluster.make_topic(topic)
        nsqd = cluster.nsqds[0]
        nsqd.post("/mpub", b"\n".join(b"%d" % number for number in range(60)), topic=topic)
        admin = cluster.admin()
        with Stream(admin, f"/api/tail/{topic}") as tail:
            status = tail.wait_for(lambda name, _: name == "status")
            assert status["nodes"] == []
            refusal = status["problems"][nsqd.http_address]
            assert "the topic has no channel" in refusal
            assert "Create a channel first" in refusal
            assert nsqd.topic_stats(topic)["channels"] == []
            assert nsqd.topic_stats(topic)["depth"] == 60
        nsqd.post("/channel/create", topic=topic, channel="late")
        wait_until(lambda: nsqd.channel_stats(topic, "late")["depth"] == 60, "the first channel gets everything")

    def test_messages_published_while_following_is_refused_are_kept(self, cluster: Cluster, topic: str) -> None:
        cluster.make_topic(topic)
        admin = cluster.admin()
        with Stream(admin, f"/api/tail/{topic}") as tail:
            tail.wait_for(lambda name, data: name == "status" and "no channel" in text_of(data))
            cluster.nsqds[0].post("/pub", b"kept", topic=topic)
            assert cluster.nsqds[0].topic_stats(topic)["depth"] == 1
            for nsqd in cluster.nsqds:
                nsqd.post("/channel/create", topic=topic, channel="c")
            # Following starts automatically once it takes nothing from a consumer.
            tail.wait_for(lambda name, data: name == "status" and len(data["nodes"]) == 2)
            assert cluster.nsqds[0].channel_stats(topic, "c")["depth"] == 1

    def test_each_node_is_checked_separately(self, cluster: Cluster, topic: str) -> None:
        cluster.make_topic(topic)
        safe, unsafe = cluster.nsqds
        safe.post("/channel/create", topic=topic, channel="c")
        unsafe.post("/pub", b"kept", topic=topic)
        admin = cluster.admin()
        with Stream(admin, f"/api/tail/{topic}") as tail:
            status = tail.wait_for(lambda name, data: name == "status" and bool(data["nodes"]))
            assert status["nodes"] == [safe.http_address]
            assert set(status["problems"]) == {unsafe.http_address}
            assert unsafe.topic_stats(topic)["depth"] == 1

    def test_a_topic_with_ephemeral_channels_only_is_not_followed(self, cluster: Cluster, topic: str) -> None:
        cluster.make_topic(topic)
        with RawClient(cluster.nsqds[0].tcp_address) as client:
            client.identify(feature_negotiation=True)
            client.sub(topic, "short#ephemeral")
            admin = cluster.admin()
            with Stream(admin, f"/api/tail/{topic}") as tail:
                status = tail.wait_for(lambda name, _: name == "status")
                assert "only ephemeral channels" in status["problems"][cluster.nsqds[0].http_address]
                assert status["nodes"] == []

    def test_following_ends_when_the_last_channel_is_deleted(self, cluster: Cluster, topic: str) -> None:
        cluster.make_topic(topic, "c")
        admin = cluster.admin()
        with Stream(admin, f"/api/tail/{topic}") as tail:
            tail.wait_for(lambda name, data: name == "status" and len(data["nodes"]) == 2)
            nsqd = cluster.nsqds[0]
            nsqd.post("/channel/delete", topic=topic, channel="c")
            tail.wait_for(lambda name, data: name == "status" and nsqd.http_address in data["problems"])
            wait_until(lambda: nsqd.topic_stats(topic)["channels"] == [], "the tail's channel is gone")
            nsqd.post("/pub", b"kept", topic=topic)
            assert nsqd.topic_stats(topic)["depth"] == 1

    def test_a_paused_topic_is_reported(self, cluster: Cluster, topic: str) -> None:
        cluster.make_topic(topic, "c")
        cluster.nsqds[0].post("/topic/pause", topic=topic)
        admin = cluster.admin()
        with Stream(admin, f"/api/tail/{topic}") as tail:
            status = tail.wait_for(lambda name, data: name == "status" and len(data["nodes"]) == 2)
            assert status["paused"] == [cluster.nsqds[0].http_address]
            cluster.nsqds[0].post("/pub", b"later", topic=topic)
            cluster.nsqds[0].post("/topic/unpause", topic=topic)
            assert tail.wait_for(lambda name, _: name == "message")["body"] == "later"
            tail.wait_for(lambda name, data: name == "status" and data["paused"] == [])


class TestSearching:
    def test_every_message_is_searched_before_the_rate_limit(self, cluster: Cluster, topic: str) -> None:
        cluster.make_topic(topic, "c")
        admin = cluster.admin()
        bodies = [b'{"customer": "nobody"}'] * 300
        bodies[217] = json.dumps({"customer": "李雷"}).encode()
        assert b"\\u674e" in bodies[217]
        with Stream(admin, f"/api/tail/{topic}?rate=1&contains={quote('李雷')}") as tail:
            tail.wait_for(lambda name, data: name == "status" and len(data["nodes"]) == 2)
            cluster.nsqds[0].post("/mpub", b"\n".join(bodies), topic=topic)
            assert tail.wait_for(lambda name, _: name == "message")["body"] == bodies[217].decode()
            status = tail.wait_for(lambda name, data: name == "status" and data["received"] == 300)
            assert (status["matched"], status["dropped"], status["missed"]) == (1, 0, 0)

    def test_matches_over_the_limit_are_counted(self, cluster: Cluster, topic: str) -> None:
        cluster.make_topic(topic, "c")
        admin = cluster.admin()
        with Stream(admin, f"/api/tail/{topic}?rate=1&contains=EVEN") as tail:
            tail.wait_for(lambda name, data: name == "status" and len(data["nodes"]) == 2)
            cluster.nsqds[0].post("/mpub", b"even\nodd\n" * 100, topic=topic)
            status = tail.wait_for(lambda name, data: name == "status" and data["received"] == 200)
            assert status["matched"] == 100
            assert 90 <= status["dropped"] < 100

    def test_unsearched_messages_are_counted(self, cluster: Cluster, topic: str) -> None:
        cluster.make_topic(topic, "c")
        admin = cluster.admin()
        with Stream(admin, f"/api/tail/{topic}?sample=10&contains=x") as tail:
            tail.wait_for(lambda name, data: name == "status" and len(data["nodes"]) == 2)
            cluster.nsqds[0].post("/mpub", b"\n".join([b"x"] * 1000), topic=topic)
            status = tail.wait_for(lambda name, data: name == "status" and data["received"] + data["missed"] == 1000)
            assert status["missed"] > 500

    def test_a_search_text_is_limited(self, cluster: Cluster, topic: str) -> None:
        answer = cluster.admin().request("GET", f"/api/tail/{topic}?contains={'x' * 257}")
        assert (answer.status, answer.json()) == (400, {"message": "INVALID_ARG_CONTAINS"})


class TestMessages:
    def test_a_tail_shows_messages_of_every_node(self, cluster: Cluster, topic: str) -> None:
        cluster.make_topic(topic, "c")
        admin = cluster.admin()
        with Stream(admin, f"/api/tail/{topic}?limit=8") as tail:
            status = tail.wait_for(lambda name, data: name == "status" and len(data["nodes"]) == 2)
            assert re.fullmatch(r"nsqadmin-tail-[0-9a-f]{12}#ephemeral", status["channel"])
            cluster.nsqds[0].post("/pub", "grüße".encode(), topic=topic)
            message = tail.wait_for(lambda name, _: name == "message")
            assert (message["body"], message["encoding"], message["size"]) == ("grüße", "text", 7)
            assert not message["truncated"]
            assert message["node"] == f"127.0.0.1:{cluster.nsqds[0].http_port}"
            assert re.fullmatch(r"[0-9a-f]{16}", message["id"])
            assert message["attempts"] == 1
            assert int(message["timestamp_ns"]) > 1_500_000_000 * 10**9
            cluster.nsqds[1].post("/pub", b"\xff\x00" * 10, topic=topic)
            message = tail.wait_for(lambda name, _: name == "message")
            assert (message["body"], message["encoding"]) == ("/wD/AP8A/wA=", "base64")
            assert (message["size"], message["truncated"]) == (20, True)
            channels = [nsqd.topic_stats(topic)["channels"] for nsqd in cluster.nsqds]
            assert [[each["channel_name"] for each in found] for found in channels] == [["c", status["channel"]]] * 2
            wait_until(
                lambda: cluster.nsqds[0].channel_stats(topic, status["channel"])["in_flight_count"] == 0,
                "messages are finished",
            )
        for nsqd in cluster.nsqds:
            wait_until(lambda nsqd=nsqd: len(nsqd.topic_stats(topic)["channels"]) == 1, "the channel is gone")

    def test_a_tail_is_limited_in_rate(self, cluster: Cluster, topic: str) -> None:
        cluster.make_topic(topic, "c")
        admin = cluster.admin()
        with Stream(admin, f"/api/tail/{topic}?rate=5") as tail:
            tail.wait_for(lambda name, data: name == "status" and len(data["nodes"]) == 2)
            cluster.nsqds[0].post("/mpub", b"\n".join(b"%d" % number for number in range(500)), topic=topic)
            status = tail.wait_for(lambda name, data: name == "status" and data["received"] == 500)
            assert 500 - 100 <= status["dropped"] < 500

    def test_a_tail_does_not_recreate_a_topic(self, cluster: Cluster, topic: str) -> None:
        cluster.make_topic(topic, "c")
        admin = cluster.admin()
        with Stream(admin, f"/api/tail/{topic}") as tail:
            tail.wait_for(lambda name, data: name == "status" and len(data["nodes"]) == 2)
            assert admin.request("DELETE", f"/api/topics/{topic}").json() == {"message": ""}
            status = tail.wait_for(lambda name, data: name == "status" and not data["nodes"])
            assert set(status["problems"]) <= {"", *(nsqd.http_address for nsqd in cluster.nsqds)}
            tail.wait_for(lambda name, data: name == "status" and "No nsqd has this topic." in text_of(data))
        assert all(nsqd.topic_stats(topic) is None for nsqd in cluster.nsqds)

    def test_a_tail_of_an_unknown_topic(self, cluster: Cluster) -> None:
        admin = cluster.admin()
        with Stream(admin, "/api/tail/nowhere") as tail:
            status = tail.wait_for(lambda name, _: name == "status")
            assert status["problems"] == {"": "No nsqd has this topic."}
        assert all(nsqd.topic_stats("nowhere") is None for nsqd in cluster.nsqds)
        for query in ("rate=0", "rate=51", "rate=x", "limit=0", "limit=65537", "sample=1", "sample=101", "sample=-5"):
            answer = admin.request("GET", f"/api/tail/t?{query}")
            assert (answer.status, answer.json()["message"]) == (400, f"INVALID_ARG_{query.split('=')[0].upper()}")
        assert admin.request("GET", "/api/tail/a%20b").json() == {"message": "INVALID_TOPIC"}

    def test_a_message_is_published(self, cluster: Cluster, topic: str) -> None:
        cluster.make_topic(topic)
        admin = cluster.admin()
        second = f"127.0.0.1:{cluster.nsqds[1].http_port}"
        answer = post(admin, f"/api/publish/{topic}", {"body": "hällo", "node": second})
        assert (answer.status, answer.json()) == (200, {"node": second, "size": 6, "message": ""})
        assert [nsqd.topic_stats(topic)["message_count"] for nsqd in cluster.nsqds] == [0, 1]
        answer = post(admin, f"/api/publish/{topic}", {"body": "/wA=", "encoding": "base64"})
        assert answer.json()["size"] == 2
        assert sum(nsqd.topic_stats(topic)["message_count"] for nsqd in cluster.nsqds) == 2
        assert post(admin, "/api/publish/brand-new", {"body": "x"}).status == 200
        assert sum(nsqd.topic_stats("brand-new") is not None for nsqd in cluster.nsqds) == 1
        for document, status, code in (
            ({"body": ""}, 400, "MSG_EMPTY"),
            ({"body": "x", "encoding": "hex"}, 400, "INVALID_ENCODING"),
            ({"body": "!", "encoding": "base64"}, 400, "INVALID_BODY"),
            ({"body": "x", "defer_ms": -1}, 400, "INVALID_DEFER"),
            ({"body": "x", "node": "127.0.0.1:1"}, 404, "NODE_NOT_FOUND"),
        ):
            answer = post(admin, f"/api/publish/{topic}", document)
            assert (answer.status, answer.json()) == (status, {"message": code})
        answer = post(admin, f"/api/publish/{topic}", {"body": "x", "node": second, "defer_ms": 7_200_000})
        assert (answer.status, "INVALID_DEFER" in answer.json()["message"]) == (502, True)

    def test_a_message_is_published_to_the_remaining_node(self, own_cluster: Cluster, topic: str) -> None:
        own_cluster.make_topic(topic)
        addresses = [f"--nsqd-http-address={nsqd.http_address}" for nsqd in own_cluster.nsqds]
        admin = own_cluster.admins.nsqadmin("nsqx", *addresses)
        own_cluster.nsqds[0].kill()
        answer = post(admin, f"/api/publish/{topic}", {"body": "x"})
        assert answer.json()["node"] == f"127.0.0.1:{own_cluster.nsqds[1].http_port}"
        assert answer.json()["message"].startswith("WARNING: Get ")

    def test_following_messages_can_be_disabled(self, cluster: Cluster, topic: str) -> None:
        admin = cluster.admin("--messages=false")
        for answer in (admin.request("GET", f"/api/tail/{topic}"), post(admin, f"/api/publish/{topic}", {"body": "x"})):
            assert (answer.status, answer.json()) == (403, {"message": "MESSAGES_DISABLED"})


class TestSafety:
    def test_changes_from_other_sites_are_rejected(self, own_cluster: Cluster, tmp_path: Path, topic: str) -> None:
        audit_log = tmp_path / "audit"
        admin = own_cluster.admin(f"--audit-log={audit_log}", "--allowed-origin=https://admin.example.com")
        own = f"http://{admin.http_address}"
        refused: tuple[dict[str, str], ...] = (
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
            {"Origin": f"http://127.0.0.1:{admin.http_port + 1}"},
            {"Origin": "nonsense"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site", "Origin": own},
            {"Sec-Fetch-Site": "cross-site", "Origin": "https://admin.example.com.evil.example"},
        )
        allowed: tuple[dict[str, str], ...] = (
            {},
            {"Origin": own},
            {"Origin": own.replace("http:", "https:")},
            {"Sec-Fetch-Site": "same-origin", "Origin": "http://changed-by-a-proxy"},
            {"Sec-Fetch-Site": "none"},
            {"Sec-Fetch-Site": "cross-site", "Origin": "https://admin.example.com"},
        )
        changes = (
            ("POST", "/api/topics", b'{"topic":"made"}'),
            ("PUT", "/config/log_level", b"info"),
            ("POST", "/api/publish/made", b'{"body":"x"}'),
        )
        for headers in refused:
            for method, target, body in changes:
                answer = admin.request(method, target, body, headers)
                assert (answer.status, answer.json()) == (403, {"message": "CROSS_ORIGIN"}), headers
            assert admin.request("DELETE", f"/api/topics/{topic}", None, headers).status == 403
            assert admin.request("GET", f"/api/tail/{topic}", None, headers).status == 403
        assert own_cluster.lookupd.request("GET", "/topics").json() == {"topics": []}
        for headers in allowed:
            for method, target, body in changes:
                assert admin.request(method, target, body, headers).status == 200, headers
        lines = [json.loads(line) for line in audit_log.read_text().splitlines()]
        assert {line["outcome"] for line in lines} == {"refused", "done"}
        assert sum(line["outcome"] == "refused" for line in lines) == len(refused) * (len(changes) + 2)

    def test_every_answer_has_security_headers(self, cluster: Cluster) -> None:
        admin = cluster.admin()
        for target in ("/", "/api/topics", "/static/x", "/nope", "/api/overview", "/config/log_level"):
            headers = admin.request("GET", target).headers
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert "script-src 'self'" in headers["content-security-policy"]
            assert "unsafe-eval" not in headers["content-security-policy"]
            assert headers["x-frame-options"] == "DENY"
            assert headers["x-content-type-options"] == "nosniff"
            assert "server" not in headers
            assert "cache-control" in headers

    def test_a_user_is_accepted_only_from_a_trusted_proxy(self, cluster: Cluster) -> None:
        forged = {"X-Forwarded-User": "root"}
        admin = cluster.admin("--admin-user=root", "--trusted-proxy=10.0.0.0/8")
        assert admin.request("POST", "/api/topics", b'{"topic":"t"}', forged).status == 403
        admin.wait_for_log(r"WARNING: ignoring X-Forwarded-User from 127\.0\.0\.1")
        admin = cluster.admin("--admin-user=root", "--trusted-proxy=10.0.0.0/8", "--trusted-proxy=127.0.0.1")
        assert admin.request("POST", "/api/topics", b'{"topic":"t"}', forged).status == 200
        assert admin.request("GET", "/api/settings", None, forged).json()["user"] == "root"
        assert not admin.request("GET", "/api/settings").json()["may_operate"]

    def test_tokens_give_roles(self, cluster: Cluster, tmp_path: Path) -> None:
        token_file = tmp_path / "token"
        token_file.write_text(f"{OTHER_TOKEN}\n")
        admin = cluster.admin(f"--view-token={TOKEN}", f"--operate-token-file={token_file}")
        view = {"Authorization": f"Bearer {TOKEN}"}
        operate = {"Authorization": f"Bearer {OTHER_TOKEN}"}
        wrong = {"Authorization": "Bearer 0123456789abcdeX"}
        change = ("POST", "/api/topics", b'{"topic":"t"}')
        for headers in ({}, wrong, {"Authorization": f"Basic {TOKEN}"}, {"Cookie": f"nsqadmin_session={TOKEN}"}):
            answer = admin.request("GET", "/api/topics", None, headers)
            assert (answer.status, answer.json()) == (401, {"message": "UNAUTHORIZED"})
            assert answer.headers["www-authenticate"] == "Bearer"
            assert admin.request(*change, headers).status == 401
            for target in ("/api/stream", "/api/overview", "/config/log_level", "/api/tail/t"):
                assert admin.request("GET", target, None, headers).status == 401
            for target in ("/ping", "/", "/api/settings"):
                assert admin.request("GET", target, None, headers).status == 200
        assert admin.request("GET", "/api/topics", None, view).status == 200
        assert admin.request(*change, view).status == 403
        assert admin.request("PUT", "/config/log_level", b"info", view).status == 403
        assert admin.request("GET", "/api/tail/t", None, view).status == 403
        assert admin.request(*change, operate).status == 200
        for secret in ("view_token", "operate_token", "auth_token"):
            assert admin.request("GET", f"/config/{secret}", None, operate).status == 400
        assert "nsqlookupd" not in admin.request("GET", "/api/settings").json()
        assert TOKEN not in admin.log
        assert OTHER_TOKEN not in admin.log

    def test_a_login_sets_a_cookie(self, cluster: Cluster, topic: str) -> None:
        admin = cluster.admin(f"--auth-token={TOKEN}", "--base-path=/nsq")
        assert post(admin, "/nsq/api/login", {"token": "wrong"}).status == 401
        answer = post(admin, "/nsq/api/login", {"token": TOKEN})
        assert answer.json() == {"role": "operate", "message": ""}
        cookie, *attributes = answer.headers["set-cookie"].split("; ")
        assert {"HttpOnly", "SameSite=Strict", "Path=/nsq"} <= set(attributes)
        assert TOKEN not in cookie
        session = {"Cookie": cookie}
        assert admin.request("GET", "/nsq/api/topics", None, session).status == 200
        assert admin.request("GET", "/nsq/api/settings", None, session).json()["role"] == "operate"
        with Stream(admin, "/nsq/api/stream", **session) as stream:
            assert stream.status == 200
        assert admin.request("POST", "/nsq/api/logout", b"", session).status == 200
        assert admin.request("GET", "/nsq/api/topics", None, session).status == 401
        secure = admin.request(
            "POST", "/nsq/api/login", json.dumps({"token": TOKEN}).encode(), {"X-Forwarded-Proto": "https"}
        )
        assert "Secure" in secure.headers["set-cookie"].split("; ")

    def test_an_operate_token_alone_leaves_viewing_open(self, cluster: Cluster) -> None:
        admin = cluster.admin(f"--operate-token={TOKEN}")
        assert admin.request("GET", "/api/topics").status == 200
        assert admin.request("POST", "/api/topics", b'{"topic":"t"}').status == 403
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        assert admin.request("POST", "/api/topics", b'{"topic":"t"}', bearer).status == 200

    def test_actions_are_written_to_the_audit_log(self, cluster: Cluster, tmp_path: Path, topic: str) -> None:
        path = tmp_path / "audit.jsonl"
        admin = cluster.admin(f"--audit-log={path}", "--admin-user=ann")
        cluster.make_topic(topic, "c")
        ann = {"X-Forwarded-User": "ann", "User-Agent": "t/1"}
        admin.request("POST", f"/api/topics/{topic}/c", b'{"action":"pause"}', ann)
        admin.request("POST", f"/api/topics/{topic}/nowhere", b'{"action":"empty"}', ann)
        admin.request("DELETE", "/api/topics/nowhere", None, ann)
        admin.request("DELETE", f"/api/topics/{topic}", None, {"X-Forwarded-User": "eve"})
        admin.request("POST", f"/api/publish/{topic}", b'{"body":"secret"}', ann)
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        shown = [(line["action"], line["topic"], line["channel"], line["user"], line["outcome"]) for line in lines]
        assert shown == [
            ("pause_channel", topic, "c", "ann", "done"),
            ("empty_channel", topic, "nowhere", "ann", "failed"),
            ("delete_topic", "nowhere", "", "ann", "failed"),
            (f"DELETE /api/topics/{topic}", topic, "", "eve", "refused"),
            ("publish_message", topic, "", "ann", "done"),
        ]
        assert lines[0]["url"] == f"http://{admin.http_address}/api/topics/{topic}/c"
        assert lines[0]["user_agent"] == "t/1"
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", lines[0]["time"])
        assert "secret" not in path.read_text()
        assert path.stat().st_mode & 0o777 == 0o600
        admin.wait_for_log(rf"INFO: AUDIT: pause_channel topic\({topic}\) channel\(c\) .* user\(ann\) .* - done")


class TestPage:
    def test_the_built_page_is_served(self, cluster: Cluster, tmp_path: Path) -> None:
        (tmp_path / "index.html").write_text("<html><head><title>t</title></head></html>")
        (tmp_path / "logo.svg").write_text("<svg/>")
        (tmp_path / "assets").mkdir()
        (tmp_path / "assets" / "main.js").write_text("run()" * 200)
        (tmp_path.parent / "outside.txt").write_text("no")
        admin = cluster.admin(f"--dev-static-dir={tmp_path}", "--base-path=/a&b")
        for path in ("", "/topics", "/topics/t", "/topics/t/c", "/nodes", "/nodes/n", "/counter", "/lookup"):
            page = admin.request("GET", f"/a&b{path}")
            assert page.body == b'<html><head><base href="/a%26b/"><title>t</title></head></html>'
        asset = admin.request("GET", "/a&b/assets/main.js", None, {"Accept-Encoding": "gzip, br"})
        assert asset.headers["content-type"] == "text/javascript; charset=utf-8"
        assert asset.headers["content-encoding"] == "gzip"
        assert gzip.decompress(asset.body) == b"run()" * 200
        assert admin.request("GET", "/a&b/static/logo.svg").headers["content-type"] == "image/svg+xml"
        (tmp_path / "link.txt").symlink_to(tmp_path.parent / "outside.txt")
        for name in ("link.txt", "assets", "nothing.js"):
            answer = admin.request("GET", f"/a&b/static/{name}")
            assert (answer.status, answer.body) == (404, b"NOT_FOUND")
        for name in ("..%2foutside.txt", "..%2f..%2foutside.txt", "..", "assets%2fmain.js"):
            assert admin.request("GET", f"/a&b/static/{name}").status in (301, 404)
        assert admin.request("GET", "/a&b/assets/nothing.js").body == b"NOT_FOUND"

    def test_an_unknown_path_is_a_page_for_browsers_and_json_for_programs(
        self, cluster: Cluster, tmp_path: Path
    ) -> None:
        (tmp_path / "index.html").write_text("<html><head></head></html>")
        admin = cluster.admin(f"--dev-static-dir={tmp_path}", "--base-path=/nsq")
        browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
        for path in ("/nsq/nope", "/nsq/topics/a/b/c", "/elsewhere", "/"):
            page = admin.request("GET", path, None, browser)
            assert (page.status, page.body) == (404, b'<html><head><base href="/nsq/"></head></html>')
            for headers in ({}, {"Accept": "application/json"}, {"Accept": "*/*"}):
                answer = admin.request("GET", path, None, headers)
                assert (answer.status, answer.json()) == (404, {"message": "NOT_FOUND"})
        for path in ("/nsq/api/nope", "/nsq/api/topics/t/c/x"):
            answer = admin.request("GET", path, None, browser)
            assert (answer.status, answer.json()) == (404, {"message": "NOT_FOUND"})
        assert admin.request("POST", "/nsq/nope", b"", browser).json() == {"message": "NOT_FOUND"}

    def test_without_a_built_page_instructions_are_served(self, cluster: Cluster, tmp_path: Path) -> None:
        admin = cluster.admin(f"--dev-static-dir={tmp_path}")
        page = admin.request("GET", "/topics/t")
        assert page.status == 200
        assert b"Run <code>make ui</code>" in page.body
        admin.wait_for_log(r"WARNING: the page is not built \(make ui, needs npm\): only the API is served")


class Upstream:
    """A fake nsqd that counts requests and can hold back answers."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.held: dict[str, asyncio.Event] = {}
        """The answers that are held back until their event is set."""
        router = Router()
        for path in ("/info", "/stats"):
            router.add("GET", path, self._answer)
        router.add("POST", "/topic/pause", self._post)
        self._server = HTTPServer(router, Log("", ERROR))
        self.address = ""

    async def start(self) -> None:
        await self._server.serve(await bind(TCPAddress("127.0.0.1", 0)))
        self.address = f"127.0.0.1:{self._server.port}"

    async def stop(self) -> None:
        for event in self.held.values():
            event.set()
        await self._server.close(1.0)

    def hold(self, target: str) -> asyncio.Event:
        return self.held.setdefault(target, asyncio.Event())

    def _post(self, request: Request) -> Any:
        self.asked.append(request.path)
        return EMPTY

    async def _answer(self, request: Request) -> Any:
        query = request.raw_query.decode()
        target = f"{request.path}?{query}" if query else request.path
        self.asked.append(target)
        if target in self.held:
            await self.held[target].wait()
        if request.path == "/info":
            host, _, port = self.address.partition(":")
            return json_response(
                {"version": "1.3.0", "broadcast_address": host, "http_port": int(port), "tcp_port": 1, "hostname": "h"}
            )
        topic = {
            "topic_name": "t",
            "channels": [],
            "depth": 0,
            "backend_depth": 0,
            "message_count": len(self.asked),
            "paused": False,
            "e2e_processing_latency": {"count": 0, "percentiles": None},
        }
        return json_response({"topics": [topic]})


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    made = Upstream()
    await made.start()
    yield made
    await made.stop()


Start = Callable[..., Any]


@pytest.fixture
async def start_admin(upstream: Upstream) -> AsyncIterator[Start]:
    """Start nsqadmins in this process, with the fake nsqd as their upstream."""
    running: list[nsqadmin.NsqadminDaemon] = []

    async def start(**options: Any) -> nsqadmin.NsqadminDaemon:
        settings = {
            "http_address": "127.0.0.1:0",
            "nsqd_http_addresses": [upstream.address],
            "poll_interval": 0,
            "state_file": "-",
        }
        made = nsqadmin.NsqadminDaemon(NsqadminOptions(**{**settings, **options}), Log("", ERROR))
        await made.start()
        running.append(made)
        return made

    yield start
    for each in running:
        await each.stop()


async def ask(admin: nsqadmin.NsqadminDaemon, target: str, method: str = "GET", body: bytes = b"") -> HTTPAnswer:
    return await request(method, f"http://127.0.0.1:{admin.http_port}{target}", body=body)


async def until(condition: Callable[[], bool]) -> None:
    """Poll for a condition that has no event."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


class TestSharedQueries:
    async def test_equal_concurrent_requests_share_an_answer(self, upstream: Upstream, start_admin: Start) -> None:
        admin = await start_admin()
        has_topic = upstream.hold("/stats?format=json&topic=t&include_clients=false")
        topics = upstream.hold("/stats?format=json")
        asking = [asyncio.create_task(ask(admin, "/api/topics/t")) for _ in range(20)]
        await until(lambda: len(upstream.asked) == 1)
        other = asyncio.create_task(ask(admin, "/api/topics"))
        await until(lambda: len(upstream.asked) == 2)
        has_topic.set()
        topics.set()
        answers = await asyncio.gather(*asking)
        await other
        assert {answer.body for answer in answers} == {answers[0].body}
        # For the topic: its nodes, their info, and its stats; for the list of topics one more request.
        assert len(upstream.asked) == 4

    async def test_a_later_request_queries_again(self, upstream: Upstream, start_admin: Start) -> None:
        admin = await start_admin()
        counts = [orjson.loads((await ask(admin, "/api/topics/t")).body)["message_count"] for _ in range(2)]
        assert counts[0] < counts[1]

    async def test_a_request_after_a_change_queries_again(self, upstream: Upstream, start_admin: Start) -> None:
        admin = await start_admin()
        target = "/stats?format=json"
        release = upstream.hold(target)
        before = [asyncio.create_task(ask(admin, "/api/topics")) for _ in range(2)]
        await until(lambda: len(upstream.asked) == 1)
        change = await ask(admin, "/api/topics/t", "POST", b'{"action":"pause"}')
        assert change.status == 200
        assert upstream.asked.count(target) == 1
        after = asyncio.create_task(ask(admin, "/api/topics"))
        await until(lambda: upstream.asked.count(target) == 2)
        release.set()
        assert {answer.status for answer in await asyncio.gather(*before, after)} == {200}

    async def test_more_viewers_cause_no_more_queries(self, upstream: Upstream, start_admin: Start) -> None:
        admin = await start_admin(poll_interval=10**8, history_window=10**9)
        readers = []
        for target in ("/api/stream", "/api/stream?topics=t") * 15:
            reader, writer = await asyncio.open_connection("127.0.0.1", admin.http_port)
            writer.write(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{admin.http_port}\r\n\r\n".encode())
            readers.append((reader, writer))
        for reader, _ in readers:
            async with asyncio.timeout(WAIT_S):
                for _ in range(4):
                    await reader.readuntil(b"\nevent: ")
        polls = admin.poller.cluster_stats.clock.number + 2
        plain = [each for each in upstream.asked if "include_mem=false" in each]
        detail = [each for each in upstream.asked if each.startswith("/stats") and "topic=t" in each]
        assert len(plain) <= polls
        # The topic's nodes and its stats: two requests per poll, not thirty.
        assert len(detail) <= 2 * polls
        for _, writer in readers:
            writer.close()

    async def test_the_number_of_viewers_is_limited(
        self, upstream: Upstream, start_admin: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(admin_cluster, "_MAX_VIEWERS", 1)
        admin = await start_admin(poll_interval=10**9, history_window=10**10)
        reader, writer = await asyncio.open_connection("127.0.0.1", admin.http_port)
        writer.write(b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b"event: snapshot")
        refused = await ask(admin, "/api/stream")
        assert (refused.status, refused.body) == (503, b'{"message":"TOO_MANY_VIEWERS"}')
        writer.close()
        await until(lambda: admin._clusters[0]._viewers.count == 0)


class TestConnections:
    async def test_an_incomplete_head_times_out(
        self, upstream: Upstream, start_admin: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(nsqadmin_server, "HEAD_TIMEOUT_S", 0.05)
        admin = await start_admin()
        reader, writer = await asyncio.open_connection("127.0.0.1", admin.http_port)
        writer.write(b"GET /ping HTTP/1.1\r\nHo")
        async with asyncio.timeout(WAIT_S):
            assert await reader.read() == b""
        writer.close()

    async def test_an_endless_head_is_closed(self, upstream: Upstream, start_admin: Start) -> None:
        admin = await start_admin()
        reader, writer = await asyncio.open_connection("127.0.0.1", admin.http_port)
        writer.write(b"GET /ping HTTP/1.1\r\nX: ")
        try:
            async with asyncio.timeout(WAIT_S):
                while not reader.at_eof():
                    writer.write(b"x" * 65536)
                    await writer.drain()
                    await asyncio.sleep(0)
        except ConnectionError:
            pass
        writer.close()
        assert (await ask(admin, "/ping")).body == b"OK"

    async def test_a_large_body_is_rejected(self, upstream: Upstream, start_admin: Start) -> None:
        admin = await start_admin()
        answer = await ask(admin, "/api/topics", "POST", b'{"topic":"' + b"x" * (3 << 20) + b'"}')
        assert (answer.status, answer.body) == (413, b'{"message":"BODY_TOO_BIG"}')

    async def test_a_port_in_use_is_an_error(self, upstream: Upstream, start_admin: Start) -> None:
        admin = await start_admin()
        second = nsqadmin.NsqadminDaemon(
            NsqadminOptions(
                http_address=f"127.0.0.1:{admin.http_port}", nsqd_http_addresses=[upstream.address], state_file="-"
            ),
            Log("", ERROR),
        )
        with pytest.raises(Exception, match="address already in use"):
            await second.start()


@pytest.fixture
def unused_port() -> Iterator[int]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


class TestNotifications:
    def test_an_unreachable_endpoint_is_only_logged(self, cluster: Cluster, unused_port: int) -> None:
        admin = cluster.admin(f"--notification-http-endpoint=http://127.0.0.1:{unused_port}/")
        assert admin.request("POST", "/api/topics", b'{"topic":"t"}').status == 200
        admin.wait_for_log("ERROR: failed to POST notification - Post .*connection refused")
        assert admin.request("POST", "/api/topics", b'{"topic":"u"}').status == 200
        assert admin.stop() == 0
