"""A JDBC connection of the driver's JVM, as much of it as a sink needs. Knows nothing of pipelines.

The drivers are Java's, so any database with one will do; its jar must be among the session's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from nsqx.errors import ConfigError, NSQError

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
# SQL's classes of errors that are about the data: out of range, wrong text for a type; broken constraints.
_DATA_ERRORS = ("22", "23")


class StatementFailed(NSQError):
    """The database refused a statement."""

    def __init__(self, text: str, sql_state: str) -> None:
        super().__init__(text)
        self.is_about_data = sql_state[:2] in _DATA_ERRORS


@dataclass(frozen=True, slots=True)
class Database:
    """Where a database is, and who asks."""

    url: str
    user: str
    password: str
    driver: str

    @property
    def driver_class(self) -> str:
        """The Java class of the driver; raises ConfigError if it cannot be guessed."""
        if self.driver:
            return self.driver
        kind = self.url.split(":")[1]
        if kind not in _DRIVERS:
            raise ConfigError(f'the driver of {kind} is not known: name its Java class with driver = "…"')
        return _DRIVERS[kind]

    def options(self) -> dict[str, str]:
        """For Spark's format jdbc."""
        found = {"url": self.url, "driver": self.driver_class}
        if self.user:
            found["user"] = self.user
        if self.password:
            found["password"] = self.password
        return found

    @contextmanager
    def connect(self, spark: Any) -> Iterator[JdbcConnection]:
        """A connection; what is not committed when the block ends is rolled back. Raises ConfigError."""
        jvm = spark._jvm
        properties = jvm.java.util.Properties()
        if self.user:
            properties.setProperty("user", self.user)
        if self.password:
            properties.setProperty("password", self.password)
        try:
            _see_added_jars(spark)
            jvm.org.apache.spark.sql.execution.datasources.jdbc.DriverRegistry.register(self.driver_class)
            raw = jvm.java.sql.DriverManager.getConnection(self.url, properties)
        except Exception as error:
            if "ClassNotFoundException" in str(error) or "No suitable driver" in str(error):
                raise ConfigError(
                    f'the JDBC driver {self.driver_class} is not here: name its jar in [spark] jars = ["…"]'
                ) from None
            cause = error.java_exception.getMessage() if hasattr(error, "java_exception") else error
            raise ConfigError(f"cannot connect to {self.url}: {_one_line(cause)}") from None
        try:
            raw.setAutoCommit(False)
            yield JdbcConnection(raw)
        finally:
            try:
                raw.rollback()
            finally:
                raw.close()


def _see_added_jars(spark: Any) -> None:
    """Let this thread of the JVM find classes in jars that were added to the session."""
    loader = spark._jsparkSession.sharedState().jarClassLoader()
    spark._jvm.java.lang.Thread.currentThread().setContextClassLoader(loader)


class JdbcConnection:
    """Statements in transactions."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._metadata = raw.getMetaData()
        self._mark = self._metadata.getIdentifierQuoteString().strip()

    def run(self, sql: str, *values: Any) -> int:
        """Run a statement; how many rows it changed. Raises StatementFailed."""
        with self._prepared(sql, values) as statement:
            return int(statement.executeUpdate())

    def value(self, sql: str, *values: Any) -> Any:
        """The first value of a query, or None."""
        with self._prepared(sql, values) as statement:
            found = statement.executeQuery()
            return found.getObject(1) if found.next() else None

    def commit(self) -> None:
        """Make it so."""
        with _statement_errors():
            self._raw.commit()

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """What is done in the block is undone if it fails."""
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
        """An identifier that means exactly this."""
        return f"{self._mark}{name.replace(self._mark, self._mark * 2) if self._mark else name}{self._mark}"

    def columns(self, table: str) -> dict[str, str]:
        """The columns of a table and their types in the database's own words; empty if there is no such table."""
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
        """The tables whose names begin so."""
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
        cause = getattr(error, "java_exception", None)
        if cause is None:
            raise
        state = getattr(cause, "getSQLState", lambda: "")()
        raise StatementFailed(_one_line(cause.getMessage()), state or "") from None


def _parted(table: str) -> tuple[str, str]:
    schema, _, name = table.rpartition(".")
    return schema, name


def _one_line(text: object) -> str:
    return " ".join(str(text).split())
