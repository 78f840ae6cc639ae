"""nsqx create, pause, unpause, empty and delete, and the lists of channels, clients and nodes, with running daemons."""

import json
import signal
from collections.abc import Iterator

import pytest
from test_nsqx_commands import nsqx

from daemons import NSQX, Daemon, Fleet, free_port, has_go, wait_until
from rawclient import OK, RawClient
from terminal import run_on_terminal
from utilities import make_channels, publish


@pytest.fixture(scope="module")
def nsqds() -> Iterator[list[Daemon]]:
    """Two nsqds; the second is Go's if it is built."""
    fleet = Fleet()
    yield [fleet.nsqd("nsqx"), fleet.nsqd("go" if has_go() else "nsqx")]
    fleet.close()


def where(*nsqds: Daemon) -> list[str]:
    return [f"--nsqd-http-address={nsqd.http_address}" for nsqd in nsqds]


def channels_of(nsqd: Daemon, topic: str) -> list[str] | None:
    entry = nsqd.topic_stats(topic)
    return None if entry is None else [channel["channel_name"] for channel in entry["channels"]]


def test_a_channel_is_created_paused_emptied_and_deleted_on_every_nsqd(nsqds: list[Daemon], topic: str) -> None:
    def change(action: str, *flags: str) -> list[str]:
        code, output, errors = nsqx(action, topic, "c", *flags, *where(*nsqds))
        assert (code, errors) == (0, "")
        return output.splitlines()

    addresses = [nsqd.http_address for nsqd in nsqds]
    assert change("create") == [f"nsqd {each}: channel c of topic {topic} created" for each in addresses]
    assert [channels_of(nsqd, topic) for nsqd in nsqds] == [["c"], ["c"]]
    assert change("pause") == [f"nsqd {each}: channel c of topic {topic} paused" for each in addresses]
    assert [nsqd.channel_stats(topic, "c")["paused"] for nsqd in nsqds] == [True, True]
    lines = change("unpause", "--json")
    assert [json.loads(line) for line in lines] == [
        {"nsqd": each, "action": "unpause", "topic": topic, "channel": "c", "ok": True, "error": ""}
        for each in addresses
    ]
    assert [nsqd.channel_stats(topic, "c")["paused"] for nsqd in nsqds] == [False, False]
    for nsqd in nsqds:
        publish(nsqd, topic, [b"m"] * 3)
    change("empty", "--yes")
    assert [nsqd.channel_stats(topic, "c")["depth"] for nsqd in nsqds] == [0, 0]
    change("delete", "--yes", f"--node={addresses[0]}")
    assert [channels_of(nsqd, topic) for nsqd in nsqds] == [[], ["c"]]
    # Only nsqds that have the channel are asked to delete it.
    assert change("delete", "--yes") == [f"nsqd {addresses[1]}: channel c of topic {topic} deleted"]


def test_a_topic_is_deleted_at_nsqlookupd_too(fleet: Fleet) -> None:
    lookupd = fleet.nsqlookupd("nsqx")
    nsqd = fleet.nsqd("nsqx", f"--lookupd-tcp-address={lookupd.tcp_address}")
    at_lookupd = f"--lookupd-http-address={lookupd.http_address}"
    wait_until(lambda: lookupd.request("GET", "/nodes").json()["producers"], "the nsqd is known")
    assert nsqx("create", "t", at_lookupd)[0] == 0
    wait_until(lambda: lookupd.request("GET", "/topics").json()["topics"] == ["t"], "the topic is registered")
    code, output, errors = nsqx("delete", "t", "--yes", at_lookupd)
    assert (code, errors) == (0, "")
    assert output.splitlines()[0] == f"nsqlookupd {lookupd.http_address}: topic t deleted"
    assert nsqd.topic_stats("t") is None
    assert lookupd.request("GET", "/topics").json()["topics"] == []


def test_a_failed_nsqd_is_named_and_the_others_are_changed(nsqds: list[Daemon], topic: str) -> None:
    make_channels(nsqds[0], topic, "c")
    nowhere = f"127.0.0.1:{free_port()}"
    code, output, errors = nsqx("pause", topic, "c", *where(nsqds[0]), f"--nsqd-http-address={nowhere}")
    assert (code, output) == (1, f"nsqd {nsqds[0].http_address}: channel c of topic {topic} paused\n")
    assert f"WARNING: nsqd {nowhere}: connection refused" in errors
    code, output, errors = nsqx("create", topic, *where(nsqds[0]), f"--nsqd-http-address={nowhere}", "--json")
    assert (code, errors) == (1, "")
    assert [json.loads(line)["error"] for line in output.splitlines()] == ["", "connection refused"]


def test_a_frozen_nsqd_does_not_hold_up_the_others(fleet: Fleet) -> None:
    nsqds = [fleet.nsqd("nsqx"), fleet.nsqd("nsqx")]
    for nsqd in nsqds:
        make_channels(nsqd, "t", "c")
    nsqds[1].process.send_signal(signal.SIGSTOP)
    try:
        code, output, errors = nsqx("pause", "t", "c", *where(*nsqds))
    finally:
        nsqds[1].process.send_signal(signal.SIGCONT)
    assert (code, output) == (1, f"nsqd {nsqds[0].http_address}: channel c of topic t paused\n")
    assert f"WARNING: nsqd {nsqds[1].http_address}: no answer in time" in errors


@pytest.mark.parametrize(("answer", "left"), [("y\n", []), ("n\n", ["c"])])
def test_delete_asks_on_a_terminal(nsqds: list[Daemon], topic: str, answer: str, left: list[str]) -> None:
    make_channels(nsqds[0], topic, "c")
    publish(nsqds[0], topic, [b"1", b"2"])
    command = [*NSQX, "delete", topic, "c", *where(nsqds[0])]
    code, text = run_on_terminal(command, 80, answers={"[y/N]": answer})
    assert f"Delete channel c of topic {topic} (2 messages, 0 consumers, on 1 nsqd)? [y/N]" in text
    assert (code, channels_of(nsqds[0], topic)) == (0 if not left else 1, left)
    if left:
        # An error on a terminal has no time before it.
        assert "\nnsqx delete: nothing was deleted\n" in text


def test_without_a_terminal_a_deletion_needs_yes(nsqds: list[Daemon], topic: str) -> None:
    make_channels(nsqds[0], topic, "c")
    for action in ("delete", "empty"):
        code, output, errors = nsqx(action, topic, *where(nsqds[0]))
        assert (code, output) == (1, "")
        assert "add --yes to confirm" in errors
    assert channels_of(nsqds[0], topic) == ["c"]


@pytest.mark.parametrize("action", ["create", "pause", "unpause", "empty", "delete"])
def test_mistakes_are_named(nsqds: list[Daemon], topic: str, action: str) -> None:
    code, output, errors = nsqx(action, "bad name", *where(nsqds[0]))
    assert (code, output) == (1, "")
    assert "invalid topic name 'bad name': use 1 to 64 of a-z A-Z 0-9 . _ -" in errors
    assert nsqx(action, *where(nsqds[0]))[2].startswith(f"nsqx {action}: TOPIC is missing\n")
    if action != "create":
        make_channels(nsqds[0], topic, "billing")
        assert f"no nsqd has topic {topic}x; did you mean {topic}?" in nsqx(action, f"{topic}x", *where(nsqds[0]))[2]
        errors = nsqx(action, topic, "biling", *where(nsqds[0]))[2]
        assert f"no nsqd has channel biling of topic {topic}; did you mean billing?" in errors


# Lists


def test_channels_are_listed_by_backlog(nsqds: list[Daemon]) -> None:
    for nsqd in nsqds:
        make_channels(nsqd, "list", "short", "long")
    publish(nsqds[0], "list", [b"m"] * 5)
    nsqds[0].post("/channel/empty", topic="list", channel="short")
    nsqds[0].post("/channel/pause", topic="list", channel="short")
    code, output, errors = nsqx("channels", "list", *where(*nsqds))
    assert (code, errors) == (0, "")
    rows = [line.split() for line in output.splitlines()]
    assert rows[0][:4] == ["topic", "channel", "state", "depth"]
    assert rows[1][:5] == ["list", "long", "no", "consumer", "5"]
    assert rows[2][:5] == ["list", "short", "paused", "1/2", "0"]
    code, output, _ = nsqx("channels", "list", "--json", "--sort=name", *where(*nsqds))
    found = [json.loads(line) for line in output.splitlines()]
    assert [(each["channel"], each["depth"], each["paused"], each["nsqds"]) for each in found] == [
        ("long", 5, False, 2),
        ("short", 0, True, 2),
    ]


def test_clients_are_listed(nsqds: list[Daemon], topic: str) -> None:
    with RawClient(nsqds[0].tcp_address) as consumer:
        consumer.identify(client_id="worker-7", user_agent="test")
        assert consumer.sub(topic, "c") == OK
        code, output, errors = nsqx("clients", topic, "c", *where(*nsqds))
        assert (code, errors) == (0, "")
        _, row = output.splitlines()
        assert row.split()[0] == "worker-7"
        code, output, _ = nsqx("clients", topic, "--json", *where(*nsqds))
        client = json.loads(output)
        assert (client["kind"], client["topic"], client["channel"]) == ("consumer", topic, "c")
        assert (client["client_id"], client["nsqd"]) == ("worker-7", nsqds[0].http_address)
        with RawClient(nsqds[0].tcp_address) as producer:
            producer.identify(client_id="many-topics")
            for name in (f"{topic}.x", f"{topic}.y"):
                assert producer.pub(name, b"1") == OK
            _, output, _ = nsqx("clients", *where(nsqds[0]))
            assert "(2 topics)" in next(line for line in output.splitlines() if line.startswith("many-topics"))
    code, _, errors = nsqx("clients", topic, "d", *where(*nsqds))
    assert (code, f"no nsqd has channel d of topic {topic}" in errors) == (1, True)


def test_nodes_are_listed_also_those_that_do_not_answer(nsqds: list[Daemon]) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    code, output, errors = nsqx("nodes", "--json", *where(*nsqds), f"--nsqd-http-address={nowhere}")
    assert (code, errors) == (1, "")
    found = {each["nsqd"]: each for each in map(json.loads, output.splitlines())}
    assert found[nsqds[0].http_address]["product"] == "nsqx"
    assert found[nsqds[1].http_address]["product"] == ("nsq" if has_go() else "nsqx")
    assert found[nsqds[0].http_address]["health"] == "OK"
    assert found[nowhere] == {"nsqd": nowhere, "health": "connection refused"}


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("command", ["channels", "nodes", "clients"])
def test_lists_fit_into_a_terminal(nsqds: list[Daemon], columns: int, command: str) -> None:
    topic, channel = "t" * 64, "c" * 64
    make_channels(nsqds[0], topic, channel)
    code, text = run_on_terminal([*NSQX, command, *where(*nsqds)], columns)
    assert code == 0
    assert all(len(line) <= columns for line in text.splitlines()), text
    if command == "channels":
        assert topic in text.split()
        assert channel in text.split()


def test_lists_of_unknown_names_and_sorts_are_refused(nsqds: list[Daemon]) -> None:
    code, output, errors = nsqx("channels", "--sort=size", *where(*nsqds))
    assert (code, output) == (1, "")
    assert 'invalid --sort "size": use depth, name, clients, messages' in errors
    code, _, errors = nsqx("channels", "absent", *where(*nsqds))
    assert (code, "no nsqd has topic absent" in errors) == (1, True)
    code, _, errors = nsqx("nodes", "x")
    assert (code, errors.splitlines()[0]) == (2, 'nsqx nodes: unexpected argument "x"')
