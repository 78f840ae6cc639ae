"""The utilities as processes, while their input, output, nsqd or destination fails."""

import os
import pty
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from daemons import Daemon, Fleet, free_port, program_command, wait_until
from rawclient import OK, RawClient
from utilities import (
    TIMEOUT_S,
    Running,
    consume,
    http_endpoint,
    left,
    make_channels,
    publish,
    run_utility,
    tree,
    wait_finished,
    wait_requeued,
)


def source(daemon: Daemon) -> str:
    return f"--nsqd-tcp-address={daemon.tcp_address}"


def test_to_nsq_publishes_everything_once_and_in_order(fleet: Fleet) -> None:
    daemon = fleet.nsqd("nsqx")
    lines = [b"%d" % number for number in range(9_000)]  # all fit into the memory queue, which keeps the order
    ended = run_utility("nsqx", "to_nsq", "--topic=t", source(daemon), stdin=b"\n".join(lines))
    assert (ended.code, ended.stderr) == (0, "")
    assert consume(daemon, "t") == lines


def test_to_nsq_reports_how_many_messages_it_has_published(fleet: Fleet) -> None:
    daemon = fleet.nsqd("nsqx", "--max-msg-size=5")
    ended = run_utility("nsqx", "to_nsq", "--topic=t", source(daemon), stdin=b"good\nalso\nmuch too big\nlast\n")
    assert ended.code == 1
    [line] = ended.lines
    assert "E_BAD_MESSAGE PUB message too big 12 > 5 (2 messages were published)" in line
    assert sorted(consume(daemon, "t")) == [b"also", b"good"]


def test_a_signal_ends_to_nsq_while_it_reads(fleet: Fleet) -> None:
    daemon = fleet.nsqd("nsqx")
    command = [*program_command("nsqx", "to_nsq"), "--topic=t", source(daemon)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b"first\nhalf")
        process.stdin.flush()
        wait_until(lambda: daemon.topic_stats("t"), "the first message is published")
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0
    assert consume(daemon, "t") == [b"first"]


def test_nsq_tail_requeues_its_messages_if_its_output_is_closed(fleet: Fleet) -> None:
    daemon = fleet.nsqd("nsqx")
    make_channels(daemon, "t", "c")
    publish(daemon, "t", [b"x" * 1000] * 2000)
    command = [*program_command("nsqx", "nsq_tail"), "--topic=t", "--channel=c", source(daemon)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        shown = process.stdout.read(1001)
        process.stdout.close()
        assert process.wait(TIMEOUT_S) == -signal.SIGPIPE
    assert shown == b"x" * 1000 + b"\n"
    entry = daemon.channel_stats("t", "c")
    assert entry["in_flight_count"] == entry["deferred_count"] == 0
    assert entry["depth"] > 0


def test_nsq_tail_fails_on_a_full_disk_and_finishes_nothing(fleet: Fleet) -> None:
    daemon = fleet.nsqd("nsqx")
    make_channels(daemon, "t", "c")
    publish(daemon, "t", [b"message"])
    command = [*program_command("nsqx", "nsq_tail"), "--topic=t", "--channel=c", source(daemon)]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=TIMEOUT_S)
    assert done.returncode == 1
    assert done.stderr.endswith(b"ERROR: failed to write to os.Stdout - write /dev/stdout: no space left on device\n")
    assert left(daemon, "t", "c") == 1


def test_nsq_tail_counts_the_messages_of_all_topics_and_nsqds(fleet: Fleet) -> None:
    daemons = [fleet.nsqd("nsqx"), fleet.nsqd("nsqx")]
    for daemon in daemons:
        for topic in ("a", "b"):
            make_channels(daemon, topic, "c")
            publish(daemon, topic, [b"message"] * 5)
    flags = ("--topic=a", "--topic=b", "--channel=c", "--n=13", *map(source, daemons))
    ended = run_utility("nsqx", "nsq_tail", *flags)
    assert (ended.code, ended.stdout) == (0, b"message\n" * 13)
    assert sum(left(daemon, topic, "c") for daemon in daemons for topic in ("a", "b")) == 7


def test_nsq_tail_fails_if_one_of_its_nsqds_is_down(fleet: Fleet) -> None:
    daemon = fleet.nsqd("nsqx")
    make_channels(daemon, "t", "c")
    publish(daemon, "t", [b"message"])
    nowhere = f"127.0.0.1:{free_port()}"
    flags = ("--topic=t", "--channel=c", source(daemon), f"--nsqd-tcp-address={nowhere}")
    ended = run_utility("nsqx", "nsq_tail", *flags)
    assert ended.code == 1
    assert ended.errors == [f"cannot consume from nsqd dial tcp {nowhere}: connect: connection refused"]
    assert left(daemon, "t", "c") == 1


def test_nsq_to_file_fails_on_a_full_disk_and_finishes_nothing(fleet: Fleet, tmp_path: Path) -> None:
    daemon = fleet.nsqd("nsqx")
    make_channels(daemon, "t", "c")
    publish(daemon, "t", [b"message %d" % number for number in range(10)])
    (tmp_path / "t.log").symlink_to("/dev/full")
    flags = ("--topic=t", "--channel=c", f"--output-dir={tmp_path}", "--filename-format=<TOPIC>.log")
    ended = run_utility("nsqx", "nsq_to_file", *flags, source(daemon))
    assert ended.code == 1
    assert ended.errors[-1].startswith("FATAL: [t/c] writing message to disk: write")
    assert ended.errors[-1].endswith("no space left on device")
    assert left(daemon, "t", "c") == 10


def test_nsq_to_file_ends_if_one_topic_cannot_be_written(fleet: Fleet, tmp_path: Path) -> None:
    daemon = fleet.nsqd("nsqx")
    for topic in ("a", "b"):
        make_channels(daemon, topic, "c")
    (tmp_path / "b").write_bytes(b"a file where a directory should be")
    flags = ("--topic=a", "--topic=b", "--channel=c", f"--output-dir={tmp_path}", "--filename-format=<TOPIC>/x.log")
    log = tmp_path.parent / "log"
    with Running("nsqx", "nsq_to_file", *flags, "--max-in-flight=1", source(daemon), log=log, exit_code=1) as utility:
        publish(daemon, "a", [b"good"])
        wait_finished(daemon, "a", "c", 1)
        publish(daemon, "b", [b"bad"])
        utility.wait()
    assert (tmp_path / "a" / "x.log").read_bytes() == b"good\n"
    assert left(daemon, "b", "c") == 1


def test_nsq_to_file_writes_every_message_across_a_restart_of_nsqd(fleet: Fleet, tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    port = free_port()
    daemon = fleet.nsqd("nsqx", f"--tcp-address=127.0.0.1:{port}", data_path=data)
    make_channels(daemon, "t", "c")
    flags = ("--topic=t", "--channel=c", f"--output-dir={out}", "--filename-format=<TOPIC><REV>.log", "--gzip")
    with Running("nsqx", "nsq_to_file", *flags, "--sync-interval=100ms", source(daemon), log=tmp_path / "log"):
        publish(daemon, "t", [b"%d" % number for number in range(500)])
        wait_finished(daemon, "t", "c", 500)
        daemon.stop()
        daemon = fleet.nsqd("nsqx", f"--tcp-address=127.0.0.1:{port}", data_path=data)
        publish(daemon, "t", [b"%d" % number for number in range(500, 1000)])
        wait_until(lambda: left(daemon, "t", "c") == 0 and daemon.channel_stats("t", "c"), "every message is written")
    [members] = tree(out).values()
    assert isinstance(members, list)
    assert set(b"".join(members).split()) == {b"%d" % number for number in range(1000)}


def test_nsq_to_http_gives_up_a_refused_message_and_logs_it(fleet: Fleet, tmp_path: Path) -> None:
    daemon = fleet.nsqd("nsqx")
    make_channels(daemon, "t", "c")
    publish(daemon, "t", [b"bad"])
    with http_endpoint({"/": (400, {})}) as endpoint:
        options = ("--consumer-opt=default_requeue_delay,0", "--consumer-opt=max_backoff_duration,0")
        flags = ("--topic=t", "--channel=c", f"--post={endpoint.address}/", *options, source(daemon))
        with Running("nsqx", "nsq_to_http", *flags, log=tmp_path / "log") as utility:
            wait_finished(daemon, "t", "c", 1)
            utility.wait_for_log("attempted 5 times, giving up")
        assert len(endpoint.requests) == 5


@pytest.mark.parametrize("status", [503, 0], ids=["overloaded", "closed"])
def test_nsq_to_http_gives_up_no_message_while_the_endpoint_is_unavailable(
    fleet: Fleet, tmp_path: Path, status: int
) -> None:
    daemon = fleet.nsqd("nsqx")
    make_channels(daemon, "t", "c")
    publish(daemon, "t", [b"message"])
    options = ("--consumer-opt=default_requeue_delay,0", "--consumer-opt=max_backoff_duration,0")
    with http_endpoint({"/": (status, {})}) as endpoint:
        address = f"{endpoint.address}/" if status else f"http://127.0.0.1:{free_port()}/"
        flags = ("--topic=t", "--channel=c", f"--post={address}", *options, source(daemon))
        with Running("nsqx", "nsq_to_http", *flags, log=tmp_path / "log"):
            wait_until(
                lambda: daemon.channel_stats("t", "c")["requeue_count"] >= 10, "the message was requeued ten times"
            )
            assert left(daemon, "t", "c") == 1
            if status:
                endpoint.answers.clear()
                wait_finished(daemon, "t", "c", 1)


def test_nsq_to_http_does_not_follow_a_redirect_that_drops_the_body(fleet: Fleet, tmp_path: Path) -> None:
    daemon = fleet.nsqd("nsqx")
    make_channels(daemon, "t", "c")
    publish(daemon, "t", [b"message"])
    with http_endpoint({"/": (302, {"Location": "/there"})}) as endpoint:
        flags = ("--topic=t", "--channel=c", f"--post={endpoint.address}/", source(daemon))
        with Running("nsqx", "nsq_to_http", *flags, log=tmp_path / "log") as utility:
            wait_requeued(daemon, "t", "c")
            utility.wait_for_log("got status code 302")
        assert [request.target for request in endpoint.requests] == ["/"]
        assert left(daemon, "t", "c") == 1


def test_nsq_to_http_reuses_its_connections(fleet: Fleet, tmp_path: Path) -> None:
    """The server closes each connection after its third request."""
    daemon = fleet.nsqd("nsqx")
    make_channels(daemon, "t", "c")
    bodies = [b"message %d" % number for number in range(60)]
    publish(daemon, "t", bodies)
    with closing_server(requests_per_connection=3) as (url, received, connection_counts):
        flags = ("--topic=t", "--channel=c", "--n=2", f"--post={url}", source(daemon))
        with Running("nsqx", "nsq_to_http", *flags, log=tmp_path / "log"):
            wait_finished(daemon, "t", "c", len(bodies))
    assert sorted(received) == sorted(bodies)
    assert 60 / 3 <= sum(connection_counts) <= 60 / 2
    assert daemon.channel_stats("t", "c")["requeue_count"] == 0


class closing_server:  # noqa: N801
    """An HTTP server that closes each connection after some requests, without a ``Connection: close`` header."""

    def __init__(self, requests_per_connection: int) -> None:
        self._limit = requests_per_connection
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._received: list[bytes] = []
        self._connections: list[int] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> tuple[str, list[bytes], list[int]]:
        self._thread.start()
        port = self._listener.getsockname()[1]
        return f"http://127.0.0.1:{port}/", self._received, self._connections

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(1)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            for _ in range(self._limit):
                length = 0
                while (line := stream.readline().strip()) != b"":
                    name, _, value = line.partition(b":")
                    if name.lower() == b"content-length":
                        length = int(value)
                if not length:
                    return
                self._received.append(stream.read(length))
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK")


def test_nsq_to_nsq_uses_the_other_destination_if_one_fails(fleet: Fleet, tmp_path: Path) -> None:
    origin, here, there = fleet.nsqd("nsqx"), fleet.nsqd("nsqx"), fleet.nsqd("nsqx")
    make_channels(origin, "t", "c")
    options = ("--consumer-opt=default_requeue_delay,0", "--consumer-opt=max_backoff_duration,0")
    destinations = [f"--destination-nsqd-tcp-address={each.tcp_address}" for each in (here, there)]
    flags = ("--topic=t", "--channel=c", *options, *destinations, source(origin))
    with Running("nsqx", "nsq_to_nsq", *flags, log=tmp_path / "log"):
        publish(origin, "t", [b"a%d" % number for number in range(50)])
        wait_finished(origin, "t", "c", 50)
        kept = consume(there, "t")
        assert 0 < len(kept) < 50
        there.kill()
        publish(origin, "t", [b"b%d" % number for number in range(50)])
        wait_finished(origin, "t", "c", 100)
    arrived = set(consume(here, "t")) | set(kept)
    assert arrived == {b"%s%d" % (letter, number) for letter in (b"a", b"b") for number in range(50)}


def test_nsq_to_nsq_gives_up_a_message_that_the_destination_refuses(fleet: Fleet, tmp_path: Path) -> None:
    origin, small = fleet.nsqd("nsqx"), fleet.nsqd("nsqx", "--max-msg-size=10")
    make_channels(origin, "t", "c")
    publish(origin, "t", [b"much too big for it", b"small"])
    options = ("--consumer-opt=default_requeue_delay,0", "--consumer-opt=max_backoff_duration,0")
    destination = f"--destination-nsqd-tcp-address={small.tcp_address}"
    flags = ("--topic=t", "--channel=c", *options, destination, source(origin))
    with Running("nsqx", "nsq_to_nsq", *flags, log=tmp_path / "log") as utility:
        wait_finished(origin, "t", "c", 2)
        utility.wait_for_log("E_BAD_MESSAGE PUB message too big 19 > 10; message")
        utility.wait_for_log("attempted 5 times, giving up")
    assert consume(small, "t") == [b"small"]


def test_progress_is_shown_on_a_terminal(fleet: Fleet) -> None:
    daemon = fleet.nsqd("nsqx")
    text = run_on_terminal([*program_command("nsqx", "to_nsq"), "--topic=t", "--rate=1000", source(daemon)], b"a\nb\n")
    assert "Throttling messages rate to max:1000/second" in text
    assert "2 messages published, " in text
    assert sorted(consume(daemon, "t")) == [b"a", b"b"]


def run_on_terminal(command: list[str], stdin: bytes) -> str:
    """Run a program whose stderr is a terminal. Return its output on the terminal."""
    master, terminal = pty.openpty()
    try:
        done = subprocess.run(command, input=stdin, stdout=subprocess.DEVNULL, stderr=terminal, timeout=TIMEOUT_S)
    finally:
        os.close(terminal)
    shown = b""
    try:
        while piece := os.read(master, 4096):
            shown += piece
    except OSError:  # the other end of the terminal is closed
        pass
    finally:
        os.close(master)
    assert done.returncode == 0, shown
    return shown.decode()


def test_client_options_are_sent_to_nsqd(fleet: Fleet, tmp_path: Path) -> None:
    daemon = fleet.nsqd("nsqx")
    make_channels(daemon, "t", "c")
    flags = ("--topic=t", "--channel=c", "--consumer-opt=client_id,me", "--consumer-opt=sample-rate,50")
    with Running("nsqx", "nsq_tail", *flags, "--consumer-opt=snappy", source(daemon), log=tmp_path / "log"):
        wait_until(lambda: daemon.channel_stats("t", "c")["clients"], "nsq_tail has subscribed")
        [client] = daemon.channel_stats("t", "c")["clients"]
    assert (client["client_id"], client["sample_rate"], client["snappy"]) == ("me", 50, True)
    assert client["user_agent"].startswith("nsq_tail/1.3.0 nsqx/")


def test_nsq_stat_prints_messages_in_flight_and_deferred(fleet: Fleet) -> None:
    daemon = fleet.nsqd("nsqx", "--store=classic")
    make_channels(daemon, "t", "c")
    publish(daemon, "t", [b"m"] * 8)
    with RawClient(daemon.tcp_address) as client:
        assert client.sub("t", "c") == OK
        client.rdy(2)
        held = [client.read_message() for _ in range(2)]
        client.rdy(0)
        client.req(held[0].id, 50_000)
        wait_requeued(daemon, "t", "c")
        flags = ("--topic=t", "--channel=c", "--count=1", "--interval=10ms")
        ended = run_utility("nsqx", "nsq_stat", *flags, f"--nsqd-http-address={daemon.http_address}")
    assert [column.split() for column in ended.stdout.decode().splitlines()[-1].split("|")] == [
        ["0", "0"],
        ["6", "6", "0", "1", "1"],
        ["1", "0", "8", "1"],
    ]
