"""Conversion of rows from Python dicts to Arrow batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

Row = dict[str, Any]


def arrow_schema_of(schema: Mapping[str, Any]) -> pa.Schema:
    """Return the Arrow schema for a Spark schema in its JSON form."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    return to_arrow_schema(StructType.fromJson(dict(schema)), timezone="UTC")


def rows_to_batch(rows: Sequence[Row], schema: pa.Schema) -> tuple[pa.RecordBatch, list[tuple[Row, str]]]:
    """Return a batch of the rows that match the schema, and the other rows with the reason."""
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
