"""The Delta Lake sink: appends batches to a table exactly once, replaces it, or merges rows by key.

Delta records the number of the last batch of each query in the table's log, in the commit of the batch itself, and
skips a batch that it has already. A merge of the same batch changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsqx.spark.s3_urls import for_spark

if TYPE_CHECKING:
    from nsqx.pipeline.model import Pipeline, Sink

BUILDS = {(4, 2): "io.delta:delta-spark_4.2_2.13:4.4.0"}
"""The newest published build of Delta for each version of Spark."""
SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def delta_settings(pipeline: Pipeline, spark_version: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the settings and packages that the Delta sinks of a pipeline need; raises ConfigError.

    A build that the pipeline names itself is used instead of the published one.
    """
    sinks = [sink for sink in pipeline.sinks.values() if sink.type == "delta"]
    if not sinks:
        return {}, ()
    if any("delta" in each.rpartition("/")[2] for each in (*pipeline.spark.jars, *pipeline.spark.packages)):
        return SETTINGS, ()
    version = tuple(int(part) for part in spark_version.split(".")[:2])
    for supported, package in BUILDS.items():
        if version == supported:
            return SETTINGS, (package,)
    newest = ".".join(map(str, max(BUILDS)))
    found = ".".join(map(str, version))
    raise pipeline.fail(
        f"sink.{sinks[0].name}.type",
        f"Delta has no published build for Spark {found}: use pip install 'pyspark=={newest}.*', or name a build of"
        " your own in [spark] packages",
    )


class DeltaSink:
    """Writes the batches of one query to a Delta table at a path."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._path = for_spark(sink.path)

    def prepare(self) -> None:
        """No-op: the table is created with the first batch."""

    def recover(self) -> None:
        """No-op."""

    def write(self, rows: Any, query_id: str, batch_id: int) -> int:
        """Write a batch and return the number of its rows; a batch that the table has already is skipped."""
        rows = rows.persist()
        try:
            count = int(rows.count())
            if self._sink.mode == "update":
                self._merge(rows, count)
            elif count or self._sink.mode == "complete":
                self._save(rows, query_id, batch_id)
        finally:
            rows.unpersist()
        return count

    def _save(self, rows: Any, query_id: str, batch_id: int) -> None:
        writer = rows.write.format("delta").mode("overwrite" if self._sink.mode == "complete" else "append")
        writer = writer.option("txnAppId", query_id).option("txnVersion", batch_id).option("mergeSchema", "true")
        if self._sink.partition_by:
            writer = writer.partitionBy(*self._sink.partition_by)
        writer.save(self._path)

    def _merge(self, rows: Any, count: int) -> None:
        session = rows.sparkSession
        table = f"delta.`{self._path}`"
        if not self._exists(session):
            # An empty table, so that the first batch is merged like any other.
            empty = rows.limit(0).write.format("delta").mode("append")
            (empty.partitionBy(*self._sink.partition_by) if self._sink.partition_by else empty).save(self._path)
        if not count:
            return
        name = f"nsqx_batch_{self._sink.name}"
        rows.createOrReplaceTempView(name)
        same = " AND ".join(f"t.`{key}` <=> s.`{key}`" for key in self._sink.keys)
        session.sql(
            f"MERGE INTO {table} t USING {name} s ON {same} WHEN MATCHED THEN UPDATE SET *"
            " WHEN NOT MATCHED THEN INSERT *"
        ).collect()

    def _exists(self, session: Any) -> bool:
        try:
            session.read.format("delta").load(self._path).schema  # noqa: B018  (reads the log of the table)
        except Exception as error:
            if "DELTA_TABLE_NOT_FOUND" in str(error) or "PATH_NOT_FOUND" in str(error) or "doesn't exist" in str(error):
                return False
            raise
        return True
