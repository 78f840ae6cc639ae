"""nsqadmin's API: Go's and ours, asked the same about the same cluster, give the same answers.

The two nsqds of a cluster run on one machine and so have one host name, by which Go sorts and otherwise takes answers
in the order in which they come. To have an order that is always the same, most tests register the nsqds with
nsqlookupd under names of their own; ``TestRealRegistration`` lets them do it themselves.
"""

import http.server
import json
import queue
import re
import threading
from collections.abc import Iterator
from typing import Any, Self

import pytest

from daemons import Daemon, Fleet, Response, wait_until
from rawclient import RawClient
from rawlookup import RawLookupClient, identify

# What NSQ reports after 1.3.0; ours is a superset where nsqd knows them.
LATER_KEYS = {
    "delivery_msg_count",
    "zone_local_msg_count",
    "region_local_msg_count",
    "global_msg_count",
    "topology_zone",
    "topology_region",
    "node_topology_zone",
    "node_topology_region",
}
HEADERS = ("content-type", "x-nsq-content-type", "allow", "location")


def comparable(value: Any) -> Any:
    """JSON less what 1.3.0 does not report, and less what differs from one time to the next.

    How long a client has been connected; the order of an nsqd's clients, which Go's nsqd shuffles; and what depends on
    who answers Go first: the last digits of an average and the least of a quantile, the order of errors and of a
    node's registrations, and which of these counts as its address.
    """
    if isinstance(value, list):
        return [comparable(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.12g}")
    if not isinstance(value, dict):
        return value
    if isinstance(value.get("message"), str):
        start, _, errors = re.fullmatch(
            r"((WARNING|[A-Z_]+: failed to query any \w+): )?(.*)", value["message"], re.S
        ).groups()
        value["message"] = [start, sorted(errors.split("\n"))]
    if value.get("remote_addresses"):
        assert any(each.endswith(f"/{value['remote_address']}") for each in value["remote_addresses"])
        value = {**value, "remote_addresses": sorted(value["remote_addresses"]), "remote_address": ""}
    if "connected" in value:
        assert value["connected"] % 1_000_000_000 == 0
        assert 0 <= value["connected"] <= 600 * 1_000_000_000
    if value.get("clients") and value["node"] != "*":
        value["clients"].sort(key=lambda client: str(client["client_id"]))
    return {key: comparable(each) for key, each in value.items() if key not in {*LATER_KEYS, "connected", "min"}}


def essence(response: Response) -> tuple[int, dict[str, str], Any]:
    """What must be equal: status, the headers that say something, and the JSON."""
    headers = {name: response.headers[name] for name in HEADERS if name in response.headers}
    if headers.get("content-type", "").startswith("application/json") and response.body:
        return response.status, headers, comparable(response.json())
    return response.status, headers, response.body


class Notices:
    """An endpoint that collects notifications."""

    def __init__(self) -> None:
        self._received: queue.Queue[dict[str, Any]] = queue.Queue()
        received = self._received

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                received.put({**json.loads(body), "type": self.headers["Content-Type"]})
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_arguments: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def take(self, count: int) -> list[dict[str, Any]]:
        """So many notifications, in an order of their own, less what differs from one to the next."""
        notices = [self._received.get(timeout=15) for _ in range(count)]
        for notice in notices:
            assert notice.pop("timestamp") > 1_500_000_000
            assert re.fullmatch(r"127\.0\.0\.1:[0-9]+", notice.pop("remote_ip"))
            notice["url"] = re.sub(r"127\.0\.0\.1:[0-9]+/", "HOST/", notice["url"])
        return sorted(notices, key=lambda notice: str(notice["action"]))

    def assert_none(self) -> None:
        assert self._received.empty()


class Stage:
    """Two nsqd, two nsqlookupd that know them as host-a and host-b, and two nsqadmins that ask these."""

    def __init__(self, fleet: Fleet, implementation: str, candidate: str) -> None:
        self.fleet = fleet
        self.candidate = candidate
        self.lookupds = [fleet.nsqlookupd("nsqx"), fleet.nsqlookupd("nsqx")]
        flags = ("--e2e-processing-latency-percentile=0.99,0.5",)
        self.nsqds = [fleet.nsqd(implementation, *flags), fleet.nsqd(implementation, *flags)]
        self._registrations = {
            (name, lookupd.tcp_address): self._introduce(lookupd, name, nsqd)
            for name, nsqd in zip("ab", self.nsqds, strict=True)
            for lookupd in self.lookupds
        }
        self._clients: list[RawClient] = []
        self.admins: list[Daemon] = []

    @staticmethod
    def _introduce(lookupd: Daemon, name: str, nsqd: Daemon) -> RawLookupClient:
        client = RawLookupClient(lookupd.tcp_address)
        version = "1.3.0" if name == "a" else "1.2.1"
        fields = {"broadcast_address": "127.0.0.1", "tcp_port": nsqd.tcp_port, "http_port": nsqd.http_port}
        client.ask(identify(hostname=f"host-{name}", version=version, **fields))
        return client

    def register(self, name: str, *words: str) -> None:
        """Let an nsqd be known to have a topic, or a topic and a channel."""
        for (each, _), client in self._registrations.items():
            if each == name:
                assert client.ask(f"REGISTER {' '.join(words)}\n".encode()) == b"OK"

    def fill(self) -> None:
        """Topics and channels on both nodes, paused ones, an ephemeral one, clients, messages in every state."""
        first, second = self.nsqds
        for nsqd in self.nsqds:
            for body in (b"one", b"two", b"three"):
                nsqd.post("/pub", body, topic="orders")
            nsqd.post("/channel/create", topic="orders", channel="billing")
            nsqd.post("/channel/create", topic="orders", channel="mail")
        first.post("/channel/create", topic="orders", channel="only-here")
        first.post("/topic/create", topic="empty")
        second.post("/topic/create", topic="temporary#ephemeral")
        second.post("/channel/pause", topic="orders", channel="mail")
        first.post("/topic/create", topic="halted")
        first.post("/topic/pause", topic="halted")
        first.post("/pub", b"waits", topic="halted")
        for name in "ab":
            self.register(name, "orders", "billing")
            self.register(name, "orders", "mail")
        self.register("a", "orders", "only-here")
        self.register("a", "empty")
        self.register("a", "halted")
        self.register("b", "temporary#ephemeral")
        for lookupd in self.lookupds:
            lookupd.post("/topic/create", topic="inactive")
            lookupd.post("/channel/create", topic="unused", channel="left-over")
        for number, nsqd in enumerate(self.nsqds):
            wait_until(lambda nsqd=nsqd: nsqd.topic_stats("orders")["depth"] == 0, "messages are in the channels")
            self._subscribe(nsqd, f"worker-{number}")
        self._subscribe(first, "another")

    def _subscribe(self, nsqd: Daemon, hostname: str) -> None:
        client = RawClient(nsqd.tcp_address)
        client.identify(client_id=hostname, hostname=hostname, user_agent="test/1", feature_negotiation=True)
        client.sub("orders", "billing")
        client.rdy(1)
        message = client.read_message()
        if hostname != "another":
            client.rdy(0)
            client.fin(message.id)
            client.nop()
            wait_until(lambda: self._finished(nsqd, hostname), "the message is finished")
        self._clients.append(client)

    @staticmethod
    def _finished(nsqd: Daemon, hostname: str) -> bool:
        clients = nsqd.channel_stats("orders", "billing")["clients"]
        return any(each["hostname"] == hostname and each["finish_count"] for each in clients)

    def start_admins(self, *flags: str) -> None:
        self.admins = [self.fleet.nsqadmin("go", *flags), self.fleet.nsqadmin(self.candidate, *flags)]

    def start_admins_on_lookupds(self, *flags: str) -> None:
        self.start_admins(*[f"--lookupd-http-address={lookupd.http_address}" for lookupd in self.lookupds], *flags)

    def assert_same(self, method: str, target: str, body: bytes | None = None, **headers: str) -> Any:
        """Ask both; the answer on which they agree."""
        go, ours = (essence(admin.request(method, target, body, headers)) for admin in self.admins)
        assert ours == go, (method, target, body)
        return go

    def close(self) -> None:
        for client in [*self._clients, *self._registrations.values()]:
            client.close()


@pytest.fixture
def stage(fleet: Fleet, implementation: str, candidate: str) -> Iterator[Stage]:
    made = Stage(fleet, implementation, candidate)
    yield made
    made.close()


@pytest.fixture
def small_stage(fleet: Fleet, candidate: str) -> Iterator[Stage]:
    """For what does not depend on who is behind nsqadmin."""
    made = Stage(fleet, "nsqx", candidate)
    yield made
    made.close()


QUESTIONS = (
    "/api/topics",
    "/api/topics?inactive=true",
    "/api/topics?inactive=false",
    "/api/topics/orders",
    "/api/topics/halted",
    "/api/topics/empty",
    "/api/topics/temporary%23ephemeral",
    "/api/topics/inactive",
    "/api/topics/nowhere",
    "/api/topics/orders/billing",
    "/api/topics/orders/mail",
    "/api/topics/orders/only-here",
    "/api/topics/orders/nowhere",
    "/api/topics/nowhere/billing",
    "/api/nodes",
    "/api/nodes/127.0.0.1:1",
    "/api/counter",
    "/ping",
)


def ask_everything(stage: Stage) -> None:
    for question in QUESTIONS:
        stage.assert_same("GET", question)
    for nsqd in stage.nsqds:
        stage.assert_same("GET", f"/api/nodes/127.0.0.1:{nsqd.http_port}")


class TestQuestions:
    def test_a_healthy_cluster(self, stage: Stage) -> None:
        stage.fill()
        stage.start_admins_on_lookupds()
        ask_everything(stage)
        _, _, topic = stage.assert_same("GET", "/api/topics/orders")
        assert topic["message_count"] == 6, "the comparison has something to compare"
        _, _, channel = stage.assert_same("GET", "/api/topics/orders/billing")
        assert len(channel["clients"]) == 3
        assert channel["e2e_processing_latency"]["count"] == 2

    def test_an_empty_cluster(self, stage: Stage) -> None:
        stage.start_admins_on_lookupds()
        ask_everything(stage)

    def test_one_nsqd_is_down(self, stage: Stage) -> None:
        stage.fill()
        stage.start_admins_on_lookupds()
        stage.nsqds[1].kill()
        ask_everything(stage)
        _, _, topic = stage.assert_same("GET", "/api/topics/orders")
        assert topic["message"][0] == "WARNING: "

    def test_one_nsqlookupd_is_down(self, stage: Stage) -> None:
        stage.fill()
        stage.start_admins_on_lookupds()
        stage.lookupds[1].kill()
        ask_everything(stage)

    def test_everything_is_down(self, small_stage: Stage) -> None:
        stage = small_stage
        stage.fill()
        stage.start_admins_on_lookupds()
        for nsqd in stage.nsqds:
            nsqd.kill()
        ask_everything(stage)
        stage.lookupds[0].kill()
        stage.lookupds[1].kill()
        ask_everything(stage)

    def test_nsqds_are_named(self, stage: Stage) -> None:
        stage.fill()
        stage.start_admins(f"--nsqd-http-address={stage.nsqds[0].http_address}")
        ask_everything(stage)
        stage.nsqds[0].kill()
        ask_everything(stage)

    def test_one_of_the_named_nsqds_is_down(self, stage: Stage) -> None:
        stage.fill()
        stage.start_admins(*[f"--nsqd-http-address={nsqd.http_address}" for nsqd in stage.nsqds])
        stage.nsqds[0].kill()
        ask_everything(stage)

    def test_an_upstream_that_is_no_nsq(self, small_stage: Stage) -> None:
        stage = small_stage
        stage.start_admins(f"--lookupd-http-address={stage.nsqds[0].http_address}")
        for question in ("/api/topics", "/api/nodes", "/api/topics/orders"):
            stage.assert_same("GET", question)


class TestRealRegistration:
    def test_go_and_ours_on_a_cluster_that_found_itself(
        self, fleet: Fleet, implementation: str, candidate: str
    ) -> None:
        lookupd = fleet.nsqlookupd(implementation)
        flags = (f"--lookupd-tcp-address={lookupd.tcp_address}",)
        nsqds = [fleet.nsqd(implementation, *flags), fleet.nsqd(implementation, *flags)]
        for nsqd in nsqds:
            nsqd.post("/pub", b"x", topic="shared")
            nsqd.post("/channel/create", topic="shared", channel="c")
        nsqds[0].post("/channel/create", topic="shared", channel="d")
        admin_flag = f"--lookupd-http-address={lookupd.http_address}"
        admins = [fleet.nsqadmin("go", admin_flag), fleet.nsqadmin(candidate, admin_flag)]
        wait_until(
            lambda: len(lookupd.request("GET", "/lookup?topic=shared").json().get("producers", [])) == 2,
            "both nsqds are registered",
        )
        wait_until(
            lambda: len(lookupd.request("GET", "/channels?topic=shared").json()["channels"]) == 2,
            "both channels are registered",
        )

        def seen_by(admin: Daemon) -> Any:
            nodes = admin.request("GET", "/api/nodes").json()
            topic = admin.request("GET", "/api/topics/shared").json()
            channel = admin.request("GET", "/api/topics/shared/c").json()
            return comparable(
                {
                    "topics": admin.request("GET", "/api/topics").json(),
                    "nodes": sorted(nodes["nodes"], key=lambda node: node["tcp_port"]),
                    "counter": admin.request("GET", "/api/counter").json(),
                    "topic": {key: topic[key] for key in ("depth", "message_count", "paused", "message")},
                    "topic nodes": sorted((node["node"], node["message_count"]) for node in topic["nodes"]),
                    "channels": sorted((each["channel_name"], each["depth"]) for each in topic["channels"]),
                    "channel": {key: channel[key] for key in ("depth", "message_count", "node", "clients")},
                    "channel nodes": sorted(channel["nodes"], key=lambda node: node["node"]),
                }
            )

        go, ours = map(seen_by, admins)
        assert ours == go
        assert go["topic"]["message_count"] == 2


def script_of_changes(stage: Stage, admin: Daemon, notices: Notices, topic: str) -> list[Any]:
    """Everything that can be done to a topic, in an order that a person might choose; what was answered and became."""
    played: list[Any] = []
    first, second = stage.nsqds

    def state() -> Any:
        rows = []
        for nsqd in stage.nsqds:
            entry = nsqd.topic_stats(topic)
            if entry is not None:
                channels = [(each["channel_name"], each["paused"], each["depth"]) for each in entry["channels"]]
                rows.append((entry["paused"], entry["depth"], channels))
        known = [lookupd.request("GET", f"/lookup?topic={topic}").status for lookupd in stage.lookupds]
        return rows, known

    def do(method: str, target: str, body: Any = None, told: int = 1) -> None:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = {"User-Agent": "tester/1", "Authorization": "Basic dXNlcjpwYXNz"}
        answer = admin.request(method, target, data, headers)
        played.append((method, target, essence(answer), state(), notices.take(told)))

    def do_in_vain(method: str, target: str, body: Any = None, told: int = 1) -> None:
        """What every daemon refuses: Go answers 200 with a warning and notifies, ours 502."""
        data = body if body is None else json.dumps(body).encode()
        answer = admin.request(method, target, data)
        is_go = answer.json()["message"].startswith("WARNING: ")
        assert answer.status == (200 if is_go else 502)
        assert answer.json()["message"].count("CHANNEL_NOT_FOUND") == (1 if method == "POST" else 2) * len(stage.nsqds)
        notices.take(1 if is_go else told)
        played.append((method, target, state()))

    do("POST", "/api/topics", {"topic": topic}, told=1)
    for nsqd in stage.nsqds:
        nsqd.post("/pub", b"x", topic=topic)
    stage.register("a", topic)
    stage.register("b", topic)
    do("POST", "/api/topics", {"topic": topic, "channel": "c"}, told=2)
    for nsqd in stage.nsqds:
        wait_until(lambda nsqd=nsqd: nsqd.channel_stats(topic, "c")["depth"] == 1, "the message is in the channel")
    for target in (f"/api/topics/{topic}/c", f"/api/topics/{topic}"):
        for action in ("pause", "unpause", "empty"):
            do("POST", target, {"action": action})
    first.post("/channel/create", topic=topic, channel="here")
    stage.register("a", topic, "here")
    do("POST", f"/api/topics/{topic}/here?why=not", {"action": "pause"})
    do("DELETE", f"/api/topics/{topic}/here")
    do_in_vain("POST", f"/api/topics/{topic}/nowhere", {"action": "pause"})
    do("POST", "/api/topics/nowhere", {"action": "pause"})
    do_in_vain("DELETE", f"/api/topics/{topic}/nowhere", told=0)
    do("DELETE", "/api/topics/nowhere", told=0)
    do("DELETE", f"/api/nodes/127.0.0.1:{second.http_port}", {"topic": topic})
    do("DELETE", "/api/nodes/127.0.0.1:1", {"topic": topic}, told=0)
    do("DELETE", f"/api/topics/{topic}")
    for target in ("/api/topics", "/api/topics/t", "/api/topics/t/c", "/api/nodes/127.0.0.1:1"):
        method = "DELETE" if "nodes" in target else "POST"
        for body in (b"", b"{", b"x", b"null", b"{}", b'{"topic":"a b","action":"no"}', b'{"topic":1,"action":1}'):
            do(method, target, body, told=0)
    do("POST", "/api/topics", b'{"topic":"good","channel":"b a d"}', told=0)
    do("POST", "/api/topics", b'{"TOPIC":"a b", "topic": null} and more', told=0)
    notices.assert_none()
    return [json.loads(json.dumps(each, default=repr).replace(topic, "TOPIC")) for each in played]


class TestChanges:
    def test_actions_and_their_notifications(self, stage: Stage) -> None:
        scripts = []
        for number, implementation in enumerate(("go", stage.candidate)):
            with Notices() as notices:
                flags = [f"--lookupd-http-address={each.http_address}" for each in stage.lookupds]
                admin = stage.fleet.nsqadmin(implementation, *flags, f"--notification-http-endpoint={notices.url}")
                scripts.append(script_of_changes(stage, admin, notices, f"changed{number}"))
        for go, ours in zip(*scripts, strict=True):
            assert ours == go

    def test_nsqds_are_named(self, stage: Stage) -> None:
        """Creating a channel fails then, and creating a topic does nothing."""
        stage.fill()
        stage.start_admins(f"--nsqd-http-address={stage.nsqds[0].http_address}")
        stage.assert_same("POST", "/api/topics", b'{"topic":"made"}')
        stage.assert_same("POST", "/api/topics", b'{"topic":"made","channel":"c"}')
        stage.assert_same("POST", "/api/topics/orders", b'{"action":"pause"}')
        assert stage.nsqds[0].topic_stats("orders")["paused"]
        stage.assert_same("POST", "/api/topics/nowhere", b'{"action":"pause"}')
        answers = [admin.request("DELETE", "/api/topics/orders/nowhere") for admin in stage.admins]
        assert [answer.status for answer in answers] == [200, 502], "ours tells that nobody did it"
        assert all("CHANNEL_NOT_FOUND" in answer.json()["message"] for answer in answers)

    def test_admin_users(self, small_stage: Stage) -> None:
        stage = small_stage
        stage.fill()
        stage.start_admins_on_lookupds("--admin-user=root", "--admin-user=ann", "--acl-http-header=X-Who")
        changes = (
            ("POST", "/api/topics", b'{"topic":"x"}'),
            ("POST", "/api/topics/orders", b'{"action":"pause"}'),
            ("POST", "/api/topics/orders/mail", b""),
            ("DELETE", "/api/topics/orders", None),
            ("DELETE", "/api/topics/orders/mail", None),
            ("DELETE", "/api/nodes/127.0.0.1:1", b"{}"),
        )
        for method, target, body in changes:
            assert stage.assert_same(method, target, body)[0] == 403
            assert stage.assert_same(method, target, body, **{"X-Who": "eve"})[0] == 403
            assert stage.assert_same(method, target, body, **{"X-Forwarded-User": "root"})[0] == 403
        allowed = stage.assert_same("POST", "/api/topics/orders", b'{"action":"unpause"}', **{"X-Who": "ann"})
        assert allowed[0] == 200
        assert stage.assert_same("GET", "/config/log_level")[0] == 200

    def test_changes_while_one_nsqd_is_down(self, small_stage: Stage) -> None:
        stage = small_stage
        stage.fill()
        stage.start_admins_on_lookupds()
        stage.nsqds[1].kill()
        for target in ("/api/topics/orders", "/api/topics/orders/billing"):
            for action in ("pause", "unpause"):
                stage.assert_same("POST", target, json.dumps({"action": action}).encode())


class TestConfiguration:
    OPTIONS = """
        log_level log_prefix http_address base_path dev_static_dir graphite_url proxy_graphite statsd_prefix
        statsd_counter_format statsd_gauge_format statsd_interval nsqlookupd_http_addresses nsqd_http_addresses
        http_client_connect_timeout http_client_request_timeout http_client_tls_insecure_skip_verify
        http_client_tls_root_ca_file http_client_tls_cert http_client_tls_key allow_config_from_cidr
        notification_http_endpoint acl_http_header admin_users version config verbose nothing
    """

    def test_options(self, small_stage: Stage) -> None:
        stage = small_stage
        stage.start_admins_on_lookupds("--statsd-interval=1m30s", "--admin-user=me")
        for option in self.OPTIONS.split():
            stage.assert_same("GET", f"/config/{option}")
        for value in (b"debug", b"ERROR", b"loud", b"", b"x" * (1 << 20), b"x" * ((1 << 20) + 1)):
            stage.assert_same("PUT", "/config/log_level", value)
            stage.assert_same("GET", "/config/log_level")
        for value in (b'["127.0.0.1:1"]', b"[1]", b"{}", b"x", b"[]"):
            stage.assert_same("PUT", "/config/nsqlookupd_http_addresses", value)
            stage.assert_same("GET", "/config/nsqlookupd_http_addresses")
        stage.assert_same("GET", "/api/topics")
        stage.assert_same("PUT", "/config/admin_users", b"[]")

    def test_new_nsqlookupds_are_asked(self, small_stage: Stage) -> None:
        stage = small_stage
        stage.fill()
        stage.start_admins("--lookupd-http-address=127.0.0.1:1")
        assert stage.assert_same("GET", "/api/topics")[0] == 502
        addresses = json.dumps([stage.lookupds[0].http_address]).encode()
        stage.assert_same("PUT", "/config/nsqlookupd_http_addresses", addresses)
        assert "orders" in stage.assert_same("GET", "/api/topics")[2]["topics"]

    def test_callers_elsewhere(self, small_stage: Stage) -> None:
        stage = small_stage
        stage.start_admins_on_lookupds("--allow-config-from-cidr=10.0.0.0/8")
        assert stage.assert_same("GET", "/config/log_level")[0] == 403
        assert stage.assert_same("PUT", "/config/log_level", b"info")[0] == 403

    @pytest.mark.parametrize("base", ["/", "/admin", "deep/er/"])
    def test_base_path(self, small_stage: Stage, base: str) -> None:
        stage = small_stage
        stage.fill()
        stage.start_admins_on_lookupds(f"--base-path={base}")
        for prefix in ("", "/admin", "/deep/er"):
            for path in ("/ping", "/api/topics", "/api/topics/orders", "/config/base_path", "/static/x", "/nope"):
                stage.assert_same("GET", prefix + path)


class TestTLS:
    def test_an_nsqd_that_wants_tls(self, fleet: Fleet, candidate: str, certificate: tuple[str, str]) -> None:
        cert, key = certificate
        nsqd = fleet.nsqd("go", f"--tls-cert={cert}", f"--tls-key={key}", "--tls-required=true")
        where = f"--nsqd-http-address={nsqd.http_address}"
        for flag in (f"--http-client-tls-root-ca-file={cert}", "--http-client-tls-insecure-skip-verify"):
            admins = [fleet.nsqadmin("go", where, flag), fleet.nsqadmin(candidate, where, flag)]
            go, ours = (essence(admin.request("GET", "/api/nodes")) for admin in admins)
            assert ours == go
            assert go[2]["nodes"][0]["http_port"] == nsqd.http_port
        distrusting = [fleet.nsqadmin("go", where), fleet.nsqadmin(candidate, where)]
        assert [admin.request("GET", "/api/nodes").status for admin in distrusting] == [502, 502]


class TestRouting:
    def test_near_misses(self, small_stage: Stage) -> None:
        stage = small_stage
        stage.start_admins_on_lookupds()
        asked = (
            ("GET", "/nope"),
            ("GET", "/api"),
            ("GET", "/api/topics/"),
            ("GET", "/API/Topics"),
            ("GET", "/api//topics"),
            ("GET", "/api/../ping"),
            ("POST", "/api/topics/"),
            ("DELETE", "/api/topics"),
            ("PUT", "/api/topics/t"),
            ("DELETE", "/ping"),
            ("HEAD", "/ping"),
            ("HEAD", "/api/topics"),
            ("OPTIONS", "/api/topics"),
            ("OPTIONS", "/api/topics/t"),
            ("OPTIONS", "/config/x"),
            ("OPTIONS", "/nope"),
            ("GET", "/api/topics?inactive=%zz"),
            ("GET", "/api/topics?a;b"),
            ("GET", "/api/graphite?a;b"),
            ("GET", "/api/graphite"),
            ("GET", "/api/graphite?metric=depth"),
            ("GET", "/api/graphite?metric=rate"),
            ("GET", "/api/graphite?metric=rate&target=x"),
            ("GET", "/static/nothing.js"),
            ("GET", "/fonts/nothing.woff"),
            ("GET", "/render"),
        )
        for method, target in asked:
            stage.assert_same(method, target)

    def test_pages(self, small_stage: Stage) -> None:
        stage = small_stage
        stage.start_admins_on_lookupds()
        paths = ("/", "/topics", "/topics/t", "/topics/t/c", "/nodes", "/nodes/n", "/counter", "/lookup")
        for path in paths:
            answers = [admin.request("GET", path) for admin in stage.admins]
            assert [answer.status for answer in answers] == [200, 200]
            assert all(answer.headers["content-type"].startswith("text/html") for answer in answers)


class Graphite(http.server.BaseHTTPRequestHandler):
    """Answers with what ``answer`` says, and remembers what it was asked."""

    answer = b"[]"
    asked: list[tuple[str, str | None]] = []

    def do_GET(self) -> None:
        type(self).asked.append((self.path, self.headers["Authorization"]))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("X-Graphite", "yes")
        self.send_header("Content-Length", str(len(self.answer)))
        self.end_headers()
        self.wfile.write(self.answer)

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def graphite() -> Iterator[str]:
    Graphite.asked = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Graphite)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


class TestGraphite:
    ANSWERS = (
        b'[{"target":"t","datapoints":[[120.0,1]]}]',
        b'[{"target":"t","datapoints":[[1,1],[5,2]]}]',
        b'[{"target":"t","datapoints":[[-1,1]]}]',
        b'[{"target":"t","datapoints":[[null,1]]}]',
        b'[{"target":"t","datapoints":[]}]',
        b"[]",
        b"no json",
    )

    def test_rate(self, small_stage: Stage, graphite: str) -> None:
        stage = small_stage
        stage.start_admins_on_lookupds(f"--graphite-url=http://u:p@{graphite}", "--statsd-interval=30s")
        for answer in self.ANSWERS:
            Graphite.answer = answer
            stage.assert_same("GET", "/api/graphite?metric=rate&target=sumSeries(stats.a%2Cb)")
        assert len(Graphite.asked) == 2 * len(self.ANSWERS)
        assert len(set(Graphite.asked)) == 1

    @pytest.mark.parametrize("base", ["/", "/admin"])
    def test_proxy(self, small_stage: Stage, graphite: str, base: str) -> None:
        stage = small_stage
        stage.start_admins_on_lookupds(
            f"--graphite-url=http://u:p@{graphite}", "--proxy-graphite", f"--base-path={base}"
        )
        Graphite.answer = b'{"drawn": true}'
        target = f"{base.rstrip('/')}/render?target=a&target=b&from=-1h"
        assert stage.assert_same("GET", target)[2] == {"drawn": True}
        assert len(set(Graphite.asked)) == 1
        assert Graphite.asked[0][0] == target
