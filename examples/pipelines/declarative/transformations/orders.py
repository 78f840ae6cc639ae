"""The orders of a topic as streaming tables: raw, decoded, and those that could not be decoded."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json

spark = SparkSession.active()

SCHEMA = "order INT, product STRING, amount DOUBLE, time TIMESTAMP"


@dp.table
def raw_orders() -> DataFrame:
    """Return the messages unchanged, each exactly once, even if a run is killed."""
    return (
        spark.readStream.format("nsq")
        .option("nsq.nsqd", spark.conf.get("nsq.example.nsqd"))
        .option("subscribe", "orders")
        .option("channel", "declarative")
        .option("segmentDir", spark.conf.get("nsq.example.segments"))
        .load()
    )


@dp.table
def orders() -> DataFrame:
    """Return the orders that could be decoded."""
    order = from_json(col("value").cast("string"), SCHEMA)
    return spark.readStream.table("raw_orders").select(order.alias("o")).select("o.*").where("product IS NOT NULL")


@dp.table
def unreadable_orders() -> DataFrame:
    """Return the messages that could not be decoded, unchanged."""
    order = from_json(col("value").cast("string"), SCHEMA)
    return spark.readStream.table("raw_orders").where(order["product"].isNull())
