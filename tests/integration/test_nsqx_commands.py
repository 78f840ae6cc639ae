"""The commands nsqx pub, sub, topics and stats with running daemons."""

import json
import os
import signal
import subprocess

import pytest

from daemons import NSQX, Daemon, Fleet, free_port, wait_until
from nsqx.tools import cluster_address
from nsqx.tools.utility import UtilityFailed
from utilities import TIMEOUT_S, consume, make_channels, publish


def nsqx(*words: str, stdin: bytes = b"", **environment: str) -> tuple[int, str, str]:
    """Run an nsqx command. Return its exit code, stdout and stderr."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NSQX_")}
    done = subprocess.run(
        [*NSQX, *words],
        input=stdin,
        capture_output=True,
        timeout=TIMEOUT_S,
        env={**kept, **environment},
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def start_cluster(fleet: Fleet, count: int = 2) -> tuple[Daemon, list[Daemon]]:
    lookupd = fleet.nsqlookupd("nsqx")
    daemons = [fleet.nsqd("nsqx", f"--lookupd-tcp-address={lookupd.tcp_address}") for _ in range(count)]
    wait_until(lambda: len(lookupd.request("GET", "/nodes").json()["producers"]) == count, "all nsqds are known")
    return lookupd, daemons


def test_pub_and_sub_find_nsqds_through_nsqlookupd(fleet: Fleet) -> None:
    lookupd, daemons = start_cluster(fleet)
    for daemon in daemons:
        make_channels(daemon, "t", "c")
    wait_until(lambda: "t" in lookupd.request("GET", "/topics").json()["topics"], "the topic is known")
    code, _, errors = nsqx("pub", "t", "one", "two words", "--", "-dash", NSQX_LOOKUPD=lookupd.http_address)
    assert (code, errors.split(" ", 2)[2]) == (0, "published 3 messages to t\n")
    code, output, _ = nsqx("sub", "t", "c", "--n=3", f"--lookupd-http-address={lookupd.http_address}")
    assert (code, sorted(output.splitlines())) == (0, ["-dash", "one", "two words"])


def test_pub_publishes_each_line_of_stdin_or_all_of_it(fleet: Fleet) -> None:
    daemon = fleet.nsqd("nsqx")
    assert nsqx("pub", "lines", stdin=b"a\n\nb", NSQX_NSQD=daemon.tcp_address)[0] == 0
    assert nsqx("pub", "lines", "-", stdin=b"c\n", NSQX_NSQD=daemon.tcp_address)[0] == 0
    assert nsqx("pub", "whole", "--delimiter=", stdin=b"a\n\nb\n", NSQX_NSQD=daemon.tcp_address)[0] == 0
    assert sorted(consume(daemon, "lines")) == [b"a", b"b", b"c"]
    assert consume(daemon, "whole") == [b"a\n\nb\n"]


def test_pub_publishes_a_deferred_message(fleet: Fleet) -> None:
    daemon = fleet.nsqd("nsqx")
    make_channels(daemon, "t", "c")
    assert nsqx("pub", "t", "later", "--defer=1h", NSQX_NSQD=daemon.tcp_address)[0] == 0
    wait_until(lambda: daemon.channel_stats("t", "c")["deferred_count"] == 1, "the message is deferred")


def test_sub_prints_messages_as_json_with_their_metadata(fleet: Fleet) -> None:
    daemon = fleet.nsqd("nsqx")
    make_channels(daemon, "t", "c")
    publish(daemon, "t", [b"body"])
    code, output, errors = nsqx("sub", "t", "c", "--json", "--n=1", NSQX_NSQD=daemon.tcp_address)
    message = json.loads(output)
    assert (code, errors) == (0, "")
    assert (message["topic"], message["attempts"], message["body"]) == ("t", 1, "body")
    assert message["nsqd"] == daemon.tcp_address
    assert len(message["id"]) == 16


def test_topics_and_stats_sum_up_the_nodes(fleet: Fleet) -> None:
    lookupd, daemons = start_cluster(fleet)
    for daemon in daemons:
        make_channels(daemon, "t", "c", "d")
        publish(daemon, "t", [b"m"] * 3)
        daemon.post("/topic/create", topic="empty")
    wait_until(
        lambda: all(daemon.channel_stats("t", "d")["depth"] == 3 for daemon in daemons),
        "the channels have every message",
    )
    where = {"NSQX_LOOKUPD": lookupd.http_address}
    assert nsqx("topics", **where) == (0, "empty\nt\n", "")
    table = [line.split() for line in nsqx("topics", "-l", **where)[1].splitlines()]
    assert table[1:] == [["empty", "-", "2", "0", "0"], ["t", "c", "d", "2", "0", "6"]]
    code, output, _ = nsqx("stats", "t", "--json", **where)
    found = {entry.get("channel"): entry["depth"] for entry in map(json.loads, output.splitlines())}
    assert (code, found) == (0, {None: 0, "c": 6, "d": 6})
    code, output, _ = nsqx("stats", "t", "c", f"--nsqd-http-address={daemons[0].http_address}")
    assert [line.split()[:3] for line in output.splitlines()[1:]] == [["t", "-", "0"], ["t", "c", "3"]]


def test_topics_warns_of_an_nsqd_that_is_down_and_lists_the_others(fleet: Fleet) -> None:
    daemon = fleet.nsqd("nsqx")
    make_channels(daemon, "t", "c")
    nowhere = f"127.0.0.1:{free_port()}"
    flags = (f"--nsqd-http-address={daemon.http_address}", f"--nsqd-http-address={nowhere}")
    code, output, errors = nsqx("topics", *flags)
    assert (code, output) == (0, "t\n")
    assert f"WARNING: nsqd {nowhere}: connection refused" in errors


async def test_without_an_address_the_cluster_on_this_machine_is_used(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_address, "LOCAL_LOOKUPD", nowhere := f"127.0.0.1:{free_port()}")
    monkeypatch.setattr(cluster_address, "LOCAL_NSQD", nowhere)
    with pytest.raises(UtilityFailed, match=r"answers on this machine: start both with nsqx up"):
        await cluster_address.find_tcp([], [], {})
    nsqd = fleet.nsqd("nsqx")
    monkeypatch.setattr(cluster_address, "LOCAL_NSQD", nsqd.tcp_address)
    assert await cluster_address.find_tcp([], [], {}) == cluster_address.ClusterAddress([], [nsqd.tcp_address])
    lookupd = fleet.nsqlookupd("nsqx")
    monkeypatch.setattr(cluster_address, "LOCAL_LOOKUPD", lookupd.http_address)
    assert await cluster_address.find_tcp([], [], {}) == cluster_address.ClusterAddress([lookupd.http_address])


def test_an_error_is_printed_in_one_line() -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    for words in (
        ("pub", "t", "m", f"--nsqd-tcp-address={nowhere}"),
        ("sub", "t", f"--nsqd-tcp-address={nowhere}"),
        ("topics", f"--nsqd-http-address={nowhere}"),
        ("topics", f"--lookupd-http-address={nowhere}"),
        ("stats", f"--nsqd-http-address={nowhere}"),
    ):
        code, output, errors = nsqx(*words)
        assert (code, output, errors.count("\n")) == (1, "", 1), words
        assert nowhere in errors
        assert "refused" in errors
    for words in (("pub", "bad topic", "m"), ("pub", "t", ""), ("sub", "bad topic", "--nsqd-tcp-address=x:1")):
        code, output, errors = nsqx(*words)
        assert (code, output, errors.count("\n")) == (1, "", 1), words
    for words in (("pub",), ("sub",), ("sub", "a", "b", "c"), ("topics", "x"), ("stats", "--nope")):
        assert nsqx(*words)[0] == 2


def test_pub_fails_if_nsqd_does_not_answer(fleet: Fleet) -> None:
    daemon = fleet.nsqd("nsqx")
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        code, _, errors = nsqx("pub", "t", "m", "--timeout=300ms", NSQX_NSQD=daemon.tcp_address)
        assert code == 1
        assert f"no nsqd is connected after 0.3 s ({daemon.tcp_address}: connecting)" in errors
        code, _, errors = nsqx("pub", "t", "--timeout=300ms", stdin=b"m\n", NSQX_NSQD=daemon.tcp_address)
        assert (code, len(errors.splitlines())) == (1, 1)
    finally:
        daemon.process.send_signal(signal.SIGCONT)
