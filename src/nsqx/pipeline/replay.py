"""Replay: publishes selected rows of an archive in the order of their time, at a given rate.

It has the phases read (``parse_time``, ``ReplaySelection``), plan (``plan_replay``) and run (``replay``).

The order (time, nsqd, id) is total, so one key identifies the last published row, and another replay can continue after
it.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from nsqx.errors import ConfigError, NSQError
from nsqx.gotext import parse_duration_ns
from nsqx.pipeline.spark_errors import explain
from nsqx.spark.s3_urls import check_spark_reaches, for_spark

NEEDED = ("value", "timestamp", "id")
_KEY = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6})Z/([^/]*)/(.+)")
_KEY_TIME = "%Y-%m-%dT%H:%M:%S.%f"
_MESSAGES_AT_ONCE = 1000
_BATCHES_UNDER_WAY = 4
# With a rate limit, messages are sent this many times per second.
_BEATS_PER_S = 20


@dataclass(frozen=True, slots=True)
class ReplaySelection:
    """The rows of an archive to publish."""

    where: str = ""
    from_: datetime | None = None
    until: datetime | None = None
    after: str = ""
    """A key; only rows after it are published."""


def parse_time(text: str, now: datetime) -> datetime:
    """Parse ``2026-11-15``, ``2026-11-15T11:30`` (UTC unless it has a zone), or ``2h`` for two hours ago."""
    try:
        return now - timedelta(microseconds=parse_duration_ns(text) / 1000)
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r} is not a time such as 2026-11-15, 2026-11-15T11:30:00 or 2h (ago)") from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """The rows to publish, in order, with the columns value, timestamp, node and id."""

    rows: Any
    total: int


def plan_replay(spark: Any, location: str, selection: ReplaySelection) -> ReplayPlan:
    """Select the rows of an archive and count them; raises ConfigError."""
    rows = _select(spark, location, selection)
    return ReplayPlan(rows, int(rows.count()))


def _select(spark: Any, location: str, selection: ReplaySelection) -> Any:
    from pyspark.sql import functions as F  # noqa: N812

    check_spark_reaches(spark, location)
    try:
        rows = spark.read.option("mergeSchema", "true").parquet(for_spark(location))
    except Exception as error:
        raise ConfigError(f"{location} cannot be read as Parquet: {explain(error)}") from None
    missing = [name for name in NEEDED if name not in rows.columns]
    if missing:
        raise ConfigError(
            f"{location} is not an archive: it has no column {', '.join(missing)}, only {', '.join(rows.columns)}"
        )
    if "node" not in rows.columns:
        rows = rows.withColumn("node", F.lit(""))
    rows = rows.withColumn("text", F.col("value").cast("string"))
    for bound, is_from in ((selection.from_, True), (selection.until, False)):
        if bound is not None:
            rows = _bounded(rows, bound, is_from=is_from)
    if selection.where:
        try:
            rows = rows.filter(selection.where)
        except Exception as error:
            raise ConfigError(f"--where: {explain(error)}") from None
    rows = rows.select(
        "value", "timestamp", F.coalesce("node", F.lit("")).alias("node"), F.coalesce("id", F.lit("")).alias("id")
    )
    if selection.after:
        rows = _after(rows, selection.after)
    return rows.orderBy("timestamp", "node", "id")


def _bounded(rows: Any, bound: datetime, *, is_from: bool) -> Any:
    from pyspark.sql import functions as F  # noqa: N812

    column = F.col("timestamp")
    rows = rows.filter(column >= bound if is_from else column < bound)
    if "date" in rows.columns:
        # The same bound on the partition column, so Spark skips most directories.
        day = F.to_date(F.lit(f"{bound.astimezone(UTC):%Y-%m-%d}"))
        date = F.col("date").cast("date")
        rows = rows.filter(date >= day if is_from else date <= day)
    return rows


def _after(rows: Any, key: str) -> Any:
    from pyspark.sql import functions as F  # noqa: N812

    match = _KEY.fullmatch(key)
    if match is None:
        raise ConfigError(f"invalid --after {key!r}: use the key that an interrupted replay printed")
    moment = F.lit(datetime.strptime(match[1], _KEY_TIME).replace(tzinfo=UTC))
    time_, node, id_ = F.col("timestamp"), F.col("node"), F.col("id")
    is_later_there = (node > match[2]) | ((node == match[2]) & (id_ > match[3]))
    return rows.filter((time_ > moment) | ((time_ == moment) & is_later_there))


def key_of(row: Any) -> str:
    """Return the key of a row: its position in the order."""
    moment = row.timestamp.replace(tzinfo=UTC) if row.timestamp.tzinfo is None else row.timestamp.astimezone(UTC)
    return f"{moment.strftime(_KEY_TIME)}Z/{row.node}/{row.id}"


class BatchPublisher(Protocol):
    """Publishes several messages at once."""

    def submit_many(self, topic: str, bodies: Iterable[bytes]) -> Future[None]: ...


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The number of published rows, and the key of the last one."""

    published: int
    skipped: int
    """Rows without a value, which nsqd would reject."""
    last_key: str
    error: str
    is_complete: bool


def replay(
    rows: Iterable[Any],
    topic: str,
    publisher: BatchPublisher,
    *,
    rate: int,
    stopping: threading.Event,
    progress: Callable[[int], None],
) -> ReplayResult:
    """Publish rows until the end, until ``stopping`` is set, or until nsqd cannot be reached.

    Only acknowledged messages are counted in the result and passed to ``progress``.
    """
    size = min(_MESSAGES_AT_ONCE, max(1, rate // _BEATS_PER_S)) if rate else _MESSAGES_AT_ONCE
    limiter = _RateLimiter(rate, stopping)
    sending = _Sending(topic, publisher, progress)
    skipped, error, is_complete = 0, "", False
    try:
        for group in _groups(rows, size):
            skipped += group.skipped
            if group.bodies:
                if not limiter.wait(len(group.bodies)):
                    break
                sending.send(group)
                sending.settle(0 if rate else _BATCHES_UNDER_WAY)
        else:
            is_complete = True
        sending.settle(0)
    except NSQError as failure:
        is_complete = False
        error = str(failure)
    return ReplayResult(sending.published, skipped, sending.last_key, error, is_complete)


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows that are published together."""

    bodies: list[bytes]
    last_key: str
    skipped: int


def _groups(rows: Iterable[Any], size: int) -> Iterator[_Group]:
    """Yield groups of up to ``size`` bodies; the last one may have none."""
    bodies: list[bytes] = []
    last: Any = None
    skipped = 0
    for row in rows:
        if not row.value:
            skipped += 1
            continue
        bodies.append(bytes(row.value))
        last = row
        if len(bodies) >= size:
            yield _Group(bodies, key_of(last), skipped)
            bodies, skipped = [], 0
    if bodies or skipped:
        yield _Group(bodies, key_of(last) if bodies else "", skipped)


class _Sending:
    """Groups that were sent, counted once nsqd has acknowledged them."""

    def __init__(self, topic: str, publisher: BatchPublisher, progress: Callable[[int], None]) -> None:
        self.published = 0
        self.last_key = ""
        self._topic = topic
        self._publisher = publisher
        self._progress = progress
        self._under_way: deque[tuple[Future[None], _Group]] = deque()

    def send(self, group: _Group) -> None:
        """Publish a group without waiting for the answer."""
        self._under_way.append((self._publisher.submit_many(self._topic, group.bodies), group))

    def settle(self, allowed: int) -> None:
        """Wait until at most ``allowed`` groups have no answer; raises NSQError if one has failed."""
        while len(self._under_way) > allowed:
            future, group = self._under_way.popleft()
            future.result()
            self.published += len(group.bodies)
            self.last_key = group.last_key
            self._progress(len(group.bodies))


class _RateLimiter:
    """Limits the rate of messages; 0 means no limit."""

    def __init__(self, rate: int, stopping: threading.Event) -> None:
        self._rate = rate
        self._stopping = stopping
        self._due_s = time.monotonic()

    def wait(self, count: int) -> bool:
        """Wait until ``count`` more messages may be sent; return False if ``stopping`` is set."""
        if self._rate:
            now_s = time.monotonic()
            self._due_s = max(self._due_s, now_s - 1.0)
            if self._due_s > now_s:
                self._stopping.wait(self._due_s - now_s)
            self._due_s += count / self._rate
        return not self._stopping.is_set()
