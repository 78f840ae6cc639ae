"""Data pipelines on Spark: a TOML file describes how topics become files, tables and topics; archives and replay.

Uses the data source ``nsqx.spark``. ``parser`` reads the file into ``model``, ``plan`` builds DataFrames from it,
``sinks`` writes batches, and ``runner`` runs the queries.
"""
