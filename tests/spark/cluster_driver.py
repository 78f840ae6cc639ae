"""A driver on whatever master spark-defaults.conf names, in a process of its own.

    python cluster_driver.py READS

READS is the JSON of a list of reads, each with the source's ``options``, its ``kind`` (``available``, ``once`` or
``batch``) and a ``checkpoint``. Prints a line of JSON for each: how many ``rows`` it got, or its ``error``.
"""

from __future__ import annotations

import json
import os
import sys

from pyspark.sql import SparkSession

TRIGGERS = {"available": {"availableNow": True}, "once": {"once": True}}


def count_rows(spark, options, kind, checkpoint):
    """Run one read to its end."""
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
