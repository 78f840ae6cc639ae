"""The commands nsqx peek and nsqx seek with running daemons, in a pipe and on a terminal."""

import json
import re
from pathlib import Path

import pytest
from test_nsqx_commands import nsqx

from daemons import NSQX, Daemon, Fleet, free_port, wait_until
from rawclient import OK, RawClient
from terminal import run_on_terminal

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"


@pytest.fixture
def nsqds(fleet: Fleet) -> list[Daemon]:
    """Two nsqds with the topic orders, each with messages of its own, and one without the topic."""
    daemons = [fleet.nsqd("nsqx", "--store=log", "--store-rule=classic*=classic") for _ in range(3)]
    for number, nsqd in enumerate(daemons[:2]):
        nsqd.post("/topic/create", topic="orders")
        nsqd.post("/channel/create", topic="orders", channel="billing")
        for message in range(3):
            nsqd.post("/pub", b"order %d of nsqd %d" % (message, number), topic="orders")
    return daemons


def where(*nsqds: Daemon) -> list[str]:
    return [f"--nsqd-http-address={nsqd.http_address}" for nsqd in nsqds]


def depth(nsqd: Daemon) -> int:
    found: int = nsqd.channel_stats("orders", "billing")["depth"]
    return found


def consume_all(nsqd: Daemon) -> None:
    with RawClient(nsqd.tcp_address) as consumer:
        assert consumer.sub("orders", "billing") == OK
        consumer.rdy(3)
        for message in [consumer.read_message() for _ in range(3)]:
            consumer.fin(message.id)
        wait_until(lambda: nsqd.channel_stats("orders", "billing")["in_flight_count"] == 0, "everything is finished")


def test_peek_shows_the_messages_of_every_nsqd(nsqds: list[Daemon]) -> None:
    code, output, errors = nsqx("peek", "orders", *where(*nsqds))
    assert (code, errors) == (0, "")
    lines = output.splitlines()
    assert (lines[0], lines[7]) == (f"nsqd {nsqds[0].http_address}", f"nsqd {nsqds[1].http_address}")
    assert re.fullmatch(rf"0 [0-9a-f]{{16}} {TIME}", lines[1])
    assert [line for line in lines if line.startswith("  ")] == [
        f"  order {message} of nsqd {number}" for number in (0, 1) for message in (0, 1, 2)
    ]
    assert [depth(nsqd) for nsqd in nsqds[:2]] == [3, 3]


def test_peek_finds_nsqds_through_nsqlookupd(fleet: Fleet) -> None:
    lookupd = fleet.nsqlookupd("nsqx")
    nsqd = fleet.nsqd("nsqx", "--store=log", f"--lookupd-tcp-address={lookupd.tcp_address}")
    nsqd.post("/pub", b"hello", topic="orders")
    wait_until(lambda: "orders" in lookupd.request("GET", "/topics").json()["topics"], "the topic is known")
    code, output, _ = nsqx("peek", "orders", f"--lookupd-http-address={lookupd.http_address}")
    assert (code, output.splitlines()[1]) == (0, "  hello")


def test_peek_selects_messages(nsqds: list[Daemon]) -> None:
    def bodies(*flags: str) -> list[str]:
        code, output, _ = nsqx("peek", "orders", *flags, *where(nsqds[0]))
        assert code == 0
        return [line[2:9] for line in output.splitlines() if line.startswith("  ")]

    assert bodies("--offset=1") == ["order 1", "order 2"]
    assert bodies("--last=1") == ["order 2"]
    assert bodies("--time=-1h") == ["order 0", "order 1", "order 2"]
    assert bodies("--contains=ORDER 1") == ["order 1"]
    assert bodies("--count=2") == ["order 0", "order 1"]
    assert bodies("billing", "--state=waiting", "--count=1") == ["order 0"]
    found = json.loads(nsqx("peek", "orders", "--json", "--last=1", *where(nsqds[0]))[1])
    assert nsqx("peek", "orders", "-n", "1", *where(nsqds[0]))[1].count("  order") == 1
    assert found["nsqd"] == nsqds[0].http_address
    assert (found["offset"], found["text"]) == (2, "order 2 of nsqd 0")
    assert bodies(f"--id={found['id']}") == ["order 2"]


def test_peek_says_how_to_continue(nsqds: list[Daemon]) -> None:
    code, _, errors = nsqx("peek", "orders", "--count=2", *where(nsqds[0]))
    assert code == 0
    assert f"nsqd {nsqds[0].http_address} has more messages: continue with --offset=2" in errors
    nsqds[0].post("/topic/create", topic="classic")
    nsqds[0].post("/mpub", b"1\n2\n3", topic="classic")
    code, output, errors = nsqx("peek", "classic", "--count=2", *where(nsqds[0]))
    assert "continue with --skip=2" in errors
    code, output, errors = nsqx("peek", "classic", "--skip=2", *where(nsqds[0]))
    assert (code, output.splitlines()[1:], errors) == (0, ["  3"], "")


def test_peek_asks_for_more_than_one_answer_can_have(fleet: Fleet) -> None:
    nsqd = fleet.nsqd("nsqx", "--store=log")
    nsqd.post("/mpub", b"\n".join(b"%d" % number for number in range(2500)), topic="orders")
    code, output, errors = nsqx("peek", "orders", "--count=2100", "--json", *where(nsqd))
    assert [json.loads(line)["offset"] for line in output.splitlines()] == list(range(2100))
    assert (code, "--offset=2100" in errors) == (0, True)
    code, output, errors = nsqx("peek", "orders", "--last=2100", "--json", "--max-bytes=1000", *where(nsqd))
    assert [json.loads(line)["offset"] for line in output.splitlines()] == list(range(400, 2500))
    assert errors == ""


def test_peek_shows_states_and_binary_bodies_safely(nsqds: list[Daemon]) -> None:
    nsqd = nsqds[0]
    nsqd.post("/pub", b"\x1b[31mred\xff\n", topic="orders")
    nsqd.post("/pub", b"later", topic="orders", defer="600000")
    with RawClient(nsqd.tcp_address) as consumer:
        assert consumer.sub("orders", "billing") == OK
        consumer.rdy(1)
        consumer.read_message()
        code, output, errors = nsqx("peek", "orders", "billing", *where(nsqd))
    lines = output.splitlines()
    assert (code, errors) == (0, "")
    assert lines[0].endswith("Z in flight attempts=1")
    assert lines[2].endswith("Z waiting")
    assert lines[7] == r"  \x1b[31mred\xff\n"
    assert re.search(rf" deferred due={TIME}$", lines[8])
    output = nsqx("peek", "orders", "--last=1", "--max-bytes=2", *where(nsqd))[1]
    assert output.splitlines()[1] == "  la [cut, 5 bytes]"


def test_peek_fits_into_a_terminal_of_80_columns(nsqds: list[Daemon]) -> None:
    code, text = run_on_terminal([*NSQX, "peek", "orders", "billing", "--count=1", *where(*nsqds[:2])], 80)
    assert code == 0
    shown = [line for line in text.splitlines() if "has more messages" not in line]
    assert [line for line in shown if line.startswith("  ")] == ["  order 0 of nsqd 0", "  order 0 of nsqd 1"]
    assert all(len(line) <= 80 for line in shown), shown


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["t", "--offset=1", "--last=2"], "--offset and --last exclude each other: give one of them"),
        (["t", "--state=done"], "invalid --state=done: use waiting, in_flight, deferred"),
        (["t", "--state=waiting"], "--state=waiting needs a channel: nsqx peek TOPIC CHANNEL"),
        (["t", "--count=0"], "--count must be positive"),
        (["t", "--max-bytes=0"], "--max-bytes must be positive"),
        (["t", "--last=-1"], "--last must not be negative"),
        (["t", "--skip=-1"], "--skip must not be negative"),
    ],
)
def test_peek_rejects_invalid_flags(words: list[str], text: str) -> None:
    code, output, errors = nsqx("peek", *words)
    assert (code, output) == (1, "")
    assert errors.endswith(f" {text}\n")


@pytest.mark.parametrize("words", [["peek"], ["peek", "t", "c", "x"], ["seek", "t"], ["seek", "t", "c", "x"]])
def test_a_wrong_number_of_words_prints_the_usage(words: list[str]) -> None:
    code, _, errors = nsqx(*words)
    assert (code, f"nsqx {words[0]} TOPIC" in errors) == (2, True)


def test_peek_reports_what_fails(nsqds: list[Daemon]) -> None:
    code, output, errors = nsqx("peek", "unknown", *where(*nsqds))
    assert (code, output) == (1, "")
    assert errors.endswith(" no nsqd has topic unknown\n")
    assert nsqx("peek", "orders", "none", *where(*nsqds))[2].endswith(" no nsqd has channel none of topic orders\n")
    code, _, errors = nsqx("peek", "orders", "--offset=9", *where(nsqds[0]))
    assert (code, "the log ends at the offset 3" in errors) == (1, True)
    nowhere = f"127.0.0.1:{free_port()}"
    code, output, errors = nsqx("peek", "orders", "--count=1", *where(nsqds[0]), f"--nsqd-http-address={nowhere}")
    assert (code, "order 0" in output, nowhere in errors) == (1, True, True)
    nsqds[0].post("/topic/create", topic="classic")
    code, _, errors = nsqx("peek", "classic", "--last=1", *where(nsqds[0]))
    assert (code, "the topic has the classic store, which has no offsets and no times" in errors) == (1, True)


def test_go_nsqds_cannot_peek_or_seek(fleet: Fleet) -> None:
    nsqd = fleet.nsqd("go")
    nsqd.post("/topic/create", topic="orders")
    for words in (["peek", "orders"], ["seek", "orders", "c", "--to=end", "--yes"]):
        code, _, errors = nsqx(*words, *where(nsqd))
        assert (code, "it is an nsqd of Go" in errors) == (1, True)


def test_seek_moves_the_channel_on_every_nsqd(nsqds: list[Daemon]) -> None:
    for nsqd in nsqds[:2]:
        consume_all(nsqd)
    words = ["seek", "orders", "billing", "--to=-1h", *where(*nsqds)]
    code, output, errors = nsqx(*words, "--dry-run")
    assert (code, errors) == (0, "")
    heading, *rows = [line.split() for line in output.splitlines()]
    assert " ".join(heading) == "nsqd from to depth now depth then in flight forgotten"
    assert rows == [[nsqd.http_address, "3", "0", "0", "3", "0", "0"] for nsqd in nsqds[:2]]
    assert [depth(nsqd) for nsqd in nsqds[:2]] == [0, 0]
    code, output, errors = nsqx(*words)
    assert (code, "nothing was moved: add --yes to confirm" in errors) == (1, True)
    assert [depth(nsqd) for nsqd in nsqds[:2]] == [0, 0]
    code, output, errors = nsqx(*words, "--yes")
    assert (code, errors) == (0, "")
    assert output.splitlines()[3:] == [f"{nsqd.http_address}: moved from 3 to 0, depth 3" for nsqd in nsqds[:2]]
    assert [depth(nsqd) for nsqd in nsqds[:2]] == [3, 3]
    assert nsqx("seek", "orders", "billing", "--to=end", "--yes", *where(nsqds[0]))[0] == 0
    assert [depth(nsqd) for nsqd in nsqds[:2]] == [0, 3]


@pytest.mark.parametrize(("answer", "code", "left"), [("y\n", 0, 1), ("n\n", 1, 3), ("\n", 1, 3), ("\x04", 1, 3)])
def test_seek_asks_on_a_terminal(nsqds: list[Daemon], answer: str, code: int, left: int) -> None:
    command = [*NSQX, "seek", "orders", "billing", "--to=2", *where(nsqds[0])]
    ended, text = run_on_terminal(command, 80, answers={"[y/N]": answer})
    assert ended == code, text
    assert "Move channel billing of orders on 1 nsqd? [y/N]" in text
    assert ("moved from 0 to 2, depth 1" in text, "nothing was moved" in text) == (code == 0, code == 1)
    assert all(len(line) <= 80 for line in text.splitlines()), text
    assert depth(nsqds[0]) == left


def test_seek_ends_on_a_signal(nsqds: list[Daemon]) -> None:
    command = [*NSQX, "seek", "orders", "billing", "--to=2", *where(nsqds[0])]
    code, text = run_on_terminal(command, 80, end_when="[y/N]")
    assert (code, "nothing was moved" in text, depth(nsqds[0])) == (1, True, 3)


def test_seek_reports_what_fails(nsqds: list[Daemon]) -> None:
    def failure(*words: str) -> str:
        code, _, errors = nsqx("seek", *words)
        assert code == 1
        return errors

    assert "--to is required: beginning, end, an offset, a time" in failure("orders", "billing")
    assert "invalid --to=soon: use beginning, end," in failure("orders", "billing", "--to=soon", *where(*nsqds))
    assert "no nsqd has topic unknown" in failure("unknown", "billing", "--to=end", *where(*nsqds))
    assert "the channel does not exist there" in failure("orders", "none", "--to=end", *where(*nsqds))
    assert "the log ends at the offset 3" in failure("orders", "billing", "--to=9", "--dry-run", *where(*nsqds))
    nsqds[2].post("/topic/create", topic="orders")
    words = ("orders", "billing", "--to=1", "--yes", *where(*nsqds))
    code, output, errors = nsqx("seek", *words)
    assert (code, output.count("moved from 0 to 1, depth 2")) == (1, 2)
    assert f"nsqd {nsqds[2].http_address}: the channel does not exist there" in errors


def test_commands_need_the_tokens_of_their_routes(fleet: Fleet, tmp_path: Path) -> None:
    flags = []
    for group in ("read", "consume", "admin"):
        (tmp_path / group).write_text(f"{group}-0123456789abcdef\n")
        flags.append(f"--http-{group}-token-file={tmp_path / group}")
    nsqd = fleet.nsqd("nsqx", "--store=log", *flags)
    admin = {"Authorization": "Bearer admin-0123456789abcdef"}
    assert nsqd.request("POST", "/topic/create?topic=orders", headers=admin).status == 200
    for group, expected in {"read": 1, "consume": 0}.items():
        code, _, errors = nsqx("peek", "orders", f"--nsqd-http-token-file={tmp_path / group}", *where(nsqd))
        assert (code, "the request needs another token" in errors) == (expected, expected == 1)
    code, _, errors = nsqx(
        *("seek", "orders", "billing", "--to=end", f"--nsqd-http-token-file={tmp_path / 'consume'}", *where(nsqd))
    )
    assert (code, "the request needs another token" in errors) == (1, True)
