"""Each utility and Go's utility of the same name, on the same input, have the same output, exit code and messages.

The tests also show the deliberate differences that docs/utilities.md lists, with the behaviour of both programs.
"""

import re
import time
from datetime import datetime
from pathlib import Path

import pytest

from daemons import TEST_STORE, Daemon, Fleet, free_port, wait_until
from nsqx.tools.http_access import HTTP_ACCESS_FLAGS
from utilities import (
    Running,
    consume,
    http_endpoint,
    left,
    make_channels,
    publish,
    run_utility,
    tree,
    wait_changed,
    wait_closed,
    wait_depth,
    wait_finished,
    wait_requeued,
)

BOTH = ("go", "nsqx")
OWN_FLAGS = {"nsq_tail": ("take-backlog",), "nsq_stat": tuple(flag.name for flag in HTTP_ACCESS_FLAGS)}
PROGRAMS = ("nsq_stat", "nsq_tail", "nsq_to_file", "nsq_to_http", "nsq_to_nsq", "to_nsq")
NOWHERE = "127.0.0.1:1"
SOURCE = f"--nsqd-tcp-address={NOWHERE}"


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_has_the_same_flags_and_defaults(program: str) -> None:
    go, ours = (run_utility(implementation, program, "--help") for implementation in BOTH)
    assert ours.code == go.code == 0
    # The first line names the program. Go's nsq_to_file calls itself nsqd there.
    assert without_own_flags(program, ours.stderr.splitlines()[1:]) == go.stderr.splitlines()[1:]


def without_own_flags(program: str, lines: list[str]) -> list[str]:
    """Remove the flags that only our program has. Each takes two lines: the flag and its description."""
    for flag in OWN_FLAGS.get(program, ()):
        place = [line.split()[:1] for line in lines].index([f"-{flag}"])
        lines = lines[:place] + lines[place + 2 :]
    return lines


@pytest.mark.parametrize("program", [each for each in PROGRAMS if each != "to_nsq"])
def test_version_is_equal(program: str) -> None:
    go, ours = (run_utility(implementation, program, "--version") for implementation in BOTH)
    assert (ours.code, ours.stdout, ours.stderr) == (go.code, go.stdout, go.stderr)


MISTAKES = [
    ("to_nsq",),
    ("to_nsq", "--topic=t"),
    ("to_nsq", "--topic=t", "--delimiter=ab", SOURCE),
    ("to_nsq", "--topic=t", "--delimiter=", SOURCE),
    ("to_nsq", "--topic=t", "--rate=x", SOURCE),
    ("to_nsq", "--version"),
    ("to_nsq", "--topic=t", "--producer-opt=nope,1", SOURCE),
    ("nsq_tail",),
    ("nsq_tail", SOURCE),
    ("nsq_tail", SOURCE, f"--lookupd-http-address={NOWHERE}", "--topic=t"),
    ("nsq_tail", SOURCE, "--topic=t", "--n=x"),
    ("nsq_tail", SOURCE, "--topic=t", "--n"),
    ("nsq_tail", SOURCE, "--topic=t", "--print-topic=maybe"),
    ("nsq_tail", SOURCE, "--topic=bad topic"),
    ("nsq_tail", SOURCE, "--topic=t", "--channel=bad channel"),
    ("nsq_tail", SOURCE, "--topic=t"),
    ("nsq_tail", SOURCE, "--topic=t", "--nope"),
    ("nsq_stat",),
    ("nsq_stat", "--topic=t"),
    ("nsq_stat", "--topic=t", "--channel=c"),
    ("nsq_stat", "--topic=t", "--channel=c", "--interval=0s"),
    ("nsq_stat", "--topic=t", "--channel=c", "--interval=2"),
    ("nsq_stat", "--topic=t", "--channel=c", "--http-client-connect-timeout=-1s"),
    ("nsq_stat", "--topic=t", "--channel=c", "--http-client-request-timeout=0"),
    ("nsq_stat", "--topic=t", "--channel=c", "--count=0"),
    ("nsq_stat", "--topic=t", "--channel=c", "--count=x"),
    ("nsq_stat", "--topic=t", "--channel=c", "--count=99999999999"),
    ("nsq_stat", "--topic=t", "--channel=c", "--nsqd-http-address=http://x", "--lookupd-http-address=y"),
    ("nsq_stat", "--topic=t", "--channel=c", "--nsqd-http-address=http://x"),
    ("nsq_stat", "--topic=t", "--channel=c", "--lookupd-http-address=https://x"),
    ("nsq_stat", "--topic=t", "--channel=c", f"--lookupd-http-address={NOWHERE}"),
    ("nsq_to_file",),
    ("nsq_to_file", "stray", "words"),
    ("nsq_to_file", "--log-level=loud"),
    ("nsq_to_file", SOURCE),
    ("nsq_to_file", SOURCE, "--channel="),
    ("nsq_to_file", SOURCE, "--topic=t", f"--lookupd-http-address={NOWHERE}"),
    ("nsq_to_file", SOURCE, "--topic=t", "--gzip-level=10"),
    ("nsq_to_file", SOURCE, "--topic=t", "--gzip-level=x"),
    ("nsq_to_file", SOURCE, "--topic-pattern=x"),
    ("nsq_to_file", SOURCE, "--topic=t", "--http-client-connect-timeout=0"),
    ("nsq_to_file", SOURCE, "--topic=t", "--rotate-interval=1"),
    ("nsq_to_http",),
    ("nsq_to_http", "--topic=t"),
    ("nsq_to_http", "--topic=t", SOURCE),
    ("nsq_to_http", "--topic=t", SOURCE, "--get=http://x/%s", "--post=http://x/"),
    ("nsq_to_http", "--topic=t", SOURCE, "--get=http://x/"),
    ("nsq_to_http", "--topic=t", SOURCE, "--get=http://x/%s%s"),
    ("nsq_to_http", "--topic=t", SOURCE, "--get=http://x/%s", "--content-type=text/plain"),
    ("nsq_to_http", "--topic=t", SOURCE, "--post=http://x/", "--content-type="),
    ("nsq_to_http", "--topic=t", SOURCE, "--post=http://x/", "--sample=1.5"),
    ("nsq_to_http", "--topic=t", SOURCE, "--post=http://x/", "--header=nothing"),
    ("nsq_to_http", "--topic=t", SOURCE, "--post=http://x/", "--header=Name:"),
    ("nsq_to_http", "--topic=t", SOURCE, "--post=http://x/", "--n=0"),
    ("nsq_to_http", "--topic=bad topic", SOURCE, "--post=http://x/"),
    ("nsq_to_http", "--topic=t", SOURCE, "--post=http://x/"),
    ("nsq_to_nsq",),
    ("nsq_to_nsq", "--topic=t"),
    ("nsq_to_nsq", "--topic=bad topic", SOURCE),
    ("nsq_to_nsq", "--topic=t", "--destination-topic=bad topic", SOURCE),
    ("nsq_to_nsq", "--topic=t", "--channel=bad channel", SOURCE),
    ("nsq_to_nsq", "--topic=t", SOURCE),
    ("nsq_to_nsq", "--topic=t", SOURCE, f"--destination-nsqd-tcp-address={NOWHERE}"),
]


@pytest.mark.parametrize("command", MISTAKES, ids=" ".join)
def test_invalid_command_lines_fail_with_the_same_error(command: tuple[str, ...]) -> None:
    go, ours = (run_utility(implementation, *command) for implementation in BOTH)
    assert ours.code == go.code != 0
    assert ours.errors[0] == go.errors[0]


def test_to_nsq_fails_if_nsqd_is_down() -> None:
    flags = ("--topic=t", f"--nsqd-tcp-address={NOWHERE}")
    for implementation in BOTH:
        ended = run_utility(implementation, "to_nsq", *flags, stdin=b"message\n")
        assert ended.code == 1
        assert ended.lines[-1] == f"dial tcp {NOWHERE}: connect: connection refused"
        assert run_utility(implementation, "to_nsq", *flags, stdin=b"\n").code == 0


@pytest.mark.parametrize(
    ("text", "flags"),
    [(b"one\n\ntwo\r\n\xff\xfe\n", ()), (b"a,b\nc,", ("--delimiter=,",)), (b"", ())],
    ids=["lines", "delimiter", "nothing"],
)
def test_to_nsq_publishes_the_same_messages(fleet: Fleet, text: bytes, flags: tuple[str, ...]) -> None:
    published = []
    for implementation in BOTH:
        daemons = [fleet.nsqd("nsqx"), fleet.nsqd("nsqx")]
        addresses = [f"--nsqd-tcp-address={daemon.tcp_address}" for daemon in daemons]
        ended = run_utility(implementation, "to_nsq", "--topic=t", *flags, *addresses, stdin=text)
        assert ended.code == 0, ended.stderr
        published += [sorted(consume(daemon, "t")) for daemon in daemons]
    assert published[0] == published[1] == published[2] == published[3]


def test_to_nsq_publishes_a_last_line_without_newline_completely(fleet: Fleet) -> None:
    found = {}
    for implementation in BOTH:
        daemon = fleet.nsqd("nsqx")
        flags = ("--topic=t", f"--nsqd-tcp-address={daemon.tcp_address}")
        assert run_utility(implementation, "to_nsq", *flags, stdin=b"one\ntwo").code == 0
        found[implementation] = sorted(consume(daemon, "t"))
    assert found == {"go": [b"one", b"tw"], "nsqx": [b"one", b"two"]}


def test_to_nsq_prints_the_error_of_nsqd(fleet: Fleet) -> None:
    daemon = fleet.nsqd("nsqx", "--max-msg-size=10")
    flags = ("--topic=t", f"--nsqd-tcp-address={daemon.tcp_address}")
    for implementation in BOTH:
        ended = run_utility(implementation, "to_nsq", *flags, stdin=b"0123456789A\n")
        assert ended.code == 1
        assert "E_BAD_MESSAGE PUB message too big 11 > 10" in ended.lines[-1]
    assert consume(daemon, "t") == []


def test_nsq_tail_prints_the_same_messages(fleet: Fleet) -> None:
    daemon = fleet.nsqd("nsqx")
    make_channels(daemon, "t", *BOTH)
    bodies = [b"message %d" % number for number in range(20)]
    publish(daemon, "t", bodies)
    for implementation in BOTH:
        flags = ("--topic=t", f"--channel={implementation}", "--n=12", "--print-topic", "--max-in-flight=50")
        ended = run_utility(implementation, "nsq_tail", *flags, f"--nsqd-tcp-address={daemon.tcp_address}")
        assert ended.code == 0
        assert ended.stdout == b"".join(b"t | %s\n" % body for body in bodies[:12])
        assert ended.lines[:1] == ["Adding consumer for topic: t"]
    # Go's utility does not finish at least the last message. Ours finishes every message that it has printed.
    assert left(daemon, "t", "go") > 8
    assert left(daemon, "t", "nsqx") == 8


def test_nsq_tail_finds_nsqd_and_ends_on_a_signal(fleet: Fleet, tmp_path: Path) -> None:
    lookupd = fleet.nsqlookupd("nsqx")
    daemon = fleet.nsqd("nsqx", f"--lookupd-tcp-address={lookupd.tcp_address}")
    make_channels(daemon, "t", *BOTH)
    wait_until(lambda: b"t" in lookupd.request("GET", "/topics").body, "nsqlookupd knows the topic")
    publish(daemon, "t", [b"hello"])
    for implementation in BOTH:
        flags = ("--topic=t", f"--channel={implementation}", f"--lookupd-http-address={lookupd.http_address}")
        with Running(implementation, "nsq_tail", *flags, log=tmp_path / implementation) as utility:
            wait_finished(daemon, "t", implementation, 1)
            utility.wait_for_log("hello\n")


@pytest.mark.parametrize("by", ["nsqd", "nsqlookupd"])
def test_nsq_stat_prints_the_same_table(fleet: Fleet, by: str) -> None:
    lookupd = fleet.nsqlookupd("nsqx")
    daemons = [fleet.nsqd("nsqx", f"--lookupd-tcp-address={lookupd.tcp_address}") for _ in range(2)]
    for number, daemon in enumerate(daemons):
        make_channels(daemon, "t", "c")
        publish(daemon, "t", [b"m"] * (3 + number))
        wait_depth(daemon, "t", "c", 3 + number)
    wait_until(lambda: len(lookupd_producers(lookupd)) == 2, "nsqlookupd knows both nsqds")
    addresses = [f"--lookupd-http-address={lookupd.http_address}"]
    if by == "nsqd":
        addresses = [f"--nsqd-http-address={daemon.http_address}" for daemon in daemons]
    flags = ("--topic=t", "--channel=c", "--interval=50ms", "--count=26", *addresses)
    go, ours = (run_utility(implementation, "nsq_stat", *flags) for implementation in BOTH)
    assert ours.code == go.code == 0
    assert ours.stdout == go.stdout
    assert ours.stdout.count(b"ingress") == 2
    *_, depth, metadata = ours.stdout.decode().splitlines()[-1].split("|")
    in_memory, on_disk = ("0", "7") if TEST_STORE == "log" else ("7", "0")
    assert (depth.split(), metadata.split()) == (["7", in_memory, on_disk, "0", "0"], ["0", "0", "7", "0"])


def lookupd_producers(lookupd: Daemon) -> list[object]:
    found: list[object] = lookupd.request("GET", "/lookup?topic=t").json()["producers"]
    return found


def test_nsq_stat_prints_the_same_for_an_unknown_channel(fleet: Fleet) -> None:
    daemon = fleet.nsqd("nsqx")
    make_channels(daemon, "t", "c")
    flags = ("--topic=t", "--channel=other", f"--nsqd-http-address={daemon.http_address}")
    go, ours = (run_utility(implementation, "nsq_stat", *flags) for implementation in BOTH)
    assert (ours.code, ours.errors, ours.stdout) == (go.code, go.errors, go.stdout)


FILE_RULES = {
    "plain": ("--filename-format=<TOPIC>.log",),
    "plain without a place for revisions": ("--filename-format=<TOPIC><REV>.log",),
    "directories": ("--filename-format=<TOPIC>/<DATETIME>/<HOST><REV>.log", "--datetime-format=at%%-%Q-%Y"),
    "host identifier": ("--filename-format=<HOST>.log", "--host-identifier=a-<SHORT_HOST>-<HOSTNAME>"),
    "gzip": ("--filename-format=<TOPIC><REV>.log", "--gzip"),
    "gzip of another level": ("--filename-format=<TOPIC><REV>.gz", "--gzip", "--gzip-level=9"),
    "by size": ("--filename-format=<TOPIC><REV>.log", "--rotate-size=20"),
    "gzip by size": ("--filename-format=<TOPIC><REV>.log", "--gzip", "--rotate-size=20"),
    "by time": ("--filename-format=<TOPIC><REV>.log", "--rotate-interval=1h"),
}


def run_nsq_to_file(
    implementation: str, daemon: Daemon, directory: Path, *flags: str, count: int, work_dir: Path | None = None
) -> None:
    """Run nsq_to_file until it has written ``count`` messages. With one in flight, it syncs after each message."""
    directory.mkdir(exist_ok=True)
    options = ["--topic=t", f"--channel={implementation}", f"--output-dir={directory}", "--max-in-flight=1"]
    if work_dir is not None:
        options.append(f"--work-dir={work_dir}")
    source = f"--nsqd-tcp-address={daemon.tcp_address}"
    log = directory.parent / f"{implementation}.log"
    with Running(implementation, "nsq_to_file", *options, *flags, source, log=log):
        wait_finished(daemon, "t", implementation, count)


@pytest.mark.parametrize("rule", FILE_RULES)
def test_nsq_to_file_writes_the_same_files(fleet: Fleet, tmp_path: Path, rule: str) -> None:
    daemon = fleet.nsqd("nsqx")
    make_channels(daemon, "t", *BOTH)
    for run in (1, 2):  # the second run finds the files of the first
        publish(daemon, "t", [b"message %d of run %d" % (number, run) for number in range(5)])
        for implementation in BOTH:
            run_nsq_to_file(implementation, daemon, tmp_path / implementation, *FILE_RULES[rule], count=5 * run)
    assert tree(tmp_path / "nsqx") == tree(tmp_path / "go")
    assert b"message 4 of run 2\n" in everything(tmp_path / "nsqx")


def everything(directory: Path) -> bytes:
    """Return the contents of all files of a directory, in the order of their names."""
    held = tree(directory).values()
    return b"".join(b"".join(each) if isinstance(each, list) else each for each in held)


@pytest.mark.parametrize("compression", [(), ("--gzip",)], ids=["plain", "gzip"])
def test_nsq_to_file_moves_finished_files_from_the_work_dir(
    fleet: Fleet, tmp_path: Path, compression: tuple[str, ...]
) -> None:
    """Files that are being written are in the work directory. A finished file never overwrites an existing one."""
    daemon = fleet.nsqd("nsqx")
    make_channels(daemon, "t", *BOTH)
    publish(daemon, "t", [b"message %d" % number for number in range(8)])
    for implementation in BOTH:
        place = tmp_path / implementation
        name = "t-000000.log.gz" if compression else "t-000000.log"
        (place / "out" / "sub").mkdir(parents=True)
        (place / "out" / "sub" / name).write_bytes(b"")
        flags = ("--filename-format=sub/<TOPIC><REV>.log", "--rotate-size=20", *compression)
        run_nsq_to_file(implementation, daemon, place / "out", *flags, count=8, work_dir=place / "work")
        assert tree(place / "work") == {}
    assert tree(tmp_path / "nsqx" / "out") == tree(tmp_path / "go" / "out")
    assert len(tree(tmp_path / "nsqx" / "out")) == 4


def test_nsq_to_file_does_not_overwrite_a_file_that_was_created_meanwhile(fleet: Fleet, tmp_path: Path) -> None:
    daemon = fleet.nsqd("nsqx")
    make_channels(daemon, "t", *BOTH)
    publish(daemon, "t", [b"message"])
    for implementation in BOTH:
        place = tmp_path / implementation
        (place / "out").mkdir(parents=True)
        flags = ["--topic=t", f"--channel={implementation}", "--filename-format=<TOPIC><REV>.log", "--max-in-flight=1"]
        flags += [f"--output-dir={place / 'out'}", f"--work-dir={place / 'work'}"]
        source = f"--nsqd-tcp-address={daemon.tcp_address}"
        with Running(implementation, "nsq_to_file", *flags, source, log=place / "log"):
            wait_finished(daemon, "t", implementation, 1)
            (place / "out" / "t-000000.log").write_bytes(b"another's")
        assert tree(place / "out") == {"t-000000.log": b"another's", "t-000001.log": b"message\n"}
        assert tree(place / "work") == {}


@pytest.mark.parametrize("compression", [(), ("--gzip",)], ids=["plain", "gzip"])
def test_nsq_to_file_closes_its_file_on_hangup(fleet: Fleet, tmp_path: Path, compression: tuple[str, ...]) -> None:
    daemon = fleet.nsqd("nsqx")
    for implementation in BOTH:
        topic = f"t_{implementation}"
        make_channels(daemon, topic, "c")
        publish(daemon, topic, [b"before"])
        directory = tmp_path / implementation
        directory.mkdir()
        flags = [f"--topic={topic}", "--channel=c", f"--output-dir={directory}", "--max-in-flight=1"]
        flags += ["--filename-format=file<REV>.log", *compression, f"--nsqd-tcp-address={daemon.tcp_address}"]
        with Running(implementation, "nsq_to_file", *flags, log=tmp_path / f"{implementation}.log") as utility:
            wait_finished(daemon, topic, "c", 1)
            before = tree(directory)
            utility.hang_up()
            if compression:
                # Closing ends the current gzip member. The next message starts a new one.
                wait_changed(directory, before)
            else:
                wait_closed(utility.process.pid, directory)
            publish(daemon, topic, [b"after"])
            wait_finished(daemon, topic, "c", 2)
    assert tree(tmp_path / "nsqx") == tree(tmp_path / "go")


def test_nsq_to_file_opens_another_file_after_a_hangup_with_a_work_dir(fleet: Fleet, tmp_path: Path) -> None:
    """Go's utility moves the file and fails at the next message. Ours opens another file."""
    daemon = fleet.nsqd("nsqx")
    for implementation in BOTH:
        topic = f"t_{implementation}"
        make_channels(daemon, topic, "c")
        publish(daemon, topic, [b"before"])
        place = tmp_path / implementation
        place.mkdir()
        flags = [f"--topic={topic}", "--channel=c", f"--output-dir={place / 'out'}", f"--work-dir={place / 'work'}"]
        flags += ["--max-in-flight=1", "--filename-format=file<REV>.log", f"--nsqd-tcp-address={daemon.tcp_address}"]
        exit_code = 1 if implementation == "go" else 0
        with Running(implementation, "nsq_to_file", *flags, log=place / "log", exit_code=exit_code) as utility:
            wait_finished(daemon, topic, "c", 1)
            utility.hang_up()
            wait_changed(place / "out", {})
            publish(daemon, topic, [b"after"])
            if implementation == "go":
                utility.wait()
            else:
                wait_finished(daemon, topic, "c", 2)
    assert tree(tmp_path / "go" / "out") == {"file-000000.log": b"before\n"}
    assert tree(tmp_path / "nsqx" / "out") == {"file-000000.log": b"before\n", "file-000001.log": b"after\n"}


def test_nsq_to_file_expands_date_formats(fleet: Fleet, tmp_path: Path) -> None:
    daemon = fleet.nsqd("nsqx")
    make_channels(daemon, "t", *BOTH)
    flags = ("--filename-format=<DATETIME>", "--datetime-format=%A_%a_%B_%b_%d_%H_%I_%m_%M_%p_%Y_%y_%z_%Z_%%_%q")
    count = 0
    while True:
        minute = datetime.now().minute
        publish(daemon, "t", [b"message"])
        count += 1
        for implementation in BOTH:
            run_nsq_to_file(implementation, daemon, tmp_path / implementation, *flags, count=count)
        if datetime.now().minute == minute:
            break
    assert set(tree(tmp_path / "go")) <= set(tree(tmp_path / "nsqx"))
    assert datetime.now().strftime("%A") in next(iter(tree(tmp_path / "nsqx")))


@pytest.mark.parametrize("skip", [False, True])
def test_nsq_to_file_creates_an_empty_file_unless_they_are_skipped(fleet: Fleet, tmp_path: Path, skip: bool) -> None:
    """Without messages a file is created at the first sync, except with --skip-empty-files."""
    daemon = fleet.nsqd("nsqx")
    make_channels(daemon, "t", *BOTH)
    for implementation in BOTH:
        directory = tmp_path / implementation
        directory.mkdir()
        flags = ["--topic=t", f"--channel={implementation}", f"--output-dir={directory}", "--sync-interval=50ms"]
        flags += ["--filename-format=<TOPIC><REV>.log", "--gzip", f"--nsqd-tcp-address={daemon.tcp_address}"]
        if skip:
            flags.append("--skip-empty-files")
        log = tmp_path / f"{implementation}.log"
        with Running(implementation, "nsq_to_file", *flags, log=log) as utility:
            if skip:
                utility.wait_for_log("connecting to nsqd")
                time.sleep(0.2)  # there is no event to wait for if no file is created
            else:
                utility.wait_for_log("opening")
        assert tree(directory) == ({} if skip else {"t-000000.log.gz": [b""]})


def test_nsq_to_file_finds_the_topics_that_match_a_pattern(fleet: Fleet, tmp_path: Path) -> None:
    lookupd = fleet.nsqlookupd("nsqx")
    daemon = fleet.nsqd("nsqx", f"--lookupd-tcp-address={lookupd.tcp_address}")
    for topic in ("wanted_1", "wanted_2", "other"):
        make_channels(daemon, topic, *BOTH)
        publish(daemon, topic, [topic.encode()])
    wait_until(lambda: len(lookupd.request("GET", "/topics").json()["topics"]) == 3, "nsqlookupd knows the topics")
    for implementation in BOTH:
        directory = tmp_path / implementation
        directory.mkdir()
        flags = ["--topic-pattern=want", f"--channel={implementation}", f"--output-dir={directory}"]
        flags += ["--topic-refresh=100ms", "--filename-format=<TOPIC>", "--max-in-flight=1"]
        source = f"--lookupd-http-address={lookupd.http_address}"
        with Running(implementation, "nsq_to_file", *flags, source, log=tmp_path / f"{implementation}.log") as utility:
            wait_finished(daemon, "wanted_1", implementation, 1)
            wait_finished(daemon, "wanted_2", implementation, 1)
            utility.wait_for_log("skipping topic other (doesn't match pattern want)")
        assert tree(directory) == {"wanted_1": b"wanted_1\n", "wanted_2": b"wanted_2\n"}


def test_nsq_to_file_fails_if_it_cannot_write(fleet: Fleet, tmp_path: Path) -> None:
    """Both utilities exit with status 1 and finish no message."""
    daemon = fleet.nsqd("nsqx")
    make_channels(daemon, "t", *BOTH)
    publish(daemon, "t", [b"message"])
    (tmp_path / "file").write_bytes(b"")
    for implementation in BOTH:
        flags = ("--topic=t", f"--channel={implementation}", f"--output-dir={tmp_path / 'file'}")
        ended = run_utility(implementation, "nsq_to_file", *flags, f"--nsqd-tcp-address={daemon.tcp_address}")
        assert ended.code == 1
        assert re.search(r"FATAL: .*unable to create dir: mkdir .*file/?: (file exists|not a directory)", ended.stderr)
        assert left(daemon, "t", implementation) == 1


HTTP_RULES = {
    "post": ("--post={}/here?x=1",),
    "post with headers": ("--post={}/here", "--content-type=text/plain", "--header=X-One: 1 2", "--header=X-Two:b:c"),
    "get": ("--get={}/here?message=%s",),
    "get with headers": ("--get={}/here/%s", "--header=X-One: 1"),
    "to all": ("--post={}/one", "--post={}/two", "--mode=all"),
    "moved for good": ("--post={}/moved",),
}
BODIES = [b"plain", b"with space & more", b"\xff\x00\x01", "\u00e9\u4e2d~-_.".encode(), b"%s 100%"]


@pytest.mark.parametrize("rule", HTTP_RULES)
def test_nsq_to_http_sends_the_same_requests(fleet: Fleet, tmp_path: Path, rule: str) -> None:
    daemon = fleet.nsqd("nsqx")
    make_channels(daemon, "t", *BOTH)
    publish(daemon, "t", BODIES)
    made = {}
    for implementation in BOTH:
        with http_endpoint({"/moved": (308, {"Location": "/there"})}) as endpoint:
            flags = [flag.format(endpoint.address) for flag in HTTP_RULES[rule]]
            flags += ["--topic=t", f"--channel={implementation}", f"--nsqd-tcp-address={daemon.tcp_address}"]
            with Running(implementation, "nsq_to_http", *flags, log=tmp_path / implementation):
                wait_finished(daemon, "t", implementation, len(BODIES))
        made[implementation] = [without_referer(each) for each in endpoint.essences]
    assert made["nsqx"] == made["go"]
    assert len(made["nsqx"]) >= len(BODIES)


def without_referer(essence: tuple[object, ...]) -> tuple[object, ...]:
    """Remove the Referer header, which Go's HTTP client sends after a redirect."""
    method, target, headers, body = essence
    assert isinstance(headers, list)
    return method, target, [each for each in headers if each[0] != "referer"], body


@pytest.mark.parametrize(("method", "status"), [("post", 500), ("post", 199 + 101), ("get", 201), ("get", 404)])
def test_nsq_to_http_requeues_a_message_that_the_endpoint_refuses(
    fleet: Fleet, tmp_path: Path, method: str, status: int
) -> None:
    daemon = fleet.nsqd("nsqx")
    make_channels(daemon, "t", *BOTH)
    publish(daemon, "t", [b"message"])
    with http_endpoint({"/": (status, {})}) as endpoint:
        for implementation in BOTH:
            url = f"{endpoint.address}/{'?%s' if method == 'get' else ''}"
            flags = [f"--{method}={url}", "--topic=t", f"--channel={implementation}"]
            source = f"--nsqd-tcp-address={daemon.tcp_address}"
            with Running(implementation, "nsq_to_http", *flags, source, log=tmp_path / implementation) as utility:
                wait_requeued(daemon, "t", implementation)
                utility.wait_for_log(f"got status code {status}")
            assert left(daemon, "t", implementation) == 1


def test_nsq_to_http_requeues_if_the_endpoint_is_down(fleet: Fleet, tmp_path: Path) -> None:
    daemon = fleet.nsqd("nsqx")
    make_channels(daemon, "t", *BOTH)
    publish(daemon, "t", [b"message"])
    url = f"http://127.0.0.1:{free_port()}/"
    for implementation in BOTH:
        flags = (f"--post={url}", "--topic=t", f"--channel={implementation}")
        source = f"--nsqd-tcp-address={daemon.tcp_address}"
        with Running(implementation, "nsq_to_http", *flags, source, log=tmp_path / implementation) as utility:
            wait_requeued(daemon, "t", implementation)
            utility.wait_for_log("refused")
        assert left(daemon, "t", implementation) == 1


def test_nsq_to_http_logs_its_status_and_uses_endpoints_in_turn(fleet: Fleet, tmp_path: Path) -> None:
    daemon = fleet.nsqd("nsqx")
    make_channels(daemon, "t", *BOTH)
    publish(daemon, "t", [b"m"] * 11)
    status = re.compile(r"finished 5 - 99th: \d+\.\d\dms - 95th: \d+\.\d\dms - avg: \d+\.\d\dms")
    for implementation in BOTH:
        with http_endpoint() as endpoint:
            flags = [f"--post={endpoint.address}/a", f"--post={endpoint.address}/b", "--topic=t", "--n=1"]
            flags += [f"--channel={implementation}", "--status-every=5", "--mode=round-robin"]
            source = f"--nsqd-tcp-address={daemon.tcp_address}"
            with Running(implementation, "nsq_to_http", *flags, source, log=tmp_path / implementation) as utility:
                wait_finished(daemon, "t", implementation, 11)
                utility.wait_for_log("[aggregate]: finished")
            assert len(status.findall(utility.log)) == 3
            targets = [request.target for request in endpoint.requests]
            assert targets == ["/b", "/a"] * 5 + ["/b"]
            assert utility.log.count("Warning: use more than 100 status values") == 3


def test_nsq_to_http_with_sample_zero_sends_nothing(fleet: Fleet, tmp_path: Path) -> None:
    daemon = fleet.nsqd("nsqx")
    make_channels(daemon, "t", *BOTH)
    publish(daemon, "t", [b"m"] * 10)
    with http_endpoint() as endpoint:
        for implementation in BOTH:
            flags = (f"--post={endpoint.address}/", "--topic=t", f"--channel={implementation}", "--sample=0")
            source = f"--nsqd-tcp-address={daemon.tcp_address}"
            with Running(implementation, "nsq_to_http", *flags, source, log=tmp_path / implementation):
                wait_finished(daemon, "t", implementation, 10)
        assert endpoint.requests == []


JSON_BODIES = [
    b'{"kind":"a","n":1,"other":[1,2.5,{"z":1,"a":2}]}',
    b'{"kind":"b","n":2.0,"big":1e21,"small":1.5e-7,"text":"<&>\\u2028\\ud800"}',
    b'{"kind":3}',
    b'{"kind":3.0,"n":-0.25,"deep":{"b":null,"a":true}}',
    b'{"kind":true}',
    b'{"kind":null}',
    b"null",
    b"[1]",
    b"no json",
    b'{"kind":"\xff"}',
]
NSQ_RULES = {
    "all": (),
    "to another topic": ("--destination-topic=other",),
    "with a field": ("--require-json-field=n",),
    "with a text": ("--require-json-field=kind", "--require-json-value=a"),
    "with a number": ("--require-json-field=kind", "--require-json-value=3"),
    "some fields": ("--whitelist-json-field=n", "--whitelist-json-field=kind", "--whitelist-json-field=other"),
    "strange fields": tuple(f"--whitelist-json-field={name}" for name in ("text", "deep", "big", "small", "none")),
    "in turn": ("--mode=round-robin",),
    "by speed": ("--mode=epsilon-greedy",),
}


@pytest.mark.parametrize("rule", NSQ_RULES)
def test_nsq_to_nsq_publishes_the_same_messages(fleet: Fleet, tmp_path: Path, rule: str) -> None:
    source = fleet.nsqd("nsqx")
    make_channels(source, "t", *BOTH)
    # A message without the field of --require-json-value is requeued forever.
    bodies = [body for body in JSON_BODIES if "value" not in str(NSQ_RULES[rule]) or body != b"null"]
    publish(source, "t", bodies)
    published = {}
    for implementation in BOTH:
        destination = fleet.nsqd("nsqx")
        flags = ["--topic=t", f"--channel={implementation}", f"--nsqd-tcp-address={source.tcp_address}"]
        flags.append(f"--destination-nsqd-tcp-address={destination.tcp_address}")
        with Running(implementation, "nsq_to_nsq", *flags, *NSQ_RULES[rule], log=tmp_path / implementation):
            wait_finished(source, "t", implementation, len(bodies))
        published[implementation] = [sorted(consume(destination, topic)) for topic in ("t", "other")]
    assert published["nsqx"] == published["go"]
    assert any(published["nsqx"])


def test_nsq_to_nsq_requeues_a_message_without_the_required_field(fleet: Fleet, tmp_path: Path) -> None:
    source, destination = fleet.nsqd("nsqx"), fleet.nsqd("nsqx")
    make_channels(source, "t", *BOTH)
    publish(source, "t", [b"{}"])
    for implementation in BOTH:
        flags = ["--topic=t", f"--channel={implementation}", f"--nsqd-tcp-address={source.tcp_address}"]
        flags += ["--require-json-field=f", "--require-json-value=v"]
        flags.append(f"--destination-nsqd-tcp-address={destination.tcp_address}")
        with Running(implementation, "nsq_to_nsq", *flags, log=tmp_path / implementation) as utility:
            wait_requeued(source, "t", implementation)
            utility.wait_for_log("ERROR: missing field to check required value")
        assert left(source, "t", implementation) == 1


def test_nsq_to_nsq_requeues_if_the_destination_is_down(fleet: Fleet, tmp_path: Path) -> None:
    source = fleet.nsqd("nsqx")
    make_channels(source, "t", *BOTH)
    publish(source, "t", [b"message"])
    for implementation in BOTH:
        flags = ["--topic=t", f"--channel={implementation}", f"--nsqd-tcp-address={source.tcp_address}"]
        flags.append(f"--destination-nsqd-tcp-address={NOWHERE}")
        with Running(implementation, "nsq_to_nsq", *flags, log=tmp_path / implementation) as utility:
            wait_requeued(source, "t", implementation)
            utility.wait_for_log("refused")
        assert left(source, "t", implementation) == 1
