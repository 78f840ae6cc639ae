"""The demo, started as by ``make demo``: every message is archived and counted, and a failure prints one line."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemons import random_host, wait_until

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "examples" / "demo" / "run.py"
END_TIMEOUT_S = 200
PORTS = (4150, 4151, 4160, 4161, 4171)

pytest.importorskip("pyspark", reason="the demo runs Spark: pip install 'nsqx[spark]'")
pytestmark = pytest.mark.timeout(END_TIMEOUT_S + 60)


class Demo:
    """The demo with its own directory and loopback address."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.host = random_host()
        self._environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
        self._process: subprocess.Popen[str] | None = None

    def use_java(self, directory: Path, script: str = "") -> None:
        """Make a shell script the only Java on the path. Without ``script`` there is no Java."""
        directory.mkdir()
        if script:
            (directory / "java").write_text(f"#!/bin/sh\n{script}\n")
            (directory / "java").chmod(0o755)
        for name in ("sh", "bash", "env", "dirname", "cat"):
            (directory / name).symlink_to(shutil.which(name) or name)
        self._environment["PATH"] = str(directory)
        self._environment.pop("JAVA_HOME", None)

    def start(self, *flags: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), f"--dir={self.directory}", f"--host={self.host}", *flags],
            cwd=ROOT,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self) -> tuple[int, str, str]:
        """Wait until the demo ends. Return the exit code, stdout and stderr."""
        assert self._process is not None
        out, errors = self._process.communicate(timeout=END_TIMEOUT_S)
        return self._process.returncode, out, errors

    def run(self, *flags: str) -> tuple[int, str, str]:
        self.start(*flags)
        return self.end()

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def child(self, word: str) -> int:
        """Wait for the child process whose command line contains ``word``. Return its pid."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")

        def found() -> int | None:
            for pid in children.read_text().split():
                if word in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
                    return int(pid)
            return None

        pid: int = wait_until(found, f"a process {word} is running", timeout_s=60)
        return pid

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self.end()


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    demo = Demo(tmp_path / "demo")
    yield demo
    demo.close()


def check_failure(ended: tuple[int, str, str], pattern: str) -> None:
    code, _, errors = ended
    assert code == 1, ended
    assert re.fullmatch(rf"demo: [^\n]*{pattern}[^\n]*\n", errors), errors


def check_every_port_is_free(demo: Demo) -> None:
    for port in PORTS:
        socket.create_server((demo.host, port)).close()


def test_every_published_message_is_archived_and_counted(demo: Demo) -> None:
    if shutil.which("java") is None:
        pytest.skip("Java is not installed: Spark needs 17 or newer")
    code, out, errors = demo.run("--seconds=3", "--rate=500")
    assert code == 0, (out, errors)
    account = re.search(r"published ([\d,]+); archived ([\d,]+): 0 lost, 0 doubled; counted ([\d,]+)\n", out)
    assert account is not None, out
    assert len(set(account.groups())) == 1, out
    assert int(account[1].replace(",", "")) > 500
    assert out.endswith("All counts agree.\n")
    check_every_port_is_free(demo)


# A Java that prints its version, and otherwise does nothing until the pipeline ends.
IDLE_JAVA = """[ "$1" = -version ] && { echo 'openjdk version "17.0.1"' >&2; exit 0; }; exec cat"""


def test_the_demo_fails_if_the_pipeline_is_killed(demo: Demo, tmp_path: Path) -> None:
    demo.use_java(tmp_path / "bin", IDLE_JAVA)
    demo.start()
    os.kill(demo.child("pipeline"), signal.SIGKILL)
    check_failure(demo.end(), rf"nsqx pipeline run was killed by SIGKILL \(.*{demo.directory}/pipeline.log\)")
    check_every_port_is_free(demo)


def test_the_demo_fails_if_the_pipeline_cannot_start(demo: Demo, tmp_path: Path) -> None:
    demo.use_java(
        tmp_path / "bin", """[ "$1" = -version ] && { echo 'openjdk version "17.0.1"' >&2; exit 0; }; exit 1"""
    )
    check_failure(demo.run(), r"nsqx pipeline run ended: nsqx: .*Java")
    check_every_port_is_free(demo)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_demo(demo: Demo, tmp_path: Path, number: int) -> None:
    demo.use_java(tmp_path / "bin", IDLE_JAVA)
    demo.start()
    demo.child("pipeline")
    demo.signal(number)
    code, _, errors = demo.end()
    assert (code, errors) == (130, "")
    check_every_port_is_free(demo)


def test_the_demo_fails_without_java_and_names_an_alternative(demo: Demo, tmp_path: Path) -> None:
    demo.use_java(tmp_path / "bin")
    check_failure(demo.run(), "needs Java 17 or newer, and none is installed; the cluster works without Spark: make up")


def test_a_port_in_use_is_reported_before_files_are_removed(demo: Demo, tmp_path: Path) -> None:
    demo.use_java(tmp_path / "bin", IDLE_JAVA)
    (demo.directory / "archive").mkdir(parents=True)
    with socket.create_server((demo.host, 4161)):
        check_failure(demo.run(), rf"cannot listen on {demo.host}:4161: .*--host")
    assert (demo.directory / "archive").exists()


def test_a_directory_with_other_files_is_not_changed(demo: Demo, tmp_path: Path) -> None:
    demo.use_java(tmp_path / "bin", IDLE_JAVA)
    (demo.directory / "letters").mkdir(parents=True)
    check_failure(demo.run(), "contains other files.*--dir")
    assert (demo.directory / "letters").exists()
