"""Dead letters of a running nsqd: the routes, their access, kill -9 at any moment, and nsqx dlq."""

import json
import os
import random
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from daemons import NSQX, Daemon, Fleet, wait_until
from rawclient import OK, ConnectionEnded, RawClient
from terminal import run_on_terminal

LIMIT = 3


@pytest.fixture(params=["classic", "log"])
def store(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def fail_messages(nsqd: Daemon, topic: str, channel: str, count: int, letters: int = 0) -> list[int]:
    """Requeue ``count`` messages until there are as many letters, or ``letters``; return the attempts."""
    attempts = []
    with RawClient(nsqd.tcp_address) as consumer:
        assert consumer.sub(topic, channel) == OK
        consumer.rdy(1)
        for _ in range(count * LIMIT):
            message = consumer.read_message()
            attempts.append(message.attempts)
            consumer.req(message.id, 0)
        wait_until(lambda: letters_of(nsqd, topic) >= (letters or count), "the letters are there")
        wait_until(lambda: nsqd.channel_stats(topic, channel)["depth"] == 0, "the messages are finished")
    return attempts


def letters_of(nsqd: Daemon, topic: str) -> int:
    response = nsqd.request("GET", "/dead", query={"topic": topic})
    return int(response.json()["count"]) if response.status == 200 else 0


def make_letters(nsqd: Daemon, topic: str, count: int, channel: str = "c") -> None:
    nsqd.post("/topic/create", topic=topic)
    nsqd.post("/channel/create", topic=topic, channel=channel)
    nsqd.post("/mpub", b"\n".join(b"poison %d" % number for number in range(count)), topic=topic)
    assert max(fail_messages(nsqd, topic, channel, count)) == LIMIT


def post(nsqd: Daemon, path: str, **query: str) -> tuple[int, dict[str, object]]:
    response = nsqd.request("POST", path, query=query)
    return response.status, response.json()


def test_a_poisoned_message_is_delivered_so_often_and_the_channel_goes_on(fleet: Fleet, topic: str, store: str) -> None:
    nsqd = fleet.nsqd("nsqx", f"--store={store}", f"--max-attempts={LIMIT}")
    nsqd.post("/topic/create", topic=topic)
    nsqd.post("/channel/create", topic=topic, channel="c")
    nsqd.post("/mpub", b"poison\ngood", topic=topic)
    bodies = []
    with RawClient(nsqd.tcp_address) as consumer:
        assert consumer.sub(topic, "c") == OK
        consumer.rdy(1)
        for _ in range(LIMIT + 1):
            message = consumer.read_message()
            bodies.append(message.body)
            if message.body == b"poison":
                consumer.req(message.id, 0)
            else:
                consumer.fin(message.id)
        wait_until(lambda: letters_of(nsqd, topic) == 1, "the letter is there")
    assert Counter(bodies) == {b"poison": LIMIT, b"good": 1}
    wait_until(lambda: nsqd.channel_stats(topic, "c")["depth"] == 0, "the message is finished")
    stats = nsqd.channel_stats(topic, "c")
    assert (stats["depth"], stats["in_flight_count"]) == (0, 0)
    assert (stats["cursor"]["dead"] if store == "log" else stats["dead"]) == 1
    assert nsqd.channel_stats(f"{topic}.dead", "dead")["depth"] == 1
    metric = f'nsq_channel_dead_total{{topic="{topic}",channel="c"}} 1\n'
    assert metric in nsqd.request("GET", "/metrics").body.decode()


def test_letters_are_shown_redriven_and_purged(fleet: Fleet, topic: str, store: str) -> None:
    nsqd = fleet.nsqd("nsqx", f"--store={store}", f"--max-attempts={LIMIT}")
    assert nsqd.request("GET", "/dead", query={"topic": topic}).status == 404
    make_letters(nsqd, topic, 4)
    shown = nsqd.request("GET", "/dead", query={"topic": topic}).json()
    assert (shown["dead_letter"], shown["count"], shown["complete"]) == (f"{topic}.dead", 4, True)
    assert sorted(message["text"] for message in shown["messages"]) == [f"poison {number}" for number in range(4)]
    assert post(nsqd, "/dead/redrive", topic=topic, channel="c", count="3") == (200, {"redriven": 3, "left": 1})
    assert nsqd.channel_stats(topic, "c")["depth"] == 3
    assert post(nsqd, "/dead/purge", topic=topic) == (200, {"purged": 1, "left": 0})
    with RawClient(nsqd.tcp_address) as consumer:
        assert consumer.sub(topic, "c") == OK
        consumer.rdy(3)
        messages = [consumer.read_message() for _ in range(3)]
    assert [message.attempts for message in messages] == [1, 1, 1]


def test_letters_and_cancelled_messages_survive_a_kill(fleet: Fleet, tmp_path: Path) -> None:
    flags = ("--store=log", f"--max-attempts={LIMIT}")
    nsqd = fleet.nsqd("nsqx", *flags, data_path=tmp_path)
    make_letters(nsqd, "t", 3)
    nsqd.post("/pub", b"later", topic="t", defer="3600000")
    assert nsqd.channel_stats("t", "c")["deferred_count"] == 1
    offset = str(nsqd.topic_stats("t")["log"]["end"] - 1)
    assert post(nsqd, "/log/cancel", topic="t", offset=offset) == (200, {"cancelled": True})
    assert post(nsqd, "/dead/redrive", topic="t", offset="1") == (200, {"redriven": 1, "left": 2})
    nsqd.kill()
    nsqd = fleet.nsqd("nsqx", *flags, data_path=tmp_path)
    stats = nsqd.channel_stats("t", "c")
    assert (stats["depth"], stats["deferred_count"]) == (1, 0)
    assert letters_of(nsqd, "t") == 2
    assert post(nsqd, "/log/cancel", topic="t", offset=offset) == (404, {"message": "NOT_DEFERRED"})


def fail_for_a_while(nsqd: Daemon, deliveries: Counter[bytes], limit: int) -> None:
    """Requeue what is delivered, up to ``limit`` messages or until nsqd is gone."""
    try:
        with RawClient(nsqd.tcp_address) as consumer:
            assert consumer.sub("t", "c") == OK
            consumer.rdy(20)
            for _ in range(limit):
                message = consumer.read_message()
                deliveries[message.body] += 1
                consumer.req(message.id, 0)
    except (ConnectionEnded, OSError):
        pass


def test_a_message_is_dead_once_if_nsqd_is_killed_at_any_moment(fleet: Fleet, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    rng = random.Random(seed)
    count, limit = 150, 5
    flags = ("--store=log", f"--max-attempts={limit}", "--msg-timeout=1s", "--max-msg-timeout=2s")
    nsqd = fleet.nsqd("nsqx", *flags, data_path=tmp_path)
    nsqd.post("/topic/create", topic="t")
    nsqd.post("/channel/create", topic="t", channel="c")
    nsqd.post("/mpub", b"\n".join(b"%d" % number for number in range(count)), topic="t")
    deliveries: Counter[bytes] = Counter()
    for _ in range(4):
        fail_for_a_while(nsqd, deliveries, rng.randint(20, 120))
        nsqd.kill()
        nsqd = fleet.nsqd("nsqx", *flags, data_path=tmp_path)
        left, dead = nsqd.channel_stats("t", "c")["depth"], letters_of(nsqd, "t")
        assert left + dead == count, (seed, left, dead)
    with RawClient(nsqd.tcp_address) as consumer:
        assert consumer.sub("t", "c") == OK
        consumer.rdy(20)
        while letters_of(nsqd, "t") < count:
            for _ in range(nsqd.channel_stats("t", "c")["in_flight_count"]):
                consumer.req(consumer.read_message().id, 0)
    found: Counter[str] = Counter()
    offset = 0
    while len(found) < count:
        query = {"topic": "t", "count": "100", "offset": str(offset)}
        answer = nsqd.request("GET", "/dead", query=query).json()
        assert answer["messages"], seed
        found.update(message["text"] for message in answer["messages"])
        offset = answer["next"]
    assert found == Counter({str(number): 1 for number in range(count)}), seed


def test_letters_need_the_token_for_messages(fleet: Fleet, tmp_path: Path) -> None:
    files = {}
    for group in ("read", "consume", "admin"):
        files[group] = tmp_path / group
        files[group].write_text(f"{group}-secret\n")
    nsqd = fleet.nsqd("nsqx", *[f"--http-{group}-token-file={path}" for group, path in files.items()])

    def status(method: str, path: str, group: str) -> int:
        headers = {"Authorization": f"Bearer {group}-secret"}
        return nsqd.request(method, path, query={"topic": "t"}, headers=headers).status

    assert [status("GET", "/dead", group) for group in files] == [401, 404, 404]
    for path in ("/dead/redrive", "/dead/purge", "/log/cancel"):
        assert [status("POST", path, group) for group in files] == [401, 401, 404], path


# nsqx dlq


def dlq(*words: str, stdin: bytes = b"") -> tuple[int, str, str]:
    """Run nsqx dlq in a pipe. Return its exit code, stdout and stderr."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NSQX_")}
    done = subprocess.run([*NSQX, "dlq", *words], input=stdin, capture_output=True, timeout=40, env=kept)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.fixture
def nsqd(fleet: Fleet) -> Daemon:
    daemon = fleet.nsqd("nsqx", "--store=log", f"--max-attempts={LIMIT}")
    make_letters(daemon, "orders", 3)
    return daemon


@pytest.fixture
def where(nsqd: Daemon) -> str:
    return f"--nsqd-http-address={nsqd.http_address}"


def test_the_command_lists_letters(fleet: Fleet, nsqd: Daemon, where: str) -> None:
    other = fleet.nsqd("nsqx", "--store=classic", f"--max-attempts={LIMIT}")
    both = (where, f"--nsqd-http-address={other.http_address}")
    code, output, errors = dlq("ls", "orders", *both)
    assert (code, errors) == (0, "")
    assert [line.split() for line in output.splitlines()[1:]] == [[nsqd.http_address, "orders.dead", "3"]]
    make_letters(other, "orders", 1)
    code, output, _ = dlq("ls", *both)
    assert (code, [line.split() for line in output.splitlines()[1:]]) == (0, [["orders.dead", "4", "2"]])
    code, output, _ = dlq("ls", "--json", *both)
    assert json.loads(output) == {"dead_letter": "orders.dead", "letters": 4, "nsqds": 2}
    code, output, _ = dlq("ls", "orders", "--json", where)
    assert json.loads(output) == {"nsqd": nsqd.http_address, "dead_letter": "orders.dead", "letters": 3}


def test_the_command_says_if_there_are_no_letters(fleet: Fleet) -> None:
    empty = f"--nsqd-http-address={fleet.nsqd('nsqx').http_address}"
    assert dlq("ls", empty)[:2] == (0, "no topic has dead letters\n")
    for verb in ("ls", "show", "redrive", "purge"):
        code, output, errors = dlq(verb, "orders", empty)
        assert (code, output, errors.count("\n")) == (1, "", 1)
        assert "no nsqd has dead letters of topic orders" in errors


def test_the_command_shows_letters(where: str) -> None:
    code, output, errors = dlq("show", "orders", where, "--count=2")
    lines = output.splitlines()
    assert (code, errors, len(lines)) == (0, "", 5)
    words = lines[0].split()
    assert (words[0], words[2:5]) == ("0", ["channel=c", "attempts=3", "reason=requeued"])
    assert lines[1].startswith("  poison ")
    assert lines[4].endswith("more letters follow: --offset=2")
    code, output, _ = dlq("show", "orders", where, "--offset=2", "--json")
    letter = json.loads(output)
    assert (letter["offset"], letter["origin"]["topic"]) == (2, "orders")


def test_the_command_redrives_letters(nsqd: Daemon, where: str) -> None:
    code, output, errors = dlq("redrive", "orders", "--offset=0", "--offset=2", where)
    assert (code, errors) == (0, "")
    assert [line.split() for line in output.splitlines()] == [
        ["nsqd", "redriven", "left"],
        [nsqd.http_address, "2", "1"],
    ]
    code, output, _ = dlq("redrive", "orders", "--channel=c", "--yes", "--json", where)
    assert (code, json.loads(output)) == (0, {"nsqd": nsqd.http_address, "redriven": 1, "left": 0})
    assert nsqd.channel_stats("orders", "c")["depth"] == 3


def test_the_command_purges_letters(nsqd: Daemon, where: str) -> None:
    code, output, _ = dlq("purge", "orders", "--count=1", "--yes", where)
    assert (code, output.splitlines()[1].split()) == (0, [nsqd.http_address, "1", "2"])
    code, output, _ = dlq("purge", "orders", "--yes", where)
    assert (code, output.splitlines()[1].split()) == (0, [nsqd.http_address, "2", "0"])


def test_the_command_needs_a_confirmation(nsqd: Daemon, where: str) -> None:
    for words in (("purge", "orders"), ("purge", "orders", "--offset=1"), ("redrive", "orders")):
        code, output, errors = dlq(*words, where, stdin=b"y\n")
        assert (code, output, errors.count("\n")) == (1, "", 1)
        assert errors.endswith(f"{words[0]} needs a confirmation: add --yes\n")
    assert letters_of(nsqd, "orders") == 3


@pytest.mark.parametrize(("typed", "left"), [("y", 0), ("n", 3), ("", 3)])
def test_the_command_asks_on_a_terminal(nsqd: Daemon, where: str, typed: str, left: int) -> None:
    command = [*NSQX, "dlq", "purge", "orders", where]
    code, text = run_on_terminal(command, 80, answers={"[y/N] ": f"{typed}\n"})
    assert "purge all 3 letters of orders on 1 nsqd? [y/N] " in text
    assert all(len(line) <= 80 for line in text.splitlines()), text
    assert (code, letters_of(nsqd, "orders")) == (0 if typed == "y" else 1, left)
    assert ("nothing was changed" in text) == (typed != "y")


def test_the_question_on_a_terminal_can_be_interrupted(nsqd: Daemon, where: str) -> None:
    code, text = run_on_terminal([*NSQX, "dlq", "purge", "orders", where], 80, end_when="[y/N]")
    assert code != 0
    assert "Traceback" not in text
    assert letters_of(nsqd, "orders") == 3


def test_tables_fit_a_terminal(where: str) -> None:
    for words in (("ls", "orders"), ("ls",), ("redrive", "orders", "--count=1")):
        code, text = run_on_terminal([*NSQX, "dlq", *words, where], 80)
        assert code == 0
        assert all(len(line) <= 80 for line in text.splitlines()), text


def test_the_command_reports_the_outcome_of_each_nsqd(fleet: Fleet, nsqd: Daemon, where: str) -> None:
    other = fleet.nsqd("nsqx", "--store=classic", f"--max-attempts={LIMIT}")
    make_letters(other, "orders", 1)
    both = (where, f"--nsqd-http-address={other.http_address}")
    code, output, errors = dlq("redrive", "orders", "--offset=0", *both)
    assert (code, output) == (1, "")
    assert "--offset needs one nsqd" in errors
    # A classic topic does not know which channel has failed.
    code, output, errors = dlq("redrive", "orders", "--yes", *both)
    assert (code, output.splitlines()[1].split()) == (1, [nsqd.http_address, "3", "0"])
    assert f"WARNING: nsqd {other.http_address}: " in errors
    assert "MISSING_ARG_CHANNEL" in errors
    code, output, errors = dlq("redrive", "orders", "--channel=c", "--yes", f"--nsqd-http-address={other.http_address}")
    assert (code, output.splitlines()[1].split()) == (0, [other.http_address, "1", "0"])


def test_the_command_warns_of_an_nsqd_that_is_down(fleet: Fleet, where: str) -> None:
    other = fleet.nsqd("nsqx")
    address = other.http_address
    os.kill(other.pid, signal.SIGKILL)
    other.process.wait()
    code, output, errors = dlq("purge", "orders", "--yes", where, f"--nsqd-http-address={address}")
    assert (code, output.splitlines()[1].split()[1:]) == (1, ["3", "0"])
    assert f"WARNING: nsqd {address}" in errors


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("show", "bad name"), "invalid topic name 'bad name': use 1 to 64 of a-z A-Z 0-9 . _ -"),
        (("show", "t", "--channel=b d"), "invalid channel name 'b d': use 1 to 64 of a-z A-Z 0-9 . _ -"),
        (("show", "t", "--offset=x"), 'invalid --offset "x": use a number, as nsqx dlq show prints it'),
        (("show", "t", "--count=1001"), "invalid --count 1001: use a number from 1 to 1000"),
        (("purge", "t", "--count=-1"), "invalid --count -1: use a number from 1 to "),
        (("show", "t", "--offset=1", "--offset=2"), "show takes one --offset, where it begins"),
    ],
)
def test_bad_arguments_of_the_command_get_one_line(words: tuple[str, ...], text: str) -> None:
    code, output, errors = dlq(*words)
    assert (code, output, errors.count("\n")) == (1, "", 1)
    assert text in errors


@pytest.mark.parametrize("words", [(), ("nope", "t"), ("show",), ("show", "a", "b"), ("ls", "--nope")])
def test_wrong_usage_of_the_command_prints_its_usage(words: tuple[str, ...]) -> None:
    code, output, errors = dlq(*words)
    assert (code, output) == (2, "")
    assert errors


def converted(nsqd: Daemon, topic: str, store: str) -> None:
    assert nsqd.request("POST", "/topic/convert", query={"topic": topic, "store": store}).status == 202
    wait_until(lambda: "converting" not in nsqd.topic_stats(topic), "the conversion ends")


@pytest.mark.parametrize("other", ["log", "classic"])
def test_letters_are_made_and_redriven_while_topics_are_converted(fleet: Fleet, other: str) -> None:
    store = "classic" if other == "log" else "log"
    nsqd = fleet.nsqd("nsqx", f"--store={store}", f"--max-attempts={LIMIT}")
    make_letters(nsqd, "t", 2)
    converted(nsqd, "t", other)
    nsqd.post("/mpub", b"3\n4", topic="t")
    assert sorted(fail_messages(nsqd, "t", "c", 2, letters=4)) == [1, 1, 2, 2, 3, 3]
    converted(nsqd, "t.dead", other)
    wait_until(lambda: letters_of(nsqd, "t") == 4, "all letters are moved")
    assert post(nsqd, "/dead/redrive", topic="t", channel="c") == (200, {"redriven": 4, "left": 0})
    with RawClient(nsqd.tcp_address) as consumer:
        assert consumer.sub("t", "c") == OK
        consumer.rdy(4)
        bodies = {consumer.read_message().body for _ in range(4)}
    assert bodies == {b"poison 0", b"poison 1", b"3", b"4"}


def test_letters_of_a_classic_topic_on_disk_are_listed_by_pages(fleet: Fleet) -> None:
    nsqd = fleet.nsqd("nsqx", "--store=classic", "--mem-queue-size=2", f"--max-attempts={LIMIT}")
    make_letters(nsqd, "orders", 7)
    found: list[str] = []
    skip = 0
    while len(found) < 7:
        query = {"topic": "orders", "count": "3", "skip": str(skip)}
        answer = nsqd.request("GET", "/dead", query=query).json()
        found += [message["text"] for message in answer["messages"]]
        assert answer["count"] == 7
        assert answer["complete"] is (answer["next"] >= 7)
        assert answer["next"] == min(skip + 3, 7)
        skip = answer["next"]
    assert sorted(found) == [f"poison {number}" for number in range(7)]
    assert letters_of(nsqd, "orders") == 7
    where = f"--nsqd-http-address={nsqd.http_address}"
    code, out, _ = dlq("show", "orders", where, "--count=3")
    assert (code, out.splitlines()[-1]) == (0, f"{nsqd.http_address}: more letters follow: --skip=3")
    code, out, _ = dlq("show", "orders", where, "--skip=6")
    assert code == 0
    assert out.count("poison") == 1


def test_letters_in_flight_of_a_classic_topic_are_listed(fleet: Fleet) -> None:
    nsqd = fleet.nsqd("nsqx", "--store=classic", f"--max-attempts={LIMIT}")
    make_letters(nsqd, "orders", 2)
    with RawClient(nsqd.tcp_address) as consumer:
        assert consumer.sub("orders.dead", "dead") == OK
        consumer.rdy(1)
        consumer.read_message()
        answer = nsqd.request("GET", "/dead", query={"topic": "orders"}).json()
        assert sorted(message["state"] for message in answer["messages"]) == ["in_flight", "waiting"]


def test_skip_is_for_classic_topics(fleet: Fleet) -> None:
    nsqd = fleet.nsqd("nsqx", "--store=log", f"--max-attempts={LIMIT}")
    make_letters(nsqd, "orders", 1)
    response = nsqd.request("GET", "/dead", query={"topic": "orders", "skip": "1"})
    assert (response.status, response.json()) == (400, {"message": "INVALID_SKIP"})
    where = f"--nsqd-http-address={nsqd.http_address}"
    code, _, error = dlq("purge", "orders", where, "--skip=1")
    assert code == 1
    assert error.strip().endswith("--skip is for show, without --offset")
