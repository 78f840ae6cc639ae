"""Measures rows per second and latency of the Spark source, the sink and a JSON pipeline, and the limits of Spark.

    python tests/bench/bench_spark.py [--rows 1000000 ...] [--bytes 200] [--rounds 3] [--nsqd nsqx] [--nsqds 1 ...] ...

The measurements of one run. A limit of Spark ("spark ...") comes before the measurements to compare with it:

    spark read      batch read of a Python source that generates the same Arrow batches, into noop
    spark stream    the same as a stream, AvailableNow
    receive         from nsqd into segment files, without Spark
    read            batch read of segment files that already exist, into noop
    source          stream, AvailableNow, from a full channel into noop
    spark json      "spark stream" with its values parsed as JSON and aggregated by key
    json            "source" with its values parsed as JSON and aggregated by key
    spark write     Spark's rate source into a Python writer that reads the batches and discards them
    sink            Spark's rate source into nsqd
    latency         milliseconds from a topic through Spark to another topic, at 1000 messages per second
    latency json    the same with an aggregate

Streams have two rates: from the first to the last batch, and for the whole query with its start and its end. CPU is the
CPU time per row of all processes, including nsqd; it is more reliable than the rate if cores are busy. Results depend
on the machine and its load: compare only results of one run. The program prints results and asserts nothing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pyspark.sql import functions as F
from spark_ceilings import PARTITIONS, CeilingSource, json_body

from daemons import Daemon, start_nsqd
from nsqx.client.blocking import Consumer, Producer
from nsqx.errors import ConfigError
from nsqx.spark.options import read_source_options
from nsqx.spark.receiver import Receiver
from nsqx.spark.session import build_session
from nsqx.spark.source import open_directory

HERE = Path(__file__).resolve().parent
# Rows per micro-batch of the generated source. About as many as the nsq source has in one batch when it keeps up.
MICRO_BATCH = 200_000
SINK_BATCHES = 4
MPUB = 2000
LATENCY_RATE = 1000
LATENCY_S = 15.0
WARM_UP_S = 5.0
JSON_SCHEMA = "key STRING, amount BIGINT, note STRING"


def fill(nsqds: list[Daemon], topic: str, rows: int, size: int) -> None:
    """Publish ``rows`` messages, divided over all nsqds, to a topic with the channel "spark"."""
    bodies = [json_body(number, size) for number in range(MPUB)]
    for number, nsqd in enumerate(nsqds):
        nsqd.post("/topic/create", topic=topic)
        nsqd.post("/channel/create", topic=topic, channel="spark")
        share = (rows + len(nsqds) - 1 - number) // len(nsqds)
        with Producer(nsqd.tcp_address) as producer:
            for start in range(0, share, MPUB):
                producer.publish_many(topic, bodies[: min(MPUB, share - start)])


def cpu_s() -> float:
    """Return the CPU time of this process and all its descendants: driver, JVM, receiver, Python workers, nsqds."""
    parents: dict[int, list[tuple[int, int]]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            # CPU time of the process, and of its children that have ended.
            parents.setdefault(int(fields[1]), []).append((int(entry.name), sum(map(int, fields[11:15]))))
    ticks, waiting = 0, [os.getpid()]
    own = os.times()
    while waiting:
        for pid, used in parents.get(waiting.pop(), []):
            ticks += used
            waiting.append(pid)
    return ticks / os.sysconf("SC_CLK_TCK") + own.user + own.system + own.children_user + own.children_system


def running_s(query: Any) -> float:
    """Return the seconds from the start of the first batch with rows to the end of the last one."""
    spans = []
    for progress in query.recentProgress:
        if progress["numInputRows"]:
            began_s = datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00")).timestamp()
            spans.append((began_s, began_s + progress["batchDuration"] / 1000))
    return max(end for _, end in spans) - min(start for start, _ in spans)


class Bench:
    """The measurements, with given nsqds and one Spark session."""

    def __init__(self, spark: Any, nsqds: list[Daemon], rows: int, size: int, directory: Path) -> None:
        self._spark = spark
        self._nsqds = nsqds
        self._rows = rows
        self._size = size
        self._directory = directory
        self._number = 0

    # The limits of Spark

    def _ceiling(self) -> dict[str, str]:
        return {"rows": str(self._rows), "bytes": str(self._size), "batch": str(MICRO_BATCH)}

    def spark_read(self) -> list[float]:
        frame = self._spark.read.format("ceiling").options(**self._ceiling()).load()
        return self._timed(lambda: frame.write.format("noop").mode("overwrite").save())

    def spark_stream(self) -> list[float]:
        return self._streamed(self._spark.readStream.format("ceiling").options(**self._ceiling()).load())

    def spark_json(self) -> list[float]:
        return self._streamed(aggregated(self._spark.readStream.format("ceiling").options(**self._ceiling()).load()))

    def spark_write(self) -> list[float]:
        return self._written(self._generated().format("ceiling"))

    # The source

    def receive(self) -> list[float]:
        options = read_source_options(self._filled())
        directory = open_directory(options)
        receiver = Receiver(options, directory)

        def work() -> None:
            receiver.start()
            receiver.wait_for_rows(self._rows - 1, 300.0)

        rate = self._timed(work)
        directory.close(is_clean=receiver.stop())
        return rate

    def read(self) -> list[float]:
        options = {**self._filled(), "readId": "bench"}
        self._spark.read.format("nsq").options(**options).load().count()
        frame = self._spark.read.format("nsq").options(**options).load()
        return self._timed(lambda: frame.write.format("noop").mode("overwrite").save())

    def source(self) -> list[float]:
        return self._streamed(self._spark.readStream.format("nsq").options(**self._filled()).load())

    def json(self) -> list[float]:
        return self._streamed(aggregated(self._spark.readStream.format("nsq").options(**self._filled()).load()))

    # The sink

    def sink(self) -> list[float]:
        writer = self._generated().format("nsq").option("nsq.nsqd", self._addresses)
        return self._written(writer.option("topic", self._new_topic()))

    # Source and sink

    def latency(self) -> list[float]:
        topic, target = self._new_topic(), self._new_topic()
        stream = self._spark.readStream.format("nsq").options(**self._options(topic)).load().select("value")
        writer = stream.writeStream.format("nsq").option("nsq.nsqd", self._addresses).option("topic", target)
        return self._latencies(topic, target, writer)

    def latency_json(self) -> list[float]:
        topic, target = self._new_topic(), self._new_topic()
        stream = self._spark.readStream.format("nsq").options(**self._options(topic)).load()
        parsed = stream.selectExpr(f"from_json(CAST(value AS STRING), '{JSON_SCHEMA}') AS row")
        newest = parsed.groupBy("row.key").agg(F.max("row.amount").cast("string").alias("value")).select("value")

        def publish(batch: Any, _: int) -> None:
            writer = batch.write.format("nsq").mode("append").option("nsq.nsqd", self._addresses)
            writer.option("topic", target).save()

        # A Python sink gets the updates of an aggregate only through foreachBatch.
        return self._latencies(topic, target, newest.writeStream.outputMode("update").foreachBatch(publish))

    def _latencies(self, topic: str, target: str, writer: Any) -> list[float]:
        """Return p50, p99 and maximum in milliseconds. Each message contains the time at which it was sent."""
        query = writer.option("checkpointLocation", self._checkpoint()).start()
        found: list[float] = []
        ending = threading.Event()
        consumer = threading.Thread(target=measure, args=(self._nsqds, target, found, ending))
        consumer.start()
        with Producer(self._nsqds[0].tcp_address) as producer:
            began_s = first_s = 0.0
            while not began_s or time.monotonic() - began_s < LATENCY_S:
                if not query.isActive:
                    raise RuntimeError(str(query.exception()))
                if not began_s and found:
                    # The first messages start the workers and warm up the JVM.
                    first_s = first_s or time.monotonic()
                    if time.monotonic() - first_s >= WARM_UP_S:
                        began_s = time.monotonic()
                        found.clear()
                sent_us = time.time_ns() // 1000
                bodies = [b'{"key": "k%d", "amount": %d}' % (number, sent_us) for number in range(LATENCY_RATE // 100)]
                producer.publish_many(topic, bodies)
                time.sleep(max(0.0, 0.01 - (time.time_ns() // 1000 - sent_us) / 1e6))
        ending.set()
        consumer.join()
        query.stop()
        centiles = statistics.quantiles(found, n=100)
        return [centiles[49], centiles[98], max(found)]

    # Shared parts

    @property
    def _addresses(self) -> str:
        return ",".join(nsqd.tcp_address for nsqd in self._nsqds)

    def _new_topic(self) -> str:
        self._number += 1
        return f"bench_{self._number}"

    def _checkpoint(self) -> str:
        self._number += 1
        return str(self._directory / f"checkpoint_{self._number}")

    def _options(self, topic: str) -> dict[str, str]:
        return {
            "nsq.nsqd": self._addresses,
            "subscribe": topic,
            "channel": "spark",
            "segmentDir": str(self._directory / topic / "segments"),
        }

    def _filled(self) -> dict[str, str]:
        topic = self._new_topic()
        fill(self._nsqds, topic, self._rows, self._size)
        return {**self._options(topic), "drainIdle": "500ms", "minPartitions": str(PARTITIONS)}

    def _timed(self, work: Callable[[], Any]) -> list[float]:
        began_s, used_s = time.perf_counter(), cpu_s()
        work()
        taken_s = time.perf_counter() - began_s
        return [self._rows / taken_s, self._cpu_us(used_s, self._rows)]

    def _cpu_us(self, before_s: float, rows: int) -> float:
        return (cpu_s() - before_s) * 1e6 / rows

    def _streamed(self, frame: Any) -> list[float]:
        writer = frame.writeStream.format("noop").outputMode("update")
        writer = writer.option("checkpointLocation", self._checkpoint()).trigger(availableNow=True)
        began_s, used_s = time.perf_counter(), cpu_s()
        query = writer.start()
        query.awaitTermination()
        taken_s = time.perf_counter() - began_s
        cpu_us = self._cpu_us(used_s, self._rows)
        rows = sum(progress["numInputRows"] for progress in query.recentProgress)
        if rows != self._rows:
            print(f"incomplete: {rows} of {self._rows} rows were received", flush=True)
        return [rows / running_s(query), cpu_us, rows / taken_s]

    def _generated(self) -> Any:
        """Return a writer for rows that Spark generates, in SINK_BATCHES micro-batches."""
        stream = self._spark.readStream.format("rate-micro-batch")
        stream = stream.option("rowsPerBatch", self._rows // SINK_BATCHES).option("numPartitions", PARTITIONS)
        text = "x" * (self._size - 20)
        return stream.load().selectExpr(f"CAST(concat('{text}', value) AS BINARY) AS value").writeStream

    def _written(self, writer: Any) -> list[float]:
        used_s = cpu_s()
        query = writer.option("checkpointLocation", self._checkpoint()).start()
        try:
            while len([each for each in query.recentProgress if each["numInputRows"]]) < SINK_BATCHES:
                if not query.isActive:
                    raise RuntimeError(str(query.exception()))
                time.sleep(0.05)
            batches = [each for each in query.recentProgress if each["numInputRows"]]
        finally:
            query.stop()
        cpu_us = self._cpu_us(used_s, sum(each["numInputRows"] for each in batches))
        warm = batches[1:]
        rate = sum(each["numInputRows"] for each in warm) / sum(each["batchDuration"] for each in warm) * 1000
        return [rate, cpu_us]


def aggregated(stream: Any) -> Any:
    """Parse the values of a stream as JSON; count and sum them by key."""
    parsed = stream.selectExpr(f"from_json(CAST(value AS STRING), '{JSON_SCHEMA}') AS row")
    return parsed.groupBy("row.key").agg(F.sum("row.amount"), F.count("*"))


def measure(nsqds: list[Daemon], topic: str, found: list[float], ending: threading.Event) -> None:
    """Append the age of each received message to ``found``, in milliseconds."""
    addresses = [nsqd.tcp_address for nsqd in nsqds]
    with Consumer(topic, "measure", nsqd_tcp_addresses=addresses, max_in_flight=1000) as consumer:
        while not ending.is_set():
            message = consumer.get(0.2)
            if message is not None:
                sent_us = int(message.body.rpartition(b" ")[2].rstrip(b"}"))
                found.append((time.time_ns() // 1000 - sent_us) / 1000)
                message.finish()


MEASURES = (
    *("spark_read", "spark_stream", "receive", "read", "source", "spark_json", "json", "spark_write", "sink"),
    *("latency", "latency_json"),
)


def report(name: str, rounds: list[list[float]]) -> None:
    """Print one line with the medians, and the range of the first value."""
    columns = list(zip(*rounds, strict=True))
    if name.startswith("latency"):
        p50, p99, longest = (statistics.median(column) for column in columns)
        text = f"p50 {p50:,.0f} ms, p99 {p99:,.0f} ms, longest {longest:,.0f} ms"
    else:
        text = f"{statistics.median(columns[0]):>11,.0f}   ({min(columns[0]):,.0f}-{max(columns[0]):,.0f})"
        text += f"   {statistics.median(columns[1]):.2f} us CPU"
        if len(columns) > 2:
            text += f"   whole run {statistics.median(columns[2]):,.0f}"
    print(f"{name.replace('_', ' '):<14}{text}", flush=True)


@contextmanager
def session(directory: Path) -> Iterator[Any]:
    """Start Spark on two cores. Its workers import spark_ceilings.py and the same nsqx as this program."""
    paths = [str(HERE), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    spark = build_session("bench", f"local[{PARTITIONS}]", settings)
    try:
        spark.sparkContext.setLogLevel("OFF")
        spark.dataSource.register(CeilingSource)
        yield spark
    finally:
        spark.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("measures", nargs="*", choices=[[], *MEASURES], default=[])
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--bytes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nsqd", choices=["go", "nsqx"], default="nsqx")
    parser.add_argument("--nsqds", type=int, nargs="+", default=[1])
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="bench-spark-"))
    try:
        with session(directory) as spark:
            for count in arguments.nsqds:
                for rows in arguments.rows:
                    run(spark, arguments, count, rows, directory)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return 0


def run(spark: Any, arguments: argparse.Namespace, nsqd_count: int, rows: int, directory: Path) -> None:
    """Run the selected measurements with this number of nsqds and rows."""
    print(f"{rows} rows of {arguments.bytes} bytes, {nsqd_count} nsqd ({arguments.nsqd}), rows/s: median (min-max)")
    with ExitStack() as stack:
        flags = ("--mem-queue-size=10000000", "--max-body-size=50000000")
        nsqds = [stack.enter_context(start_nsqd(arguments.nsqd, *flags)) for _ in range(nsqd_count)]
        place = Path(tempfile.mkdtemp(dir=directory))
        bench = Bench(spark, nsqds, rows, arguments.bytes, place)
        for measure_name in arguments.measures or MEASURES:
            work = getattr(bench, measure_name)
            # The first round is a warm-up of the JVM.
            is_rate = not measure_name.startswith("latency")
            rounds = [work() for _ in range(arguments.rounds + 1)][1:] if is_rate else [work()]
            report(measure_name, rounds)
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
