"""Facts about queries that the text of EXPLAIN has, which classic Spark and Spark Connect both return."""

from __future__ import annotations

import re
from typing import Any

from nsqx.errors import ConfigError

_RELATION = re.compile(r"'UnresolvedRelation \[([^\],]+)\]")
_ANALYSED = re.compile(r"== Analyzed Logical Plan ==\n(.*?)(?:\n== |\Z)", re.DOTALL)
# Spark writes a tilde before the operators of a stream.
_AGGREGATE = re.compile(r"^[ :+-]*~Aggregate ", re.MULTILINE)
_WATERMARK = re.compile(r"^[ :+-]*~EventTimeWatermark", re.MULTILINE)


def tables_in(spark: Any, sql: str) -> tuple[str, ...]:
    """Return the names of the tables that a query reads, as written; raises ParseException.

    The tables need not exist: EXPLAIN shows the parsed query although it cannot be analysed.
    """
    try:
        text = _explained(spark, sql)
    except Exception:
        # This raises the same error, with the position in the query alone.
        spark.sql(sql).schema  # noqa: B018
        raise
    return tuple(dict.fromkeys(_RELATION.findall(text.partition("== Analyzed Logical Plan ==")[0])))


def check_mode_of_text(spark: Any, view: str, mode: str) -> None:
    """Raise ConfigError for the commonest output modes that a streaming view cannot have.

    Spark itself checks all of them when a query starts.
    """
    found = _ANALYSED.search(_explained(spark, f"SELECT * FROM `{view}`"))
    plan = found[1] if found is not None else ""
    is_aggregate = _AGGREGATE.search(plan) is not None
    if mode == "append" and is_aggregate and _WATERMARK.search(plan) is None:
        raise ConfigError("an aggregate cannot be written without watermark in mode append")
    if mode == "complete" and not is_aggregate:
        raise ConfigError("mode complete requires an aggregate: use mode append")


def _explained(spark: Any, sql: str) -> str:
    return str(spark.sql(f"EXPLAIN EXTENDED\n{sql}").collect()[0][0])
