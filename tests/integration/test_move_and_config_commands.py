"""nsqx move and config with running daemons."""

import json
import re
import signal
import subprocess
from collections.abc import Iterator

import pytest
from test_nsqx_commands import nsqx

from daemons import NSQX, Daemon, Fleet, has_go, wait_until
from rawclient import OK, RawClient
from terminal import run_on_terminal
from utilities import TIMEOUT_S, consume, make_channels, publish


@pytest.fixture(scope="module")
def nsqds() -> Iterator[list[Daemon]]:
    """Two nsqds; the second is Go's if it is built."""
    fleet = Fleet()
    yield [fleet.nsqd("nsqx"), fleet.nsqd("go" if has_go() else "nsqx")]
    fleet.close()


def where(*nsqds: Daemon) -> list[str]:
    return [f"--nsqd-http-address={nsqd.http_address}" for nsqd in nsqds]


def bodies(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}{number}".encode() for number in range(count)]


def test_the_messages_of_a_channel_are_moved_from_every_nsqd(nsqds: list[Daemon], topic: str) -> None:
    for index, nsqd in enumerate(nsqds):
        make_channels(nsqd, topic, "c", "other")
        publish(nsqd, topic, bodies(f"{index}-", 700))
    target = f"{topic}.retry"
    code, output, errors = nsqx("move", f"{topic}/c", target, "--dry-run", *where(*nsqds))
    assert (code, output, errors) == (0, f"would move 1,400 messages from {topic}/c to {target}\n", "")
    code, output, errors = nsqx("move", f"{topic}/c", target, "--yes", *where(*nsqds))
    assert (code, output, errors) == (0, f"moved 1,400 messages from {topic}/c to {target}; 0 left\n", "")
    moved = sorted(body for nsqd in nsqds for body in consume(nsqd, target))
    assert moved == sorted(bodies("0-", 700) + bodies("1-", 700))
    assert [nsqd.channel_stats(topic, "other")["depth"] for nsqd in nsqds] == [700, 700]


@pytest.mark.parametrize("index", [0, 1])
def test_the_messages_of_a_topic_without_channels_are_moved(nsqds: list[Daemon], topic: str, index: int) -> None:
    nsqd = nsqds[index]
    publish(nsqd, topic, bodies("m", 50))
    code, output, errors = nsqx("move", topic, f"{topic}.b", "--yes", "--json", *where(nsqd))
    assert (code, errors) == (0, "")
    assert json.loads(output) == {"topic": topic, "target": f"{topic}.b", "moved": 50, "left": 0}
    entry = nsqd.topic_stats(topic)
    assert (entry["channels"], entry["depth"], entry["paused"]) == ([], 0, False)
    assert sorted(consume(nsqd, f"{topic}.b")) == sorted(bodies("m", 50))


def test_a_limit_leaves_the_rest(nsqds: list[Daemon], topic: str) -> None:
    nsqd = nsqds[0]
    publish(nsqd, topic, bodies("m", 30))
    code, output, _ = nsqx("move", topic, f"{topic}.b", "--yes", "--count=10", "--rate=1000", *where(nsqd))
    assert (code, output) == (0, f"moved 10 messages from {topic} to {topic}.b; 20 left in {topic}/nsqx-move\n")
    assert nsqd.topic_stats(f"{topic}.b")["depth"] == 10
    code, output, _ = nsqx("move", f"{topic}/nsqx-move", f"{topic}.b", "--yes", *where(nsqd))
    assert (code, output) == (0, f"moved 20 messages from {topic}/nsqx-move to {topic}.b; 0 left\n")
    assert sorted(consume(nsqd, f"{topic}.b")) == sorted(bodies("m", 30))


def test_nothing_is_lost_if_the_command_is_killed(nsqds: list[Daemon], topic: str) -> None:
    nsqd = nsqds[0]
    make_channels(nsqd, topic, "c")
    publish(nsqd, topic, bodies("m", 2000))
    # nsqd delivers the messages of a client that is gone again after their timeout.
    flags = ["--yes", "--rate=500", "--consumer-opt=msg_timeout,2s"]
    command = [*NSQX, "move", f"{topic}/c", f"{topic}.b", *flags, *where(nsqd)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: (nsqd.topic_stats(f"{topic}.b") or {}).get("message_count"), "the move has begun", 30)
        process.kill()
    wait_until(lambda: nsqd.channel_stats(topic, "c")["in_flight_count"] == 0, "its messages wait again", 30)
    code, output, _ = nsqx("move", f"{topic}/c", f"{topic}.b", "--yes", *where(nsqd))
    assert (code, "; 0 left" in output) == (0, True)
    assert set(consume(nsqd, f"{topic}.b")) == set(bodies("m", 2000))


def test_a_refused_publish_ends_the_move_and_keeps_the_message(fleet: Fleet) -> None:
    nsqd = fleet.nsqd("nsqx")
    make_channels(nsqd, "t", "c")
    publish(nsqd, "t", bodies("m", 5))
    nsqd.post("/drain")
    code, output, errors = nsqx("move", "t/c", "b", "--yes", *where(nsqd))
    assert (code, output) == (1, "moved 0 messages from t/c to b; 5 left\n")
    assert "publish to b failed" in errors
    assert nsqd.topic_stats("b") is None


def test_messages_of_other_consumers_are_left(nsqds: list[Daemon], topic: str) -> None:
    nsqd = nsqds[0]
    make_channels(nsqd, topic, "c")
    publish(nsqd, topic, bodies("m", 3))
    with RawClient(nsqd.tcp_address) as consumer:
        assert consumer.sub(topic, "c") == OK
        consumer.rdy(1)
        consumer.read_message()
        code, output, _ = nsqx("move", f"{topic}/c", f"{topic}.b", "--yes", *where(nsqd))
        assert (code, output) == (0, f"moved 2 messages from {topic}/c to {topic}.b; 1 left\n")


def test_a_signal_ends_the_move_and_is_reported(nsqds: list[Daemon], topic: str) -> None:
    nsqd = nsqds[0]
    make_channels(nsqd, topic, "c")
    publish(nsqd, topic, bodies("m", 300))
    command = [*NSQX, "move", f"{topic}/c", f"{topic}.b", "--yes", "--rate=20", "--json", *where(nsqd)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        wait_until(lambda: (nsqd.topic_stats(f"{topic}.b") or {}).get("message_count"), "the move has begun", 30)
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=TIMEOUT_S)
    outcome = json.loads(output)
    assert (process.returncode, b"stopped" in errors) == (1, True)
    assert outcome["moved"] + outcome["left"] == 300
    assert nsqd.topic_stats(f"{topic}.b")["message_count"] == outcome["moved"]


def test_an_nsqd_that_dies_does_not_hide_how_many_were_moved(fleet: Fleet, topic: str) -> None:
    nsqd = fleet.nsqd("nsqx")
    publish(nsqd, topic, bodies("m", 500))
    command = [*NSQX, "move", topic, f"{topic}.b", "--yes", "--rate=50", "--idle=1s", *where(nsqd)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: (nsqd.topic_stats(f"{topic}.b") or {}).get("message_count"), "the move has begun", 30)
        nsqd.kill()
        output, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1
    assert re.fullmatch(rf"moved \d+ messages from {topic} to {topic}\.b; how many are left is unknown\n", output)
    assert f"run nsqx unpause {topic}" not in errors  # the topic was not paused
    assert "refused" in errors.splitlines()[-1]


@pytest.mark.parametrize(("answer", "moved"), [("y\n", True), ("n\n", False)])
def test_move_asks_on_a_terminal(nsqds: list[Daemon], topic: str, answer: str, moved: bool) -> None:
    make_channels(nsqds[0], topic, "c")
    publish(nsqds[0], topic, [b"1"])
    command = [*NSQX, "move", f"{topic}/c", f"{topic}.b", *where(nsqds[0])]
    code, text = run_on_terminal(command, 80, answers={"[y/N]": answer})
    assert f"Move 1 message from {topic}/c to {topic}.b? [y/N]" in text
    assert (code == 0, f"moved 1 message from {topic}/c" in text) == (moved, moved)


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ([], 2, "TOPIC/CHANNEL is missing"),
        (["t"], 2, "TARGET is missing"),
        (["t", "bad name"], 1, "invalid topic name 'bad name': use 1 to 64 of"),
        (["t/b d", "u"], 1, "invalid channel name 'b d': use 1 to 64 of"),
        (["t/c", "u/d"], 1, "invalid target 'u/d': use a topic"),
        (["t/c", "t"], 1, "the target is the source topic t"),
        (["t/c", "u", "--count=-1"], 1, "--count must not be negative"),
        (["t/c", "u", "--idle=0s"], 1, "--idle must be positive"),
        (["absent", "u"], 1, "no nsqd has topic absent"),
    ],
)
def test_mistakes_of_move_are_named(nsqds: list[Daemon], words: list[str], code: int, text: str) -> None:
    ended = nsqx("move", *words, *where(nsqds[0]))
    assert (ended[0], ended[1]) == (code, "")
    assert text in ended[2]


def test_sources_that_give_nothing_are_refused(nsqds: list[Daemon], topic: str) -> None:
    nsqd = nsqds[0]
    make_channels(nsqd, topic, "c")
    publish(nsqd, topic, [b"1"])
    code, _, errors = nsqx("move", topic, "b", "--yes", *where(nsqd))
    assert (code, f"use {topic}/c as the source" in errors) == (1, True)
    code, _, errors = nsqx("move", f"{topic}/c", "b", *where(nsqd))
    assert (code, "nothing was moved: add --yes to confirm" in errors) == (1, True)
    nsqd.post("/channel/pause", topic=topic, channel="c")
    code, _, errors = nsqx("move", f"{topic}/c", "b", "--yes", *where(nsqd))
    assert (code, "is paused and delivers nothing: run nsqx unpause " in errors) == (1, True)
    nsqd.post("/channel/empty", topic=topic, channel="c")
    nsqd.post("/channel/unpause", topic=topic, channel="c")
    code, output, _ = nsqx("move", f"{topic}/c", "b", "--yes", *where(nsqd))
    assert (code, output) == (0, f"moved 0 messages: none wait in {topic}/c\n")


# config


def test_settings_are_shown_changed_and_restored(fleet: Fleet) -> None:
    nsqds = [fleet.nsqd("nsqx", "--store=log"), fleet.nsqd("nsqx", "--store=log")]
    for nsqd in nsqds:
        make_channels(nsqd, "t", "c")
    code, output, errors = nsqx("config", "set", "t", "max-attempts=5", "retain_age=72h", "--json", *where(*nsqds))
    assert (code, errors) == (0, "")
    for line, nsqd in zip(output.splitlines(), nsqds, strict=True):
        answer = json.loads(line)
        assert (answer["nsqd"], answer["changed"]) == (nsqd.http_address, ["retain_age", "max_attempts"])
        assert answer["settings"]["retain_age"] == "72h0m0s"
    code, output, _ = nsqx("config", "set", "t", "c", "max_attempts=9", *where(nsqds[0]))
    assert code == 0
    assert output.splitlines()[1].split() == [nsqds[0].http_address, "max_attempts", "9", "set"]
    code, output, _ = nsqx("config", "show", "t", "c", *where(*nsqds))
    assert [line.split()[2] for line in output.splitlines() if "max_attempts" in line] == ["9", "5"]
    for words in (["unset", "t", "c", "max_attempts"], ["unset", "t", "max_attempts", "retain_age"]):
        assert nsqx("config", *words, *where(*nsqds))[0] == 0
    code, output, _ = nsqx("config", "show", "t", "--json", *where(nsqds[0]))
    assert json.loads(output)["changed"] == []


@pytest.mark.parametrize("columns", [80, 120])
def test_settings_fit_into_a_terminal(nsqds: list[Daemon], topic: str, columns: int) -> None:
    make_channels(nsqds[0], topic, "c")
    code, text = run_on_terminal([*NSQX, "config", "show", topic, *where(nsqds[0])], columns)
    assert (code, max(map(len, text.splitlines())) <= columns) == (0, True)
    assert "max_attempts" in text


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ([], 2, "a command is missing: use show, set or unset"),
        (["show"], 2, "TOPIC is missing"),
        (["set", "t"], 2, "NAME=VALUE is missing"),
        (["unset", "t"], 2, "NAME is missing"),
        (["show", "t", "c", "x"], 2, 'unexpected argument "x"'),
        (["show", "bad name"], 1, "invalid topic name 'bad name'"),
        (["set", "t", "max_atempts=5"], 1, 'unknown setting "max_atempts"; did you mean max_attempts?'),
        (
            ["set", "t", "c", "retain_age=1h"],
            1,
            'unknown setting "retain_age": a channel has max_attempts',
        ),
        (["set", "t", "max_attempts=5", "dead_letter"], 1, "dead_letter needs a value: dead_letter=VALUE"),
        (["show", "absent"], 1, "no nsqd has topic absent"),
    ],
)
def test_mistakes_of_config_are_named(nsqds: list[Daemon], words: list[str], code: int, text: str) -> None:
    ended = nsqx("config", *words, *where(nsqds[0]))
    assert (ended[0], ended[1]) == (code, "")
    assert text in ended[2]


def test_refusals_of_nsqd_are_explained(nsqds: list[Daemon], topic: str) -> None:
    for nsqd in nsqds:
        make_channels(nsqd, topic, "c")
    code, _, errors = nsqx("config", "set", topic, "max_attempts=many", *where(nsqds[0]))
    assert (code, "invalid max_attempts=many: max_attempts is a number from 0 to 65535" in errors) == (1, True)
    code, _, errors = nsqx("config", "show", topic, "d", *where(nsqds[0]))
    assert (code, f"no nsqd has channel d of topic {topic}" in errors) == (1, True)
    if has_go():
        code, output, errors = nsqx("config", "show", topic, *where(*nsqds))
        assert (code, "max_attempts" in output) == (1, True)
        assert f"nsqd {nsqds[1].http_address}: this nsqd cannot do that" in errors
