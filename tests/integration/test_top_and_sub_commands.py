"""nsqx top, sub and stats with a running nsqd: on terminals of 80 and 120 columns, and in a pipe."""

import json
import subprocess
from collections.abc import Iterator

import pytest
from test_nsqx_commands import nsqx

from daemons import NSQX, Daemon, Fleet, free_port, start_nsqd, wait_until
from terminal import run_on_terminal
from utilities import TIMEOUT_S, make_channels, publish

LONG_TOPIC, LONG_CHANNEL = "t" * 64, "c" * 64


@pytest.fixture(scope="module")
def nsqd() -> Iterator[Daemon]:
    with start_nsqd("nsqx") as daemon:
        make_channels(daemon, LONG_TOPIC, LONG_CHANNEL)
        publish(daemon, LONG_TOPIC, [b"m"] * 1234)
        make_channels(daemon, "orders", "billing")
        publish(daemon, "orders", [b"m"] * 3)
        yield daemon


def at_http(nsqd: Daemon) -> str:
    return f"--nsqd-http-address={nsqd.http_address}"


def at_tcp(nsqd: Daemon) -> str:
    return f"--nsqd-tcp-address={nsqd.tcp_address}"


# top


@pytest.mark.parametrize("columns", [80, 120])
def test_top_shows_whole_names_and_numbers_and_ends_with_q(nsqd: Daemon, columns: int) -> None:
    command = [*NSQX, "top", at_http(nsqd), "--interval=100ms"]
    code, text = run_on_terminal(command, columns, answers={"q quit": "q"})
    assert code == 0
    lines = text.splitlines()
    assert all(len(line) <= columns for line in lines), text
    assert LONG_TOPIC in text.split()
    assert LONG_CHANNEL in text.split()
    assert "1234" in text.split()
    assert "no consumer" in text
    assert any(line.startswith("q quit   sort by: d depth") for line in lines)


def test_keys_change_the_order_of_top(nsqd: Daemon) -> None:
    command = [*NSQX, "top", at_http(nsqd), "--interval=1h"]
    # The first screen is sorted by depth; after n by name, in which orders is before ttt.
    code, text = run_on_terminal(command, 200, answers={"q quit": "nq"})
    assert code == 0
    names = [line.split()[0] for line in text.splitlines() if "no consumer" in line]
    assert names[:2] == [LONG_TOPIC, "orders"]
    code, text = run_on_terminal([*command, "--sort=name"], 200, answers={"q quit": "q"})
    assert [line.split()[0] for line in text.splitlines() if "no consumer" in line][:2] == ["orders", LONG_TOPIC]


def test_top_shows_an_nsqd_that_does_not_answer(nsqd: Daemon) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    code, text = run_on_terminal(
        [*NSQX, "top", at_http(nsqd), f"--nsqd-http-address={nowhere}"], 120, answers={"q quit": "q"}
    )
    assert (code, f"nsqd {nowhere}: connection refused" in text) == (0, True)


def test_top_in_a_pipe_prints_each_reading(nsqd: Daemon) -> None:
    code, output, errors = nsqx("top", "orders", at_http(nsqd), "--interval=10ms", "--count=2")
    assert (code, errors, "\x1b" in output) == (0, "", False)
    rows = [line.split() for line in output.splitlines() if line.startswith("orders")]
    assert [row[4:8] for row in rows] == [["3", "-", "-", "-"], ["3", "0", "0", "stuck"]]
    code, output, _ = nsqx("top", "orders", at_http(nsqd), "--interval=10ms", "--count=2", "--json")
    first, second = map(json.loads, output.splitlines())
    assert (first["in_per_s"], second["in_per_s"], second["depth"]) == (None, 0, 3)


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--interval=0s"], 1, "--interval must be positive"),
        (["--count=-1"], 1, "--count must not be negative"),
        (["--sort=size"], 1, 'invalid --sort "size": use depth, in, out, name, clients'),
        (["order"], 1, "no nsqd has topic order; did you mean orders?"),
        (["a", "b"], 2, 'unexpected argument "b"'),
    ],
)
def test_mistakes_of_top_are_named(nsqd: Daemon, words: list[str], code: int, text: str) -> None:
    ended = nsqx("top", *words, at_http(nsqd))
    assert (ended[0], ended[1]) == (code, "")
    assert text in ended[2]


def test_stats_are_redrawn_in_place(nsqd: Daemon) -> None:
    command = [*NSQX, "stats", "orders", at_http(nsqd), "--interval=50ms"]
    code, text = run_on_terminal(command, 80, end_when="in/s")
    assert code == 0
    assert max(map(len, text.splitlines())) <= 80
    code, output, _ = nsqx("topics", "--json", at_http(nsqd))
    assert {json.loads(line)["topic"] for line in output.splitlines()} == {LONG_TOPIC, "orders"}


@pytest.mark.parametrize(("variable", "has_colours"), [("NOTHING", True), ("NO_COLOR", False)])
def test_colours_are_only_on_terminals_without_no_color(nsqd: Daemon, variable: str, has_colours: bool) -> None:
    # run_on_terminal removes NO_COLOR of this process, so the command line sets it.
    command = ["env", f"{variable}=1", *NSQX, "channels", at_http(nsqd)]
    assert b"\x1b[" not in subprocess.run(command, capture_output=True, check=True).stdout
    code, text = run_on_terminal(command, 120, keeps_colours=True)
    assert code == 0
    assert ("\x1b[31mno consumer" in text) is has_colours
    assert ("\x1b[" in text) is has_colours


# sub


def start_sub(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*NSQX, "sub", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_sub_filters_copies(nsqd: Daemon, topic: str) -> None:
    make_channels(nsqd, topic, "c")
    filters = ["--filter=.status=failed", "--filter=/[0-9]/"]
    with start_sub(topic, at_tcp(nsqd), at_http(nsqd), *filters, "--count=2") as process:
        wait_until(lambda: len(nsqd.topic_stats(topic)["channels"]) == 2, "the command watches")
        publish(nsqd, topic, [b'{"status":"ok","n":1}', b'{"status":"failed"}', b'{"status":"failed","n":2}'])
        publish(nsqd, topic, [b"\xff", b'{"status":"failed","n":3}'])
        output, errors = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, errors) == (0, b"")
    assert output == b'{"status":"failed","n":2}\n{"status":"failed","n":3}\n'
    assert nsqd.channel_stats(topic, "c")["depth"] == 5


def test_a_filter_on_a_channel_needs_consent(nsqd: Daemon, topic: str) -> None:
    make_channels(nsqd, topic, "c")
    publish(nsqd, topic, [b"a", b"b", b"c"])
    code, output, errors = nsqx("sub", topic, "c", at_tcp(nsqd), "--filter=c")
    assert (code, output) == (1, "")
    assert "--filter would finish the other messages of channel c unseen" in errors
    code, output, _ = nsqx("sub", topic, "c", at_tcp(nsqd), "--filter=c", "--drop-others", "--count=1")
    assert (code, output) == (0, "c\n")
    wait_until(lambda: nsqd.channel_stats(topic, "c")["depth"] == 0, "all are finished")


def test_sub_formats_messages(nsqd: Daemon, topic: str) -> None:
    make_channels(nsqd, topic, "c", "d", "e")
    publish(nsqd, topic, [b'{"id":7}', b"\xff\x00"])
    sub = ["sub", topic, at_tcp(nsqd), "--count=2"]
    code, output, _ = nsqx(*sub, "c", r"--format={topic}\t{.id} {size} {attempts} {base64}")
    assert (code, output) == (0, f"{topic}\t7 8 1 eyJpZCI6N30=\n{topic}\t 2 1 /wA=\n")
    code, output, _ = nsqx(*sub, "d", "--base64")
    assert (code, output) == (0, "eyJpZCI6N30=\n/wA=\n")
    code, output, _ = nsqx(*sub, "e", "--json")
    first, second = map(json.loads, output.splitlines())
    assert (code, first["body"], second["base64"], "body" in second) == (0, '{"id":7}', "/wA=", False)


def test_binary_is_raw_in_a_pipe_and_escaped_on_a_terminal(nsqd: Daemon, topic: str) -> None:
    make_channels(nsqd, topic, "c", "d")
    publish(nsqd, topic, [b"\xff\x1b[31m"])
    command = [*NSQX, "sub", topic, "c", at_tcp(nsqd), "--n=1"]
    assert subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=True).stdout == b"\xff\x1b[31m\n"
    command[command.index("c")] = "d"
    code, text = run_on_terminal(command, 80)
    assert code == 0
    assert text.splitlines() == [f"waiting for messages of {topic}; Ctrl-C ends", "\\xff\\x1b[31m"]


def test_sub_says_that_it_waits_for_a_topic(fleet: Fleet) -> None:
    lookupd = fleet.nsqlookupd("nsqx")
    nsqd = fleet.nsqd("nsqx", f"--lookupd-tcp-address={lookupd.tcp_address}")
    make_channels(nsqd, "orders", "c")
    wait_until(lambda: lookupd.request("GET", "/topics").json()["topics"] == ["orders"], "the topic is registered")
    at_lookupd = f"--lookupd-http-address={lookupd.http_address}"
    with start_sub("order", "c", at_lookupd, "--count=1") as process:
        assert process.stderr is not None
        line = process.stderr.readline().decode()
        assert "waiting for topic order: no nsqd has it yet; did you mean orders?" in line
        publish(nsqd, "order", [b"here"])
        output, _ = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, output) == (0, b"here\n")
    # Without a channel the command does not create the topic, so it does not wait.
    code, _, errors = nsqx("sub", "ordrs", at_lookupd)
    assert code == 1
    assert "no nsqd has topic ordrs. Use a channel: nsqx sub ordrs CHANNEL; did you mean orders?" in errors


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["bad name"], "invalid topic name 'bad name': use 1 to 64 of"),
        (["t", "bad channel"], "invalid channel name 'bad channel': use 1 to 64 of"),
        (["t", "--filter=/(/"], 'invalid --filter "/(/"'),
        (["t", "--format={bdy}"], "unknown field {bdy}; did you mean body?"),
        (["t", "--format={body}", "--json"], "--format excludes --json and --base64"),
        (["t", "--count=-1"], "--count must not be negative"),
    ],
)
def test_mistakes_of_sub_are_named(words: list[str], text: str) -> None:
    code, output, errors = nsqx("sub", *words, "--nsqd-tcp-address=127.0.0.1:1")
    assert (code, output) == (1, "")
    assert text in errors
