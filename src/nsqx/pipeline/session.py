"""The Spark session of a pipeline: prints nothing to the terminal, and no single record can stop a query."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsqx.errors import ConfigError
from nsqx.pipeline.delta_sink import delta_settings
from nsqx.pipeline.functions import find_function, module_file
from nsqx.spark.jvm import has_context, has_jvm
from nsqx.spark.s3_urls import check_spark_reaches
from nsqx.spark.session import build_connect_session, build_session, check_spark, connect_url

if TYPE_CHECKING:
    from nsqx.pipeline.model import Pipeline

DEFAULTS = {
    # A failed cast returns NULL instead of ending the query. Times in an old format are not read.
    "spark.sql.ansi.enabled": "false",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    # For aggregates and joins; the first run fixes it. Spark's default of 200 costs seconds per batch on one machine.
    "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
}
_LOCAL_CHECKPOINTS = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    )
}
_STDERR = 2
NOT_OVER_CONNECT = {
    "jdbc": "its transactions need a JDBC connection of the driver's JVM",
    "console": "it would print in the process of the server",
}
"""The types of sinks that Spark Connect cannot have, with the reason."""


@dataclass(frozen=True, slots=True)
class _Connected:
    """A session at a Spark Connect server, and what the sessions that are made from it get and leave behind."""

    session: Any
    settings: Mapping[str, str]
    exits: contextlib.ExitStack
    artifacts: list[tuple[str, bool]]
    """Paths of jars and Python modules; True for a module."""


_connected: list[_Connected] = []


@contextlib.contextmanager
def open_session(
    name: str, master: str | None, settings: Mapping[str, str], *, is_local_state: bool, log: str = ""
) -> Iterator[Any]:
    """Open a session for the block; an existing session is used and not stopped.

    ``master`` can be the address of a Spark Connect server (sc://). ``log`` is a file for Spark's stderr.
    """
    if url := connect_url(master, settings):
        settings = {key: value for key, value in settings.items() if key != "spark.remote"}
        with _open_connect_session(url, settings) as session:
            yield session
        return
    check_spark()
    was_there = has_context()
    # These loggers print every failed analysis with its stack.
    for noisy in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(noisy).disabled = True
    wanted = {**DEFAULTS, **(_LOCAL_CHECKPOINTS if is_local_state else {}), **settings}
    try:
        with _stderr_to(log) if log and not was_there else contextlib.nullcontext():
            session = build_session(name, master, {} if was_there else wanted)
    except ConfigError:
        raise
    except Exception as error:  # Java and Spark may raise anything
        hint = f": see {log}" if log and log != os.devnull else ": run with --verbose for details"
        raise ConfigError(f"Spark cannot start ({' '.join(str(error).split())[:300]}){hint}") from None
    try:
        yield session
    finally:
        if not was_there:
            session.stop()


@contextlib.contextmanager
def _open_connect_session(url: str, settings: Mapping[str, str]) -> Iterator[Any]:
    for noisy in ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "pyspark.sql.connect.logging"):
        logging.getLogger(noisy).disabled = True
    session = build_connect_session(url)
    with contextlib.ExitStack() as exits:
        exits.callback(session.stop)
        for key in settings:
            if not session.conf.isModifiable(key):
                raise ConfigError(f"{key} cannot be set over Spark Connect: set it where the server {url} is started")
        _connected.append(_Connected(session, {**DEFAULTS, **settings}, exits, []))
        exits.callback(_connected.pop)
        yield session


@contextlib.contextmanager
def open_pipeline_session(pipeline: Pipeline, master: str, *, verbose: bool, keeps_log: bool = False) -> Iterator[Any]:
    """Open a session for a pipeline, with its jars and Python modules; raises ConfigError.

    Spark's log goes to stderr if ``verbose``, to a local state directory if ``keeps_log``, and else nowhere.
    """
    if url := connect_url(master or None, pipeline.spark.settings):
        _check_connect(pipeline, url)
        with open_session(
            pipeline.name, url, pipeline.spark.settings, is_local_state="://" not in pipeline.state
        ) as spark:
            check_spark_reaches(spark, pipeline.state)
            _add_artifacts(pipeline)
            yield spark
        return
    check_spark()
    import pyspark

    delta, delta_packages = delta_settings(pipeline, pyspark.__version__)
    settings = {**delta, **pipeline.spark.settings}
    if packages := (*pipeline.spark.packages, *delta_packages):
        settings["spark.jars.packages"] = ",".join(packages)
    is_local = "://" not in pipeline.state
    log = "" if verbose else f"{pipeline.state}/spark.log" if keeps_log and is_local else os.devnull
    with open_session(pipeline.name, master or None, settings, is_local_state=is_local, log=log) as spark:
        # Spark writes its checkpoints to the state directory.
        check_spark_reaches(spark, pipeline.state)
        _add_files(spark, pipeline)
        yield spark


def _check_connect(pipeline: Pipeline, url: str) -> None:
    """Raise ConfigError for what needs the JVM of the driver in this process."""
    remedy = "use a master such as local[*] or spark://host:7077"
    for sink in pipeline.sinks.values():
        if sink.type in NOT_OVER_CONNECT:
            raise pipeline.fail(
                f"sink.{sink.name}.type",
                f"{sink.type} does not work over Spark Connect, because {NOT_OVER_CONNECT[sink.type]}: {remedy}",
            )
    if pipeline.spark.packages:
        raise pipeline.fail(
            "spark.packages",
            f"packages cannot be added over Spark Connect: start the server {url} with --packages"
            f" {','.join(pipeline.spark.packages)}, and remove them here",
        )


def _add_artifacts(pipeline: Pipeline) -> None:
    """Note the jars and modules that each session at a Spark Connect server needs."""
    _connected[-1].artifacts.extend((jar, False) for jar in pipeline.spark.jars)
    _connected[-1].artifacts.extend((file, True) for file in _module_files(pipeline))


def _add_files(spark: Any, pipeline: Pipeline) -> None:
    """Send the jars, and the modules of functions beside the pipeline file, to the executors."""
    for jar in pipeline.spark.jars:
        spark.sql(f"ADD JAR '{jar}'")
    for file in _module_files(pipeline):
        spark.sparkContext.addPyFile(file)


def _module_files(pipeline: Pipeline) -> Iterator[str]:
    """Yield the modules of functions that are beside the pipeline file; raises ConfigError."""
    steps = [(f"step.{step.name}", step.function) for step in pipeline.steps.values() if step.function]
    sinks = [(f"sink.{sink.name}", sink.function) for sink in pipeline.sinks.values() if sink.function]
    for key, path in (*steps, *sinks):
        try:
            find_function(path, pipeline.directory)
        except ConfigError as error:
            raise pipeline.fail(f"{key}.function", str(error)) from None
        file = module_file(path, pipeline.directory)
        if file is not None:
            yield file


def sink_session(spark: Any, settings: Mapping[str, str]) -> Any:
    """Return a new session of the same Spark context or server, with its own views and with nsqx's settings."""
    session = spark.newSession()
    if not has_jvm(spark):
        connected = _connected[-1]
        connected.exits.callback(session.stop)
        settings = {**connected.settings, **settings}
        for path, is_module in connected.artifacts:
            session.addArtifact(path, pyfile=is_module)
    for key, value in {**DEFAULTS, **settings}.items():
        if session.conf.isModifiable(key):
            session.conf.set(key, value)
    return session


@contextlib.contextmanager
def _stderr_to(path: str) -> Iterator[None]:
    """Redirect the stderr of processes that are started in the block to a file."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    sys.stderr.flush()
    kept = os.dup(_STDERR)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, _STDERR)
    os.close(log)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, _STDERR)
        os.close(kept)
