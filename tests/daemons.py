"""Real daemon processes for tests: start a daemon, wait until it serves, read its log, stop it.

Owns processes and their data directories. Every listener uses a loopback port that the system chooses. The log line
``TCP: listening on 127.0.0.1:PORT`` names the port and shows that the daemon serves. Go's daemons and those of nsqx are
started in the same way: ``start_nsqd("go")`` and ``start_nsqd("nsqx")``.
"""

import atexit
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlencode

import pytest

IMPLEMENTATIONS = ("go", "nsqx")
GO_PROGRAMS = Path(__file__).resolve().parent.parent / "interop" / "bin"
GO_MISSING = 'Go reference daemons missing: run "make interop" (needs Go)'
# The command line of nsqx, without its command.
NSQX = [sys.executable, "-m", "nsqx.cli.main"]

# The store of the topics of nsqx's nsqd, unless a test decides.
TEST_STORE = os.environ.get("NSQX_TEST_STORE", "")

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0
REQUEST_TIMEOUT_S = 20.0

_LISTENING = re.compile(r"\b(TCP|HTTP|HTTPS): listening on (\S+)")
_running: set["Daemon"] = set()


class DaemonFailed(Exception):
    """A daemon ended or did not serve in time; the text contains its log."""


@dataclass(frozen=True)
class Response:
    """An HTTP response; header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def has_go() -> bool:
    """Return True if Go's programs are built."""
    return (GO_PROGRAMS / "nsqd").exists()


def require_go() -> None:
    """Skip the test if Go's programs are not built."""
    if not has_go():
        pytest.skip(GO_MISSING)


def program_command(implementation: str, program: str) -> list[str]:
    """Return the command line, without flags, of Go's ``program`` or of nsqx's."""
    if implementation == "go":
        require_go()
        return [str(GO_PROGRAMS / program)]
    if implementation == "nsqx":
        return [*NSQX, program]
    raise ValueError(f"unknown implementation {implementation!r}")


def free_port() -> int:
    """Return a loopback port that was free a moment ago, for programs that cannot use port 0."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def random_host() -> str:
    """Return a random loopback address, for programs that need fixed ports."""
    return f"127.{random.randint(1, 254)}.{random.randint(0, 254)}.{random.randint(2, 254)}"


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = 15.0) -> Any:
    """Call ``condition`` until it returns a true value, and return that; raise AssertionError after the timeout."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(0.01)


class Daemon:
    """One daemon process.

    ``listeners`` names the log lines (TCP, HTTP, HTTPS) that must appear before the daemon counts as started.
    """

    def __init__(
        self,
        command: list[str],
        *,
        listeners: tuple[str, ...],
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> None:
        self.command = command
        self.addresses: dict[str, str] = {}
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._log_ended = False
        self._owned_directory: str | None = None
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, **(env or {})},
            cwd=cwd,
        )
        _running.add(self)
        self._log_reader = threading.Thread(target=self._read_log, daemon=True)
        self._log_reader.start()
        try:
            self._wait_for_listeners(listeners)
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def log(self) -> str:
        """The output of the daemon on stderr so far."""
        with self._changed:
            return "".join(self._lines)

    @property
    def tcp_address(self) -> str:
        """``host:port``, or the path of a unix socket."""
        return self.addresses["TCP"]

    @property
    def http_address(self) -> str:
        return self.addresses["HTTP"]

    @property
    def tcp_port(self) -> int:
        return int(self.tcp_address.rpartition(":")[2])

    @property
    def http_port(self) -> int:
        return int(self.http_address.rpartition(":")[2])

    def wait_for_log(self, pattern: str, timeout_s: float = 15.0) -> re.Match[str]:
        """Wait for ``pattern`` in the log and return the first match; raise DaemonFailed after the timeout."""
        regex = re.compile(pattern)
        found: re.Match[str] | None = None

        def seen() -> bool:
            nonlocal found
            found = regex.search("".join(self._lines))
            return found is not None or self._log_ended

        with self._changed:
            self._changed.wait_for(seen, timeout_s)
        if found is None:
            raise DaemonFailed(f"{pattern!r} not in the log of {self.command}:\n{self.log}")
        return found

    def stop(self, signal_number: int = signal.SIGTERM, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Stop the daemon with a signal and return its exit code."""
        if self.running:
            self.process.send_signal(signal_number)
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise DaemonFailed(f"{self.command} did not end within {timeout_s} s:\n{self.log}") from None
        self._release()
        return code

    def kill(self) -> None:
        """Kill the daemon, as in a crash."""
        if self.running:
            self.process.kill()
        self.process.wait()
        self._release()

    def close(self) -> None:
        """Stop the daemon and remove the data directory that was created for it."""
        self.stop()
        if self._owned_directory is not None:
            shutil.rmtree(self._owned_directory, ignore_errors=True)
            self._owned_directory = None

    def owns(self, directory: str) -> Self:
        """Remove ``directory`` when this daemon is closed."""
        self._owned_directory = directory
        return self

    def request(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Response:
        """Send one HTTP request on a new connection; ``query`` is escaped and appended to ``target``."""
        if query:
            target = f"{target}?{urlencode(query, quote_via=quote)}"
        connection = http.client.HTTPConnection(self.http_address, timeout=REQUEST_TIMEOUT_S)
        try:
            connection.request(method, target, body, dict(headers or {}))
            answer = connection.getresponse()
            named = {name.lower(): value for name, value in answer.getheaders()}
            return Response(answer.status, named, answer.read())
        finally:
            connection.close()

    def post(self, target: str, body: bytes | None = None, **query: str) -> Response:
        """Send a POST that must succeed: ``post("/pub", b"hello", topic="t")``."""
        response = self.request("POST", target, body, query=query)
        assert response.status == 200, (target, query, response)
        return response

    def stats(self, **query: str) -> Any:
        """Return /stats as JSON."""
        response = self.request("GET", "/stats", query={"format": "json", **query})
        assert response.status == 200, response
        return response.json()

    def topic_stats(self, topic: str) -> Any:
        """Return the entry of one topic in /stats, or None."""
        found = [entry for entry in self.stats()["topics"] or [] if entry["topic_name"] == topic]
        return found[0] if found else None

    def channel_stats(self, topic: str, channel: str) -> Any:
        """Return the entry of one channel in /stats, or None."""
        entry = self.topic_stats(topic)
        found = [each for each in entry["channels"] if each["channel_name"] == channel] if entry else []
        return found[0] if found else None

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                self._lines.append(line.decode(errors="replace"))
                self._changed.notify_all()
        with self._changed:
            self._log_ended = True
            self._changed.notify_all()

    def _wait_for_listeners(self, wanted: tuple[str, ...]) -> None:
        def settled() -> bool:
            self.addresses = dict(_LISTENING.findall("".join(self._lines)))
            return self._log_ended or all(name in self.addresses for name in wanted)

        with self._changed:
            self._changed.wait_for(settled, START_TIMEOUT_S)
        if any(name not in self.addresses for name in wanted):
            raise DaemonFailed(f"{self.command} does not listen on {wanted}:\n{self.log}")

    def _release(self) -> None:
        self._log_reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        _running.discard(self)


def start_nsqd(
    implementation: str,
    *flags: str,
    data_path: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    program: list[str] | None = None,
) -> Daemon:
    """Start nsqd on free loopback ports, in ``data_path`` or in a directory that is removed when the daemon is closed.

    A flag in ``flags`` replaces the default of this function: ``--http-address=`` starts nsqd without HTTP. ``program``
    is a command line without flags that replaces the usual one.
    """
    directory = str(data_path) if data_path is not None else tempfile.mkdtemp(prefix="nsqd-")
    store = {"store": TEST_STORE} if implementation == "nsqx" and TEST_STORE else {}
    arguments = _with_defaults(
        flags,
        {
            **store,
            "tcp-address": "127.0.0.1:0",
            "http-address": "127.0.0.1:0",
            "https-address": "127.0.0.1:0",
            "broadcast-address": "127.0.0.1",
            "data-path": directory,
        },
    )
    listeners = ["TCP"]
    if "--http-address=" not in arguments:
        listeners.append("HTTP")
    if any(flag.startswith("--tls-cert=") for flag in arguments):
        listeners.append("HTTPS")
    command = [*(program or program_command(implementation, "nsqd")), *arguments]
    try:
        daemon = Daemon(command, listeners=tuple(listeners), env=env)
    except BaseException:
        if data_path is None:
            shutil.rmtree(directory, ignore_errors=True)
        raise
    return daemon if data_path is not None else daemon.owns(directory)


def write_metadata(data_path: str | os.PathLike[str], channels_by_topic: Mapping[str, list[str]]) -> None:
    """Write an nsqd.dat with these topics and channels."""
    topics = [
        {"name": topic, "paused": False, "channels": [{"name": channel, "paused": False} for channel in channels]}
        for topic, channels in channels_by_topic.items()
    ]
    Path(data_path, "nsqd.dat").write_text(json.dumps({"topics": topics, "version": "1.3.0"}))


def start_nsqlookupd(implementation: str, *flags: str, env: Mapping[str, str] | None = None) -> Daemon:
    """Start nsqlookupd on free loopback ports."""
    defaults = {"tcp-address": "127.0.0.1:0", "http-address": "127.0.0.1:0", "broadcast-address": "127.0.0.1"}
    command = [*program_command(implementation, "nsqlookupd"), *_with_defaults(flags, defaults)]
    return Daemon(command, listeners=("TCP", "HTTP"), env=env)


def start_nsqadmin(implementation: str, *flags: str, env: Mapping[str, str] | None = None) -> Daemon:
    """Start nsqadmin on a free loopback port, without a state file; ``flags`` name its nsqlookupds or nsqds."""
    defaults = {"http-address": "127.0.0.1:0"}
    if implementation != "go":
        defaults["state-file"] = "-"
    command = [*program_command(implementation, "nsqadmin"), *_with_defaults(flags, defaults)]
    return Daemon(command, listeners=("HTTP",), env=env)


class Fleet:
    """Starts daemons and stops them together."""

    def __init__(self) -> None:
        self._daemons: list[Daemon] = []

    def nsqd(self, implementation: str, *flags: str, **options: Any) -> Daemon:
        return self._add(start_nsqd(implementation, *flags, **options))

    def nsqlookupd(self, implementation: str, *flags: str, **options: Any) -> Daemon:
        return self._add(start_nsqlookupd(implementation, *flags, **options))

    def nsqadmin(self, implementation: str, *flags: str, **options: Any) -> Daemon:
        return self._add(start_nsqadmin(implementation, *flags, **options))

    def close(self) -> None:
        """Stop every daemon, the last one first; raise the first failure after all are stopped."""
        failures: list[Exception] = []
        while self._daemons:
            try:
                self._daemons.pop().close()
            except DaemonFailed as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    def _add(self, daemon: Daemon) -> Daemon:
        self._daemons.append(daemon)
        return daemon


def _with_defaults(flags: tuple[str, ...], defaults: Mapping[str, str]) -> list[str]:
    given = {flag.lstrip("-").partition("=")[0] for flag in flags}
    return [f"--{name}={value}" for name, value in defaults.items() if name not in given] + list(flags)


@atexit.register
def _kill_leftovers() -> None:
    for daemon in list(_running):
        daemon.kill()
