"""Show all of nsqx in a minute or two: a cluster, a stream of clicks, a Spark pipeline, and a final count check.

    python examples/demo/run.py [--seconds 60] [--rate 2000] [--dir build/demo] [--host 127.0.0.1] [--hold]

Exit code 0 means that every click that nsqd acknowledged is in the archive exactly once and was counted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import time
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Awaitable, Callable
from pathlib import Path

from clickstream import Stream
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from nsqx import Consumer, Message, NSQError
from nsqx.errors import ConfigError
from nsqx.net.http_client import request
from nsqx.spark.session import LEAST_JAVA, check_spark

HERE = Path(__file__).resolve().parent
NSQX = [sys.executable, "-m", "nsqx.cli.main"]
# The ports of nsqx up.
NSQD_TCP, NSQD_HTTP, LOOKUPD_TCP, LOOKUPD_HTTP, ADMIN = 4150, 4151, 4160, 4161, 4171
TOPIC, COUNTS_TOPIC = "clicks", "clicks.per_minute"
# Names in the demo's directory.
NSQ, STATE, ARCHIVE, CLUSTER_LOG, PIPELINE_LOG = LEFT = "nsq", "state", "archive", "cluster.log", "pipeline.log"
START_S, DRAIN_S, STOP_S = 120, 180, 60


class DemoFailed(Exception):
    """The demo cannot continue; the text gives the reason."""


class Child:
    """A child process of the demo, and the last line that it printed."""

    def __init__(self, name: str, log_path: Path) -> None:
        self.name = name
        self.last_line = ""
        self._log_path = log_path
        self._process: Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self, *arguments: str) -> None:
        # Its own process group: Ctrl-C reaches only the demo, which stops its children in order.
        self._process = await asyncio.create_subprocess_exec(
            *NSQX, *arguments, stdout=PIPE, stderr=STDOUT, process_group=0
        )
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with self._log_path.open("w") as log:
            async for line in self._process.stdout:
                text = line.decode(errors="replace")
                log.write(text)
                log.flush()
                self.last_line = text.strip() or self.last_line

    async def check(self) -> None:
        """Raise DemoFailed if the process has ended."""
        if self._process is None or self._process.returncode is None:
            return
        if self._reading is not None:
            await self._reading
        code = self._process.returncode
        why = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended: {self.last_line or 'no output'}"
        raise DemoFailed(f"{self.name} {why} (its output is in {self._log_path})")

    async def stop(self) -> None:
        if self._process is None or self._process.returncode is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        if self._reading is not None:
            await self._reading


class Archive:
    """The Parquet files of the pipeline. Each file is read once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: dict[Path, int] = {}

    def count(self) -> int:
        from pyarrow import parquet

        for file in self.path.rglob("*.parquet"):
            if file not in self._rows and not any(
                part.startswith(("_", ".")) for part in file.relative_to(self.path).parts
            ):
                with contextlib.suppress(OSError, ValueError):  # the file is still being written
                    self._rows[file] = parquet.read_metadata(file).num_rows
        return sum(self._rows.values())


class Counts:
    """The clicks per minute and page that the pipeline publishes. The highest count of each is the latest."""

    def __init__(self) -> None:
        self.by_key: dict[tuple[str, str], int] = {}

    def take(self, message: Message) -> None:
        row = json.loads(message.body)
        key = row["minute"], row["page"]
        self.by_key[key] = max(self.by_key.get(key, 0), row["clicks"])

    @property
    def total(self) -> int:
        return sum(self.by_key.values())


class Demo:
    """The parts of the demo, and the table that shows them."""

    def __init__(self, options: argparse.Namespace, console: Console) -> None:
        self._options = options
        self._console = console
        self._directory = Path(options.dir).resolve()
        self._nsqd_tcp, self._nsqd_http, self._lookupd_http, self._admin = (
            f"{options.host}:{port}" for port in (NSQD_TCP, NSQD_HTTP, LOOKUPD_HTTP, ADMIN)
        )
        self._cluster = Child("nsqx up", self._directory / CLUSTER_LOG)
        self._pipeline = Child("nsqx pipeline run", self._directory / PIPELINE_LOG)
        self._stream = Stream(self._nsqd_tcp, TOPIC)
        self._archive = Archive(self._directory / ARCHIVE)
        self._counts = Counts()
        self._stage = ""
        self._started_s = time.monotonic()

    async def run(self) -> bool:
        """Run the demo; return True if every published click was archived once and counted."""
        _check_ports(self._options.host)
        _make_empty(self._directory)
        try:
            with Live(get_renderable=self._table, console=self._console, refresh_per_second=4) as live:
                await self._start()
                await self._publish_and_drain()
                live.update(self._table(), refresh=True)
            is_right = self._compare_counts()
            if self._options.hold:
                await self._hold()
        finally:
            await self._pipeline.stop()
            await self._cluster.stop()
        return is_right

    async def _start(self) -> None:
        self._stage = "starting nsqd, nsqlookupd and nsqadmin"
        await self._cluster.start("up", f"--host={self._options.host}", f"--data-path={self._directory / NSQ}")
        await self._until("the cluster did not start", START_S, self._is_up)
        for topic in (TOPIC, COUNTS_TOPIC):
            await request("POST", f"http://{self._nsqd_http}/topic/create?topic={topic}")
        self._stage = "starting Spark"
        await self._pipeline.start(
            *("pipeline", "run", str(HERE / "clicks.toml"), f"--lookupd={self._lookupd_http}"),
            f"--set=pipeline.state={self._directory / STATE}",
            f"--set=sink.archive.path={self._archive.path}",
        )
        # A channel gets the messages published after its creation, so publishing waits for both channels.
        await self._until("the pipeline did not start", START_S, self._has_channels)

    async def _publish_and_drain(self) -> None:
        consumer = Consumer(
            COUNTS_TOPIC, "demo#ephemeral", self._counts.take, nsqd_tcp_addresses=self._nsqd_tcp, max_in_flight=200
        )
        async with consumer:
            self._stage = f"publishing {self._options.rate:,} clicks a second"
            publishing = asyncio.create_task(self._stream.run(self._options.rate, self._options.seconds))
            await self._until("publishing did not end", self._options.seconds + DRAIN_S, lambda: _done(publishing))
            publishing.result()
            self._stage = "waiting for the last rows"
            await self._until("some clicks did not arrive", DRAIN_S, self._has_all)
        self._stage = "done"

    async def _until(self, otherwise: str, seconds: float, is_so: Callable[[], Awaitable[bool]]) -> None:
        until_s = time.monotonic() + seconds
        while not await is_so():
            await self._cluster.check()
            await self._pipeline.check()
            if time.monotonic() > until_s:
                raise DemoFailed(f"{otherwise} within {seconds:.0f} s; the output is in {self._directory}/*.log")
            await asyncio.sleep(0.2)

    async def _is_up(self) -> bool:
        return "Ctrl-C" in self._cluster.last_line

    async def _has_channels(self) -> bool:
        return len(await self._channels()) >= 2

    async def _has_all(self) -> bool:
        published = self._stream.published
        # More rows than published clicks would be a fault, which the final check shows.
        return self._archive.count() >= published and self._counts.total >= published

    async def _channels(self) -> list[dict[str, int]]:
        answer = await request("GET", f"http://{self._nsqd_http}/stats?format=json&topic={TOPIC}&include_clients=false")
        return [channel for topic in json.loads(answer.body)["topics"] for channel in topic["channels"]]

    def _table(self) -> Table:
        table = Table(show_header=False, box=None, pad_edge=False)
        table.add_column(style="dim", min_width=22)
        table.add_column()
        table.add_row("now", f"{self._stage} ({time.monotonic() - self._started_s:.0f} s)")
        table.add_row("published and acknowledged", f"{self._stream.published:,}")
        table.add_row("rows in the archive", f"{self._archive.count():,}")
        table.add_row("clicks counted by minute", f"{self._counts.total:,}")
        table.add_row("pipeline", escape(self._pipeline.last_line[: max(20, self._console.width - 30)]))
        return table

    async def _hold(self) -> None:
        self._console.print(
            f"\nThe demo keeps running. The admin page is at http://{self._admin}/. Press Ctrl-C to stop."
        )
        rest = asyncio.create_task(self._stream.run(self._options.rate, float("inf")))
        # Ctrl-C cancels the running task, which is the normal end here.
        with contextlib.suppress(asyncio.CancelledError):
            await self._until("publishing did not end", float("inf"), lambda: _done(rest))
            rest.result()
        rest.cancel()

    def _compare_counts(self) -> bool:
        """Print the counts of published, archived and counted clicks; return True if they agree."""
        from pyarrow import dataset

        clicks = dataset.dataset(self._archive.path, format="parquet").to_table()
        found = clicks.column("id").to_pylist()
        lost = len(set(range(self._stream.published)) - set(found))
        doubled = len(found) - len(set(found))
        counted = self._counts.total
        self._console.print("\nA few rows of the archive:")
        self._console.print(_shown(clicks.select(["id", "visitor", "page", "at"]).slice(0, 5).to_pylist()))
        self._console.print("\nClicks per minute and page, from the topic:")
        minutes = sorted(self._counts.by_key.items())
        rows = [{"minute": minute, "page": page, "clicks": count} for (minute, page), count in minutes]
        self._console.print(_shown(rows[:8]))
        is_right = (lost, doubled, counted) == (0, 0, self._stream.published)
        self._console.print(
            f"\npublished {self._stream.published:,}; archived {len(found):,}: {lost} lost, {doubled} doubled;"
            f" counted {counted:,}"
        )
        self._console.print("[green]All counts agree." if is_right else "[red]The counts differ.")
        return is_right


def _check_spark() -> None:
    """Raise DemoFailed unless Spark can run. Java is checked first: without it make setup does not install pyspark."""
    without = "; the cluster works without Spark: make up"
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise DemoFailed(f"Spark needs Java {LEAST_JAVA} or newer, and none is installed{without}")
    try:
        check_spark()
    except ConfigError as error:
        raise DemoFailed(f"{error}{without}") from None


def _check_ports(host: str) -> None:
    """Raise DemoFailed if a port is in use. Called before the directory is emptied, which a running demo may use."""
    for port in (NSQD_TCP, NSQD_HTTP, LOOKUPD_TCP, LOOKUPD_HTTP, ADMIN):
        try:
            socket.create_server((host, port)).close()
        except OSError as error:
            raise DemoFailed(
                f"cannot listen on {host}:{port}: {error.strerror}; stop the program that uses the port,"
                " or use another address of this machine: make demo ARGS='--host 127.0.0.2'"
            ) from None


def _make_empty(directory: Path) -> None:
    """Create the directory, or empty it; raise DemoFailed if it holds anything but files of an earlier demo."""
    if directory.exists() and any(entry.name not in LEFT for entry in directory.iterdir()):
        raise DemoFailed(f"{directory} contains other files: choose another directory with --dir")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)


async def _done(task: asyncio.Task[None]) -> bool:
    return task.done()


def _shown(rows: list[dict[str, object]]) -> Table:
    table = Table(box=None)
    for name in rows[0] if rows else ():
        table.add_column(name)
    for row in rows:
        table.add_row(*map(str, row.values()))
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60, help="how long to publish")
    parser.add_argument("--rate", type=int, default=2000, help="clicks a second")
    parser.add_argument("--dir", default="build/demo", help="directory for all files; emptied first")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on, with NSQ's standard ports")
    parser.add_argument("--hold", action="store_true", help="keep running until Ctrl-C")
    options = parser.parse_args()
    if options.seconds * options.rate < 1:
        parser.error("--seconds times --rate must be at least one click")
    for number in (signal.SIGTERM, signal.SIGHUP):  # handled as Ctrl-C, which stops all children
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        _check_spark()
        return 0 if asyncio.run(Demo(options, Console()).run()) else 1
    except (DemoFailed, NSQError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    return 1


if __name__ == "__main__":
    sys.exit(main())
