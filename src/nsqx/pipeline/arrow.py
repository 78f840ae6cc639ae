"""Rows as Python has them, and Arrow batches as Spark wants them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

Row = dict[str, Any]


def arrow_schema_of(schema: Mapping[str, Any]) -> pa.Schema:
    """The Arrow schema of a Spark schema that is given as JSON."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    return to_arrow_schema(StructType.fromJson(dict(schema)), timezone="UTC")


def rows_to_batch(rows: Sequence[Row], schema: pa.Schema) -> tuple[pa.RecordBatch, list[tuple[Row, str]]]:
    """A batch of the rows that fit the schema, and the others with the reason."""
    try:
        return pa.RecordBatch.from_pylist(list(rows), schema=schema), []
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        pass
    good: list[Row] = []
    wrong: list[tuple[Row, str]] = []
    for row in rows:
        try:
            pa.RecordBatch.from_pylist([row], schema=schema)
            good.append(row)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            wrong.append((row, str(error)))
    return pa.RecordBatch.from_pylist(good, schema=schema), wrong
