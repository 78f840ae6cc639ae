"""nsqd's HTTP API: both daemons give equal responses to every request of http_cases.py, and equal /stats."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from http_cases import FLAGS, Case, Request, all_cases

from daemons import TEST_STORE, Daemon, Fleet, Response, wait_until
from rawclient import CLOSE_WAIT, OK, RawClient

CASES = {case.name: case for case in all_cases()}
TOPICS = {name: f"http{number:04}x" for number, name in enumerate(CASES)}
assert len(CASES) == len(all_cases()), "two cases have the same name"

COMPARED_HEADERS = ("content-type", "x-nsq-content-type", "allow", "location", "content-length")
# Keys that NSQ versions after 1.3.0 add.
LATER_KEYS = {
    "topology_zone",
    "topology_region",
    "zone_local_msg_count",
    "region_local_msg_count",
    "global_msg_count",
}
# Keys that only nsqx has.
ADDED_KEYS = {"broker_id", "nsqx_version", "node", "oldest_ms"}
# Keys whose values differ from run to run, or describe the runtime and not NSQ.
CHANGING_KEYS = {"start_time", "connect_ts", "http_port", "tcp_port", "value"}
CHANGING_TEXT = [
    (re.compile(r"built w/\S+\)"), "built w/<runtime>)"),
    (re.compile(r"^start_time \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)$", re.M), "start_time <time>"),
    (re.compile(r"^uptime (\d+h)?(\d+m)?[\d.]+(s|ms|µs)$", re.M), "uptime <duration>"),
    (re.compile(r"^(   (?:heap|gc|next)_\w+ *\t)\d+$", re.M), r"\1<number>"),
    (re.compile(r"connected: (\d+h)?(\d+m)?\d+s$", re.M), "connected: <duration>"),
    (re.compile(r"\d+\.\dns|\d+\.\d(us|ms|s)"), "<latency>"),
]
if TEST_STORE == "log":
    # All messages are on disk, and each log has numbers of its own.
    ADDED_KEYS |= {"log", "cursor", "backend_depth"}
    CHANGING_TEXT += [(re.compile(r"^      log: .*\n", re.M), ""), (re.compile(r"be-depth: \d+ *"), "")]

Pair = tuple[Daemon, Daemon]


@pytest.fixture(scope="module")
def pair(candidate: str) -> Iterator[Pair]:
    """The Go daemon and ours, both with FLAGS."""
    daemons = Fleet()
    yield daemons.nsqd("go", *FLAGS), daemons.nsqd(candidate, *FLAGS)
    daemons.close()


@pytest.mark.parametrize("name", CASES)
def test_both_daemons_give_the_same_responses(name: str, pair: Pair) -> None:
    reference, ours = (answers(daemon, CASES[name], TOPICS[name]) for daemon in pair)
    assert ours == reference


def test_info_is_equal(pair: Pair) -> None:
    reference, ours = (plain_json(daemon.request("GET", "/info").json()) for daemon in pair)
    assert ours == reference


STATS_QUERIES = (
    "",
    "topic=alpha",
    "topic=alpha&channel=two",
    "topic=alpha&channel=nothing",
    "topic=nothing",
    "topic=",
    "channel=two",
    "channel=nothing",
    "include_clients=false",
    "include_clients=0",
    "include_clients=true",
    "include_clients=no",
    "topic=alpha&include_clients=false",
    "topic=beta",
    "include_mem=false",
    "include_mem=0",
    "include_mem=no",
)


@pytest.fixture(scope="module")
def prepared_pair(candidate: str) -> Iterator[Pair]:
    """Two daemons in the same state, with connected clients."""
    daemons = Fleet()
    scenarios = [Scenario(daemons.nsqd(name, "--mem-queue-size=10", "--msg-timeout=60s")) for name in ("go", candidate)]
    for scenario in scenarios:
        scenario.set_up()
    yield scenarios[0].daemon, scenarios[1].daemon
    for scenario in scenarios:
        scenario.close()
    daemons.close()


@pytest.mark.parametrize("query", STATS_QUERIES)
def test_stats_as_json_are_equal(query: str, prepared_pair: Pair) -> None:
    reference, ours = (answer(daemon, Request("GET", f"/stats?format=json&{query}")) for daemon in prepared_pair)
    assert ours == reference


@pytest.mark.parametrize("query", STATS_QUERIES)
def test_stats_as_text_are_equal(query: str, prepared_pair: Pair) -> None:
    reference, ours = (answer(daemon, Request("GET", f"/stats?{query}")) for daemon in prepared_pair)
    assert ours == reference


def test_stats_of_a_unix_socket_are_equal(candidate: str, fleet: Fleet, tmp_path: Path) -> None:
    """A client on a unix socket has no address; /info reports no TCP port."""
    seen: list[tuple[str, int]] = []
    for name in ("go", candidate):
        path = tmp_path / f"{len(seen)}.sock"
        daemon = fleet.nsqd(name, f"--tcp-address={path}")
        with RawClient(str(path)) as client:
            assert client.sub("t", "c") == OK
            assert client.pub("u", b"x") == OK
            info = daemon.request("GET", "/info").json()
            seen.append((plain_json(daemon.stats()), info["tcp_port"]))
    assert seen[1] == seen[0]


@pytest.mark.parametrize("form", ["json", "text"])
def test_latency_percentiles_are_equal(form: str, pair: Pair) -> None:
    """/stats lists the percentiles in order after a message was finished."""
    for daemon in pair:
        finish_one(daemon, f"latency_{form}")
    reference, ours = (answer(daemon, Request("GET", f"/stats?topic=latency_{form}&format={form}")) for daemon in pair)
    assert ours == reference


def finish_one(daemon: Daemon, topic: str) -> None:
    with RawClient(daemon.tcp_address) as client:
        assert client.pub(topic, b"x") == OK
        assert client.sub(topic, "ch") == OK
        client.rdy(1)
        client.fin(client.read_message().id)
        assert client.cls() == CLOSE_WAIT
    wait_until(lambda: daemon.channel_stats(topic, "ch")["client_count"] == 0, "the client is disconnected")


def test_plain_http_gets_the_same_response_when_tls_is_required(
    candidate: str, fleet: Fleet, certificate: tuple[str, str]
) -> None:
    flags = ["--tls-required=true", f"--tls-cert={certificate[0]}", f"--tls-key={certificate[1]}"]
    pair = fleet.nsqd("go", *flags), fleet.nsqd(candidate, *flags)
    for target in ("/ping", "/stats", "/nothing"):
        reference, ours = (answer(daemon, Request("GET", target)) for daemon in pair)
        assert ours == reference


def answers(daemon: Daemon, case: Case, topic: str) -> list[Any]:
    return [answer(daemon, request, topic) for request in case.requests]


def answer(daemon: Daemon, request: Request, topic: str = "") -> Any:
    """Send a request. Return target, status, headers and body, without values that differ between two daemons."""

    def fill(text: str) -> str:
        return text.replace("<topic64>", topic.ljust(64, "x")).replace("<topic>", topic)

    body = fill(request.body.decode("latin-1")).encode("latin-1") if request.body is not None else None
    response = daemon.request(request.method, fill(request.target), body, request.headers)
    seen = headers(response)
    text = response.body.decode()
    if seen.get("content-type", "").startswith("application/json") and response.status == 200:
        content = plain_json(json.loads(text))
        if content in ports(daemon):
            content = ports(daemon)[content]
        seen.pop("content-length", None)
    else:
        for port, label in ports(daemon).items():
            text = re.sub(rf"(?<!\d){port}(?!\d)", label, text)
        content = plain_text(text)
        if content != response.body.decode():
            seen.pop("content-length", None)
    return request.target, response.status, seen, content


def ports(daemon: Daemon) -> dict[str, str]:
    return {address.rpartition(":")[2]: f"<{listener} port>" for listener, address in daemon.addresses.items()}


def headers(response: Response) -> dict[str, str]:
    return {name: response.headers[name] for name in COMPARED_HEADERS if name in response.headers}


def plain_json(value: Any) -> str:
    """Return JSON text without values that change. The keys stay in their original order."""
    return json.dumps(_without_changing(value), indent=1)


def _without_changing(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {
            name: _without_changing(item, "memory" if key == "memory" else name)
            for name, item in value.items()
            if name not in LATER_KEYS | ADDED_KEYS
        }
    if isinstance(value, list):
        return [_without_changing(item) for item in value]
    if key in CHANGING_KEYS or key == "memory":
        assert isinstance(value, int), (key, value)
        return "<number>"
    if key == "remote_address":
        return re.sub(r":\d+$", ":<port>", value)
    return value


def plain_text(text: str) -> str:
    for pattern, replacement in CHANGING_TEXT:
        text = pattern.sub(replacement, text)
    return re.sub(r"\[V2 (\S+?):\d+ ", r"[V2 \1:<port> ", text)


class Scenario:
    """Brings a daemon into a known state, with clients that stay connected."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self._clients: list[RawClient] = []

    def set_up(self) -> None:
        daemon = self.daemon
        for target, topic in (("/topic/create", "alpha"), ("/topic/create", "gamma")):
            daemon.post(target, topic=topic)
        for channel in ("one", "two"):
            daemon.post("/channel/create", topic="alpha", channel=channel)
        daemon.post("/channel/pause", topic="alpha", channel="one")
        self._work(self._client("worker", sample_rate=0, user_agent="worker/1.0"))
        self._connect_idle_clients()
        self._publish()
        wait_until(self._settled, f"{daemon.command[0]} has settled: {daemon.stats(include_mem='false')}")

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def _client(self, name: str, **fields: Any) -> RawClient:
        client = RawClient(self.daemon.tcp_address)
        self._clients.append(client)
        client.identify(client_id=name, hostname=f"{name}.host", feature_negotiation=True, **fields)
        return client

    def _work(self, worker: RawClient) -> None:
        """Of seven messages, finish one, requeue two with a delay and one at once, and keep two in flight."""
        assert worker.sub("alpha", "two") == OK
        self.daemon.post("/mpub", b"\n".join(b"message %d" % number for number in range(7)), topic="alpha")
        worker.rdy(1)
        worker.fin(worker.read_message().id)
        worker.req(worker.read_message().id, 50_000)
        worker.req(worker.read_message().id, 50_000)
        held = worker.read_message()
        worker.req(held.id, 0)
        worker.rdy(2)
        worker.read_message()
        worker.read_message()

    def _connect_idle_clients(self) -> None:
        """Connect a client that sends nothing, one on an ephemeral channel, and one that has sent CLS."""
        RawClient(self.daemon.tcp_address).close()
        self._clients.append(RawClient(self.daemon.tcp_address))
        assert self._client("idle", msg_timeout=2000).sub("alpha", "three#ephemeral") == OK
        closing = self._client("closing")
        assert closing.sub("gamma", "left") == OK
        assert closing.cls() == CLOSE_WAIT

    def _publish(self) -> None:
        producer = self._client("producer", user_agent="producer/2.0", heartbeat_interval=-1)
        for number in range(13):
            assert producer.pub("delta", b"backlog %d" % number) == OK
        self.daemon.post("/topic/create", topic="beta")
        self.daemon.post("/topic/pause", topic="beta")
        self.daemon.post("/channel/create", topic="beta", channel="waiting")
        self.daemon.post("/pub", b"held back", topic="beta")
        self.daemon.post("/pub", b"x", topic="short#ephemeral")

    def _settled(self) -> bool:
        entry = self.daemon.channel_stats("alpha", "two")
        places = (entry["depth"], entry["in_flight_count"], entry["deferred_count"])
        return places == (2, 2, 2) and self.daemon.channel_stats("alpha", "one")["depth"] == 7
