"""Registers the data source ``nsq``: Spark takes this class from modules whose names begin with ``pyspark_``."""

from nsqx.spark.source import NSQDataSource as DefaultSource

__all__ = ["DefaultSource"]
