"""Go's nsqlookupd and ours give equal results for every byte script, HTTP request and scenario."""

import json
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from http_cases import NAMES, Request, get, post
from lookup_scripts import MAGICS, scripts

from daemons import Daemon, Fleet, program_command, wait_until
from nsqx.version import own_version_line
from rawlookup import MAGIC, NSQD, RawLookupClient, identify

SCRIPTS = dict(scripts())
NEVER = -6795364578871345152
END_TIMEOUT_S = 30

Pair = tuple[Daemon, Daemon]


@pytest.fixture(scope="module")
def pair(candidate: str) -> Iterator[Pair]:
    """The Go daemon and ours, shared by the tests of this file. Each test uses its own topics."""
    daemons = Fleet()
    yield daemons.nsqlookupd("go"), daemons.nsqlookupd(candidate)
    daemons.close()


@pytest.fixture
def fresh(candidate: str, fleet: Fleet) -> Callable[..., Pair]:
    """A function that starts both daemons with the same flags, for one test."""
    return lambda *flags: (fleet.nsqlookupd("go", *flags), fleet.nsqlookupd(candidate, *flags))


# The TCP protocol


def play(daemon: Daemon, script: bytes, topic: str, magic: bytes = MAGIC) -> bytes:
    """Send a script. Return everything received until the connection ends, with the ports replaced."""
    script = script.replace(b"<topic64>", topic.encode().ljust(64, b"x")).replace(b"<topic>", topic.encode())
    with RawLookupClient(daemon.tcp_address, magic + script) as client:
        client.send_end()
        answer = client.read_to_end()
    for port, label in ((daemon.tcp_port, b"<tcp>"), (daemon.http_port, b"<http>")):
        answer = re.sub(rb'_port":%d\b' % port, b'_port":' + label, answer)
    # The size before the JSON depends on how many digits the ports have.
    return re.sub(rb'....(?={"broadcast_address")', b"<size>", answer, flags=re.DOTALL)


@pytest.mark.parametrize("name", SCRIPTS)
def test_both_daemons_give_the_same_responses_to_a_script(name: str, pair: Pair, topic: str) -> None:
    reference, ours = (play(daemon, SCRIPTS[name], topic) for daemon in pair)
    assert ours == reference


@pytest.mark.parametrize("name", MAGICS)
def test_an_invalid_magic_gets_the_same_response(name: str, pair: Pair, topic: str) -> None:
    reference, ours = (play(daemon, b"", topic, MAGICS[name]) for daemon in pair)
    assert ours == reference


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_the_size_of_packets_does_not_change_the_responses(size: int, pair: Pair, topic: str) -> None:
    """The script is sent in packets of ``size`` bytes."""
    script = MAGIC + identify() + b"REGISTER %b ch\r\nPING\nNOPE\n" % topic.encode()
    results = []
    for daemon in pair:
        with RawLookupClient(daemon.tcp_address, b"") as client:
            for start in range(0, len(script), size):
                client.send(script[start : start + size])
            answer = client.read_to_end()
        assert answer.endswith(b"\0\0\0\x02OK\0\0\0\x02OK\0\0\0\x1eE_INVALID invalid command NOPE")
        results.append(answer.count(b"OK"))
    assert results[0] == results[1]


# The HTTP API

ROUTES = (
    "/ping",
    "/info",
    "/topics?<topic>",
    "/channels?topic=<topic>",
    "/lookup?topic=<topic>",
    "/nodes",
    "/debug",
    "/topic/create?topic=<topic>",
    "/topic/delete?topic=<topic>",
    "/topic/tombstone?topic=<topic>&node=x:1",
    "/channel/create?topic=<topic>&channel=ch",
    "/channel/delete?topic=<topic>&channel=ch",
    "/",
    "/nothing",
    "/topic",
    "/Topics",
    "/topics/",
    "//topics",
    "/TOPIC/create?topic=<topic>",
    "/topic/create/?topic=<topic>",
    "/lookup?topic=%zz",
    "/lookup?topic=a;b",
)
METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS")
# The paths that take a topic, channel or node. Each is sent with every valid and invalid value of NAMES.
ARGUMENTS = {
    "GET /channels": "{}",
    "GET /lookup": "{}",
    "POST /topic/create": "{}",
    "POST /topic/delete": "{}",
    "POST /topic/tombstone": "{}&node=nsqd.test:4151",
    "POST /channel/create": "{}&channel=ch",
    "POST /channel/delete": "{}&channel=ch",
    "POST channel of /channel/create": "topic=<topic>&{}",
    "POST channel of /channel/delete": "topic=<topic>&{}",
    "POST node of /topic/tombstone": "topic=<topic>&{}",
}


def answer(daemon: Daemon, request: Request, topic: str) -> Any:
    """Send a request. Return target, status, headers and body, without values that differ between two daemons."""
    target = request.target.replace("<topic64>", topic.ljust(64, "x")).replace("<topic>", topic)
    response = daemon.request(request.method, target, request.body)
    named = ("content-type", "x-nsq-content-type", "allow", "location")
    headers = {name: response.headers[name] for name in named if name in response.headers}
    body: Any = response.body.decode()
    if headers.get("content-type", "").startswith("application/json") and body:
        body = plain(json.loads(body))
    return target, response.status, headers, body


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("route", ROUTES)
def test_every_route_gives_the_same_response(
    method: str, route: str, fresh: Callable[..., Pair], pair: Pair, topic: str
) -> None:
    # These routes list all topics and nodes, so they are compared on new daemons.
    pair = fresh() if route in ("/topics?<topic>", "/nodes", "/debug") and method == "GET" else pair
    requests = [post("/channel/create?topic=<topic>&channel=ch"), Request(method, route), get("/lookup?topic=<topic>")]
    reference, ours = ([answer(daemon, request, topic) for request in requests] for daemon in pair)
    assert ours == reference


@pytest.mark.parametrize("value", NAMES)
@pytest.mark.parametrize("call", ARGUMENTS)
def test_every_parameter_value_gives_the_same_response(call: str, value: str, pair: Pair, topic: str) -> None:
    method, *parameter, path = call.replace(" of", "").split(" ")
    query = ARGUMENTS[call].format(NAMES[value].format(*(parameter or ["topic"]) * 2))
    requests = [post("/channel/create?topic=<topic>&channel=ch"), Request(method, f"{path}?{query}")]
    requests += [get("/lookup?topic=<topic>"), get("/channels?topic=<topic>")]
    reference, ours = ([answer(daemon, request, topic) for request in requests] for daemon in pair)
    assert ours == reference


def test_a_request_body_is_ignored(pair: Pair, topic: str) -> None:
    requests = [Request("POST", "/topic/create?topic=<topic>", b"x" * 1000), get("/lookup?topic=<topic>")]
    reference, ours = ([answer(daemon, request, topic) for request in requests] for daemon in pair)
    assert ours == reference


# Keys that NSQ versions after 1.3.0 add.
LATER_KEYS = {"topology_zone", "topology_region"}


def plain(value: Any, key: str = "") -> Any:
    """Return JSON without values that change. Lists are sorted; objects keep the order of their keys."""
    if isinstance(value, dict):
        entries = [(name, plain(item, name)) for name, item in value.items() if name not in LATER_KEYS]
        if "tombstones" in value:
            marked = sorted(zip(value["topics"], value["tombstones"], strict=True))
            entries = [(name, marked if name in ("topics", "tombstones") else item) for name, item in entries]
        return ("object", entries)
    if isinstance(value, list):
        return sorted((plain(item) for item in value), key=repr)
    if key in ("remote_address", "id"):
        return re.sub(r":\d+$", ":<port>", value)
    if key == "last_update" or (key == "tombstoned_at" and value != NEVER):
        assert 1_600_000_000 * 10**9 < value < 10**19, (key, value)
        return "<time>"
    return value


# Scenarios


class Scenario:
    """Connects simulated nsqds to a daemon, sends their commands, and records responses and the daemon's state."""

    def __init__(self, daemon: Daemon, topic: str) -> None:
        self.daemon = daemon
        self.topic = topic
        self.results: list[Any] = []
        self._clients: dict[str, RawLookupClient] = {}

    def connect(self, name: str, **changes: Any) -> None:
        client = self._clients[name] = RawLookupClient(self.daemon.tcp_address)
        assert json.loads(client.ask(identify(**{"broadcast_address": f"{self.topic}.{name}", **changes})))

    def send(self, name: str, *commands: str) -> None:
        for command in commands:
            self.results.append((name, self._clients[name].ask(self._fill(command).encode() + b"\n")))

    def disconnect(self, name: str) -> None:
        client = self._clients.pop(name)
        client.close()
        wait_until(
            lambda: client.local_address not in self.daemon.request("GET", "/debug").body.decode(),
            "the client is disconnected",
        )

    def post(self, target: str) -> None:
        self.results.append(answer(self.daemon, post(self._fill(target)), self.topic))

    def record_state(self) -> None:
        """Record the topics, channels and nodes of this scenario, from all HTTP routes that list them."""
        for topic in (self.topic, f"{self.topic}.b", f"{self.topic}%23ephemeral"):
            self.results.append(answer(self.daemon, get(f"/lookup?topic={topic}"), self.topic))
            self.results.append(answer(self.daemon, get(f"/channels?topic={topic}"), self.topic))
        topics = self.daemon.request("GET", "/topics").json()["topics"]
        self.results.append(sorted(name for name in topics if name.startswith(self.topic)))
        nodes = self.daemon.request("GET", "/nodes").json()["producers"]
        self.results.append(plain([node for node in nodes if node["broadcast_address"].startswith(self.topic)]))
        debug = self.daemon.request("GET", "/debug").json()
        self.results.append(
            {key: plain(value) for key, value in debug.items() if key.split(":")[1].startswith(self.topic)}
        )
        mine = [entry for entry in debug.get("client::", []) if entry["broadcast_address"].startswith(self.topic)]
        self.results.append(plain(mine))

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def _fill(self, text: str) -> str:
        return text.replace("<t>", self.topic)


def registers(scenario: Scenario) -> None:
    scenario.connect("one")
    scenario.record_state()
    scenario.send("one", "REGISTER <t>")
    scenario.record_state()
    scenario.connect("two", hostname=None, http_port=1, tcp_port=-5)
    scenario.send("two", "REGISTER <t> ch", "REGISTER <t> ch", "REGISTER <t>.b ch")
    scenario.send("one", "REGISTER <t> other", "REGISTER <t>#ephemeral ch#ephemeral", "PING")
    scenario.record_state()


def disconnects(scenario: Scenario) -> None:
    scenario.connect("one")
    scenario.connect("two")
    scenario.send("one", "REGISTER <t> ch", "REGISTER <t>#ephemeral ch#ephemeral", "REGISTER <t>.b")
    scenario.send("two", "REGISTER <t> ch")
    scenario.disconnect("one")
    scenario.record_state()
    scenario.disconnect("two")
    scenario.record_state()
    scenario.connect("two")
    scenario.record_state()


def unregisters_channels(scenario: Scenario) -> None:
    scenario.connect("one")
    scenario.connect("two")
    for name in ("one", "two"):
        scenario.send(name, "REGISTER <t> ch", "REGISTER <t> ch#ephemeral")
    for name in ("one", "two"):
        scenario.send(name, "UNREGISTER <t> ch", "UNREGISTER <t> ch#ephemeral")
        scenario.record_state()
    scenario.send("two", "UNREGISTER <t> ch", "UNREGISTER <t> never", "UNREGISTER <t>.b never")
    scenario.record_state()


def unregisters_topics(scenario: Scenario) -> None:
    scenario.connect("one")
    scenario.connect("two")
    for name in ("one", "two"):
        scenario.send(name, "REGISTER <t> ch", "REGISTER <t> ch#ephemeral", "REGISTER <t>#ephemeral ch")
    for name in ("one", "two"):
        scenario.send(name, "UNREGISTER <t>", "UNREGISTER <t>#ephemeral")
        scenario.record_state()
    scenario.send("two", "UNREGISTER <t>", "UNREGISTER <t>.b")
    scenario.record_state()


def another_nsqd_removes_empty_ephemerals(scenario: Scenario) -> None:
    """UNREGISTER removes an ephemeral channel or topic that has no producers, also when another nsqd sends it."""
    scenario.connect("one")
    scenario.connect("two")
    scenario.send("one", "REGISTER <t> ch#ephemeral", "REGISTER <t>#ephemeral")
    scenario.disconnect("one")
    scenario.record_state()
    scenario.send("two", "UNREGISTER <t> ch#ephemeral", "UNREGISTER <t>#ephemeral")
    scenario.record_state()


def creates(scenario: Scenario) -> None:
    scenario.post("/topic/create?topic=<t>")
    scenario.post("/channel/create?topic=<t>.b&channel=ch")
    scenario.record_state()
    scenario.connect("one")
    scenario.send("one", "REGISTER <t>.b ch", "UNREGISTER <t>.b ch")
    scenario.post("/topic/create?topic=<t>.b")
    scenario.post("/channel/create?topic=<t>.b&channel=ch")
    scenario.record_state()


def deletes_topics(scenario: Scenario) -> None:
    scenario.connect("one")
    scenario.send("one", "REGISTER <t> ch", "REGISTER <t> ch2", "REGISTER <t>.b ch")
    scenario.post("/topic/delete?topic=<t>")
    scenario.record_state()
    scenario.post("/topic/delete?topic=<t>")
    scenario.send("one", "UNREGISTER <t> ch", "UNREGISTER <t>")
    scenario.record_state()
    scenario.send("one", "REGISTER <t> ch")
    scenario.record_state()
    scenario.post("/topic/delete?topic=<t>")
    scenario.disconnect("one")
    scenario.record_state()


def deletes_channels(scenario: Scenario) -> None:
    scenario.connect("one")
    scenario.send("one", "REGISTER <t> ch", "REGISTER <t> ch2")
    for _ in range(2):
        scenario.post("/channel/delete?topic=<t>&channel=ch")
        scenario.record_state()
    scenario.post("/channel/delete?topic=<t>.b&channel=ch")
    scenario.send("one", "UNREGISTER <t> ch", "REGISTER <t> ch")
    scenario.record_state()


def unregisters_a_topic_with_channels(scenario: Scenario) -> None:
    scenario.connect("one")
    scenario.send("one", "REGISTER <t>#ephemeral ch", "UNREGISTER <t>#ephemeral")
    scenario.record_state()
    scenario.post("/channel/delete?topic=<t>%23ephemeral&channel=ch")
    scenario.record_state()
    scenario.send("one", "REGISTER <t>#ephemeral ch", "UNREGISTER <t>#ephemeral")
    scenario.post("/topic/delete?topic=<t>%23ephemeral")
    scenario.record_state()


def tombstones(scenario: Scenario) -> None:
    scenario.connect("one")
    scenario.connect("two")
    for name in ("one", "two"):
        scenario.send(name, "REGISTER <t> ch", "REGISTER <t>.b ch")
    scenario.post("/topic/tombstone?topic=<t>&node=<t>.one:4151")
    scenario.record_state()
    scenario.send("one", "REGISTER <t> ch", "PING")
    scenario.record_state()
    scenario.send("one", "UNREGISTER <t>", "REGISTER <t>")
    scenario.record_state()
    for target in ("topic=<t>&node=<t>.one:4150", "topic=<t>.c&node=<t>.one:4151", "topic=<t>&node=", "topic=<t>"):
        scenario.post(f"/topic/tombstone?{target}")
    scenario.record_state()


def tombstones_two_connections_of_one_node(scenario: Scenario) -> None:
    """Two connections identify as the same node."""
    scenario.connect("one", broadcast_address=f"{scenario.topic}::1")
    scenario.connect("two", broadcast_address=f"{scenario.topic}::1")
    for name in ("one", "two"):
        scenario.send(name, "REGISTER <t>")
    scenario.post("/topic/tombstone?topic=<t>&node=<t>::1:4151")
    scenario.record_state()
    scenario.disconnect("one")
    scenario.connect("one", broadcast_address=f"{scenario.topic}::1")
    scenario.send("one", "REGISTER <t>")
    scenario.record_state()


def an_error_ends_registrations(scenario: Scenario) -> None:
    scenario.connect("one")
    scenario.send("one", "REGISTER <t> ch", "REGISTER <t> /")
    wait_until(
        lambda: f"{scenario.topic}.one" not in scenario.daemon.request("GET", "/debug").body.decode(),
        "the client is disconnected",
    )
    scenario.record_state()


SCENARIOS = (
    registers,
    disconnects,
    unregisters_channels,
    unregisters_topics,
    another_nsqd_removes_empty_ephemerals,
    creates,
    deletes_topics,
    deletes_channels,
    unregisters_a_topic_with_channels,
    tombstones,
    tombstones_two_connections_of_one_node,
    an_error_ends_registrations,
)


def play_scenario(run_scenario: Callable[[Scenario], None], daemon: Daemon, topic: str) -> list[Any]:
    scenario = Scenario(daemon, topic)
    try:
        run_scenario(scenario)
    finally:
        scenario.close()
    return scenario.results


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_scenario_gives_the_same_results(scenario: Callable[[Scenario], None], pair: Pair, topic: str) -> None:
    reference, ours = (play_scenario(scenario, daemon, topic) for daemon in pair)
    assert ours == reference


@pytest.mark.parametrize(
    "flags",
    [
        ["--inactive-producer-timeout=1ns"],
        ["--inactive-producer-timeout=0"],
        ["--tombstone-lifetime=0"],
        ["--tombstone-lifetime=1ns"],
        ["--inactive-producer-timeout=1h", "--tombstone-lifetime=1h"],
    ],
    ids=" ".join,
)
def test_timeouts_give_the_same_results(flags: list[str], fresh: Callable[..., Pair], topic: str) -> None:
    reference, ours = (play_scenario(tombstones, daemon, topic) for daemon in fresh(*flags))
    assert ours == reference


def test_star_means_every_topic(fresh: Callable[..., Pair], topic: str) -> None:
    def stars(scenario: Scenario) -> None:
        for name in ("one", "two"):
            scenario.connect(name)
            scenario.send(name, "REGISTER <t> ch", "REGISTER <t>.b ch")
        for target in ("/lookup?topic=*", "/channels?topic=*"):
            scenario.results.append(answer(scenario.daemon, get(target), scenario.topic))
        scenario.post("/topic/delete?topic=*")
        scenario.record_state()
        scenario.results.append(answer(scenario.daemon, get("/lookup?topic=*"), scenario.topic))
        scenario.results.append(answer(scenario.daemon, get("/debug"), scenario.topic))

    reference, ours = (play_scenario(stars, daemon, topic) for daemon in fresh())
    assert ours == reference


# The log


def test_log_lines_are_equal(fresh: Callable[..., Pair], topic: str) -> None:
    """Both daemons log the same lines about registrations."""

    def log_everything(scenario: Scenario) -> None:
        scenario.connect("one", broadcast_address="nsqd.test")
        scenario.send("one", "REGISTER <t> ch", "REGISTER <t>#ephemeral", "PING", "UNREGISTER <t>", "UNREGISTER <t> ch")
        scenario.post("/channel/create?topic=<t>.b&channel=ch")
        scenario.post("/channel/delete?topic=<t>.b&channel=ch")
        scenario.post("/channel/delete?topic=<t>.b&channel=ch")
        scenario.post("/topic/create?topic=<t>")
        scenario.post("/topic/tombstone?topic=<t>&node=a:1")
        scenario.post("/topic/delete?topic=<t>")
        scenario.send("one", "NOPE")
        scenario.daemon.wait_for_log(r"client\(\S+\) - E_INVALID")

    logs = []
    for daemon in fresh():
        play_scenario(log_everything, daemon, topic)
        assert daemon.stop() == 0
        logs.append(comparable_lines(daemon.log))
    assert logs[1] == logs[0]
    assert f"INFO: DB: client(<address>) REGISTER category:channel key:{topic} subkey:ch" in logs[1]


def comparable_lines(log: str) -> list[str]:
    """Return the sorted lines of a log, without times, addresses and versions. Go's goroutines log in any order."""
    lines = re.sub(r"^\[nsqlookupd\] \S+ \S+ ", "", log, flags=re.M)
    lines = re.sub(r"127\.0\.0\.1:\d+", "<address>", lines)
    lines = re.sub(r"built w/\S+\)", "built w/<runtime>)", lines)
    # Durations of requests and times since the last PING.
    lines = re.sub(r"[\d.]+(ns|µs|ms|s)\b", "<duration>", lines)
    return sorted(lines.splitlines())


# The command line

_LOG_HEAD = re.compile(r"^\[nsqlookupd\] \S+ \S+ FATAL: ")
INVALID_FLAGS = (
    ["-x"],
    ["-tcp-address"],
    ["-inactive-producer-timeout", "5"],
    ["-tombstone-lifetime=x"],
    ["-log-level", "loud"],
    ["-verbose=perhaps"],
)


def run(implementation: str, argv: list[str]) -> subprocess.CompletedProcess[str]:
    """Run an nsqlookupd until it exits."""
    safe = ["-tcp-address=127.0.0.1:0", "-http-address=127.0.0.1:0"]
    command = program_command(implementation, "nsqlookupd") + safe + argv
    return subprocess.run(command, capture_output=True, text=True, timeout=END_TIMEOUT_S)


@pytest.mark.parametrize("argv", INVALID_FLAGS, ids=" ".join)
def test_invalid_flags_fail_with_the_same_message(candidate: str, argv: list[str]) -> None:
    go, ours = run("go", argv), run(candidate, argv)
    assert (ours.returncode, ours.stdout) == (go.returncode, go.stdout) == (2, "")
    assert ours.stderr.splitlines()[:2] == go.stderr.splitlines()[:2]


def test_help_lists_every_flag_of_the_go_daemon(candidate: str) -> None:
    """The types and defaults of the flags are also equal."""
    go, ours = run("go", ["-h"]), run(candidate, ["-h"])
    assert (ours.returncode, ours.stdout) == (go.returncode, go.stdout) == (0, "")
    flag = re.compile(r"^  -(\S+)(?: (\S+))?\n    \t.*?((?: \(default [^()]*\))?)$", re.M)
    table = flag.findall(go.stderr)
    assert len(table) == 10
    assert [row for row in flag.findall(ours.stderr) if row in table] == table


def test_the_first_line_of_the_version_is_equal(candidate: str) -> None:
    go, ours = run("go", ["-version"]), run(candidate, ["-version"])
    assert (ours.returncode, ours.stderr) == (go.returncode, go.stderr) == (0, "")
    built_with = re.compile(r"\(built w/[a-z]+[0-9.]+\)\n")
    assert built_with.sub("", go.stdout) == "nsqlookupd v1.3.0 "
    assert built_with.sub("", ours.stdout) == f"nsqlookupd v1.3.0 {own_version_line('nsqlookupd')}\n"


def failure(ended: subprocess.CompletedProcess[str]) -> str:
    """Return the reason why a daemon did not start. NSQ 1.3.0 logs it with a format string that lacks a verb."""
    last = _LOG_HEAD.sub("", ended.stderr.splitlines()[-1])
    clumsy = re.match(r"failed to instantiate nsqlookupd%!\(EXTRA \S+?=(.*)\)$", last)
    return f"failed to instantiate nsqlookupd - {clumsy.group(1)}" if clumsy else last


@pytest.mark.parametrize("flag", ["tcp-address", "http-address"])
def test_an_address_in_use_fails_with_the_same_message(candidate: str, flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        argv = [f"-{flag}=127.0.0.1:{taken.getsockname()[1]}"]
        go, ours = run("go", argv), run(candidate, argv)
    assert (ours.returncode, failure(ours)) == (go.returncode, failure(go))
    assert go.returncode == 1
    assert "bind: address already in use" in failure(ours)


@pytest.mark.parametrize("address", ["/tmp/no.sock", "192.0.2.1:0"])
def test_an_unusable_address_fails_with_the_same_message(candidate: str, address: str) -> None:
    go, ours = (run(name, [f"-tcp-address={address}"]) for name in ("go", candidate))
    assert (ours.returncode, failure(ours)) == (go.returncode, failure(go))
    assert go.returncode == 1


def test_both_daemons_read_the_same_config_keys(candidate: str, tmp_path: Path) -> None:
    config = tmp_path / "nsqlookupd.toml"
    config.write_text(
        'broadcast_address = "lookup.test"\nlog_prefix = "[x] "\nlog_level = "debug"\n'
        'inactive_producer_timeout = "1h"\ntombstone_lifetime = 7000\n'
    )
    results = []
    for name in ("go", candidate):
        # A flag on the command line would override the file.
        flags = ["-tcp-address=127.0.0.1:0", "-http-address=127.0.0.1:0", f"-config={config}"]
        with Daemon([*program_command(name, "nsqlookupd"), *flags], listeners=("TCP", "HTTP")) as daemon:
            with RawLookupClient(daemon.tcp_address) as client:
                results.append(json.loads(client.ask(identify()))["broadcast_address"])
            assert daemon.log.startswith("[x] ")
    assert results == ["lookup.test", "lookup.test"]


def test_identify_response_has_the_same_keys(pair: Pair) -> None:
    """The keys are in the same order, and the ports are those of the daemon."""
    for daemon in pair:
        with RawLookupClient(daemon.tcp_address) as client:
            said = json.loads(client.ask(identify(**NSQD)))
        assert list(said) == ["broadcast_address", "hostname", "http_port", "tcp_port", "version"]
        assert (said["tcp_port"], said["http_port"]) == (daemon.tcp_port, daemon.http_port)
        assert said["hostname"] == socket.gethostname()
        assert (said["broadcast_address"], said["version"]) == ("127.0.0.1", "1.3.0")
