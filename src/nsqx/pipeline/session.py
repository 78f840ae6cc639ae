"""The Spark session of a pipeline: quiet on the terminal, and with settings under which no record can stop a query."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from nsqx.errors import ConfigError
from nsqx.spark.session import build_session, check_spark

DEFAULTS = {
    # A cast that fails gives NULL instead of an error that would end the query; times are read by the new rules or not.
    "spark.sql.ansi.enabled": "false",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    # Of aggregates and joins; fixed by the first run. Spark's 200 are for clusters, and cost seconds a batch elsewhere.
    "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
}
_LOCAL_CHECKPOINTS = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    )
}
_STDERR = 2


@contextlib.contextmanager
def open_session(
    name: str, master: str | None, settings: Mapping[str, str], *, is_local_state: bool, log: str = ""
) -> Iterator[Any]:
    """A session for the time of the block; one that is there already is used, and left running.

    With ``log`` everything that Spark says goes into that file.
    """
    check_spark()
    from pyspark import SparkContext

    was_there = SparkContext._active_spark_context is not None
    # They print every failed analysis with its stack.
    for noisy in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(noisy).disabled = True
    wanted = {**DEFAULTS, **(_LOCAL_CHECKPOINTS if is_local_state else {}), **settings}
    try:
        with _stderr_to(log) if log and not was_there else contextlib.nullcontext():
            session = build_session(name, master, {} if was_there else wanted)
    except ConfigError:
        raise
    except Exception as error:  # whatever Java and Spark meet on their way up
        hint = f": see {log}" if log and log != os.devnull else ": --verbose shows why"
        raise ConfigError(f"Spark does not start ({' '.join(str(error).split())[:300]}){hint}") from None
    try:
        yield session
    finally:
        if not was_there:
            session.stop()


def sink_session(spark: Any, settings: Mapping[str, str]) -> Any:
    """A session of its own on the same Spark: with views of its own, and with our settings whoever made that Spark."""
    session = spark.newSession()
    for key, value in {**DEFAULTS, **settings}.items():
        if session.conf.isModifiable(key):
            session.conf.set(key, value)
    return session


@contextlib.contextmanager
def _stderr_to(path: str) -> Iterator[None]:
    """Processes that are started in this block, and what they start, write their stderr to a file."""
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
