"""Rows a second of the Spark source and sink, beside what Spark alone reaches in the same run; prints, never asserts.

    python tests/bench/bench_spark.py [--rows 500000] [--bytes 200] [--rounds 3] [--nsqd nsqx] [measure ...]

    spark read     a Python data source that makes the same Arrow batches from nothing, into Spark's noop sink
    spark write    an Arrow writer that looks at the batches and throws them away
    receive        from nsqd into segment files, without Spark
    read           segment files into the noop sink: a batch read whose rows were received before
    source         a stream, AvailableNow, from a full channel into the noop sink
    sink           a frame into nsqd

Figures belong to the machine and the moment: only those of one run may be compared.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

from daemons import Daemon, start_nsqd
from nsqx.client.blocking import Producer
from nsqx.errors import ConfigError
from nsqx.spark.options import read_source_options
from nsqx.spark.receiver import Receiver
from nsqx.spark.rows import SPARK_SCHEMA
from nsqx.spark.session import build_session
from nsqx.spark.source import open_directory

if TYPE_CHECKING:
    import pyarrow as pa

BATCH = 10_000
COLUMNS = "value BINARY, topic STRING, id STRING, timestamp TIMESTAMP, attempts INT, node STRING"


class CeilingSource(DataSource):
    """As much as Spark takes from a Python source, and as much as it gives to one."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> str:
        return COLUMNS

    def reader(self, schema: Any) -> DataSourceReader:
        rows, size = int(self.options["rows"]), int(self.options["bytes"])

        class Reader(DataSourceReader):
            def partitions(self) -> list[InputPartition]:
                return [InputPartition(rows // 2), InputPartition(rows - rows // 2)]

            def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
                import pyarrow

                columns = [[b"x" * size] * BATCH, ["t"] * BATCH, ["0" * 16] * BATCH, [0] * BATCH, [1] * BATCH]
                columns.append(["127.0.0.1:4150"] * BATCH)
                arrays = [
                    pyarrow.array(column, field.type) for column, field in zip(columns, SPARK_SCHEMA, strict=True)
                ]
                batch = pyarrow.RecordBatch.from_arrays(arrays, schema=SPARK_SCHEMA)
                left = partition.value
                while left > 0:
                    yield batch.slice(0, min(left, BATCH))
                    left -= BATCH

        return Reader()

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        class Writer(DataSourceArrowWriter):
            def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
                for batch in iterator:
                    batch.column("value").to_pylist()
                return WriterCommitMessage()

            def commit(self, messages: Any) -> None: ...

            def abort(self, messages: Any) -> None: ...

        return Writer()


def fill(nsqd: Daemon, topic: str, rows: int, size: int) -> None:
    """A channel with so many messages in it."""
    nsqd.post("/topic/create", topic=topic)
    nsqd.post("/channel/create", topic=topic, channel="spark")
    bodies = [b"x" * size] * 2000
    with Producer(nsqd.tcp_address) as producer:
        for start in range(0, rows, 2000):
            producer.publish_many(topic, bodies[: min(2000, rows - start)])


class Bench:
    """One nsqd, one session, many rounds."""

    def __init__(self, spark: Any, nsqd: Daemon, rows: int, size: int, directory: Path) -> None:
        self._spark = spark
        self._nsqd = nsqd
        self._rows = rows
        self._size = size
        self._directory = directory
        self._number = 0

    def _filled(self) -> dict[str, str]:
        self._number += 1
        topic = f"bench_{self._number}"
        fill(self._nsqd, topic, self._rows, self._size)
        return {
            "nsq.nsqd": self._nsqd.tcp_address,
            "subscribe": topic,
            "channel": "spark",
            "segmentDir": str(self._directory / topic / "segments"),
            "drainIdle": "500ms",
            "minPartitions": "2",
        }

    def _timed(self, work: Callable[[], Any]) -> float:
        began_s = time.perf_counter()
        work()
        return self._rows / (time.perf_counter() - began_s)

    def spark_read(self) -> float:
        options = {"rows": str(self._rows), "bytes": str(self._size)}
        frame = self._spark.read.format("ceiling").options(**options).load()
        return self._timed(lambda: frame.write.format("noop").mode("overwrite").save())

    def _frame(self) -> Any:
        text = "x" * self._size
        return self._spark.range(self._rows).selectExpr(f"CAST('{text}' AS BINARY) AS value").repartition(2)

    def spark_write(self) -> float:
        return self._timed(lambda: self._frame().write.format("ceiling").mode("append").save())

    def sink(self) -> float:
        self._number += 1
        writer = self._frame().write.format("nsq").mode("append").option("nsq.nsqd", self._nsqd.tcp_address)
        return self._timed(lambda: writer.option("topic", f"bench_{self._number}").save())

    def receive(self) -> float:
        options = read_source_options(self._filled())
        directory = open_directory(options)
        receiver = Receiver(options, directory)

        def work() -> None:
            receiver.start()
            receiver.wait_for_rows(self._rows - 1, 120.0)

        rate = self._timed(work)
        directory.close(is_clean=receiver.stop())
        return rate

    def read(self) -> float:
        options = {**self._filled(), "readId": "bench"}
        self._spark.read.format("nsq").options(**options).load().count()
        frame = self._spark.read.format("nsq").options(**options).load()
        return self._timed(lambda: frame.write.format("noop").mode("overwrite").save())

    def source(self) -> float:
        options = self._filled()
        stream = self._spark.readStream.format("nsq").options(**options).load().writeStream.format("noop")
        stream = stream.option("checkpointLocation", str(self._directory / f"checkpoint_{self._number}"))

        def work() -> None:
            query = stream.trigger(availableNow=True).start()
            query.awaitTermination()
            rows = sum(progress["numInputRows"] for progress in query.recentProgress)
            if rows != self._rows:
                print(f"incomplete: {rows} of {self._rows} rows came", flush=True)

        return self._timed(work)


MEASURES = ("spark_read", "read", "receive", "source", "spark_write", "sink")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("measures", nargs="*", choices=[[], *MEASURES], default=[])
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--bytes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nsqd", choices=["go", "nsqx"], default="nsqx")
    arguments = parser.parse_args()
    source = str(Path(__file__).resolve().parents[2] / "src")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.sql.shuffle.partitions": "2"}
    try:
        spark = build_session("bench", "local[2]", settings)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(CeilingSource)
    directory = Path(tempfile.mkdtemp(prefix="bench-spark-"))
    try:
        with start_nsqd(arguments.nsqd, "--mem-queue-size=10000000") as nsqd:
            bench = Bench(spark, nsqd, arguments.rows, arguments.bytes, directory)
            print(f"{arguments.rows} rows of {arguments.bytes} bytes, {arguments.nsqd} nsqd, rows/s: median (min-max)")
            for measure in arguments.measures or MEASURES:
                # The first round warms the JVM up.
                rates = [getattr(bench, measure)() for _ in range(arguments.rounds + 1)][1:]
                name = measure.replace("_", " ")
                print(
                    f"{name:<14}{statistics.median(rates):>12,.0f}   ({min(rates):,.0f}-{max(rates):,.0f})", flush=True
                )
    finally:
        spark.stop()
        shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
