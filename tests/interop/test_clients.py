"""Third-party clients with Go's nsqd and ours: each publishes, consumes, requeues and touches.

Each client runs in its own process, because each has its own event loop.
"""

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from clients.workload import EVERYTHING, REQUEUED

from daemons import Daemon, Fleet, wait_until, write_metadata

HERE = Path(__file__).parent
CLIENT_TIMEOUT_S = 40
PYTHON_CLIENTS = {"pynsq": "nsq", "gnsq": "gnsq", "ansq": "ansq"}


def python_client(package: str) -> list[str]:
    """Return the command of a client from PyPI."""
    if importlib.util.find_spec(PYTHON_CLIENTS[package]) is None:
        pytest.skip(f'{package} missing: pip install "nsqx[peers]"')
    return [sys.executable, str(HERE / "clients" / f"with_{package}.py")]


def node_client() -> list[str]:
    """Return the command of the client from npm."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node missing: install Node.js")
    if not (HERE / "nsqjs" / "node_modules" / "nsqjs").exists():
        pytest.skip('nsqjs missing: run "make interop" (needs npm)')
    return [node, str(HERE / "nsqjs" / "client.js")]


@pytest.mark.parametrize(
    ("client", "option"),
    [
        ("pynsq", None),
        ("gnsq", None),
        ("gnsq", "deflate"),
        ("ansq", None),
        ("nsqjs", None),
        ("nsqjs", "deflate"),
        ("nsqjs", "snappy"),
    ],
)
def test_a_client_publishes_and_consumes_every_message(
    client: str, option: str | None, implementation: str, fleet: Fleet, tmp_path: Path
) -> None:
    program = node_client() if client == "nsqjs" else python_client(client)
    write_metadata(tmp_path, {"work": ["ch"]})
    daemon = fleet.nsqd(implementation, data_path=tmp_path)
    command = [*program, daemon.tcp_address, "work", "ch", *filter(None, [option])]
    with client_report(command, tmp_path / "client.log") as report:
        assert report["finished"] == sorted(body.decode() for body in EVERYTHING)
        expected = {body.decode(): [1, 2] if body == REQUEUED else [1] for body in EVERYTHING}
        assert report["attempts"] == expected
        wait_until(lambda: left_over(daemon) == 0, "every message is finished")
    wait_until(lambda: daemon.channel_stats("work", "ch")["client_count"] == 0, "the consumer is disconnected")
    channel = daemon.channel_stats("work", "ch")
    counts = [channel[key] for key in ("message_count", "requeue_count", "timeout_count")]
    assert counts == [len(EVERYTHING), 1, 0]


def left_over(daemon: Daemon) -> int:
    channel = daemon.channel_stats("work", "ch")
    return sum(channel[key] for key in ("depth", "in_flight_count", "deferred_count"))


@contextmanager
def client_report(command: list[str], log: Path) -> Iterator[Any]:
    """Run a client program and yield its report. After the block its stdin ends, and it must exit with status 0."""
    with (
        log.open("wb") as errors,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, f"{command} ended without a report:\n{log.read_text()}"
            yield json.loads(line)
            process.stdin.close()
            assert process.wait(CLIENT_TIMEOUT_S) == 0, log.read_text()
        finally:
            process.kill()
