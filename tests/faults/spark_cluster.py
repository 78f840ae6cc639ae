"""Spark masters for tests: local, local with two executor processes, or a standalone cluster.

The standalone cluster is a master and two workers on loopback, started by the scripts of pyspark.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

LOCAL = "local"
LOCAL_CLUSTER = "local-cluster"
STANDALONE = "standalone"
KINDS = (LOCAL, LOCAL_CLUSTER, STANDALONE)
_START_TIMEOUT_S = 60.0
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_WORKER = re.compile(r"Successfully registered with master")


@contextmanager
def spark_master(kind: str, directory: Path) -> Iterator[str]:
    """Yield the master URL for a driver; everything that was started for it ends with the context."""
    if kind == LOCAL:
        yield "local[2]"
    elif kind == LOCAL_CLUSTER:
        yield "local-cluster[2,1,1024]"
    else:
        with ExitStack() as stack:
            flags = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
            found = stack.enter_context(_deployed("master.Master", flags, _MASTER))
            for number in range(2):
                place = ("--work-dir", str(directory / f"worker_{number}"), "--cores", "1", "--memory", "1g")
                stack.enter_context(_deployed("worker.Worker", (*flags, *place, found[1]), _WORKER))
            yield found[1]


@contextmanager
def _deployed(name: str, arguments: tuple[str, ...], sign: re.Pattern[str]) -> Iterator[re.Match[str]]:
    """Run a daemon of Spark; yield the match of its log line that shows it is ready."""
    home = Path(pyspark.__file__).parent
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "512m"}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    ready = threading.Event()
    found: list[re.Match[str]] = []

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            match = sign.search(line)
            if match is not None and not found:
                found.append(match)
                ready.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        if not ready.wait(_START_TIMEOUT_S):
            raise RuntimeError(f"Spark's {name} did not start")
        yield found[0]
    finally:
        process.terminate()
        process.wait()
        reader.join()


def executor_pids(root: int) -> list[int]:
    """Return the processes below ``root`` that run tasks: executors or, without executors, Python workers."""
    below = _descendants(root)
    executors = [pid for pid, text in below if "CoarseGrainedExecutorBackend" in text]
    return executors or [pid for pid, text in below if "pyspark.daemon" in text]


def _descendants(root: int) -> list[tuple[int, str]]:
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[tuple[int, str]] = []
    waiting = [root]
    while waiting:
        for pid in parents.get(waiting.pop(), []):
            waiting.append(pid)
            try:
                found.append((pid, Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")))
            except OSError:
                continue
    return found
