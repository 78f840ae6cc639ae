"""Fixtures of the Spark tests: one shared Spark session, an S3 server and nsqds."""

from __future__ import annotations

import importlib.util
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from daemons import Daemon, Fleet, require_go
from nsqx.errors import ConfigError
from nsqx.spark.session import build_session, check_spark

try:
    check_spark()
    MISSING = ""
except ConfigError as error:
    MISSING = f"{error}; Spark needs Java 17+"

collect_ignore_glob = ["test_*.py"] if MISSING else []

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Raise the timeout of every test: the first one waits for the JVM to start and warm up."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.timeout(300))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if MISSING:
        terminalreporter.write_line(f"tests/spark were not run: {MISSING}", yellow=True)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return a session on two cores, without the Spark UI."""
    source = str(Path(__file__).resolve().parents[2] / "src")
    if source in sys.path and source not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    session = build_session("tests", "local[2]", {**SETTINGS, "spark.sql.warehouse.dir": warehouse})
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _tasks_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat Spark's tasks as local when a test calls a reader without Spark."""
    from nsqx.spark import batch, source

    for module in (source, batch):
        monkeypatch.setattr(module, "tasks_run_here", lambda: True)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Run an S3 server with the bucket ``bucket``; return its address."""
    if importlib.util.find_spec("moto") is None:
        pytest.skip("moto is missing: pip install 'moto[server]'")
    program = Path(__file__).with_name("s3_server.py")
    with subprocess.Popen(
        [sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()


@pytest.fixture
def s3_directory(s3_server: str) -> str:
    """Return the URI of a new directory in that bucket, with credentials and endpoint."""
    server = f"region=us-east-1&scheme=http&endpoint_override={s3_server}"
    return f"s3://key:secret@bucket/directory-{next(_numbers)}?{server}"


@pytest.fixture(params=["go", "nsqx"])
def nsqd(request: pytest.FixtureRequest, fleet: Fleet) -> Daemon:
    """Run the test once with Go's nsqd and once with ours."""
    if request.param == "go":
        require_go()
    return fleet.nsqd(request.param)


@pytest.fixture
def our_nsqd(fleet: Fleet) -> Daemon:
    """Return our nsqd, for tests that need only one implementation."""
    return fleet.nsqd("nsqx")
