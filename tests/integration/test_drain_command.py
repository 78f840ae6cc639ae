"""The commands nsqx drain and undrain with a running nsqd, in a pipe and on a terminal."""

import json
import signal
import subprocess
from collections.abc import Iterator

import pytest
from test_nsqx_commands import nsqx

from daemons import NSQX, Daemon, Fleet, start_nsqd, wait_until
from rawclient import OK, RawClient
from terminal import run_on_terminal
from utilities import TIMEOUT_S, make_channels, publish


@pytest.fixture(scope="module")
def nsqd() -> Iterator[Daemon]:
    with start_nsqd("nsqx") as daemon:
        yield daemon


@pytest.fixture(autouse=True)
def ended_drain(nsqd: Daemon) -> Iterator[None]:
    """End the drain of each test, and remove its messages."""
    yield
    nsqd.post("/undrain")
    for entry in nsqd.stats()["topics"] or []:
        nsqd.post("/topic/delete", topic=entry["topic_name"])


def where(nsqd: Daemon) -> str:
    return f"--nsqd-http-address={nsqd.http_address}"


def state(nsqd: Daemon) -> dict[str, object]:
    found: dict[str, object] = nsqd.request("GET", "/drain").json()
    return found


def test_an_empty_nsqd_can_be_removed_at_once(nsqd: Daemon) -> None:
    # This is the line of a preStop hook.
    code, output, errors = nsqx("drain", where(nsqd), "--wait", "--timeout=50s")
    assert (code, output, errors) == (0, f"nsqd {nsqd.http_address} has no messages left and can be removed\n", "")
    assert state(nsqd)["draining"]
    code, output, errors = nsqx("undrain", nsqd.http_address)
    assert (code, output, errors) == (0, f"nsqd {nsqd.http_address} does not drain, and accepts publishes\n", "")
    assert not state(nsqd)["draining"]


def test_without_wait_the_state_is_printed(nsqd: Daemon, topic: str) -> None:
    make_channels(nsqd, topic, "c")
    publish(nsqd, topic, [b"1", b"2"])
    code, output, errors = nsqx("drain", nsqd.http_address)
    assert (code, errors) == (0, "")
    assert output.splitlines() == [
        f"nsqd {nsqd.http_address} drains: publishes are refused, it has left nsqlookupd",
        "2 messages left:",
        f"  {topic}/c: 2 waiting; no consumer: start one, move or empty them",
    ]
    code, output, _ = nsqx("drain", where(nsqd), "--status", "--json")
    assert code == 0
    assert json.loads(output) == {"nsqd": nsqd.http_address, **state(nsqd)}


def test_the_command_ends_with_0_after_the_last_message(nsqd: Daemon, topic: str) -> None:
    make_channels(nsqd, topic, "c")
    publish(nsqd, topic, [b"1"])
    command = [*NSQX, "drain", where(nsqd), "--wait", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert (first["messages"], first["removable"]) == (1, False)
        with RawClient(nsqd.tcp_address) as consumer:
            assert consumer.sub(topic, "c") == OK
            consumer.rdy(1)
            consumer.fin(consumer.read_message().id)
            output, errors = process.communicate(timeout=TIMEOUT_S)
    last = json.loads(output.splitlines()[-1])
    assert (process.returncode, last["messages"], last["removable"], errors) == (0, 0, True, b"")


def test_after_the_timeout_the_exit_code_is_1_and_the_rest_is_printed(nsqd: Daemon, topic: str) -> None:
    nsqd.post("/topic/create", topic=topic)
    publish(nsqd, topic, [b"1"])
    code, output, errors = nsqx("drain", where(nsqd), "--wait", "--timeout=10ms")
    assert code == 1
    assert output.splitlines()[1:] == ["1 message left:", f"  {topic}: 1 waiting; no channel: move or empty them"]
    assert f"nsqd {nsqd.http_address} still has messages after 10ms, and still drains" in errors
    assert state(nsqd)["draining"]


def test_the_wait_ends_with_1_if_the_drain_is_ended(nsqd: Daemon, topic: str) -> None:
    make_channels(nsqd, topic, "c")
    publish(nsqd, topic, [b"1"])
    command = [*NSQX, "drain", where(nsqd), "--wait"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        wait_until(lambda: state(nsqd)["draining"], "the drain has begun")
        nsqd.post("/undrain")
        _, errors = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, b"does not drain any more" in errors) == (1, True)


@pytest.mark.parametrize("columns", [80, 120])
def test_on_a_terminal_the_rest_is_redrawn_in_place(nsqd: Daemon, topic: str, columns: int) -> None:
    make_channels(nsqd, topic, "c")
    publish(nsqd, topic, [b"1"])
    command = [*NSQX, "drain", where(nsqd), "--wait"]
    code, text = run_on_terminal(command, columns, end_when="no consumer")
    assert code == 1
    assert f"  {topic}/c: 1 waiting; no consumer" in text
    assert f"stopped: nsqd {nsqd.http_address} still drains; nsqx undrain {nsqd.http_address} ends that" in text


def test_a_signal_ends_the_wait(nsqd: Daemon, topic: str) -> None:
    publish(nsqd, topic, [b"1"])
    with subprocess.Popen(
        [*NSQX, "drain", where(nsqd), "--wait"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as it:
        assert it.stdout is not None
        assert b"drains" in it.stdout.readline()
        it.send_signal(signal.SIGTERM)
        _, errors = it.communicate(timeout=TIMEOUT_S)
    assert (it.returncode, b"stopped" in errors) == (1, True)


def test_a_node_is_found_by_its_host_name(fleet: Fleet) -> None:
    lookupd = fleet.nsqlookupd("nsqx")
    at_lookupd = f"--lookupd-http-address={lookupd.http_address}"
    hosts = ("localhost", "127.0.0.1")
    nodes = [
        fleet.nsqd("nsqx", f"--lookupd-tcp-address={lookupd.tcp_address}", f"--broadcast-address={host}")
        for host in hosts
    ]
    wait_until(lambda: len(lookupd.request("GET", "/nodes").json()["producers"]) == 2, "all nsqds are known")
    code, _, errors = nsqx("drain", at_lookupd)
    assert (code, "NODE is required: the cluster has " in errors) == (1, True)
    code, _, errors = nsqx("drain", "nowhere", at_lookupd)
    assert (code, "no nsqd has the host name nowhere" in errors) == (1, True)
    code, output, errors = nsqx("drain", "localhost", "--wait", at_lookupd)
    assert (code, f"nsqd localhost:{nodes[0].http_port} has no messages left" in output, errors) == (0, True, "")
    assert [state(node)["draining"] for node in nodes] == [True, False]


def test_an_nsqd_that_cannot_drain_is_named(fleet: Fleet) -> None:
    nsqd = fleet.nsqd("go")
    code, output, errors = nsqx("drain", nsqd.http_address, "--wait")
    assert (code, output) == (1, "")
    assert f"nsqd {nsqd.http_address}: this nsqd cannot do that: it is an nsqd of Go or an older one of nsqx" in errors


@pytest.mark.parametrize(
    ("words", "mistake"),
    [
        (["--timeout=1s"], "--timeout needs --wait"),
        (["--wait", "--timeout=-1s"], "--timeout must not be negative"),
        (["--status", "--wait"], "--status only shows the state"),
    ],
)
def test_flags_that_do_not_fit_together_are_named(words: list[str], mistake: str) -> None:
    code, output, errors = nsqx("drain", "127.0.0.1:1", *words)
    assert (code, output, mistake in errors) == (1, "", True)
