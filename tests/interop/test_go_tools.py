"""Go's utilities, built by `make interop`, against both implementations of nsqd."""

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from daemons import TEST_STORE, Daemon, Fleet, program_command, wait_until
from rawclient import OK, RawClient

TOOL_TIMEOUT_S = 40
BODIES = [b"message %03d" % number for number in range(100)]


def test_to_nsq_publishes_each_line(implementation: str, fleet: Fleet) -> None:
    daemon = fleet.nsqd(implementation)
    text = b"\n".join(BODIES[:50]) + b"\n\n" + b"\n".join(BODIES[50:]) + b"\n"
    run_tool("to_nsq", "--topic=t", f"--nsqd-tcp-address={daemon.tcp_address}", input_bytes=text)
    assert sorted(consume(daemon, "t", len(BODIES))) == BODIES


def test_to_nsq_publishes_to_two_nsqds_with_another_delimiter(implementation: str, fleet: Fleet) -> None:
    daemons = [fleet.nsqd(implementation), fleet.nsqd(implementation)]
    addresses = [f"--nsqd-tcp-address={daemon.tcp_address}" for daemon in daemons]
    run_tool("to_nsq", "--topic=t", "--delimiter=,", *addresses, input_bytes=b"a,b\nc,")
    for daemon in daemons:
        assert sorted(consume(daemon, "t", 2)) == [b"a", b"b\nc"]


def test_nsq_tail_prints_every_message(implementation: str, fleet: Fleet) -> None:
    daemon = fleet.nsqd(implementation)
    publish(daemon, "t", BODIES)
    flags = [
        "--topic=t",
        "--channel=ch",
        f"--n={len(BODIES)}",
        "--print-topic",
        f"--nsqd-tcp-address={daemon.tcp_address}",
    ]
    output = run_tool("nsq_tail", *flags)
    assert sorted(output.splitlines()) == [b"t | " + body for body in BODIES]


def test_nsq_tail_without_a_channel_uses_an_ephemeral_one(implementation: str, fleet: Fleet) -> None:
    """The channel is deleted when the utility disconnects."""
    daemon = fleet.nsqd(implementation)
    publish(daemon, "t", BODIES[:1])
    assert run_tool("nsq_tail", "--topic=t", "--n=1", f"--nsqd-tcp-address={daemon.tcp_address}") == BODIES[0] + b"\n"
    wait_until(lambda: daemon.topic_stats("t")["channels"] == [], "the ephemeral channel is deleted")


def test_nsq_to_file_writes_every_message(implementation: str, fleet: Fleet, tmp_path: Path) -> None:
    daemon = fleet.nsqd(implementation)
    publish(daemon, "t", BODIES)
    flags = ["--topic=t", "--channel=ch", f"--output-dir={tmp_path}", "--filename-format=<TOPIC>.log"]
    flags.append("--sync-interval=100ms")
    with running_tool("nsq_to_file", *flags, f"--nsqd-tcp-address={daemon.tcp_address}", log=tmp_path / "tool"):
        wait_until(lambda: is_finished(daemon, "t", "ch", len(BODIES)), "every message is written")
    assert sorted((tmp_path / "t.log").read_bytes().splitlines()) == BODIES


def test_nsq_stat_prints_the_counts_of_a_channel(implementation: str, fleet: Fleet) -> None:
    daemon = fleet.nsqd(implementation)
    publish(daemon, "t", BODIES[:8])
    with RawClient(daemon.tcp_address) as client:
        assert client.sub("t", "ch") == OK
        client.rdy(3)
        held = [client.read_message() for _ in range(3)]
        client.rdy(0)
        client.req(held[0].id, 50_000)
        client.fin(held[1].id)
        wait_until(
            lambda: places(daemon, "t", "ch") == (5, 1, 1), "five messages wait, one is in flight, one is deferred"
        )
        flags = ["--topic=t", "--channel=ch", "--interval=100ms", "--count=1"]
        output = run_tool("nsq_stat", *flags, f"--nsqd-http-address={daemon.http_address}")
    depth, metadata = [column.split() for column in output.decode().splitlines()[-1].split("|")][1:]
    total, memory, disk, in_flight, deferred = map(int, depth)
    is_log = implementation == "nsqx" and TEST_STORE == "log"
    assert (total, memory, disk, in_flight, deferred) == (5, 0 if is_log else 5, 5 if is_log else 0, 1, 1)
    requeued, timed_out, messages, clients = map(int, metadata)
    assert (requeued, timed_out, messages, clients) == (1, 0, 8, 1)


def test_nsq_to_nsq_copies_every_message(implementation: str, fleet: Fleet, tmp_path: Path) -> None:
    source, destination = fleet.nsqd(implementation), fleet.nsqd(implementation)
    publish(source, "from", BODIES)
    flags = ["--topic=from", "--channel=ch", f"--nsqd-tcp-address={source.tcp_address}", "--destination-topic=to"]
    flags.append(f"--destination-nsqd-tcp-address={destination.tcp_address}")
    with running_tool("nsq_to_nsq", *flags, log=tmp_path / "tool"):
        wait_until(lambda: is_finished(source, "from", "ch", len(BODIES)), "every message is copied")
    assert sorted(consume(destination, "to", len(BODIES))) == BODIES


def test_nsq_to_http_posts_every_message(implementation: str, fleet: Fleet, tmp_path: Path) -> None:
    daemon = fleet.nsqd(implementation)
    publish(daemon, "t", BODIES)
    with collecting_http() as (url, bodies):
        flags = ["--topic=t", "--channel=ch", "--n=4", f"--post={url}", f"--nsqd-tcp-address={daemon.tcp_address}"]
        with running_tool("nsq_to_http", *flags, log=tmp_path / "tool"):
            wait_until(lambda: is_finished(daemon, "t", "ch", len(BODIES)), "every message is posted")
    assert sorted(bodies) == BODIES


def test_nsq_to_http_requeues_a_message_after_status_500(implementation: str, fleet: Fleet, tmp_path: Path) -> None:
    daemon = fleet.nsqd(implementation)
    publish(daemon, "t", BODIES[:1])
    with collecting_http(status=500) as (url, bodies):
        flags = ["--topic=t", "--channel=ch", "--n=4", f"--post={url}", f"--nsqd-tcp-address={daemon.tcp_address}"]
        with running_tool("nsq_to_http", *flags, log=tmp_path / "tool"):
            wait_until(lambda: requeues(daemon, "t", "ch") == 1, "the message is requeued")
    assert bodies == BODIES[:1]
    assert sum(places(daemon, "t", "ch")) == 1


def publish(daemon: Daemon, topic: str, bodies: list[bytes]) -> None:
    with RawClient(daemon.tcp_address) as client:
        assert client.mpub(topic, bodies) == OK


def consume(daemon: Daemon, topic: str, count: int) -> list[bytes]:
    """Consume ``count`` messages from a new channel. The topic must not have more."""
    bodies = []
    with RawClient(daemon.tcp_address) as client:
        assert client.sub(topic, "consumed") == OK
        client.rdy(100)
        for _ in range(count):
            message = client.read_message()
            client.fin(message.id)
            bodies.append(message.body)
    assert daemon.topic_stats(topic)["message_count"] == count
    return bodies


def is_finished(daemon: Daemon, topic: str, channel: str, count: int) -> bool:
    entry = daemon.channel_stats(topic, channel)
    return entry is not None and entry["message_count"] == count and sum(places(daemon, topic, channel)) == 0


def places(daemon: Daemon, topic: str, channel: str) -> tuple[int, int, int]:
    """Return how many messages of a channel wait, are in flight and are deferred."""
    entry = daemon.channel_stats(topic, channel)
    return entry["depth"], entry["in_flight_count"], entry["deferred_count"]


def requeues(daemon: Daemon, topic: str, channel: str) -> int:
    entry = daemon.channel_stats(topic, channel)
    return entry["requeue_count"] if entry else 0


def run_tool(name: str, *flags: str, input_bytes: bytes = b"") -> bytes:
    """Run a utility until it exits with status 0. Return its stdout."""
    command = [*program_command("go", name), *flags]
    done = subprocess.run(command, input=input_bytes, capture_output=True, timeout=TOOL_TIMEOUT_S)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


@contextmanager
def running_tool(name: str, *flags: str, log: Path) -> Iterator[None]:
    """Run a utility until the block ends. It must then exit with status 0."""
    command = [*program_command("go", name), *flags]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            yield
            process.terminate()
            assert process.wait(TOOL_TIMEOUT_S) == 0, log.read_text()
        except AssertionError as failure:
            raise AssertionError(f"{failure}\n{log.read_text()}") from failure
        finally:
            process.kill()


@contextmanager
def collecting_http(status: int = 200) -> Iterator[tuple[str, list[bytes]]]:
    """Serve HTTP and collect the body of every POST. Yield the URL and the list of bodies."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", bodies
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
