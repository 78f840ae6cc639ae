"""nsqx sub and nsq_tail without a channel show a topic and take no messages from its consumers."""

import subprocess

import pytest

from daemons import Daemon, Fleet, program_command, random_host, wait_until
from utilities import TIMEOUT_S, consume, make_channels, publish, run_utility

BODIES = [b"message %d" % number for number in range(60)]


def start_on_standard_ports(fleet: Fleet, *flags: str) -> Daemon:
    """Start an nsqd on the standard ports of a random loopback address. Utilities derive its HTTP address from TCP."""
    host = random_host()
    return fleet.nsqd(
        "nsqx", f"--tcp-address={host}:4150", f"--http-address={host}:4151", f"--broadcast-address={host}", *flags
    )


def sub(*words: str) -> tuple[int, bytes, str]:
    command = [*program_command("nsqx", "sub"), *words]
    done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S)
    return done.returncode, done.stdout, done.stderr.decode()


def wait_for_registration(lookupd: Daemon, topic: str, count: int = 1) -> None:
    def producers() -> int:
        answer = lookupd.request("GET", "/lookup", query={"topic": topic})
        return len(answer.json()["producers"]) if answer.status == 200 else 0

    wait_until(lambda: producers() == count, "nsqlookupd knows the topic")


def test_sub_fails_on_a_topic_without_channels(fleet: Fleet) -> None:
    daemon = start_on_standard_ports(fleet)
    publish(daemon, "t", BODIES)
    code, output, errors = sub("t", "--n=10", f"--nsqd-tcp-address={daemon.tcp_address}")
    assert (code, output) == (1, b"")
    assert errors.split(" ", 2)[2] == (
        f"topic t on nsqd {daemon.tcp_address} has no channel: its messages wait for its first channel, and viewing"
        " would take them. Use a channel: nsqx sub t CHANNEL\n"
    )
    assert sorted(consume(daemon, "t")) == sorted(BODIES)


def test_sub_through_nsqlookupd_fails_on_a_topic_without_channels(fleet: Fleet) -> None:
    lookupd = fleet.nsqlookupd("nsqx")
    daemon = fleet.nsqd("nsqx", f"--lookupd-tcp-address={lookupd.tcp_address}")
    publish(daemon, "t", BODIES)
    wait_for_registration(lookupd, "t")
    code, _, errors = sub("t", "--n=10", f"--lookupd-http-address={lookupd.http_address}")
    assert code == 1
    assert "has no channel: its messages wait for its first channel" in errors
    assert sorted(consume(daemon, "t")) == sorted(BODIES)


def test_sub_does_not_create_a_topic(fleet: Fleet) -> None:
    lookupd = fleet.nsqlookupd("nsqx")
    daemon = start_on_standard_ports(fleet, f"--lookupd-tcp-address={lookupd.tcp_address}")
    code, _, errors = sub("nothing", f"--nsqd-tcp-address={daemon.tcp_address}")
    assert (code, errors.count("\n")) == (1, 1)
    assert "topic nothing on nsqd" in errors
    assert "does not exist. Use a channel: nsqx sub nothing CHANNEL" in errors
    code, _, errors = sub("nothing", f"--lookupd-http-address={lookupd.http_address}")
    assert (code, errors.count("\n")) == (1, 1)
    assert "no nsqd has topic nothing. Use a channel" in errors
    assert daemon.topic_stats("nothing") is None


def test_sub_shows_copies_of_messages_if_another_channel_exists(fleet: Fleet) -> None:
    daemon = start_on_standard_ports(fleet)
    make_channels(daemon, "t", "consumers")
    where = f"--nsqd-tcp-address={daemon.tcp_address}"
    command = [*program_command("nsqx", "sub"), "t", "--n=1", where]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        wait_until(lambda: len(daemon.topic_stats("t")["channels"]) == 2, "the ephemeral channel exists")
        publish(daemon, "t", [b"seen"])
        assert process.communicate(timeout=TIMEOUT_S)[0] == b"seen\n"
    assert daemon.channel_stats("t", "consumers")["depth"] == 1


def test_sub_fails_on_a_topic_with_only_ephemeral_channels(fleet: Fleet) -> None:
    daemon = start_on_standard_ports(fleet)
    make_channels(daemon, "t", "passing#ephemeral")
    code, _, errors = sub("t", f"--nsqd-tcp-address={daemon.tcp_address}")
    assert code == 1
    assert "has only ephemeral channels" in errors


def test_sub_fails_if_the_channels_cannot_be_checked(fleet: Fleet) -> None:
    daemon = fleet.nsqd("nsqx")
    make_channels(daemon, "t", "c")
    where = f"--nsqd-tcp-address={daemon.tcp_address}"
    code, _, errors = sub("t", where)
    assert (code, errors.count("\n")) == (1, 1)
    assert f"cannot check which channels topic t has on nsqd {daemon.tcp_address}: " in errors
    code, _, errors = sub("t", where, "--nsqd-http-address=a:1", "--nsqd-http-address=b:1")
    assert (code, errors.split(" ", 2)[2]) == (1, "one --nsqd-http-address is required for each --nsqd-tcp-address\n")
    daemon.post("/channel/delete", topic="t", channel="c")
    publish(daemon, "t", BODIES)
    code, _, errors = sub("t", where, f"--nsqd-http-address={daemon.http_address}")
    assert code == 1
    assert "has no channel" in errors
    code, output, _ = sub("t", where, "--take-backlog", "--n=60")
    assert (code, sorted(output.splitlines())) == (0, sorted(BODIES))


def test_sub_skips_an_nsqd_without_channels_and_shows_the_others(fleet: Fleet) -> None:
    lookupd = fleet.nsqlookupd("nsqx")
    flag = f"--lookupd-tcp-address={lookupd.tcp_address}"
    first, second = fleet.nsqd("nsqx", flag), fleet.nsqd("nsqx", flag)
    publish(first, "t", BODIES)
    make_channels(second, "t", "consumers")
    wait_for_registration(lookupd, "t", 2)
    command = [*program_command("nsqx", "sub"), "t", "--n=1", f"--lookupd-http-address={lookupd.http_address}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        wait_until(lambda: len(second.topic_stats("t")["channels"]) == 2, "the ephemeral channel exists")
        publish(second, "t", [b"seen"])
        output, errors = process.communicate(timeout=TIMEOUT_S)
    assert output == b"seen\n"
    assert b"WARNING: topic t on nsqd " in errors
    assert sorted(consume(first, "t")) == sorted(BODIES)


@pytest.mark.parametrize("by", ["nsqd", "nsqlookupd"])
def test_nsq_tail_takes_a_backlog_only_with_a_flag(fleet: Fleet, by: str) -> None:
    lookupd = fleet.nsqlookupd("nsqx")
    daemon = start_on_standard_ports(fleet, f"--lookupd-tcp-address={lookupd.tcp_address}")
    publish(daemon, "t", BODIES)
    wait_for_registration(lookupd, "t")
    where = f"--nsqd-tcp-address={daemon.tcp_address}"
    if by == "nsqlookupd":
        where = f"--lookupd-http-address={lookupd.http_address}"
    ended = run_utility("nsqx", "nsq_tail", "--topic=t", "--n=10", where)
    assert (ended.code, ended.stdout) == (1, b"")
    assert ended.lines[-1].endswith("viewing would take them. Use --channel to consume them, or --take-backlog")
    assert sorted(consume(daemon, "t")) == sorted(BODIES)
    publish(daemon, "other", BODIES)
    ended = run_utility("nsqx", "nsq_tail", "--topic=other", "--n=60", "--take-backlog", where)
    assert (ended.code, sorted(ended.stdout.splitlines())) == (0, sorted(BODIES))


def test_nsq_tail_continues_if_the_channels_cannot_be_checked(fleet: Fleet) -> None:
    daemon = fleet.nsqd("nsqx")
    publish(daemon, "t", BODIES[:1])
    ended = run_utility("nsqx", "nsq_tail", "--topic=t", "--n=1", f"--nsqd-tcp-address={daemon.tcp_address}")
    assert (ended.code, ended.stdout) == (0, BODIES[0] + b"\n")
    assert any(line.startswith("WARNING: cannot check which channels topic t has") for line in ended.lines)


def test_nsq_tail_creates_a_missing_topic_and_waits(fleet: Fleet) -> None:
    daemon = start_on_standard_ports(fleet)
    command = [*program_command("nsqx", "nsq_tail"), "--topic=new", "--n=1", f"--nsqd-tcp-address={daemon.tcp_address}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: (daemon.topic_stats("new") or {}).get("channels"), "the channel of nsq_tail exists")
        publish(daemon, "new", [b"seen"])
        assert process.communicate(timeout=TIMEOUT_S)[0] == b"seen\n"
