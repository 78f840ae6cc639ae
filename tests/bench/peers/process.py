"""Starts another broker on a free port and waits until it answers."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nsqx.bench.brokers import START_TIMEOUT_S, Running, Target, end_process
from nsqx.bench.failure import BenchFailed
from nsqx.bench.protocols import BrokerProtocol, connect


@dataclass(frozen=True, slots=True)
class PeerPlace:
    """The port and the directory of a peer."""

    port: int
    directory: str

    @property
    def address(self) -> str:
        """The address of the peer."""
        return f"127.0.0.1:{self.port}"


def free_port() -> int:
    """Return a loopback port that was free at the time of the call."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class PeerLauncher:
    """A broker other than nsqd; its command line determines port and directory."""

    is_nsqd = False

    def __init__(
        self,
        name: str,
        make_command: Callable[[PeerPlace], Sequence[str]],
        protocol: BrokerProtocol,
        data_root: str | None = None,
    ) -> None:
        self.name = name
        self.make_command = make_command
        self._protocol = protocol
        self._data_root = data_root

    def launch(self, flags: Sequence[str], topics: Mapping[str, Sequence[str]]) -> Running:  # noqa: ARG002
        """Start a new broker."""
        return start_peer(self.name, self.make_command, self._protocol, self._data_root)


def start_peer(
    name: str,
    make_command: Callable[[PeerPlace], Sequence[str]],
    protocol: BrokerProtocol,
    data_root: str | None,
    environment: Callable[[PeerPlace], Mapping[str, str]] = lambda _: {},
    at_end: Callable[[], None] = lambda: None,
) -> Running:
    """Start a peer in a temporary directory; raises BenchFailed."""
    place = PeerPlace(free_port(), tempfile.mkdtemp(prefix="nsqx-bench-", dir=data_root))
    log_path = Path(place.directory, "log")
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            make_command(place),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=place.directory,
            start_new_session=True,
            env={**os.environ, **environment(place)},
        )
    try:
        _wait_until_it_answers(name, process, place, protocol)
    except BaseException:
        end_process(process)
        at_end()
        shutil.rmtree(place.directory, ignore_errors=True)
        raise
    return Running(process, Target(place.address, "", process.pid, False, protocol), place.directory, at_end)


def _wait_until_it_answers(
    name: str, process: subprocess.Popen[bytes], place: PeerPlace, protocol: BrokerProtocol
) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline_s:
        try:
            with connect(place.address) as link:
                protocol.publisher("bench_start", [b"x"]).greet(link)
            return
        except (BenchFailed, OSError):
            time.sleep(0.05)
    raise BenchFailed(f"{name} did not start within {START_TIMEOUT_S:.0f} s")
