"""A Spark driver program that uses the master of spark-defaults.conf.

    python cluster_driver.py READS

READS is a JSON list. Each read has the ``options`` of the source, a ``kind`` (``available``, ``once`` or ``batch``) and
a ``checkpoint``. The program prints one line of JSON for each read, with its number of ``rows`` or its ``error``.
"""

from __future__ import annotations

import json
import os
import sys

from pyspark.sql import SparkSession

TRIGGERS = {"available": {"availableNow": True}, "once": {"once": True}}


def count_rows(spark, options, kind, checkpoint):
    """Run one read until it ends; return the number of rows."""
    if kind == "batch":
        return spark.read.format("nsq").options(**options).load().count()
    counts = []
    stream = spark.readStream.format("nsq").options(**options).load().writeStream.trigger(**TRIGGERS[kind])
    stream = stream.foreachBatch(lambda batch, _: counts.append(batch.count()))
    query = stream.option("checkpointLocation", checkpoint).start()
    if not query.awaitTermination(100):
        query.stop()
        raise TimeoutError("the query did not end")
    return sum(counts)


def main() -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.appName("cluster").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    for read in json.loads(sys.argv[1]):
        try:
            outcome = {"rows": count_rows(spark, **read)}
        except Exception as error:
            outcome = {"error": str(error)}
        print(json.dumps(outcome), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
