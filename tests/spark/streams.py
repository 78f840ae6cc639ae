"""Publish numbered messages and run queries on them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsqx.client.blocking import Producer

if TYPE_CHECKING:
    from daemons import Daemon


def bodies(start: int, end: int) -> list[bytes]:
    """Return numbered bodies, which show lost messages and duplicates."""
    return [b"%d" % number for number in range(start, end)]


def publish(nsqd: Daemon, topic: str, messages: Iterable[bytes]) -> None:
    """Publish messages with MPUB."""
    listed = list(messages)
    with Producer(nsqd.tcp_address) as producer:
        for start in range(0, len(listed), 5000):
            producer.publish_many(topic, listed[start : start + 5000])


def make_channel(nsqd: Daemon, topic: str, channel: str = "spark") -> None:
    """Create a channel, so it keeps messages published before its consumer connects."""
    nsqd.post("/topic/create", topic=topic)
    nsqd.post("/channel/create", topic=topic, channel=channel)


def source_options(nsqd: Daemon, topics: str, directory: Path, **options: str) -> dict[str, str]:
    """Return the options of a query."""
    return {
        "nsq.nsqd": nsqd.tcp_address,
        "subscribe": topics,
        "channel": "spark",
        "segmentDir": str(directory / "segments"),
        "drainIdle": "300ms",
        **options,
    }


class Query:
    """A streaming query that collects the rows of each batch. A repeated batch replaces its earlier rows."""

    def __init__(self, spark: Any, options: Mapping[str, str], directory: Path) -> None:
        self._spark = spark
        self._options = options
        self._directory = directory
        self.batches: dict[int, list[Any]] = {}

    def start(self, **trigger: Any) -> Any:
        """Start the query; return Spark's query object."""

        def collect(batch: Any, number: int) -> None:
            self.batches[number] = batch.collect()

        stream = self._spark.readStream.format("nsq").options(**self._options).load().writeStream
        if trigger:
            stream = stream.trigger(**trigger)
        return stream.option("checkpointLocation", str(self._directory / "checkpoint")).foreachBatch(collect).start()

    def run_available(self) -> None:
        """Process the backlog with the trigger availableNow, and wait for the end."""
        query = self.start(availableNow=True)
        assert query.awaitTermination(150), "the query did not end"

    @property
    def rows(self) -> list[Any]:
        """All rows, in the order of batches."""
        return [row for number in sorted(self.batches) for row in self.batches[number]]

    @property
    def sizes(self) -> list[int]:
        """The number of rows of each batch."""
        return [len(self.batches[number]) for number in sorted(self.batches)]

    @property
    def values(self) -> list[bytes]:
        """All bodies, sorted by number."""
        return sorted((bytes(row.value) for row in self.rows), key=int)


def until(condition: Callable[[], bool], query: Any, timeout_s: float = 120.0) -> None:
    """Wait until the condition is true; fails at once if the query ends."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if not query.isActive:
            raise AssertionError(f"the query ended: {query.exception()}")
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.05)
