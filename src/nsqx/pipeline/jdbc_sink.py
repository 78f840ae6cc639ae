"""The database sink: writes batches to a table exactly once.

Executors write the batch to a staging table with Spark's JDBC writer. Its rows are then counted, because a task that
Spark considers failed may have written rows. One transaction moves the rows to the table and records the batch:

    nsqx_batches (query_id, batch_id)      the last batch of each query that is in its table

A recorded batch is not written again. Rows that the database rejects (a constraint, a value out of range) are found by
bisection and go to the dead letters; all other rows are inserted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsqx.errors import ConfigError, NSQError
from nsqx.pipeline.functions import dead_letter_of_row
from nsqx.pipeline.jdbc import Database, JdbcConnection, StatementFailed

if TYPE_CHECKING:
    from nsqx.pipeline.dead_letters import DeadLetter, DeadLetters
    from nsqx.pipeline.model import Sink

BATCHES = "nsqx_batches"
ROW = "nsqx_row"
_STAGING_TRIES = 3
# PostgreSQL reports these names for auto-increment columns, but they are not types for CAST.
_CAST_NAMES = {"serial": "int4", "bigserial": "int8", "smallserial": "int2"}


@dataclass(frozen=True, slots=True)
class _Move:
    """The statements that move rows from a staging table to the table."""

    delete: str
    insert: str


class JdbcSink:
    """Writes the batches of one query."""

    def __init__(self, spark: Any, sink: Sink, schema: Any, dead_letters: DeadLetters) -> None:
        self._spark = spark
        self._sink = sink
        self._columns = [field.name for field in schema.fields]
        self._dead_letters = dead_letters
        self._database = Database(sink.url, sink.user, sink.password, sink.driver)
        self._schema = f"{sink.table.rpartition('.')[0]}." if "." in sink.table else ""
        self._has_swept = False

    def prepare(self) -> None:
        """Check the columns of the table if it exists, and create the table of batches; raises ConfigError."""
        if ROW in self._columns:
            raise ConfigError(f"the column name {ROW} is reserved for the sink: rename the column")
        with self._database.connect(self._spark) as connection:
            there = connection.columns(self._sink.table)
            if there:
                _matched(self._columns, there, self._sink.table)
            if not connection.columns(self._schema + BATCHES):
                connection.run(
                    f"CREATE TABLE {self._schema}{BATCHES} (query_id VARCHAR(36) PRIMARY KEY, batch_id BIGINT NOT NULL)"
                )
                connection.commit()

    def recover(self) -> None:
        """No-op."""

    def write(self, rows: Any, query_id: str, batch_id: int) -> int:
        """Write a batch and return the number of its rows; 0 if it was written before."""
        with self._database.connect(self._spark) as connection:
            done = connection.value(f"SELECT batch_id FROM {self._schema}{BATCHES} WHERE query_id = ?", query_id)
            if done is not None and done >= batch_id:
                return 0
            prefix = f"nsqx_{query_id[:8]}_"
            if not self._has_swept:
                self._sweep(connection, prefix)
            rows = rows.persist()
            try:
                count = int(rows.count())
                if count or self._sink.mode == "complete":
                    staging = self._stage(connection, rows, count, f"{self._schema}{prefix}{batch_id}")
                    self._move(connection, staging, query_id, batch_id, is_first=done is None)
                    connection.run(f"DROP TABLE {staging}")
                    connection.commit()
            finally:
                rows.unpersist()
        return count

    def _sweep(self, connection: JdbcConnection, prefix: str) -> None:
        """Remove staging tables of runs that were killed."""
        for name in connection.tables(self._schema.rstrip("."), prefix):
            connection.run(f"DROP TABLE {self._schema}{name}")
        connection.commit()
        self._has_swept = True

    def _stage(self, connection: JdbcConnection, rows: Any, count: int, name: str) -> str:
        """Create a staging table that contains each row of the batch once, and return its name."""
        from pyspark.sql import functions as F  # noqa: N812

        numbered = rows.withColumn(ROW, F.monotonically_increasing_id())
        for number in range(_STAGING_TRIES):
            # Another name for each attempt, because a task that is considered dead may still write to the old table.
            staging = f"{name}_{number}"
            numbered.write.format("jdbc").options(**self._database.options(), dbtable=staging).mode("overwrite").save()
            found = connection.value(f"SELECT count(*) FROM {staging}")
            if found == count:
                return staging
            connection.run(f"DROP TABLE {staging}")
            connection.commit()
        raise NSQError(
            f"{self._sink.table}: the staging table did not have the {count} rows of the batch in {_STAGING_TRIES}"
            " attempts"
        )

    def _move(self, connection: JdbcConnection, staging: str, query_id: str, batch_id: int, *, is_first: bool) -> None:
        move = self._statements(connection, staging)
        if is_first:
            connection.run(f"INSERT INTO {self._schema}{BATCHES} VALUES (?, ?)", query_id, batch_id)
        else:
            connection.run(f"UPDATE {self._schema}{BATCHES} SET batch_id = ? WHERE query_id = ?", batch_id, query_id)
        if self._sink.mode == "complete":
            connection.run(f"DELETE FROM {self._sink.table}")
        try:
            with connection.savepoint():
                _run(connection, move, "")
        except StatementFailed as failure:
            if not failure.is_about_data:
                raise
            self._move_what_fits(connection, move, staging)
        connection.commit()

    def _move_what_fits(self, connection: JdbcConnection, move: _Move, staging: str) -> None:
        options = self._database.options()
        staged = self._spark.read.format("jdbc").options(**options, dbtable=staging).load()
        numbers = sorted(row[0] for row in staged.select(ROW).collect())
        refused = dict(_halved(connection, move, numbers))
        found = staged.filter(staged[ROW].isin(list(refused))).collect()
        letters: list[DeadLetter] = []
        for row in found:
            values = row.asDict(recursive=True)
            number = values.pop(ROW)
            letters.append(dead_letter_of_row(values, f"{self._sink.table} rejected the row: {refused[number]}"))
        self._dead_letters.write(f"sink.{self._sink.name}", letters)

    def _statements(self, connection: JdbcConnection, staging: str) -> _Move:
        """Return the statements that move rows; creates the table if it does not exist."""
        table = self._sink.table
        there = connection.columns(table)
        quoted = connection.quoted
        if not there:
            names = ", ".join(quoted(name) for name in self._columns)
            connection.run(f"CREATE TABLE {table} AS SELECT {names} FROM {staging} WHERE 1 = 0")
            if self._sink.keys:
                keys = ", ".join(quoted(name) for name in self._sink.keys)
                index = f"{table.rpartition('.')[2]}_nsqx_keys"
                connection.run(f"CREATE UNIQUE INDEX {index} ON {table} ({keys})")
            there = connection.columns(table)
        target = _matched(self._columns, there, table)
        staged = connection.columns(staging)
        values = [_cast(f"s.{quoted(name)}", staged.get(name, ""), there[column]) for name, column in target.items()]
        insert = (
            f"INSERT INTO {table} ({', '.join(quoted(column) for column in target.values())})"
            f" SELECT {', '.join(values)} FROM {staging} s"
        )
        if self._sink.mode != "update":
            return _Move("", insert)
        same = " AND ".join(f"s.{quoted(name)} = t.{quoted(target[name])}" for name in self._sink.keys)
        # ``_run`` appends a condition on the row's number to the inner query and closes the parenthesis.
        return _Move(f"DELETE FROM {table} t WHERE EXISTS (SELECT 1 FROM {staging} s WHERE {same}", insert)


def _run(connection: JdbcConnection, move: _Move, condition: str) -> None:
    if move.delete:
        connection.run(f"{move.delete}{f' AND {condition}' if condition else ''})")
    connection.run(f"{move.insert}{f' WHERE {condition}' if condition else ''}")


def _halved(connection: JdbcConnection, move: _Move, numbers: Sequence[int]) -> Iterator[tuple[int, str]]:
    """Move the rows with these numbers; yield the number and the reason of each rejected row."""
    if not numbers:
        return
    name = f"s.{connection.quoted(ROW)}"
    try:
        with connection.savepoint():
            _run(connection, move, f"{name} BETWEEN {numbers[0]} AND {numbers[-1]}")
    except StatementFailed as failure:
        if not failure.is_about_data:
            raise
        if len(numbers) == 1:
            yield numbers[0], str(failure)
            return
        middle = len(numbers) // 2
        yield from _halved(connection, move, numbers[:middle])
        yield from _halved(connection, move, numbers[middle:])


def _matched(names: Sequence[str], there: dict[str, str], table: str) -> dict[str, str]:
    """Return the table's column for each name, ignoring case; names that start with _ may be missing."""
    by_lower = {column.lower(): column for column in there}
    found = {name: by_lower[name.lower()] for name in names if name.lower() in by_lower}
    missing = [name for name in names if name not in found and not name.startswith("_")]
    if missing:
        raise ConfigError(
            f"table {table} has no column {', '.join(missing)}, it has {', '.join(there)}: add the column to the table,"
            " or remove it from the query"
        )
    return found


def _cast(value: str, have: str, want: str) -> str:
    want = _CAST_NAMES.get(want.lower(), want)
    return value if have.lower() == want.lower() else f"CAST({value} AS {want})"
