"""nsqx up runs a whole cluster in one process. One signal stops it. If it cannot start, it prints one line.

It listens on NSQ's standard ports, so every cluster of these tests has its own loopback address.
"""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from daemons import random_host, wait_until
from rawclient import OK, ConnectionEnded, RawClient

COMMAND = [sys.executable, "-m", "nsqx.cli.main"]
END_TIMEOUT_S = 30


@pytest.fixture
def host() -> str:
    return random_host()


class Cluster:
    """A running ``nsqx up``. ``lines`` are the lines that it printed until it was ready."""

    def __init__(self, host: str, data_path: Path, *flags: str) -> None:
        self.host = host
        command = [*COMMAND, "up", f"--host={host}", f"--data-path={data_path}", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.lines: list[str] = []
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if "Ctrl-C" in line:
                return
        raise AssertionError(f"{command} ended: {self.process.communicate()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def stop(self, signal_number: int = signal.SIGINT) -> tuple[int, str, str]:
        """Stop the cluster. Return the exit code, stdout and stderr, without the warning that the page is not built."""
        self.process.send_signal(signal_number)
        output, errors = self.process.communicate(timeout=END_TIMEOUT_S)
        kept = [line for line in errors.splitlines(keepends=True) if "the page is not built" not in line]
        return self.process.returncode, output, "".join(kept)

    def request(self, method: str, port: int, target: str, body: bytes | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.host, port, timeout=END_TIMEOUT_S)
        try:
            connection.request(method, target, body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def get(self, port: int, target: str) -> Any:
        status, body = self.request("GET", port, target)
        assert status == 200, (target, status, body)
        return json.loads(body)

    def post(self, port: int, target: str, body: bytes | None = None) -> None:
        status, answer = self.request("POST", port, target, body)
        assert status == 200, (target, status, answer)

    def nodes(self) -> dict[int, list[str]]:
        """Return the topics of every nsqd that nsqlookupd lists, by HTTP port."""
        return {node["http_port"]: node["topics"] for node in self.get(4161, "/nodes")["producers"]}

    def channel(self, port: int, topic: str, channel: str) -> dict[str, Any]:
        topics = self.get(port, f"/stats?format=json&topic={topic}&channel={channel}")["topics"]
        found = [entry for each in topics for entry in each["channels"]]
        return found[0] if found else {}


def run(*words: str, before: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run the command until it exits. ``before`` is a command that starts it."""
    return subprocess.run([*before, *COMMAND, *words], capture_output=True, text=True, timeout=END_TIMEOUT_S)


def check_failure(ended: subprocess.CompletedProcess[str], pattern: str) -> None:
    """Check that the command failed with one line on stderr that matches ``pattern``."""
    assert (ended.returncode, ended.stdout) == (1, ""), ended
    assert re.fullmatch(rf"nsqx up: [^\n]*{pattern}[^\n]*\n", ended.stderr), ended.stderr


def test_up_prints_the_address_of_every_daemon(host: str, tmp_path: Path) -> None:
    data_path = tmp_path / "made" / "for it"
    with Cluster(host, data_path) as cluster:
        *parts, last = cluster.lines
        assert [part.split() for part in parts] == [
            ["nsqlookupd", "tcp", f"{host}:4160", f"http://{host}:4161"],
            ["nsqd", "tcp", f"{host}:4150", f"http://{host}:4151"],
            ["nsqadmin", f"http://{host}:4171"],
        ]
        assert last == f"data in {data_path}; Ctrl-C stops everything"
        for port in (4151, 4161, 4171):
            assert cluster.request("GET", port, "/ping") == (200, b"OK")
        assert cluster.nodes() == {4151: []}, "nsqd is registered before the cluster reports that it is ready"
        with RawClient(f"{host}:4150") as client, RawClient(f"{host}:4150") as producer:
            assert client.sub("t", "ch") == OK
            client.rdy(1)
            assert producer.pub("t", b"hello") == OK
            assert client.read_message().body == b"hello"
        wait_until(lambda: cluster.nodes() == {4151: ["t"]}, "the topic is registered")
        (node,) = cluster.get(4161, "/lookup?topic=t")["producers"]
        assert (node["broadcast_address"], node["tcp_port"]) == (host, 4150)


def test_three_nodes_form_one_cluster(host: str, tmp_path: Path) -> None:
    with Cluster(host, tmp_path, "--nodes=3") as cluster:
        names = [line.split()[0] for line in cluster.lines[:-1]]
        assert names == ["nsqlookupd", "nsqd-1", "nsqd-2", "nsqd-3", "nsqadmin"]
        wait_until(lambda: cluster.nodes().keys() == {4151, 4251, 4351}, "every node is registered")
        cluster.post(4151, "/topic/create?topic=t")
        cluster.post(4151, "/channel/create?topic=t&channel=ch")
        wait_until(lambda: cluster.get(4161, "/channels?topic=t") == {"channels": ["ch"]}, "the channel is known")
        for port in (4251, 4351):
            cluster.post(port, "/pub?topic=t", b"first here")
            wait_until(
                lambda at=port: cluster.channel(at, "t", "ch").get("depth") == 1, "the new topic has the channel"
            )
        wait_until(lambda: all(topics == ["t"] for topics in cluster.nodes().values()), "every node has the topic")
        ids = {cluster.get(port, "/config/id") for port in (4151, 4251, 4351)}
        assert len(ids) == 3, "messages of two nodes must not have the same id"
        assert cluster.stop()[0] == 0


@pytest.mark.parametrize(("flags", "kept"), [((), 1), (("--store=classic",), 0)], ids=["log", "classic"])
def test_up_keeps_messages_over_kill_9_unless_the_store_is_classic(
    flags: tuple[str, ...], kept: int, host: str, tmp_path: Path
) -> None:
    with Cluster(host, tmp_path, *flags) as cluster:
        cluster.post(4151, "/topic/create?topic=t")
        cluster.post(4151, "/channel/create?topic=t&channel=ch")
        cluster.post(4151, "/pub?topic=t", b"kept")
        cluster.post(4151, "/channel/pause?topic=t&channel=ch")  # saves nsqd.dat
    with Cluster(host, tmp_path, *flags) as cluster:
        assert cluster.channel(4151, "t", "ch")["depth"] == kept


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_no_message_is_lost_if_a_signal_stops_the_cluster(signal_number: int, host: str, tmp_path: Path) -> None:
    """After a restart on the same data, messages that were in memory, in flight or deferred are delivered."""
    ports = (4151, 4251, 4351)
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(Cluster(host, tmp_path, "--nodes=3"))
        wait_until(lambda: len(cluster.nodes()) == 3, "every node is registered")
        for port in ports:
            consumer = stack.enter_context(RawClient(f"{host}:{port - 1}"))
            assert consumer.sub("t", "ch") == OK
            assert consumer.mpub("t", [b"%d" % number for number in range(100)]) == OK
            assert consumer.dpub("t", 3_600_000, b"later") == OK
            consumer.rdy(10)
            for _ in range(10):
                consumer.read_message()
        assert cluster.stop(signal_number) == (0, "stopping\n", "")
    with Cluster(host, tmp_path, "--nodes=3") as cluster:
        wait_until(lambda: all(cluster.nodes().get(port) == ["t"] for port in ports), "every topic is registered")
        for port in ports:
            with RawClient(f"{host}:{port - 1}") as consumer:
                assert consumer.sub("t", "ch") == OK
                consumer.rdy(200)
                found = sorted(int(consumer.read_message().body) for _ in range(100))
                assert found == list(range(100))
                assert cluster.channel(port, "t", "ch")["deferred_count"] == 1


def test_acknowledged_messages_survive_a_stop_during_publishing(host: str, tmp_path: Path) -> None:
    acknowledged = 0
    started = threading.Event()

    def publish() -> None:
        nonlocal acknowledged
        with contextlib.suppress(ConnectionEnded), RawClient(f"{host}:4150") as producer:
            while producer.pub("t", b"message") == OK:
                acknowledged += 1
                if acknowledged == 500:
                    started.set()

    with Cluster(host, tmp_path) as cluster:
        cluster.post(4151, "/topic/create?topic=t")
        cluster.post(4151, "/channel/create?topic=t&channel=ch")
        publisher = threading.Thread(target=publish)
        publisher.start()
        assert started.wait(END_TIMEOUT_S)
        assert cluster.stop()[0] == 0
        publisher.join()
    with Cluster(host, tmp_path) as cluster:
        depth = cluster.channel(4151, "t", "ch")["depth"]
        assert depth - acknowledged in (0, 1), "the last message may be stored without an acknowledgement"


def test_flags_are_read_from_a_file(host: str, tmp_path: Path) -> None:
    config = tmp_path / "up.toml"
    config.write_text("nodes = 2\nmem_queue_size = 77\n")
    with Cluster(host, tmp_path / "data", f"--config={config}") as cluster:
        assert len(cluster.lines) == 5
        assert cluster.get(4251, "/config/mem_queue_size") == 77
        assert cluster.stop()[0] == 0


@pytest.mark.parametrize("port", [4160, 4161, 4150, 4351])
def test_up_fails_if_a_port_is_in_use(port: int, host: str, tmp_path: Path) -> None:
    flags = ["up", f"--host={host}", f"--data-path={tmp_path}", "--nodes=3"]
    with socket.create_server((host, port)):
        check_failure(run(*flags), rf"{re.escape(host)}:{port}.*in use.*--host")
    with Cluster(host, tmp_path, "--nodes=3") as cluster:
        assert cluster.stop()[0] == 0


def test_up_fails_with_an_address_of_another_machine(tmp_path: Path) -> None:
    check_failure(run("up", "--host=192.0.2.1", f"--data-path={tmp_path}"), "192.0.2.1:4160.*assign requested address")


def test_up_fails_if_the_data_path_is_in_use(host: str, tmp_path: Path) -> None:
    with Cluster(host, tmp_path) as cluster:
        ended = run("up", f"--host={random_host()}", f"--data-path={tmp_path}")
        check_failure(ended, f"{tmp_path}.*in use.*--data-path")
        assert cluster.request("GET", 4151, "/ping") == (200, b"OK")
        assert cluster.stop()[0] == 0


def test_up_fails_if_the_data_path_cannot_be_created(host: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    check_failure(run("up", f"--host={host}", f"--data-path={tmp_path}/file/data"), "cannot create .*--data-path")
    assert (tmp_path / "file").read_text() == "not a directory"


@pytest.fixture
def with_permissions() -> list[str]:
    """A command prefix that makes file permissions apply to root too."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv missing: install util-linux, or do not run as root")
    return ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--inh-caps", "-all"]


@pytest.mark.parametrize("nodes_exist", [False, True])
def test_up_fails_if_the_data_path_is_not_writable(
    nodes_exist: bool, host: str, tmp_path: Path, with_permissions: list[str]
) -> None:
    data_path = tmp_path / "data"
    directory = data_path / "nsqd-1" if nodes_exist else data_path
    directory.mkdir(parents=True)
    directory.chmod(0o555)
    try:
        ended = run("up", f"--host={host}", f"--data-path={data_path}", before=with_permissions)
    finally:
        directory.chmod(0o755)
    check_failure(ended, "[Pp]ermission denied")
    assert str(data_path) in ended.stderr


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--nodes=0", "nsqx up: invalid --nodes 0: use 1 to 50"),
        ("--nodes=51", "nsqx up: invalid --nodes 51: use 1 to 50"),
        ("--nodes=many", 'nsqx up: invalid --nodes "many": use a whole number'),
        ("--bogus=1", "nsqx up: unknown flag --bogus"),
        ("--mem-queue-size=-1", "nsqx up: --mem-queue-size must not be negative"),
        ("--config=/no/such/file", "nsqx up: failed to load config file /no/such/file - "),
        ("--store=disk", 'nsqx up: invalid --store "disk": use classic or log'),
        ("--log-level=loud", 'nsqx up: invalid --log-level "loud": use debug, info, warn, error or fatal'),
    ],
)
def test_up_fails_with_invalid_flags(flag: str, words: str, host: str, tmp_path: Path) -> None:
    ended = run("up", f"--host={host}", f"--data-path={tmp_path}/data", flag)
    assert ended.returncode in (1, 2)
    assert ended.stdout == ""
    first, *rest = ended.stderr.splitlines()
    assert first.startswith(words)
    assert not rest or rest[0] == "usage: nsqx up [FLAGS]"
    assert not any("Traceback" in line for line in rest)


def test_version_and_help_are_printed() -> None:
    for words in (["version"], ["--version"], ["up", "--version"]):
        ended = run(*words)
        assert ended.returncode == 0
        assert re.fullmatch(r"nsqx \d\S* \(compatible with NSQ v1\.3\.0\)\n", ended.stdout)
    for words in (["help"], ["--help"]):
        ended = run(*words)
        assert ended.returncode == 0
        assert re.search(r"^  up +run a whole cluster", ended.stdout, re.MULTILINE)
    ended = run("up", "--help")
    assert ended.returncode == 0
    assert "  --nodes=INT" in ended.stdout


def test_an_unknown_command_fails() -> None:
    ended = run("down")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith('nsqx: unknown command "down"')
    assert run().returncode == 2
