"""Broker processes: starts one on free ports, measures its CPU time and memory, and kills it.

Knows commands, listeners and processes. ``protocols`` knows how to publish and consume.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import orjson

from nsqx.bench.failure import BenchFailed
from nsqx.bench.protocols import BrokerProtocol, NSQProtocol

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
_VERSION_TIMEOUT_S = 10.0

_LISTENING = re.compile(r"\b(TCP|HTTP): listening on (\S+)")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Usage:
    """The CPU time and memory of a process."""

    cpu_s: float
    memory_bytes: int


def usage_of(pid: int) -> Usage:
    """Return the usage of a process and all others in its session; raises BenchFailed if it has ended."""
    cpu_ticks = resident_pages = 0
    if not Path(f"/proc/{pid}/stat").exists():
        raise BenchFailed(f"cannot measure process {pid}: it does not exist, or there is no /proc")
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # the process has ended
        if path.parent.name == str(pid) or fields[3] == str(pid):
            cpu_ticks += int(fields[11]) + int(fields[12])
            resident_pages += int(fields[21])
    return Usage(cpu_ticks / _TICKS_PER_S, resident_pages * _PAGE_BYTES)


@dataclass(frozen=True, slots=True)
class Target:
    """The addresses, process and protocol of a running broker."""

    tcp_address: str
    http_address: str = ""
    pid: int = 0
    """0 if the process is unknown."""
    knows_topics: bool = False
    """True if the broker was started with the topics and channels of the workload."""
    protocol: BrokerProtocol = field(default_factory=NSQProtocol)

    @property
    def is_nsqd(self) -> bool:
        """True if the broker is an nsqd."""
        return isinstance(self.protocol, NSQProtocol)

    def usage(self) -> Usage | None:
        """Return the usage of the broker's process, or None if it is unknown."""
        return usage_of(self.pid) if self.pid else None


class Launcher(Protocol):
    """A kind of broker that can be started."""

    name: str
    is_nsqd: bool

    def launch(self, flags: Sequence[str], topics: Mapping[str, Sequence[str]]) -> Running:
        """Start a new broker with nsqd's ``flags``, if it supports them, and with channels by topic."""


class Running:
    """A broker process; leaving its ``with`` block kills it and deletes its directory."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        target: Target,
        directory: str,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        """``at_end`` ends helper processes that are not in the session of the process."""
        self.target = target
        self._at_end = at_end
        self._process = process
        self._directory = directory

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        end_process(self._process)
        self._at_end()
        shutil.rmtree(self._directory, ignore_errors=True)


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its session; the data of a benchmark is not needed afterwards."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait(STOP_TIMEOUT_S)


class NSQDLauncher:
    """An nsqd: that of nsqx, or another one with the same flags."""

    is_nsqd = True

    def __init__(self, name: str, command: Sequence[str], data_root: str | None = None) -> None:
        self.name = name
        self._command = list(command)
        self._data_root = data_root

    def launch(self, flags: Sequence[str], topics: Mapping[str, Sequence[str]]) -> Running:
        """Start an nsqd on free loopback ports with a temporary data directory."""
        directory = tempfile.mkdtemp(prefix="nsqx-bench-", dir=self._data_root)
        if topics:
            Path(directory, "nsqd.dat").write_bytes(_metadata(topics))
        arguments = [
            "--tcp-address=127.0.0.1:0",
            "--http-address=127.0.0.1:0",
            "--https-address=127.0.0.1:0",
            "--broadcast-address=127.0.0.1",
            f"--data-path={directory}",
            *flags,
        ]
        log_path = Path(directory, "log")
        allow_many_files()
        try:
            with log_path.open("wb") as log:
                process = subprocess.Popen(
                    [*self._command, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            shutil.rmtree(directory, ignore_errors=True)
            raise BenchFailed(f"cannot run {self._command[0]}: {error.strerror}") from None
        try:
            addresses = _wait_for_listeners(process, log_path, self.name)
        except BaseException:
            end_process(process)
            shutil.rmtree(directory, ignore_errors=True)
            raise
        target = Target(addresses["TCP"], addresses["HTTP"], process.pid, bool(topics))
        return Running(process, target, directory)


def other_nsqd(path: str, data_root: str | None = None) -> Launcher:
    """Return the launcher for the nsqd at ``path``."""
    name = Path(path).name
    return NSQDLauncher("Go nsqd" if name == "nsqd" else name, [path], data_root)


def is_nsqd(path: str) -> bool:
    """Return True if the program at ``path`` calls itself an nsqd when it is asked for its version."""
    try:
        done = subprocess.run(
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.stdout.startswith(b"nsqd v")


def own_nsqd(data_root: str | None = None) -> NSQDLauncher:
    """Return the launcher of nsqx's nsqd."""
    return NSQDLauncher("nsqx", [sys.executable, "-m", "nsqx.cli.main", "nsqd"], data_root)


def _metadata(topics: Mapping[str, Sequence[str]]) -> bytes:
    """Return the content of an nsqd.dat with these channels by topic."""
    rows: list[dict[str, Any]] = [
        {"name": topic, "paused": False, "channels": [{"name": channel, "paused": False} for channel in channels]}
        for topic, channels in topics.items()
    ]
    return orjson.dumps({"topics": rows, "version": "1.3.0"})


def _wait_for_listeners(process: subprocess.Popen[bytes], log_path: Path, name: str) -> dict[str, str]:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        is_over = process.poll() is not None
        text = log_path.read_text(errors="replace")
        addresses = dict(_LISTENING.findall(text))
        if len(addresses) == 2:
            return addresses
        if is_over:
            last = text.strip().splitlines()[-1:] or ["its log is empty"]
            raise BenchFailed(f"{name} did not start: {last[0]}")
        time.sleep(0.01)
    raise BenchFailed(f"{name} did not start to listen within {START_TIMEOUT_S:.0f} s")


def allow_many_files() -> None:
    """Raise the limit of open files of this process and its children to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
