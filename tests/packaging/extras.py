"""Installs the wheel with each extra into an empty environment and tries every feature there.

    python tests/packaging/extras.py [--dist DIR] [--extra NAME ...] [--markdown FILE]

A feature of an installed extra works. Any other feature works if no package is missing, or else prints one line with
the `pip install` command. Anything else is an error, and the exit code is then 1. The result is a table: number of
packages, size, import time of nsqx, features. pip needs the network; reading with Spark needs Java 17 or newer.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# The features that each extra adds. Every installation has the client.
ADDED = {
    "": (),
    "snappy": ("snappy",),
    "server": ("snappy", "nsqd", "nsqlookupd", "nsq_to_file"),
    "admin": ("nsqadmin",),
    "spark": ("spark",),
    "all": ("snappy", "nsqd", "nsqlookupd", "nsq_to_file", "nsqadmin", "spark"),
}
LISTENING = re.compile(r"\b(TCP|HTTP): listening on (\S+)")
MISSING = re.compile(r"[^\n]*: pip install 'nsqx\[[a-z,]+\]'\n?")
IMPORTS = 7
START_S = 60.0
PAGE = ROOT / "src" / "nsqx" / "nsqadmin" / "static" / "index.html"
FREE = ("--http-address=127.0.0.1:0", "--tcp-address=127.0.0.1:0")

IMPORT_TIME = """\
import time
began_s = time.perf_counter()
import nsqx
print(1000 * (time.perf_counter() - began_s))
"""

CLIENT = """\
import asyncio, sys
import nsqx

async def main(nsqd, topic, snappy):
    async with nsqx.Producer(nsqd, snappy=snappy) as producer:
        await producer.publish(topic, b"hello")
    async with nsqx.Consumer(topic, "extras", nsqd_tcp_addresses=nsqd, snappy=snappy) as consumer:
        async for message in consumer:
            message.finish()
            assert message.body == b"hello", message
            break

try:
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3] == "snappy"))
except nsqx.ConfigError as error:
    sys.exit(str(error))
"""

SPARK_READ = """\
import sys, tempfile
from pyspark.sql import SparkSession
from nsqx import blocking

nsqd, topic = sys.argv[1:3]
with blocking.Producer(nsqd) as producer:
    producer.publish_many(topic, [b"1", b"2", b"3"])
settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
with tempfile.TemporaryDirectory() as directory:
    options = {"nsq.nsqd": nsqd, "subscribe": topic, "channel": "extras", "segmentDir": directory}
    rows = spark.read.format("nsq").options(**options).load().select("value").collect()
    assert sorted(bytes(row.value) for row in rows) == [b"1", b"2", b"3"], rows
spark.stop()
"""

PIPELINE = """\
[pipeline]
name = "extras"
[nsq]
nsqd = "127.0.0.1:1"
[source.messages]
topic = "messages"
schema = "number BIGINT"
[sink.files]
from = "messages"
type = "parquet"
path = "out"
"""


Addresses = dict[str, str]
"""The addresses of an nsqd: "TCP" and "HTTP"."""


class Installation:
    """An environment with the wheel and one extra."""

    def __init__(self, directory: Path, dist: Path, extra: str) -> None:
        self.extra = extra
        self.directory = directory
        venv.create(directory / "environment", with_pip=True)
        self._before = self._packages()
        wanted = f"nsqx[{extra}]" if extra else "nsqx"
        command = ["-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
        constraints = f"--constraint={ROOT / 'constraints.txt'}"
        self.python(*command, f"--find-links={dist}", constraints, wanted)

    @property
    def _site_packages(self) -> Path:
        (found,) = (self.directory / "environment" / "lib").glob("python*/site-packages")
        return found

    def _packages(self) -> set[str]:
        return {path.name for path in self._site_packages.iterdir()}

    @property
    def package_count(self) -> int:
        """The number of installed packages, including nsqx."""
        return sum(name.endswith(".dist-info") for name in self._packages() - self._before)

    @property
    def size_mb(self) -> float:
        """The megabytes of the installed packages, as pip has written them."""
        added = [self._site_packages / name for name in self._packages() - self._before]
        files = [file for each in added for file in ([each] if each.is_file() else each.rglob("*")) if file.is_file()]
        return sum(file.stat().st_size for file in files) / 1e6

    @property
    def import_ms(self) -> float:
        """The time to import nsqx in a new process; the median of several."""
        return statistics.median(float(self.python("-c", IMPORT_TIME)) for _ in range(IMPORTS))

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables of an activated environment, without those that lead to the sources."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return {**kept, "PATH": f"{self.directory / 'environment' / 'bin'}{os.pathsep}{os.environ['PATH']}"}

    def program(self, name: str) -> str:
        """Return the path of an installed command."""
        return str(self.directory / "environment" / "bin" / name)

    def python(self, *arguments: str) -> str:
        """Run the environment's Python and return its output; raises Failed with its errors."""
        return self.run("python", *arguments)

    def run(self, name: str, *arguments: str) -> str:
        """Run an installed command and return its output; raises Failed with its errors."""
        done = subprocess.run(
            [self.program(name), *arguments],
            cwd=self.directory,
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if done.returncode != 0:
            raise Failed(done.stderr)
        return done.stdout

    @contextmanager
    def running(self, name: str, *flags: str, listeners: int = 2) -> Iterator[dict[str, str]]:
        """Run a daemon for the block, with its addresses by kind of listener; raises Failed with its log."""
        log = self.directory / f"{name}.log"
        command = [self.program(name), *flags]
        with log.open("wb") as stream:
            process = subprocess.Popen(command, cwd=self.directory, env=self.variables, stderr=stream)
        try:
            deadline_s = time.monotonic() + START_S
            while len(addresses := dict(LISTENING.findall(log.read_text()))) < listeners:
                if process.poll() is not None or time.monotonic() > deadline_s:
                    raise Failed(log.read_text())
                time.sleep(0.05)
            yield addresses
        finally:
            process.terminate()
            process.wait()


class Failed(Exception):
    """A command failed; the text is what it printed."""


def fetch(address: str, path: str) -> bytes:
    """Return the body of an HTTP response."""
    with urllib.request.urlopen(f"http://{address}{path}", timeout=60) as answer:
        body: bytes = answer.read()
        return body


def client(installed: Installation, nsqd: Addresses) -> None:
    installed.python("-c", CLIENT, nsqd["TCP"], f"client_{installed.extra}", "plain")


def snappy(installed: Installation, nsqd: Addresses) -> None:
    installed.python("-c", CLIENT, nsqd["TCP"], f"snappy_{installed.extra}", "snappy")


def run_nsqd(installed: Installation, _nsqd: Addresses) -> None:
    with installed.running("nsqd", *FREE) as started:
        client(installed, started)


def run_nsqlookupd(installed: Installation, _nsqd: Addresses) -> None:
    with installed.running("nsqlookupd", *FREE) as started:
        assert fetch(started["HTTP"], "/ping") == b"OK"


def run_nsqadmin(installed: Installation, nsqd: Addresses) -> None:
    flags = (FREE[0], f"--nsqd-http-address={nsqd['HTTP']}")
    with installed.running("nsqadmin", *flags, listeners=1) as started:
        assert b"client_" in fetch(started["HTTP"], "/api/topics")
        if PAGE.exists():
            assert b"<script" in fetch(started["HTTP"], "/")


def nsq_to_file(installed: Installation, _nsqd: Addresses) -> None:
    installed.run("nsq_to_file", "--help")


def spark(installed: Installation, nsqd: Addresses) -> None:
    (installed.directory / "extras.toml").write_text(PIPELINE)
    installed.run("nsqx", "pipeline", "explain", "extras.toml")
    installed.python("-c", SPARK_READ, nsqd["TCP"], f"spark_{installed.extra}")


FEATURES: dict[str, Callable[[Installation, Addresses], None]] = {
    "client": client,
    "snappy": snappy,
    "nsqd": run_nsqd,
    "nsqlookupd": run_nsqlookupd,
    "nsq_to_file": nsq_to_file,
    "nsqadmin": run_nsqadmin,
    "spark": spark,
}


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table."""

    extra: str
    package_count: int
    size_mb: float
    import_ms: float
    works: tuple[str, ...]
    printed: dict[str, str]
    """The line that a feature prints whose extra is missing."""
    errors: tuple[str, ...]


def examine(installed: Installation, nsqd: Addresses) -> Result:
    """Try every feature and compare the result with the features that the extra adds."""
    count, size_mb = installed.package_count, installed.size_mb
    import_ms = installed.import_ms
    works: list[str] = []
    printed: dict[str, str] = {}
    errors: list[str] = []
    for name, work in FEATURES.items():
        is_expected = name in ("client", *ADDED[installed.extra])
        try:
            work(installed, nsqd)
            works.append(name)
        except (AssertionError, Failed) as error:
            if is_expected or not MISSING.fullmatch(str(error)):
                errors.append(f"{name}: {str(error)[:2000]}")
            else:
                printed[name] = str(error).strip()
    return Result(installed.extra, count, size_mb, import_ms, tuple(works), printed, tuple(errors))


def markdown(results: list[Result]) -> str:
    """Return the two tables: the installations, and what is printed where an extra is missing."""
    lines = ["| extra | packages | MB | `import nsqx` | works |", "|---|---|---|---|---|"]
    for each in results:
        name = f"`{each.extra}`" if each.extra else "none"
        figures = f"{each.package_count} | {each.size_mb:.1f} | {each.import_ms:.0f} ms"
        lines.append(f"| {name} | {figures} | {', '.join(each.works)} |")
    lines += ["", "| missing | printed |", "|---|---|"]
    printed = {name: line for each in results for name, line in each.printed.items()}
    lines += [f"| {name} | `{printed[name]}` |" for name in FEATURES if name in printed]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="the directory of the wheels")
    parser.add_argument("--extra", action="append", choices=list(ADDED), help="only this extra; '' for none")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file")
    arguments = parser.parse_args()
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="nsqx-extras-") as name:
        directory = Path(name)
        server = Installation(directory / "broker", arguments.dist, "server")
        with server.running("nsqd", *FREE) as nsqd:
            for extra in arguments.extra or ADDED:
                print(f"installing {extra or 'nsqx alone'}", file=sys.stderr, flush=True)
                installed = Installation(directory / f"with-{extra}", arguments.dist, extra)
                results.append(examine(installed, nsqd))
                shutil.rmtree(installed.directory)
    table = markdown(results)
    print(table)
    if arguments.markdown is not None:
        arguments.markdown.write_text(table)
    errors = [f"{each.extra or 'none'}: {error}" for each in results for error in each.errors]
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
