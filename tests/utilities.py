"""Runs the utilities of Go's NSQ and of nsqx: until they end, or for the duration of a block."""

import gzip
import io
import os
import re
import signal
import subprocess
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self

from daemons import Daemon, program_command, wait_until
from rawclient import OK, RawClient

TIMEOUT_S = 40
_DATE = re.compile(r"^(?:\[[^\]]*\] )?\d{4}/\d\d/\d\d \d\d:\d\d:\d\d(?:\.\d+)? ")


@dataclass(frozen=True)
class Ended:
    """A utility that has ended."""

    code: int
    stdout: bytes
    stderr: str

    @property
    def lines(self) -> list[str]:
        """The lines of stderr without their time."""
        return [_DATE.sub("", line) for line in self.stderr.splitlines()]

    @property
    def errors(self) -> list[str]:
        """The lines of stderr that are not informational."""
        return [line for line in self.lines if not line.startswith(("INF ", "INFO:", "Adding consumer"))]


def run_utility(implementation: str, name: str, *flags: str, stdin: bytes = b"", timeout_s: float = TIMEOUT_S) -> Ended:
    """Run a utility until it ends."""
    command = [*program_command(implementation, name), *flags]
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=timeout_s)
    return Ended(done.returncode, done.stdout, done.stderr.decode(errors="replace"))


class Running:
    """A utility that runs until the block ends."""

    def __init__(self, implementation: str, name: str, *flags: str, log: Path, exit_code: int = 0) -> None:
        self._exit_code = exit_code
        self._log_path = log
        self._log = log.open("wb")
        command = [*program_command(implementation, name), *flags]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                assert self.end() == self._exit_code, self.log
        finally:
            self.process.kill()
            self.process.wait()
            self._log.close()

    def end(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Wait until the utility ends by itself, and return the exit code."""
        return self.process.wait(TIMEOUT_S)

    def hang_up(self) -> None:
        self.process.send_signal(signal.SIGHUP)

    @property
    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def wait_for_log(self, text: str) -> None:
        wait_until(lambda: text in self.log or self.process.poll() is not None, f"{text!r} in the log")
        assert text in self.log


def publish(daemon: Daemon, topic: str, bodies: list[bytes]) -> None:
    with RawClient(daemon.tcp_address) as client:
        assert client.mpub(topic, bodies) == OK


def make_channels(daemon: Daemon, topic: str, *channels: str) -> None:
    """Create a topic and its channels, so that each channel gets every message."""
    daemon.post("/topic/create", topic=topic)
    for channel in channels:
        daemon.post("/channel/create", topic=topic, channel=channel)


def is_finished(daemon: Daemon, topic: str, channel: str, count: int) -> bool:
    """Return True if the channel has delivered ``count`` messages and all are finished."""
    entry = daemon.channel_stats(topic, channel)
    return entry is not None and entry["message_count"] == count and left(daemon, topic, channel) == 0


def wait_finished(daemon: Daemon, topic: str, channel: str, count: int) -> None:
    wait_until(lambda: is_finished(daemon, topic, channel, count), f"{count} messages finished on {channel}")


def wait_requeued(daemon: Daemon, topic: str, channel: str, count: int = 1) -> None:
    wait_until(lambda: (daemon.channel_stats(topic, channel) or {}).get("requeue_count") == count, "requeued")


def wait_depth(daemon: Daemon, topic: str, channel: str, count: int) -> None:
    wait_until(lambda: daemon.channel_stats(topic, channel)["depth"] == count, f"{channel} has {count} messages")


def wait_changed(directory: Path, before: dict[str, object]) -> None:
    def has_changed() -> bool:
        try:
            return tree(directory) != before
        except UnfinishedMember:
            return False

    wait_until(has_changed, f"other files in {directory}")


def wait_closed(process_id: int, directory: Path) -> None:
    """Wait until a process has no file of ``directory`` open."""

    def is_closed() -> bool:
        try:
            opened = [os.readlink(link) for link in Path(f"/proc/{process_id}/fd").iterdir()]
        except FileNotFoundError:  # a file was closed during the listing
            return False
        return not any(name.startswith(f"{directory}/") for name in opened)

    wait_until(is_closed, f"no file of {directory} is open")


def left(daemon: Daemon, topic: str, channel: str) -> int:
    """Return how many messages of a channel wait, are in flight, or are deferred."""
    entry = daemon.channel_stats(topic, channel)
    return entry["depth"] + entry["in_flight_count"] + entry["deferred_count"] if entry else 0


def consume(daemon: Daemon, topic: str, channel: str = "consumed") -> list[bytes]:
    """Consume all messages of a topic through a channel and return their bodies."""
    stats = daemon.topic_stats(topic)
    if stats is None:
        return []
    count = stats["message_count"]
    bodies = []
    with RawClient(daemon.tcp_address) as client:
        assert client.sub(topic, channel) == OK
        client.rdy(100)
        for _ in range(count):
            message = client.read_message()
            client.fin(message.id)
            bodies.append(message.body)
    return bodies


class UnfinishedMember(Exception):
    """A gzip file is incomplete."""


def gzip_members(data: bytes) -> list[bytes]:
    """Return the content of each member of a gzip file."""
    members = []
    while data:
        decoder = zlib.decompressobj(zlib.MAX_WBITS | 16)
        members.append(decoder.decompress(data) + decoder.flush())
        if not decoder.eof:
            raise UnfinishedMember("the last member is incomplete")
        data = decoder.unused_data
    return members


def tree(directory: Path) -> dict[str, object]:
    """Return the content of every file below a directory by name; of compressed files a list of members."""
    return {
        str(path.relative_to(directory)): gzip_members(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def unzip(data: bytes) -> bytes:
    return gzip.GzipFile(fileobj=io.BytesIO(data)).read()


@dataclass(frozen=True)
class Request:
    """A received HTTP request."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def essence(self) -> tuple[object, ...]:
        """The parts of a request that do not depend on the client."""
        ignored = ("host", "connection")
        headers = {name: value for name, value in self.headers.items() if name not in ignored}
        return self.method, self.target, sorted(headers.items()), self.body


@dataclass
class Endpoint:
    """An HTTP server that keeps every request; ``answers`` has the status and headers by path, by default 200."""

    address: str = ""
    requests: list[Request] = field(default_factory=list)
    answers: dict[str, tuple[int, dict[str, str]]] = field(default_factory=dict)

    @property
    def essences(self) -> list[tuple[object, ...]]:
        return sorted((request.essence for request in self.requests), key=repr)


@contextmanager
def http_endpoint(answers: dict[str, tuple[int, dict[str, str]]] | None = None) -> Iterator[Endpoint]:
    endpoint = Endpoint(answers=answers or {})

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            endpoint.requests.append(Request(self.command, self.path, headers, body))
            status, extra = endpoint.answers.get(self.path.partition("?")[0], (200, {}))
            self.send_response(status)
            for name, value in {"Content-Length": "0", **extra}.items():
                self.send_header(name, value)
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    endpoint.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield endpoint
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
