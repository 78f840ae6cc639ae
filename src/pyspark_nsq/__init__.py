"""Registers the data source ``nsq``: Spark takes this class from modules whose names begin with ``pyspark_``."""

from nsqx.spark.session import check_pyspark

check_pyspark()

from nsqx.spark.source import NSQDataSource as DefaultSource  # noqa: E402  (fails on an old pyspark)

__all__ = ["DefaultSource"]
