"""Pipeline files for tests: write a file, run the command in this process on the shared session, read the results."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset
from streams import make_channel

from nsqx.cli import pipeline as command
from nsqx.client.blocking import Consumer

if TYPE_CHECKING:
    import pytest

    from daemons import Daemon


# Timeout of a pipeline test. Such a test runs several queries, and some tests start another Spark.
SLOW_S = 400


class PipelineFile:
    """A pipeline file in its own directory."""

    def __init__(self, directory: Path, nsqd: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
        self.directory = directory
        self.path = directory / "pipeline.toml"
        self._nsqd = nsqd
        self._capsys = capsys
        self.out = self.err = ""

    def write(self, text: str, **values: str) -> None:
        """Write the file, with each ``$name`` replaced by its value."""
        for name, value in values.items():
            text = text.replace(f"${name}", value)
        self.path.write_text(text)

    def call(self, verb: str, *flags: str) -> int:
        """Run the command and return its exit code. Its output is in ``out`` and ``err``."""
        self._capsys.readouterr()
        code = command.main([verb, str(self.path), "--nsqd", self._nsqd.tcp_address, *flags])
        self.out, self.err = self._capsys.readouterr()
        return code

    def run_once(self, *flags: str) -> None:
        """Process the backlog; fails if the command does."""
        code = self.call("run", "--once", "--set", "source.messages.options.drainIdle=300ms", *flags)
        assert code == 0, self.out + self.err

    def make_channels(self, topic: str, *sinks: str) -> None:
        """Create the channels of sinks, so they keep messages published before the pipeline runs."""
        for sink in sinks:
            make_channel(self._nsqd, topic, f"test.{sink}")

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a file sink, read by pyarrow without Spark."""
        return read_rows(self.directory / name)

    @property
    def dead_letters(self) -> list[dict[str, Any]]:
        """The rows of the dead-letter directory."""
        directory = self.directory / "test.state" / "dead-letters"
        return read_rows(directory) if directory.exists() else []


def read_rows(directory: Path, kind: str = "parquet") -> list[dict[str, Any]]:
    """Return all rows of the files below a directory."""
    return pyarrow.dataset.dataset(directory, format=kind, partitioning="hive").to_table().to_pylist()


def take_all(nsqd: Daemon, topic: str, least: int) -> list[bytes]:
    """Return all messages of a topic; fails if there are fewer than ``least``."""
    with Consumer(topic, "test", nsqd_tcp_addresses=[nsqd.tcp_address], max_in_flight=100) as consumer:
        found: list[bytes] = []
        while message := consumer.get(10 if len(found) < least else 0.3):
            found.append(message.body)
            message.finish()
        assert len(found) >= least
        return found


def run_program(command: list[str], timeout_s: float, cwd: Path | None = None) -> str:
    """Run a program that starts its own Spark; return its output.

    Fails if the program does. All of its processes are killed at the end.
    """
    program = subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        out, _ = program.communicate(timeout=timeout_s)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()
    assert program.returncode == 0, out[-5000:]
    return out
