"""A Spark driver to be killed: NSQ into Parquet, a directory for each batch, which is written anew if it is run again.

    python spark_driver.py DIRECTORY OPTIONS

OPTIONS is the JSON of the source's options. It prints the number of rows after every batch, and ends when its standard
input does.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from nsqx.spark.session import build_session

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


def main() -> None:
    directory = Path(sys.argv[1])
    options: dict[str, str] = json.loads(sys.argv[2])
    spark = build_session("kill", "local[2]", SETTINGS)
    spark.sparkContext.setLogLevel("OFF")

    def write(batch: Any, number: int) -> None:
        batch.write.mode("overwrite").parquet(str(directory / "rows" / f"batch={number}"))
        print("batch", number, flush=True)

    stream = spark.readStream.format("nsq").options(**options).load().writeStream.foreachBatch(write)
    query = stream.option("checkpointLocation", str(directory / "checkpoint")).start()
    print("started", flush=True)
    sys.stdin.read()
    query.stop()
    if query.exception() is not None:
        print("failed", query.exception(), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
