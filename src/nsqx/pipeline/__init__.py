"""Data pipelines on Spark: topics in, tables and topics out, described by one TOML file; archives and their replay.

Stands on ``nsqx.spark``, the data source. ``description`` is what the file says, ``plan`` makes DataFrames of it,
``sinks`` and their kin write batches, ``runner`` runs the queries.
"""
