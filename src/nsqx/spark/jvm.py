"""All uses of Spark's private attributes, which lead to objects of the driver's JVM.

Each function stands for a public API that Spark lacks, and names the nearest one. Spark Connect keeps the JVM in
another process: functions that need it raise ConfigError there. ``plan_text`` and ``s3_urls`` have what replaces them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import orjson

from nsqx.errors import ConfigError
from nsqx.spark.logical_plan import PlanExpression, PlanNode, without_qualifiers


def has_context() -> bool:
    """Return True if this process has a Spark context; False under Spark Connect.

    The public ``SparkContext.getOrCreate`` creates one, and ``SparkSession.getActiveSession`` knows only sessions of
    the calling thread.
    """
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None


def has_jvm(spark: Any) -> bool:
    """Return False for a session of Spark Connect, whose JVM is in another process."""
    return not type(spark).__module__.startswith("pyspark.sql.connect.")


def check_output_mode(rows: Any, mode: str) -> None:
    """Raise AnalysisException if a streaming query over ``rows`` cannot have this output mode.

    The public ``DataStreamWriter.start`` checks this too, but only when it starts the query.
    """
    catalyst = _private(rows.sparkSession, "_jvm").org.apache.spark.sql.catalyst
    java_mode = catalyst.streaming.InternalOutputModes.apply(mode)
    plan = _private(rows, "_jdf").queryExecution().analyzed()
    catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(plan, java_mode)


def logical_plan(rows: Any) -> PlanNode | None:
    """Return the analysed plan of a DataFrame, or None under Spark Connect.

    The public ``DataFrame.explain`` prints it without types.
    """
    java_rows = getattr(rows, "_jdf", None)
    return _plan_node(java_rows.queryExecution().analyzed()) if java_rows is not None else None


def _plan_node(plan: Any) -> PlanNode:
    kind = str(plan.nodeName())
    children = tuple(_plan_node(child) for child in _items(plan.children()))
    node = PlanNode(kind.partition(" ")[0], bool(plan.isStreaming()), children)
    if node.kind == "View":
        return replace(node, view=str(plan.desc().identifier().table()))
    if not node.is_stateful:
        return node
    if node.kind == "Aggregate":
        keys = [_plan_expression(each, plan.child()) for each in _items(plan.groupingExpressions())]
        found = [inner for each in _items(plan.aggregateExpressions()) for inner in _aggregates(each)]
        return replace(node, keys=tuple(keys), values=tuple(dict.fromkeys(found)))
    if node.kind == "Join":
        condition = plan.condition()
        keys = [_plan_expression(condition.get())] if condition.isDefined() else []
        sides = [*_items(plan.left().output()), *_items(plan.right().output())]
        columns = tuple(_plan_expression(each) for each in sides)
        return replace(node, keys=tuple(keys), values=columns, detail=str(plan.joinType().sql()))
    return replace(node, keys=tuple(_plan_expression(each) for each in _items(plan.keys())))


def _plan_expression(expression: Any, below: Any = None) -> PlanExpression:
    """Return an expression; ``below`` is the input in which the definition of a generated column is looked up."""
    name = without_qualifiers(str(expression.sql()))
    sql = name
    if below is not None and expression.nodeName() == "AttributeReference":
        sql = _definition(expression.exprId().id(), below) or name
    return PlanExpression(name, str(expression.dataType().catalogString()), sql)


def _definition(expression_id: int, plan: Any) -> str:
    """Return the SQL of a column that an operator directly below computes, such as a time window; else empty."""
    while plan.nodeName() in ("Project", "Filter", "Expand", "EventTimeWatermark"):
        if plan.nodeName() == "Project":
            for each in _items(plan.projectList()):
                if each.exprId().id() == expression_id and each.nodeName() == "Alias":
                    return without_qualifiers(str(each.child().sql()))
        elif plan.nodeName() == "Expand":
            for place, each in enumerate(_items(plan.output())):
                if each.exprId().id() == expression_id:
                    windows = [row.apply(place) for row in _items(plan.projections())]
                    return "; ".join(without_qualifiers(str(window.sql())) for window in windows)
        plan = plan.child()
    return ""


def _aggregates(expression: Any) -> Iterator[PlanExpression]:
    if expression.nodeName() == "AggregateExpression":
        yield _plan_expression(expression)
        return
    for child in _items(expression.children()):
        yield from _aggregates(child)


def _items(sequence: Any) -> Iterator[Any]:
    """Yield the elements of a Scala sequence."""
    for place in range(sequence.size()):
        yield sequence.apply(place)


def last_progress(query: Any) -> dict[str, Any] | None:
    """Return the last progress report of a streaming query, or None before the first one.

    The public ``StreamingQuery.lastProgress`` makes about a hundred calls to the JVM in older versions of pyspark, and
    fails for a report without a rate in newer ones.
    """
    report = _private(query, "_jsq").lastProgress()
    return orjson.loads(report.json()) if report is not None else None


def progress_after(query: Any, timestamp: str) -> list[dict[str, Any]]:
    """Return the progress reports of a streaming query that began after ``timestamp``, the oldest first.

    Spark keeps the last 100 reports. The public ``StreamingQuery.recentProgress`` has the problems of
    ``StreamingQuery.lastProgress``, also under Spark Connect.
    """
    found: list[dict[str, Any]] = []
    for timestamp_of, text in reversed(list(_reports(query))):
        if timestamp_of <= timestamp:
            break
        found.append(orjson.loads(text()))
    return found[::-1]


def _reports(query: Any) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield the time of each report, and a function that returns its JSON."""
    if hasattr(query, "_jsq"):
        for report in query._jsq.recentProgress():
            yield report.timestamp(), report.json
        return
    from pyspark.sql.connect import proto

    command = proto.StreamingQueryCommand()
    command.recent_progress = True
    for text in query._execute_streaming_query_cmd(command).recent_progress.recent_progress_json:
        yield orjson.loads(text)["timestamp"], partial(str, text)


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
