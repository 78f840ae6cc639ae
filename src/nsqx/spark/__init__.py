"""The Spark data source ``nsq``: NSQ topics as streaming and batch DataFrames, and DataFrames published to NSQ.

Needs the extra ``nsqx[spark]`` and Java 17. This module imports nothing, so the options and the segment files can be
used and tested without Spark.
"""
