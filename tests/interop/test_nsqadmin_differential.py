"""nsqadmin's API: Go's nsqadmin and ours give equal responses about the same cluster.

Go's nsqadmin sorts nodes by host name; nodes with the same host name are in the order in which their responses arrive.
The two nsqds of a test run on one machine. To get a fixed order, most tests register the nsqds with nsqlookupd under
different host names. In ``TestRealRegistration`` the nsqds register themselves.
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

# Keys of NSQ versions after 1.3.0. Our nsqadmin reports them if nsqd does.
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
# Our nsqadmin also reports the log of a topic.
ADDED_KEYS = {"log"}
HEADERS = ("content-type", "x-nsq-content-type", "allow", "location")


def comparable(value: Any) -> Any:
    """Return JSON without the keys that 1.3.0 does not report, and without values that differ from run to run.

    These values are: how long a client has been connected; the order of an nsqd's clients, which is random in Go's
    nsqd; and values that depend on which daemon responds first to Go's nsqadmin: the last digits of an average, the
    minimum of a quantile, the order of errors and of a node's registrations, and a node's remote address.
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
    ignored = LATER_KEYS | ADDED_KEYS | {"connected", "min"}
    return {key: comparable(each) for key, each in value.items() if key not in ignored}


def essence(response: Response) -> tuple[int, dict[str, str], Any]:
    """Return the parts of a response that must be equal: status, compared headers and body."""
    headers = {name: response.headers[name] for name in HEADERS if name in response.headers}
    if headers.get("content-type", "").startswith("application/json") and response.body:
        return response.status, headers, comparable(response.json())
    return response.status, headers, response.body


class NotificationEndpoint:
    """An HTTP endpoint that collects notifications."""

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
        """Wait for ``count`` notifications. Return them sorted, without timestamps and addresses."""
        notifications = [self._received.get(timeout=15) for _ in range(count)]
        for notification in notifications:
            assert notification.pop("timestamp") > 1_500_000_000
            assert re.fullmatch(r"127\.0\.0\.1:[0-9]+", notification.pop("remote_ip"))
            notification["url"] = re.sub(r"127\.0\.0\.1:[0-9]+/", "HOST/", notification["url"])
        return sorted(notifications, key=lambda notification: str(notification["action"]))

    def assert_none(self) -> None:
        assert self._received.empty()


class ComparedCluster:
    """Two nsqds, two nsqlookupds that list them as host-a and host-b, and two nsqadmins."""

    def __init__(self, fleet: Fleet, implementation: str, candidate: str) -> None:
        self.fleet = fleet
        self.candidate = candidate
        self.lookupds = [fleet.nsqlookupd("nsqx"), fleet.nsqlookupd("nsqx")]
        flags = ("--e2e-processing-latency-percentile=0.99,0.5",)
        self.nsqds = [fleet.nsqd(implementation, *flags), fleet.nsqd(implementation, *flags)]
        self._registrations = {
            (name, lookupd.tcp_address): self._identify(lookupd, name, nsqd)
            for name, nsqd in zip("ab", self.nsqds, strict=True)
            for lookupd in self.lookupds
        }
        self._clients: list[RawClient] = []
        self.admins: list[Daemon] = []

    @staticmethod
    def _identify(lookupd: Daemon, name: str, nsqd: Daemon) -> RawLookupClient:
        client = RawLookupClient(lookupd.tcp_address)
        version = "1.3.0" if name == "a" else "1.2.1"
        fields = {"broadcast_address": "127.0.0.1", "tcp_port": nsqd.tcp_port, "http_port": nsqd.http_port}
        client.ask(identify(hostname=f"host-{name}", version=version, **fields))
        return client

    def register(self, name: str, *words: str) -> None:
        """Register a topic, or a topic and a channel, for an nsqd."""
        for (each, _), client in self._registrations.items():
            if each == name:
                assert client.ask(f"REGISTER {' '.join(words)}\n".encode()) == b"OK"

    def fill(self) -> None:
        """Create topics and channels on both nodes, some paused, one ephemeral; connect clients; publish messages."""
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
        """Send a request to both nsqadmins. Return the response if both are equal."""
        go, ours = (essence(admin.request(method, target, body, headers)) for admin in self.admins)
        assert ours == go, (method, target, body)
        return go

    def close(self) -> None:
        for client in [*self._clients, *self._registrations.values()]:
            client.close()


@pytest.fixture
def cluster(fleet: Fleet, implementation: str, candidate: str) -> Iterator[ComparedCluster]:
    made = ComparedCluster(fleet, implementation, candidate)
    yield made
    made.close()


@pytest.fixture
def nsqx_cluster(fleet: Fleet, candidate: str) -> Iterator[ComparedCluster]:
    """A cluster of our daemons, for tests that do not depend on the implementation of nsqd."""
    made = ComparedCluster(fleet, "nsqx", candidate)
    yield made
    made.close()


READ_TARGETS = (
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


def compare_all_reads(cluster: ComparedCluster) -> None:
    for target in READ_TARGETS:
        cluster.assert_same("GET", target)
    for nsqd in cluster.nsqds:
        cluster.assert_same("GET", f"/api/nodes/127.0.0.1:{nsqd.http_port}")


class TestReads:
    def test_responses_are_equal_on_a_healthy_cluster(self, cluster: ComparedCluster) -> None:
        cluster.fill()
        cluster.start_admins_on_lookupds()
        compare_all_reads(cluster)
        _, _, topic = cluster.assert_same("GET", "/api/topics/orders")
        assert topic["message_count"] == 6, "the cluster has messages"
        _, _, channel = cluster.assert_same("GET", "/api/topics/orders/billing")
        assert len(channel["clients"]) == 3
        assert channel["e2e_processing_latency"]["count"] == 2

    def test_responses_are_equal_on_an_empty_cluster(self, cluster: ComparedCluster) -> None:
        cluster.start_admins_on_lookupds()
        compare_all_reads(cluster)

    def test_responses_are_equal_while_one_nsqd_is_down(self, cluster: ComparedCluster) -> None:
        cluster.fill()
        cluster.start_admins_on_lookupds()
        cluster.nsqds[1].kill()
        compare_all_reads(cluster)
        _, _, topic = cluster.assert_same("GET", "/api/topics/orders")
        assert topic["message"][0] == "WARNING: "

    def test_responses_are_equal_while_one_nsqlookupd_is_down(self, cluster: ComparedCluster) -> None:
        cluster.fill()
        cluster.start_admins_on_lookupds()
        cluster.lookupds[1].kill()
        compare_all_reads(cluster)

    def test_responses_are_equal_while_every_daemon_is_down(self, nsqx_cluster: ComparedCluster) -> None:
        cluster = nsqx_cluster
        cluster.fill()
        cluster.start_admins_on_lookupds()
        for nsqd in cluster.nsqds:
            nsqd.kill()
        compare_all_reads(cluster)
        cluster.lookupds[0].kill()
        cluster.lookupds[1].kill()
        compare_all_reads(cluster)

    def test_responses_are_equal_with_a_list_of_nsqds(self, cluster: ComparedCluster) -> None:
        cluster.fill()
        cluster.start_admins(f"--nsqd-http-address={cluster.nsqds[0].http_address}")
        compare_all_reads(cluster)
        cluster.nsqds[0].kill()
        compare_all_reads(cluster)

    def test_responses_are_equal_while_one_nsqd_of_a_list_is_down(self, cluster: ComparedCluster) -> None:
        cluster.fill()
        cluster.start_admins(*[f"--nsqd-http-address={nsqd.http_address}" for nsqd in cluster.nsqds])
        cluster.nsqds[0].kill()
        compare_all_reads(cluster)

    def test_responses_are_equal_if_an_address_is_not_of_an_nsqlookupd(self, nsqx_cluster: ComparedCluster) -> None:
        cluster = nsqx_cluster
        cluster.start_admins(f"--lookupd-http-address={cluster.nsqds[0].http_address}")
        for target in ("/api/topics", "/api/nodes", "/api/topics/orders"):
            cluster.assert_same("GET", target)


class TestRealRegistration:
    def test_responses_are_equal_if_nsqds_register_themselves(
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


def call_every_operation(
    cluster: ComparedCluster, admin: Daemon, notifications: NotificationEndpoint, topic: str
) -> list[Any]:
    """Call every operation on a topic. Return responses, states of the daemons and notifications."""
    results: list[Any] = []
    first, second = cluster.nsqds

    def state() -> Any:
        rows = []
        for nsqd in cluster.nsqds:
            entry = nsqd.topic_stats(topic)
            if entry is not None:
                channels = [(each["channel_name"], each["paused"], each["depth"]) for each in entry["channels"]]
                rows.append((entry["paused"], entry["depth"], channels))
        known = [lookupd.request("GET", f"/lookup?topic={topic}").status for lookupd in cluster.lookupds]
        return rows, known

    def do(method: str, target: str, body: Any = None, notified: int = 1) -> None:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = {"User-Agent": "tester/1", "Authorization": "Basic dXNlcjpwYXNz"}
        answer = admin.request(method, target, data, headers)
        results.append((method, target, essence(answer), state(), notifications.take(notified)))

    def do_refused(method: str, target: str, body: Any = None, notified: int = 1) -> None:
        """Call an operation that every nsqd refuses. Go responds 200 with a warning and notifies; ours responds 502."""
        data = body if body is None else json.dumps(body).encode()
        answer = admin.request(method, target, data)
        is_go = answer.json()["message"].startswith("WARNING: ")
        assert answer.status == (200 if is_go else 502)
        assert answer.json()["message"].count("CHANNEL_NOT_FOUND") == (1 if method == "POST" else 2) * len(
            cluster.nsqds
        )
        notifications.take(1 if is_go else notified)
        results.append((method, target, state()))

    do("POST", "/api/topics", {"topic": topic}, notified=1)
    for nsqd in cluster.nsqds:
        nsqd.post("/pub", b"x", topic=topic)
    cluster.register("a", topic)
    cluster.register("b", topic)
    do("POST", "/api/topics", {"topic": topic, "channel": "c"}, notified=2)
    for nsqd in cluster.nsqds:
        wait_until(lambda nsqd=nsqd: nsqd.channel_stats(topic, "c")["depth"] == 1, "the message is in the channel")
    for target in (f"/api/topics/{topic}/c", f"/api/topics/{topic}"):
        for action in ("pause", "unpause", "empty"):
            do("POST", target, {"action": action})
    first.post("/channel/create", topic=topic, channel="here")
    cluster.register("a", topic, "here")
    do("POST", f"/api/topics/{topic}/here?why=not", {"action": "pause"})
    do("DELETE", f"/api/topics/{topic}/here")
    do_refused("POST", f"/api/topics/{topic}/nowhere", {"action": "pause"})
    do("POST", "/api/topics/nowhere", {"action": "pause"})
    do_refused("DELETE", f"/api/topics/{topic}/nowhere", notified=0)
    do("DELETE", "/api/topics/nowhere", notified=0)
    do("DELETE", f"/api/nodes/127.0.0.1:{second.http_port}", {"topic": topic})
    do("DELETE", "/api/nodes/127.0.0.1:1", {"topic": topic}, notified=0)
    do("DELETE", f"/api/topics/{topic}")
    for target in ("/api/topics", "/api/topics/t", "/api/topics/t/c", "/api/nodes/127.0.0.1:1"):
        method = "DELETE" if "nodes" in target else "POST"
        for body in (b"", b"{", b"x", b"null", b"{}", b'{"topic":"a b","action":"no"}', b'{"topic":1,"action":1}'):
            do(method, target, body, notified=0)
    do("POST", "/api/topics", b'{"topic":"good","channel":"b a d"}', notified=0)
    do("POST", "/api/topics", b'{"TOPIC":"a b", "topic": null} and more', notified=0)
    notifications.assert_none()
    return [json.loads(json.dumps(each, default=repr).replace(topic, "TOPIC")) for each in results]


class TestChanges:
    def test_operations_and_their_notifications_are_equal(self, cluster: ComparedCluster) -> None:
        results = []
        for number, implementation in enumerate(("go", cluster.candidate)):
            with NotificationEndpoint() as notifications:
                flags = [f"--lookupd-http-address={each.http_address}" for each in cluster.lookupds]
                admin = cluster.fleet.nsqadmin(
                    implementation, *flags, f"--notification-http-endpoint={notifications.url}"
                )
                results.append(call_every_operation(cluster, admin, notifications, f"changed{number}"))
        for go, ours in zip(*results, strict=True):
            assert ours == go

    def test_operations_are_equal_with_a_list_of_nsqds(self, cluster: ComparedCluster) -> None:
        """With a list of nsqds, creating a channel fails and creating a topic does nothing."""
        cluster.fill()
        cluster.start_admins(f"--nsqd-http-address={cluster.nsqds[0].http_address}")
        cluster.assert_same("POST", "/api/topics", b'{"topic":"made"}')
        cluster.assert_same("POST", "/api/topics", b'{"topic":"made","channel":"c"}')
        cluster.assert_same("POST", "/api/topics/orders", b'{"action":"pause"}')
        assert cluster.nsqds[0].topic_stats("orders")["paused"]
        cluster.assert_same("POST", "/api/topics/nowhere", b'{"action":"pause"}')
        answers = [admin.request("DELETE", "/api/topics/orders/nowhere") for admin in cluster.admins]
        assert [answer.status for answer in answers] == [200, 502], "ours reports that no nsqd has deleted the channel"
        assert all("CHANNEL_NOT_FOUND" in answer.json()["message"] for answer in answers)

    def test_only_admin_users_may_change_something(self, nsqx_cluster: ComparedCluster) -> None:
        cluster = nsqx_cluster
        cluster.fill()
        cluster.start_admins_on_lookupds("--admin-user=root", "--admin-user=ann", "--acl-http-header=X-Who")
        changes = (
            ("POST", "/api/topics", b'{"topic":"x"}'),
            ("POST", "/api/topics/orders", b'{"action":"pause"}'),
            ("POST", "/api/topics/orders/mail", b""),
            ("DELETE", "/api/topics/orders", None),
            ("DELETE", "/api/topics/orders/mail", None),
            ("DELETE", "/api/nodes/127.0.0.1:1", b"{}"),
        )
        for method, target, body in changes:
            assert cluster.assert_same(method, target, body)[0] == 403
            assert cluster.assert_same(method, target, body, **{"X-Who": "eve"})[0] == 403
            assert cluster.assert_same(method, target, body, **{"X-Forwarded-User": "root"})[0] == 403
        allowed = cluster.assert_same("POST", "/api/topics/orders", b'{"action":"unpause"}', **{"X-Who": "ann"})
        assert allowed[0] == 200
        assert cluster.assert_same("GET", "/config/log_level")[0] == 200

    def test_operations_are_equal_while_one_nsqd_is_down(self, nsqx_cluster: ComparedCluster) -> None:
        cluster = nsqx_cluster
        cluster.fill()
        cluster.start_admins_on_lookupds()
        cluster.nsqds[1].kill()
        for target in ("/api/topics/orders", "/api/topics/orders/billing"):
            for action in ("pause", "unpause"):
                cluster.assert_same("POST", target, json.dumps({"action": action}).encode())


class TestConfiguration:
    OPTIONS = """
        log_level log_prefix http_address base_path dev_static_dir graphite_url proxy_graphite statsd_prefix
        statsd_counter_format statsd_gauge_format statsd_interval nsqlookupd_http_addresses nsqd_http_addresses
        http_client_connect_timeout http_client_request_timeout http_client_tls_insecure_skip_verify
        http_client_tls_root_ca_file http_client_tls_cert http_client_tls_key allow_config_from_cidr
        notification_http_endpoint acl_http_header admin_users version config verbose nothing
    """

    def test_config_options_are_equal(self, nsqx_cluster: ComparedCluster) -> None:
        cluster = nsqx_cluster
        cluster.start_admins_on_lookupds("--statsd-interval=1m30s", "--admin-user=me")
        for option in self.OPTIONS.split():
            cluster.assert_same("GET", f"/config/{option}")
        for value in (b"debug", b"ERROR", b"loud", b"", b"x" * (1 << 20), b"x" * ((1 << 20) + 1)):
            cluster.assert_same("PUT", "/config/log_level", value)
            cluster.assert_same("GET", "/config/log_level")
        for value in (b'["127.0.0.1:1"]', b"[1]", b"{}", b"x", b"[]"):
            cluster.assert_same("PUT", "/config/nsqlookupd_http_addresses", value)
            cluster.assert_same("GET", "/config/nsqlookupd_http_addresses")
        cluster.assert_same("GET", "/api/topics")
        cluster.assert_same("PUT", "/config/admin_users", b"[]")

    def test_a_changed_list_of_nsqlookupds_is_used(self, nsqx_cluster: ComparedCluster) -> None:
        cluster = nsqx_cluster
        cluster.fill()
        cluster.start_admins("--lookupd-http-address=127.0.0.1:1")
        assert cluster.assert_same("GET", "/api/topics")[0] == 502
        addresses = json.dumps([cluster.lookupds[0].http_address]).encode()
        cluster.assert_same("PUT", "/config/nsqlookupd_http_addresses", addresses)
        assert "orders" in cluster.assert_same("GET", "/api/topics")[2]["topics"]

    def test_config_is_refused_outside_the_allowed_network(self, nsqx_cluster: ComparedCluster) -> None:
        cluster = nsqx_cluster
        cluster.start_admins_on_lookupds("--allow-config-from-cidr=10.0.0.0/8")
        assert cluster.assert_same("GET", "/config/log_level")[0] == 403
        assert cluster.assert_same("PUT", "/config/log_level", b"info")[0] == 403

    @pytest.mark.parametrize("base", ["/", "/admin", "deep/er/"])
    def test_base_path_gives_the_same_routes(self, nsqx_cluster: ComparedCluster, base: str) -> None:
        cluster = nsqx_cluster
        cluster.fill()
        cluster.start_admins_on_lookupds(f"--base-path={base}")
        for prefix in ("", "/admin", "/deep/er"):
            for path in ("/ping", "/api/topics", "/api/topics/orders", "/config/base_path", "/static/x", "/nope"):
                cluster.assert_same("GET", prefix + path)


class TestTLS:
    def test_an_nsqd_that_requires_tls_is_queried_with_https(
        self, fleet: Fleet, candidate: str, certificate: tuple[str, str]
    ) -> None:
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
    def test_similar_paths_give_the_same_responses(self, nsqx_cluster: ComparedCluster) -> None:
        cluster = nsqx_cluster
        cluster.start_admins_on_lookupds()
        requests = (
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
        for method, target in requests:
            cluster.assert_same(method, target)

    def test_pages_are_html(self, nsqx_cluster: ComparedCluster) -> None:
        cluster = nsqx_cluster
        cluster.start_admins_on_lookupds()
        paths = ("/", "/topics", "/topics/t", "/topics/t/c", "/nodes", "/nodes/n", "/counter", "/lookup")
        for path in paths:
            answers = [admin.request("GET", path) for admin in cluster.admins]
            assert [answer.status for answer in answers] == [200, 200]
            assert all(answer.headers["content-type"].startswith("text/html") for answer in answers)


class Graphite(http.server.BaseHTTPRequestHandler):
    """A Graphite server that responds with ``answer`` and records its requests."""

    answer = b"[]"
    requests: list[tuple[str, str | None]] = []

    def do_GET(self) -> None:
        type(self).requests.append((self.path, self.headers["Authorization"]))
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
    Graphite.requests = []
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

    def test_graphite_rates_are_equal(self, nsqx_cluster: ComparedCluster, graphite: str) -> None:
        cluster = nsqx_cluster
        cluster.start_admins_on_lookupds(f"--graphite-url=http://u:p@{graphite}", "--statsd-interval=30s")
        for answer in self.ANSWERS:
            Graphite.answer = answer
            cluster.assert_same("GET", "/api/graphite?metric=rate&target=sumSeries(stats.a%2Cb)")
        assert len(Graphite.requests) == 2 * len(self.ANSWERS)
        assert len(set(Graphite.requests)) == 1

    @pytest.mark.parametrize("base", ["/", "/admin"])
    def test_graphite_requests_are_proxied(self, nsqx_cluster: ComparedCluster, graphite: str, base: str) -> None:
        cluster = nsqx_cluster
        cluster.start_admins_on_lookupds(
            f"--graphite-url=http://u:p@{graphite}", "--proxy-graphite", f"--base-path={base}"
        )
        Graphite.answer = b'{"drawn": true}'
        target = f"{base.rstrip('/')}/render?target=a&target=b&from=-1h"
        assert cluster.assert_same("GET", target)[2] == {"drawn": True}
        assert len(set(Graphite.requests)) == 1
        assert Graphite.requests[0][0] == target
