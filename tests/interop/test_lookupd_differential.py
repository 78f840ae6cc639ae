"""nsqlookupd: every byte script, every HTTP request and every scene gives the same on the Go daemon and on ours."""

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
from rawlookup import MAGIC, NSQD, RawLookupClient, identify

SCRIPTS = dict(scripts())
NEVER = -6795364578871345152
END_TIMEOUT_S = 30

Pair = tuple[Daemon, Daemon]


@pytest.fixture(scope="module")
def pair(candidate: str) -> Iterator[Pair]:
    """The Go daemon and ours; each test has topics of its own."""
    daemons = Fleet()
    yield daemons.nsqlookupd("go"), daemons.nsqlookupd(candidate)
    daemons.close()


@pytest.fixture
def fresh(candidate: str, fleet: Fleet) -> Callable[..., Pair]:
    """Starts both daemons with the same flags, for one test."""
    return lambda *flags: (fleet.nsqlookupd("go", *flags), fleet.nsqlookupd(candidate, *flags))


# The TCP protocol


def play(daemon: Daemon, script: bytes, topic: str, magic: bytes = MAGIC) -> bytes:
    """What a script is answered with, up to the end of the connection, without the ports."""
    script = script.replace(b"<topic64>", topic.encode().ljust(64, b"x")).replace(b"<topic>", topic.encode())
    with RawLookupClient(daemon.tcp_address, magic + script) as client:
        client.send_end()
        answer = client.read_to_end()
    for port, label in ((daemon.tcp_port, b"<tcp>"), (daemon.http_port, b"<http>")):
        answer = re.sub(rb'_port":%d\b' % port, b'_port":' + label, answer)
    # The size before the JSON depends on how many digits the ports have.
    return re.sub(rb'....(?={"broadcast_address")', b"<size>", answer, flags=re.DOTALL)


@pytest.mark.parametrize("name", SCRIPTS)
def test_script(name: str, pair: Pair, topic: str) -> None:
    reference, ours = (play(daemon, SCRIPTS[name], topic) for daemon in pair)
    assert ours == reference


@pytest.mark.parametrize("name", MAGICS)
def test_magic(name: str, pair: Pair, topic: str) -> None:
    reference, ours = (play(daemon, b"", topic, MAGICS[name]) for daemon in pair)
    assert ours == reference


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_script_in_pieces(size: int, pair: Pair, topic: str) -> None:
    """The same bytes in small packets give the same answers."""
    script = MAGIC + identify() + b"REGISTER %b ch\r\nPING\nNOPE\n" % topic.encode()
    seen = []
    for daemon in pair:
        with RawLookupClient(daemon.tcp_address, b"") as client:
            for start in range(0, len(script), size):
                client.send(script[start : start + size])
            answer = client.read_to_end()
        assert answer.endswith(b"\0\0\0\x02OK\0\0\0\x02OK\0\0\0\x1eE_INVALID invalid command NOPE")
        seen.append(answer.count(b"OK"))
    assert seen[0] == seen[1]


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
# Good and bad values of a topic and of a channel, for each path that takes one.
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
    """What a response says, without what may differ between two daemons."""
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
def test_route(method: str, route: str, fresh: Callable[..., Pair], pair: Pair, topic: str) -> None:
    # What lists everything is compared where nothing else has happened.
    pair = fresh() if route in ("/topics?<topic>", "/nodes", "/debug") and method == "GET" else pair
    requests = [post("/channel/create?topic=<topic>&channel=ch"), Request(method, route), get("/lookup?topic=<topic>")]
    reference, ours = ([answer(daemon, request, topic) for request in requests] for daemon in pair)
    assert ours == reference


@pytest.mark.parametrize("value", NAMES)
@pytest.mark.parametrize("call", ARGUMENTS)
def test_argument(call: str, value: str, pair: Pair, topic: str) -> None:
    method, *parameter, path = call.replace(" of", "").split(" ")
    query = ARGUMENTS[call].format(NAMES[value].format(*(parameter or ["topic"]) * 2))
    requests = [post("/channel/create?topic=<topic>&channel=ch"), Request(method, f"{path}?{query}")]
    requests += [get("/lookup?topic=<topic>"), get("/channels?topic=<topic>")]
    reference, ours = ([answer(daemon, request, topic) for request in requests] for daemon in pair)
    assert ours == reference


def test_body_is_ignored(pair: Pair, topic: str) -> None:
    requests = [Request("POST", "/topic/create?topic=<topic>", b"x" * 1000), get("/lookup?topic=<topic>")]
    reference, ours = ([answer(daemon, request, topic) for request in requests] for daemon in pair)
    assert ours == reference


# What later NSQ versions than 1.3.0 add.
LATER_KEYS = {"topology_zone", "topology_region"}


def plain(value: Any, key: str = "") -> Any:
    """JSON without what changes, in a fixed order where there is no promised one; objects keep the order of keys."""
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


# Scenes


class Scene:
    """nsqd after nsqd connects to a daemon, something happens, and now and then everything is looked at."""

    def __init__(self, daemon: Daemon, topic: str) -> None:
        self.daemon = daemon
        self.topic = topic
        self.seen: list[Any] = []
        self._clients: dict[str, RawLookupClient] = {}

    def connect(self, name: str, **changes: Any) -> None:
        client = self._clients[name] = RawLookupClient(self.daemon.tcp_address)
        assert json.loads(client.ask(identify(**{"broadcast_address": f"{self.topic}.{name}", **changes})))

    def tell(self, name: str, *commands: str) -> None:
        for command in commands:
            self.seen.append((name, self._clients[name].ask(self._fill(command).encode() + b"\n")))

    def leave(self, name: str) -> None:
        client = self._clients.pop(name)
        client.close()
        wait_until(lambda: client.local_address not in self.daemon.request("GET", "/debug").body.decode(), "it left")

    def post(self, target: str) -> None:
        self.seen.append(answer(self.daemon, post(self._fill(target)), self.topic))

    def look(self) -> None:
        """Everything about the scene's topics and nodes."""
        for topic in (self.topic, f"{self.topic}.b", f"{self.topic}%23ephemeral"):
            self.seen.append(answer(self.daemon, get(f"/lookup?topic={topic}"), self.topic))
            self.seen.append(answer(self.daemon, get(f"/channels?topic={topic}"), self.topic))
        topics = self.daemon.request("GET", "/topics").json()["topics"]
        self.seen.append(sorted(name for name in topics if name.startswith(self.topic)))
        nodes = self.daemon.request("GET", "/nodes").json()["producers"]
        self.seen.append(plain([node for node in nodes if node["broadcast_address"].startswith(self.topic)]))
        debug = self.daemon.request("GET", "/debug").json()
        self.seen.append(
            {key: plain(value) for key, value in debug.items() if key.split(":")[1].startswith(self.topic)}
        )
        mine = [entry for entry in debug.get("client::", []) if entry["broadcast_address"].startswith(self.topic)]
        self.seen.append(plain(mine))

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def _fill(self, text: str) -> str:
        return text.replace("<t>", self.topic)


def registers(scene: Scene) -> None:
    scene.connect("one")
    scene.look()
    scene.tell("one", "REGISTER <t>")
    scene.look()
    scene.connect("two", hostname=None, http_port=1, tcp_port=-5)
    scene.tell("two", "REGISTER <t> ch", "REGISTER <t> ch", "REGISTER <t>.b ch")
    scene.tell("one", "REGISTER <t> other", "REGISTER <t>#ephemeral ch#ephemeral", "PING")
    scene.look()


def leaves(scene: Scene) -> None:
    scene.connect("one")
    scene.connect("two")
    scene.tell("one", "REGISTER <t> ch", "REGISTER <t>#ephemeral ch#ephemeral", "REGISTER <t>.b")
    scene.tell("two", "REGISTER <t> ch")
    scene.leave("one")
    scene.look()
    scene.leave("two")
    scene.look()
    scene.connect("two")
    scene.look()


def unregisters_channels(scene: Scene) -> None:
    scene.connect("one")
    scene.connect("two")
    for name in ("one", "two"):
        scene.tell(name, "REGISTER <t> ch", "REGISTER <t> ch#ephemeral")
    for name in ("one", "two"):
        scene.tell(name, "UNREGISTER <t> ch", "UNREGISTER <t> ch#ephemeral")
        scene.look()
    scene.tell("two", "UNREGISTER <t> ch", "UNREGISTER <t> never", "UNREGISTER <t>.b never")
    scene.look()


def unregisters_topics(scene: Scene) -> None:
    scene.connect("one")
    scene.connect("two")
    for name in ("one", "two"):
        scene.tell(name, "REGISTER <t> ch", "REGISTER <t> ch#ephemeral", "REGISTER <t>#ephemeral ch")
    for name in ("one", "two"):
        scene.tell(name, "UNREGISTER <t>", "UNREGISTER <t>#ephemeral")
        scene.look()
    scene.tell("two", "UNREGISTER <t>", "UNREGISTER <t>.b")
    scene.look()


def another_takes_off_what_is_empty(scene: Scene) -> None:
    """Whoever names an ephemeral channel or topic without producers makes it go."""
    scene.connect("one")
    scene.connect("two")
    scene.tell("one", "REGISTER <t> ch#ephemeral", "REGISTER <t>#ephemeral")
    scene.leave("one")
    scene.look()
    scene.tell("two", "UNREGISTER <t> ch#ephemeral", "UNREGISTER <t>#ephemeral")
    scene.look()


def creates(scene: Scene) -> None:
    scene.post("/topic/create?topic=<t>")
    scene.post("/channel/create?topic=<t>.b&channel=ch")
    scene.look()
    scene.connect("one")
    scene.tell("one", "REGISTER <t>.b ch", "UNREGISTER <t>.b ch")
    scene.post("/topic/create?topic=<t>.b")
    scene.post("/channel/create?topic=<t>.b&channel=ch")
    scene.look()


def deletes_topics(scene: Scene) -> None:
    scene.connect("one")
    scene.tell("one", "REGISTER <t> ch", "REGISTER <t> ch2", "REGISTER <t>.b ch")
    scene.post("/topic/delete?topic=<t>")
    scene.look()
    scene.post("/topic/delete?topic=<t>")
    scene.tell("one", "UNREGISTER <t> ch", "UNREGISTER <t>")
    scene.look()
    scene.tell("one", "REGISTER <t> ch")
    scene.look()
    scene.post("/topic/delete?topic=<t>")
    scene.leave("one")
    scene.look()


def deletes_channels(scene: Scene) -> None:
    scene.connect("one")
    scene.tell("one", "REGISTER <t> ch", "REGISTER <t> ch2")
    for _ in range(2):
        scene.post("/channel/delete?topic=<t>&channel=ch")
        scene.look()
    scene.post("/channel/delete?topic=<t>.b&channel=ch")
    scene.tell("one", "UNREGISTER <t> ch", "REGISTER <t> ch")
    scene.look()


def leaves_channels_without_a_topic(scene: Scene) -> None:
    scene.connect("one")
    scene.tell("one", "REGISTER <t>#ephemeral ch", "UNREGISTER <t>#ephemeral")
    scene.look()
    scene.post("/channel/delete?topic=<t>%23ephemeral&channel=ch")
    scene.look()
    scene.tell("one", "REGISTER <t>#ephemeral ch", "UNREGISTER <t>#ephemeral")
    scene.post("/topic/delete?topic=<t>%23ephemeral")
    scene.look()


def tombstones(scene: Scene) -> None:
    scene.connect("one")
    scene.connect("two")
    for name in ("one", "two"):
        scene.tell(name, "REGISTER <t> ch", "REGISTER <t>.b ch")
    scene.post("/topic/tombstone?topic=<t>&node=<t>.one:4151")
    scene.look()
    scene.tell("one", "REGISTER <t> ch", "PING")
    scene.look()
    scene.tell("one", "UNREGISTER <t>", "REGISTER <t>")
    scene.look()
    for target in ("topic=<t>&node=<t>.one:4150", "topic=<t>.c&node=<t>.one:4151", "topic=<t>&node=", "topic=<t>"):
        scene.post(f"/topic/tombstone?{target}")
    scene.look()


def tombstones_twins(scene: Scene) -> None:
    """Two connections that say they are the same node."""
    scene.connect("one", broadcast_address=f"{scene.topic}::1")
    scene.connect("two", broadcast_address=f"{scene.topic}::1")
    for name in ("one", "two"):
        scene.tell(name, "REGISTER <t>")
    scene.post("/topic/tombstone?topic=<t>&node=<t>::1:4151")
    scene.look()
    scene.leave("one")
    scene.connect("one", broadcast_address=f"{scene.topic}::1")
    scene.tell("one", "REGISTER <t>")
    scene.look()


def mistakes_end_registrations(scene: Scene) -> None:
    scene.connect("one")
    scene.tell("one", "REGISTER <t> ch", "REGISTER <t> /")
    wait_until(lambda: f"{scene.topic}.one" not in scene.daemon.request("GET", "/debug").body.decode(), "it left")
    scene.look()


SCENES = (
    registers,
    leaves,
    unregisters_channels,
    unregisters_topics,
    another_takes_off_what_is_empty,
    creates,
    deletes_topics,
    deletes_channels,
    leaves_channels_without_a_topic,
    tombstones,
    tombstones_twins,
    mistakes_end_registrations,
)


def watch(play_scene: Callable[[Scene], None], daemon: Daemon, topic: str) -> list[Any]:
    scene = Scene(daemon, topic)
    try:
        play_scene(scene)
    finally:
        scene.close()
    return scene.seen


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_scene(scene: Callable[[Scene], None], pair: Pair, topic: str) -> None:
    reference, ours = (watch(scene, daemon, topic) for daemon in pair)
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
def test_limits(flags: list[str], fresh: Callable[..., Pair], topic: str) -> None:
    reference, ours = (watch(tombstones, daemon, topic) for daemon in fresh(*flags))
    assert ours == reference


def test_star_means_every_topic(fresh: Callable[..., Pair], topic: str) -> None:
    def stars(scene: Scene) -> None:
        for name in ("one", "two"):
            scene.connect(name)
            scene.tell(name, "REGISTER <t> ch", "REGISTER <t>.b ch")
        for target in ("/lookup?topic=*", "/channels?topic=*"):
            scene.seen.append(answer(scene.daemon, get(target), scene.topic))
        scene.post("/topic/delete?topic=*")
        scene.look()
        scene.seen.append(answer(scene.daemon, get("/lookup?topic=*"), scene.topic))
        scene.seen.append(answer(scene.daemon, get("/debug"), scene.topic))

    reference, ours = (watch(stars, daemon, topic) for daemon in fresh())
    assert ours == reference


# The log


def test_log_lines(fresh: Callable[..., Pair], topic: str) -> None:
    """What happens to registrations is logged in the same words."""

    def story(scene: Scene) -> None:
        scene.connect("one", broadcast_address="nsqd.test")
        scene.tell("one", "REGISTER <t> ch", "REGISTER <t>#ephemeral", "PING", "UNREGISTER <t>", "UNREGISTER <t> ch")
        scene.post("/channel/create?topic=<t>.b&channel=ch")
        scene.post("/channel/delete?topic=<t>.b&channel=ch")
        scene.post("/channel/delete?topic=<t>.b&channel=ch")
        scene.post("/topic/create?topic=<t>")
        scene.post("/topic/tombstone?topic=<t>&node=a:1")
        scene.post("/topic/delete?topic=<t>")
        scene.tell("one", "NOPE")
        scene.daemon.wait_for_log(r"client\(\S+\) - E_INVALID")

    logs = []
    for daemon in fresh():
        watch(story, daemon, topic)
        assert daemon.stop() == 0
        logs.append(said_in(daemon.log))
    assert logs[1] == logs[0]
    assert f"INFO: DB: client(<address>) REGISTER category:channel key:{topic} subkey:ch" in logs[1]


def said_in(log: str) -> list[str]:
    """A log's lines without times, addresses and versions, in a fixed order: Go's goroutines mix theirs."""
    lines = re.sub(r"^\[nsqlookupd\] \S+ \S+ ", "", log, flags=re.M)
    lines = re.sub(r"127\.0\.0\.1:\d+", "<address>", lines)
    lines = re.sub(r"built w/\S+\)", "built w/<runtime>)", lines)
    # Duration of a request, and time since the last ping.
    lines = re.sub(r"[\d.]+(ns|µs|ms|s)\b", "<duration>", lines)
    return sorted(lines.splitlines())


# The command line

_LOG_HEAD = re.compile(r"^\[nsqlookupd\] \S+ \S+ FATAL: ")
FLAG_MISTAKES = (
    ["-x"],
    ["-tcp-address"],
    ["-inactive-producer-timeout", "5"],
    ["-tombstone-lifetime=x"],
    ["-log-level", "loud"],
    ["-verbose=perhaps"],
)


def run(implementation: str, argv: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs an nsqlookupd that should end by itself."""
    safe = ["-tcp-address=127.0.0.1:0", "-http-address=127.0.0.1:0"]
    command = program_command(implementation, "nsqlookupd") + safe + argv
    return subprocess.run(command, capture_output=True, text=True, timeout=END_TIMEOUT_S)


@pytest.mark.parametrize("argv", FLAG_MISTAKES, ids=" ".join)
def test_flag_mistakes(candidate: str, argv: list[str]) -> None:
    go, ours = run("go", argv), run(candidate, argv)
    assert (ours.returncode, ours.stdout) == (go.returncode, go.stdout) == (2, "")
    assert ours.stderr.splitlines()[:2] == go.stderr.splitlines()[:2]


def test_help(candidate: str) -> None:
    """Every flag of the Go daemon is there, with its type and its default."""
    go, ours = run("go", ["-h"]), run(candidate, ["-h"])
    assert (ours.returncode, ours.stdout) == (go.returncode, go.stdout) == (0, "")
    flag = re.compile(r"^  -(\S+)(?: (\S+))?\n    \t.*?((?: \(default [^()]*\))?)$", re.M)
    table = flag.findall(go.stderr)
    assert len(table) == 10
    assert [row for row in flag.findall(ours.stderr) if row in table] == table


def test_version(candidate: str) -> None:
    go, ours = run("go", ["-version"]), run(candidate, ["-version"])
    assert (ours.returncode, ours.stderr) == (go.returncode, go.stderr) == (0, "")
    built_with = re.compile(r"\(built w/[a-z]+[0-9.]+\)\n$")
    assert built_with.sub("", ours.stdout) == built_with.sub("", go.stdout) == "nsqlookupd v1.3.0 "


def failure(ended: subprocess.CompletedProcess[str]) -> str:
    """Why a daemon did not start; 1.3.0 words it through a format string that lacks a verb."""
    last = _LOG_HEAD.sub("", ended.stderr.splitlines()[-1])
    clumsy = re.match(r"failed to instantiate nsqlookupd%!\(EXTRA \S+?=(.*)\)$", last)
    return f"failed to instantiate nsqlookupd - {clumsy.group(1)}" if clumsy else last


@pytest.mark.parametrize("flag", ["tcp-address", "http-address"])
def test_address_in_use(candidate: str, flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        argv = [f"-{flag}=127.0.0.1:{taken.getsockname()[1]}"]
        go, ours = run("go", argv), run(candidate, argv)
    assert (ours.returncode, failure(ours)) == (go.returncode, failure(go))
    assert go.returncode == 1
    assert "bind: address already in use" in failure(ours)


@pytest.mark.parametrize("address", ["/tmp/no.sock", "192.0.2.1:0"])
def test_address_that_cannot_be_had(candidate: str, address: str) -> None:
    go, ours = (run(name, [f"-tcp-address={address}"]) for name in ("go", candidate))
    assert (ours.returncode, failure(ours)) == (go.returncode, failure(go))
    assert go.returncode == 1


def test_config_file(candidate: str, tmp_path: Path) -> None:
    """Both daemons take the same keys from a file."""
    config = tmp_path / "nsqlookupd.toml"
    config.write_text(
        'broadcast_address = "lookup.test"\nlog_prefix = "[x] "\nlog_level = "debug"\n'
        'inactive_producer_timeout = "1h"\ntombstone_lifetime = 7000\n'
    )
    seen = []
    for name in ("go", candidate):
        # A flag given on the command line would win over the file.
        flags = ["-tcp-address=127.0.0.1:0", "-http-address=127.0.0.1:0", f"-config={config}"]
        with Daemon([*program_command(name, "nsqlookupd"), *flags], listeners=("TCP", "HTTP")) as daemon:
            with RawLookupClient(daemon.tcp_address) as client:
                seen.append(json.loads(client.ask(identify()))["broadcast_address"])
            assert daemon.log.startswith("[x] ")
    assert seen == ["lookup.test", "lookup.test"]


def test_introduction(pair: Pair) -> None:
    """IDENTIFY is answered with the same keys in the same order, and true ports."""
    for daemon in pair:
        with RawLookupClient(daemon.tcp_address) as client:
            said = json.loads(client.ask(identify(**NSQD)))
        assert list(said) == ["broadcast_address", "hostname", "http_port", "tcp_port", "version"]
        assert (said["tcp_port"], said["http_port"]) == (daemon.tcp_port, daemon.http_port)
        assert said["hostname"] == socket.gethostname()
        assert (said["broadcast_address"], said["version"]) == ("127.0.0.1", "1.3.0")
