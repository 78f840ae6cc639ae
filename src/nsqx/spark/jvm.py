"""All uses of Spark's private attributes, which lead to objects of the driver's JVM.

Each function stands for a public API that Spark lacks, and names the nearest one. Spark Connect keeps the JVM in
another process: every function that needs it then raises ConfigError.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from nsqx.errors import ConfigError

_RELATION = re.compile(r"'UnresolvedRelation \[([^\],]+)\]")


def has_context() -> bool:
    """Return True if this process has a Spark context; False under Spark Connect.

    The public ``SparkContext.getOrCreate`` creates one, and ``SparkSession.getActiveSession`` knows only sessions of
    the calling thread.
    """
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None


def tables_in(spark: Any, sql: str) -> tuple[str, ...]:
    """Return the names of the tables that a query reads, as written; raises ParseException.

    The public ``SparkSession.sql`` also resolves the tables, which do not exist yet.
    """
    tree = _private(spark, "_jsparkSession").sessionState().sqlParser().parsePlan(sql).treeString()
    return tuple(dict.fromkeys(_RELATION.findall(tree)))


def check_output_mode(rows: Any, mode: str) -> None:
    """Raise AnalysisException if a streaming query over ``rows`` cannot have this output mode.

    The public ``DataStreamWriter.start`` checks this too, but only when it starts the query.
    """
    catalyst = _private(rows.sparkSession, "_jvm").org.apache.spark.sql.catalyst
    java_mode = catalyst.streaming.InternalOutputModes.apply(mode)
    plan = _private(rows, "_jdf").queryExecution().analyzed()
    catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(plan, java_mode)


def last_progress(query: Any) -> dict[str, Any] | None:
    """Return the last progress report of a streaming query, or None before the first one.

    The public ``StreamingQuery.lastProgress`` makes about a hundred calls to the JVM in older versions of pyspark, and
    fails for a report without a rate in newer ones.
    """
    report = _private(query, "_jsq").lastProgress()
    return orjson.loads(report.json()) if report is not None else None


def has_file_system(spark: Any, scheme: str) -> bool:
    """Return True if the JVM has a Hadoop file system for URLs with this scheme.

    The public readers and writers find out only when they open a file.
    """
    configuration = _private(spark, "_jsc").hadoopConfiguration()
    try:
        _private(spark, "_jvm").org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, configuration)
    except Exception:  # a Java exception, wrapped by py4j or pyspark
        return False
    return True


def hadoop_version(spark: Any) -> str:
    """Return the version of Spark's Hadoop libraries; no public API returns it."""
    return str(_private(spark, "_jvm").org.apache.hadoop.util.VersionInfo.getVersion())


def connect_jdbc(spark: Any, url: str, driver_class: str, properties: Mapping[str, str]) -> Any:
    """Return a ``java.sql.Connection`` of the driver's JVM; raises Java's exception.

    The public format ``jdbc`` reads and writes tables, but runs no statements and no transactions.
    """
    jvm = _private(spark, "_jvm")
    java_properties = jvm.java.util.Properties()
    for name, value in properties.items():
        java_properties.setProperty(name, value)
    # Lets this thread of the JVM find the driver in jars that were added to the session.
    loader = _private(spark, "_jsparkSession").sharedState().jarClassLoader()
    jvm.java.lang.Thread.currentThread().setContextClassLoader(loader)
    jvm.org.apache.spark.sql.execution.datasources.jdbc.DriverRegistry.register(driver_class)
    return jvm.java.sql.DriverManager.getConnection(url, java_properties)


def java_exception(error: BaseException) -> Any:
    """Return the Java exception that a call of the JVM raised, or None.

    No public API of pyspark returns it; under Spark Connect there is none.
    """
    return getattr(error, "java_exception", None)


def _private(owner: Any, name: str) -> Any:
    """Return a private attribute of a Spark object; raises ConfigError if the object is one of Spark Connect."""
    try:
        return getattr(owner, name)
    except AttributeError:
        raise ConfigError(
            "Spark Connect is not supported: use a session with its JVM beside this process, such as one with the"
            " master local[*] or spark://host:7077"
        ) from None
