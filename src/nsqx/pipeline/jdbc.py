"""JDBC connections of the driver's JVM, with the operations that a sink needs. Knows nothing of pipelines.

Any database with a JDBC driver works; the jar of the driver must be added to the session.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from nsqx.errors import ConfigError, NSQError
from nsqx.spark.jvm import connect_jdbc, java_exception

_DRIVERS = {
    "postgresql": "org.postgresql.Driver",
    "mysql": "com.mysql.cj.jdbc.Driver",
    "mariadb": "org.mariadb.jdbc.Driver",
    "sqlserver": "com.microsoft.sqlserver.jdbc.SQLServerDriver",
    "oracle": "oracle.jdbc.OracleDriver",
    "h2": "org.h2.Driver",
    "sqlite": "org.sqlite.JDBC",
    "derby": "org.apache.derby.iapi.jdbc.AutoloadedDriver",
}
# SQLSTATE classes of errors in the data: 22 is an invalid value, 23 a violated constraint.
_DATA_ERRORS = ("22", "23")


class StatementFailed(NSQError):
    """The database rejected a statement."""

    def __init__(self, text: str, sql_state: str) -> None:
        super().__init__(text)
        self.is_about_data = sql_state[:2] in _DATA_ERRORS


@dataclass(frozen=True, slots=True)
class Database:
    """The URL, credentials and driver of a database."""

    url: str
    user: str
    password: str
    driver: str

    @property
    def driver_class(self) -> str:
        """The Java class of the driver; raises ConfigError if it is unknown."""
        if self.driver:
            return self.driver
        kind = self.url.split(":")[1]
        if kind not in _DRIVERS:
            raise ConfigError(f'the JDBC driver for {kind} is unknown: set its Java class with driver = "…"')
        return _DRIVERS[kind]

    def options(self) -> dict[str, str]:
        """Return the options for Spark's format jdbc."""
        return {"url": self.url, "driver": self.driver_class, **self._credentials()}

    def _credentials(self) -> dict[str, str]:
        return {name: value for name, value in (("user", self.user), ("password", self.password)) if value}

    @contextmanager
    def connect(self, spark: Any) -> Iterator[JdbcConnection]:
        """Open a connection for the block; uncommitted changes are rolled back at its end. Raises ConfigError."""
        try:
            raw = connect_jdbc(spark, self.url, self.driver_class, self._credentials())
        except Exception as error:
            if "ClassNotFoundException" in str(error) or "No suitable driver" in str(error):
                raise ConfigError(
                    f'the JDBC driver {self.driver_class} is not installed: add its jar to [spark] jars = ["…"]'
                ) from None
            cause = java_exception(error)
            text = error if cause is None else cause.getMessage()
            raise ConfigError(f"cannot connect to {self.url}: {_one_line(text)}") from None
        try:
            raw.setAutoCommit(False)
            yield JdbcConnection(raw)
        finally:
            try:
                raw.rollback()
            finally:
                raw.close()


class JdbcConnection:
    """A connection that runs statements in transactions."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._metadata = raw.getMetaData()
        self._mark = self._metadata.getIdentifierQuoteString().strip()

    def run(self, sql: str, *values: Any) -> int:
        """Run a statement and return the number of changed rows; raises StatementFailed."""
        with self._prepared(sql, values) as statement:
            return int(statement.executeUpdate())

    def value(self, sql: str, *values: Any) -> Any:
        """Return the first value of a query, or None."""
        with self._prepared(sql, values) as statement:
            found = statement.executeQuery()
            return found.getObject(1) if found.next() else None

    def commit(self) -> None:
        """Commit the transaction."""
        with _statement_errors():
            self._raw.commit()

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo the changes of the block if it raises."""
        with _statement_errors():
            mark = self._raw.setSavepoint()
        try:
            yield
        except BaseException:
            self._raw.rollback(mark)
            raise
        with _statement_errors():
            self._raw.releaseSavepoint(mark)

    def quoted(self, name: str) -> str:
        """Return a name as a quoted identifier."""
        return f"{self._mark}{name.replace(self._mark, self._mark * 2) if self._mark else name}{self._mark}"

    def columns(self, table: str) -> dict[str, str]:
        """Return the columns of a table with the database's names of their types; empty if there is no such table."""
        schema, name = _parted(table)
        with _statement_errors():
            names = [name] if self._metadata.storesMixedCaseIdentifiers() else [name, name.lower(), name.upper()]
            for each in names:
                rows = self._metadata.getColumns(self._raw.getCatalog(), schema or self._raw.getSchema(), each, None)
                found = {}
                while rows.next():
                    found[rows.getString("COLUMN_NAME")] = rows.getString("TYPE_NAME")
                if found:
                    return found
        return {}

    def tables(self, schema: str, prefix: str) -> list[str]:
        """Return the tables whose names start with ``prefix``."""
        with _statement_errors():
            rows = self._metadata.getTables(self._raw.getCatalog(), schema or self._raw.getSchema(), prefix + "%", None)
            found = []
            while rows.next():
                found.append(rows.getString("TABLE_NAME"))
        return [name for name in found if name.startswith(prefix)]

    @contextmanager
    def _prepared(self, sql: str, values: Sequence[Any]) -> Iterator[Any]:
        with _statement_errors():
            statement = self._raw.prepareStatement(sql)
            try:
                for place, value in enumerate(values, 1):
                    if isinstance(value, int):
                        statement.setLong(place, value)
                    else:
                        statement.setString(place, value)
                yield statement
            finally:
                statement.close()


@contextmanager
def _statement_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        cause = java_exception(error)
        if cause is None:
            raise
        state = getattr(cause, "getSQLState", lambda: "")()
        raise StatementFailed(_one_line(cause.getMessage()), state or "") from None


def _parted(table: str) -> tuple[str, str]:
    schema, _, name = table.rpartition(".")
    return schema, name


def _one_line(text: object) -> str:
    return " ".join(str(text).split())
