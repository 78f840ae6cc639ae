"""A Spark driver that tests kill: from one NSQ topic to another, with the exactly-once sink.

    python sink_driver.py DIRECTORY MASTER SOURCE SINK PARTITIONS

SOURCE and SINK are the JSON of the options. The driver prints a line when a batch has ended, and restarts a failed
query, as an operator would. It stops at the end of its standard input. PARTITIONS differs between drivers, so a batch
that another driver repeats has its rows in other tasks.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from spark_driver import SETTINGS

from nsqx.spark.session import build_session


def start(spark: Any, directory: Path, source: dict[str, str], sink: dict[str, str], partitions: int) -> Any:
    rows = spark.readStream.format("nsq").options(**source).load().select("value").repartition(partitions)
    writer = rows.writeStream.format("nsq").option("exactlyOnce", "true").options(**sink)
    return writer.option("checkpointLocation", str(directory / "checkpoint")).start()


def main() -> None:
    directory = Path(sys.argv[1])
    source, sink = json.loads(sys.argv[3]), json.loads(sys.argv[4])
    spark = build_session("kill-sink", sys.argv[2], SETTINGS)
    spark.sparkContext.setLogLevel("OFF")
    ending = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ending.set()), daemon=True).start()
    query = start(spark, directory, source, sink, int(sys.argv[5]))
    last = -1
    while not ending.is_set():
        if not query.isActive:
            print("failed", str(query.exception()).splitlines()[0], flush=True)
            query = start(spark, directory, source, sink, int(sys.argv[5]))
        progress = query.lastProgress
        if progress and progress["batchId"] > last and progress["numInputRows"]:
            last = progress["batchId"]
            print("batch", last, flush=True)
        time.sleep(0.05)
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
