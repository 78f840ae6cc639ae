"""Other people's clients, unchanged, against nsqd: each publishes and consumes, requeues and touches.

Every client runs in a process of its own, because each brings its own event loop.
"""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from clients.workload import EVERYTHING, REQUEUED

from daemons import Daemon, Fleet, wait_until, write_metadata

HERE = Path(__file__).parent
CLIENT_TIMEOUT_S = 40
PYTHON_CLIENTS = {"pynsq": "nsq", "gnsq": "gnsq", "ansq": "ansq"}


def python_client(package: str) -> list[str]:
    """The command of a client from PyPI."""
    if importlib.util.find_spec(PYTHON_CLIENTS[package]) is None:
        pytest.skip(f'{package} missing: pip install "nsqx[peers]"')
    return [sys.executable, str(HERE / "clients" / f"with_{package}.py")]


def node_client() -> list[str]:
    """The command of the client from npm."""
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
def test_client(client: str, option: str | None, implementation: str, fleet: Fleet, tmp_path: Path) -> None:
    command = node_client() if client == "nsqjs" else python_client(client)
    write_metadata(tmp_path, {"work": ["ch"]})
    daemon = fleet.nsqd(implementation, data_path=tmp_path)
    report = run_client(daemon, [*command, daemon.tcp_address, "work", "ch", *filter(None, [option])])
    assert report["finished"] == sorted(body.decode() for body in EVERYTHING)
    expected = {body.decode(): [1, 2] if body == REQUEUED else [1] for body in EVERYTHING}
    assert report["attempts"] == expected
    wait_until(lambda: daemon.channel_stats("work", "ch")["client_count"] == 0, "the consumer has gone")
    channel = daemon.channel_stats("work", "ch")
    counts = {key: channel[key] for key in ("depth", "in_flight_count", "deferred_count", "timeout_count")}
    assert counts == {"depth": 0, "in_flight_count": 0, "deferred_count": 0, "timeout_count": 0}
    assert (channel["message_count"], channel["requeue_count"]) == (len(EVERYTHING), 1)


def run_client(daemon: Daemon, command: list[str]) -> Any:
    """Run a client program to its end; what it reports."""
    done = subprocess.run(command, capture_output=True, timeout=CLIENT_TIMEOUT_S, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{daemon.log}"
    return json.loads(done.stdout.splitlines()[-1])
