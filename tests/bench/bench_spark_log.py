"""Measures rows per second of the Spark source in mode log, beside the limit of Spark and beside mode channel.

    python tests/bench/bench_spark_log.py [--rows 1000000] [--bytes 200] [--rounds 3] [--nsqds 1 2 4] [MEASURE ...]

    fetch           a range of a log into Arrow batches, one reader, without Spark
    ceiling         batch read of a Python source that generates the same Arrow batches, into noop: the limit of Spark
    log             batch read of logs, into noop
    ceiling stream  "ceiling" as a stream, AvailableNow
    log stream      stream of logs, AvailableNow, into noop
    channel stream  the same through a channel: receiver and segment directory

The measurements of a round alternate. "CPU" is the time of all processes for each row, "nsqd" that of the nsqds alone.
CPU time is more reliable than the rate if cores are busy: the ceiling has no nsqd that shares the cores with it, but
its rate falls with other load just the same. Results depend on the machine and its load: compare only results of one
run. The program prints results and asserts nothing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench_spark import MICRO_BATCH, cpu_s, fill, running_s, session
from spark_ceilings import PARTITIONS

from daemons import Daemon, start_nsqd
from nsqx.spark.log_options import read_log_options
from nsqx.spark.log_source import LogBatchReader

MEASURES = ("fetch", "ceiling", "log", "ceiling_stream", "log_stream", "channel_stream")
CEILINGS = {"log": "ceiling", "log_stream": "ceiling_stream", "channel_stream": "ceiling_stream"}


class LogBench:
    """The measurements on some nsqds that have a topic with ``rows`` messages."""

    def __init__(self, spark: Any, nsqds: list[Daemon], rows: int, size: int, directory: Path) -> None:
        self._spark = spark
        self._nsqds = nsqds
        self._rows = rows
        self._size = size
        self._directory = directory
        self._number = 0
        fill(nsqds, "bench", rows, size)

    def _options(self, **more: str) -> dict[str, str]:
        addresses = ",".join(nsqd.tcp_address for nsqd in self._nsqds)
        return {"nsq.nsqd": addresses, "subscribe": "bench", "minPartitions": str(PARTITIONS), **more}

    def fetch(self) -> float:
        options = read_log_options(self._options(maxRecordsPerPartition="100000000"), is_stream=False)
        reader = LogBatchReader(options)

        def work() -> None:
            count = sum(rows.num_rows for part in reader.partitions() for rows in reader.read(part))
            assert count == self._rows

        return self._rate(work)

    def ceiling(self) -> float:
        frame = self._spark.read.format("ceiling").options(**self._ceiling()).load()
        return self._rate(lambda: frame.write.format("noop").mode("overwrite").save())

    def log(self) -> float:
        frame = self._spark.read.format("nsq").options(**self._options(mode="log")).load()
        return self._rate(lambda: frame.write.format("noop").mode("overwrite").save())

    def ceiling_stream(self) -> float:
        return self._streamed(self._spark.readStream.format("ceiling").options(**self._ceiling()).load())

    def log_stream(self) -> float:
        options = self._options(mode="log", channel=self._new_name(), maxOffsetsPerTrigger=str(MICRO_BATCH))
        return self._streamed(self._spark.readStream.format("nsq").options(**options).load())

    def channel_stream(self) -> float:
        channel = self._new_name()
        for nsqd in self._nsqds:
            nsqd.post("/channel/create", topic="bench", channel=channel, start="beginning")
        directory = str(self._directory / channel)
        options = self._options(mode="channel", channel=channel, segmentDir=directory, drainIdle="500ms")
        return self._streamed(self._spark.readStream.format("nsq").options(**options).load())

    def _ceiling(self) -> dict[str, str]:
        return {"rows": str(self._rows), "bytes": str(self._size), "batch": str(MICRO_BATCH)}

    def _new_name(self) -> str:
        self._number += 1
        return f"spark_{self._number}"

    def _rate(self, work: Callable[[], object]) -> float:
        began_s = time.perf_counter()
        work()
        return self._rows / (time.perf_counter() - began_s)

    def _streamed(self, frame: Any) -> float:
        writer = frame.writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self._directory / self._new_name())).start()
        query.awaitTermination()
        rows: int = sum(progress["numInputRows"] for progress in query.recentProgress)
        assert rows == self._rows, f"{rows} of {self._rows} rows"
        return rows / running_s(query)

    def cpu_us(self) -> float:
        """Return the CPU time of all nsqds."""
        ticks = 0
        for nsqd in self._nsqds:
            fields = Path(f"/proc/{nsqd.process.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks * 1e6 / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("measures", nargs="*", default=MEASURES, metavar="MEASURE", help=", ".join(MEASURES))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--bytes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nsqds", type=int, nargs="+", default=[1, 2, 4])
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="bench-spark-log-"))
    try:
        with session(directory) as spark:
            for count in given.nsqds:
                with ExitStack() as stack:
                    nsqds = [stack.enter_context(start_nsqd("nsqx", "--store=log")) for _ in range(count)]
                    place = directory / f"nsqds_{count}"
                    place.mkdir()
                    measure(LogBench(spark, nsqds, given.rows, given.bytes, place), given.measures, given.rounds, count)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def measure(bench: LogBench, names: list[str], rounds: int, nsqd_count: int) -> None:
    """Run all measurements in each round; print the medians. The first round warms up and does not count."""
    rates: dict[str, list[float]] = {name: [] for name in names}
    used: dict[str, list[float]] = {name: [] for name in names}
    used_by_nsqd: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + 1):
        for name in names:
            before_s, before_us = cpu_s(), bench.cpu_us()
            rate = getattr(bench, name)()
            if number:
                rates[name].append(rate)
                used[name].append((cpu_s() - before_s) * 1e6 / bench._rows)
                used_by_nsqd[name].append((bench.cpu_us() - before_us) / bench._rows)
    for name in names:
        found, cpu_us = rates[name], statistics.median(used[name])
        text = f"{name.replace('_', ' '):<16}{statistics.median(found):>11,.0f}   ({min(found):,.0f}-{max(found):,.0f})"
        text += f" rows/s   CPU {cpu_us:.2f} us   nsqd {statistics.median(used_by_nsqd[name]):.3f} us"
        limit = CEILINGS.get(name)
        if limit in names:
            share = statistics.median(found) / statistics.median(rates[limit])
            text += f"   of the ceiling: {share:.0%}, by CPU {statistics.median(used[limit]) / cpu_us:.0%}"
        print(f"{nsqd_count} nsqd   {text}", flush=True)


if __name__ == "__main__":
    main()
