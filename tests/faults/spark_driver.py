"""A Spark driver that tests kill: NSQ to Parquet, with one directory per batch that a repeated batch overwrites.

    python spark_driver.py DIRECTORY MASTER OPTIONS

OPTIONS is the JSON of the source's options. The driver prints a line after every batch. It restarts a failed query, as
an operator would. At the end of its standard input it stops, reads the files with Spark, and prints one line of JSON:
the number of rows, the number of distinct rows, and the completed tasks of each executor.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from nsqx.spark.session import build_session

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "768m",
    "spark.executor.cores": "1",
}


class Query:
    """The stream, which is restarted when it fails."""

    def __init__(self, spark: Any, directory: Path, options: dict[str, str]) -> None:
        self._spark = spark
        self._directory = directory
        self._options = options
        self._ending = threading.Event()
        self._query = self._start()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def _start(self) -> Any:
        def write(batch: Any, number: int) -> None:
            batch.write.mode("overwrite").parquet(str(self._directory / "rows" / f"batch={number}"))
            print("batch", number, flush=True)

        stream = self._spark.readStream.format("nsq").options(**self._options).load().writeStream.foreachBatch(write)
        return stream.option("checkpointLocation", str(self._directory / "checkpoint")).start()

    def _keep(self) -> None:
        while not self._ending.is_set():
            if self._query.isActive:
                time.sleep(0.1)
                continue
            print("failed", str(self._query.exception()).splitlines()[0], flush=True)
            self._query = self._start()

    def stop(self) -> None:
        self._ending.set()
        self._thread.join()
        self._query.stop()


def completed_tasks(spark: Any) -> dict[str, int]:
    """Return the completed tasks by executor, including lost executors; on a cluster the driver runs no tasks."""
    executors = spark.sparkContext._jsc.sc().statusStore().executorList(False)
    found = [executors.apply(place) for place in range(executors.length())]
    return {each.id(): each.completedTasks() for each in found}


def main() -> None:
    directory = Path(sys.argv[1])
    spark = build_session("kill", sys.argv[2], SETTINGS)
    spark.sparkContext.setLogLevel("OFF")
    query = Query(spark, directory, json.loads(sys.argv[3]))
    print("started", flush=True)
    sys.stdin.read()
    query.stop()
    rows = spark.read.parquet(str(directory / "rows"))
    total, distinct = rows.selectExpr("count(value)", "count(DISTINCT value)").first()
    print("verified", json.dumps({"rows": total, "distinct": distinct, "tasks": completed_tasks(spark)}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
