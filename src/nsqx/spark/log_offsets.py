"""Offsets of topic logs: what is available, how much of it the next batch gets, and how tasks divide it.

An offset of Spark is ``{topic: {log id: next offset}}``. The id of a log names a partition of a topic, because an nsqd
may change its address, and a topic that was deleted and created again has another log. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from nsqx.errors import NSQError

# Tasks begin at multiples of this, so that they share few blocks of a segment.
_ALIGNMENT = 4096

# Beside the topics in the latest offset of a progress report: lost messages, and nsqds that are away.
LOST, AWAY = "#lost", "#away"

# Topic and id of a log.
LogKey = tuple[str, str]
Positions = dict[LogKey, int]


@dataclass(frozen=True, slots=True)
class LogStatus:
    """A log, as its nsqd describes it."""

    topic: str
    log: str
    node: str  # the address that rows show
    address: str  # of nsqd's HTTP API
    first: int
    stable: int
    bytes_per_message: int
    is_paused: bool  # the topic, or the channel of the query

    @property
    def key(self) -> LogKey:
        """The key in positions."""
        return self.topic, self.log

    def __str__(self) -> str:
        return f"topic {self.topic} on nsqd {self.node} (log {self.log})"


class Span(NamedTuple):
    """Offsets of one log."""

    key: LogKey
    start: int
    end: int


def is_log_offset(offset: Mapping[str, Any]) -> bool:
    """True if an offset is one of logs, and not one of a segment directory."""
    return all(isinstance(value, dict) for value in offset.values())


def decode_offset(offset: Mapping[str, Any]) -> Positions:
    """Return the positions in an offset of Spark; raises NSQError."""
    try:
        return {(topic, log): int(next_) for topic, logs in offset.items() for log, next_ in logs.items()}
    except (AttributeError, TypeError, ValueError):
        raise NSQError(f"nsq: {offset!r} is not an offset of topic logs") from None


def encode_offset(positions: Positions) -> dict[str, dict[str, int]]:
    """Return an offset of Spark. Spark compares offsets as text, so the order is fixed."""
    found: dict[str, dict[str, int]] = {}
    for (topic, log), next_ in sorted(positions.items()):
        found.setdefault(topic, {})[log] = next_
    return found


def row_count(start: Positions, end: Positions) -> int:
    """Return the number of offsets between two positions."""
    return sum(max(0, last - start.get(key, last)) for key, last in end.items())


def limit_positions(
    start: Positions, end: Positions, max_rows: int, max_bytes: int, bytes_per_message: Mapping[LogKey, int]
) -> Positions:
    """Return an end with at most about ``max_rows`` and ``max_bytes`` after ``start``; 0 is no limit.

    The logs share the rows in proportion to what they have, as in Kafka's source, and each gets at least one.
    """
    counts = {key: max(0, last - start.get(key, last)) for key, last in end.items()}
    total = sum(counts.values())
    size = sum(count * max(1, bytes_per_message.get(key, 1)) for key, count in counts.items())
    share = min(1.0, max_rows / total if max_rows and total else 1.0, max_bytes / size if max_bytes and size else 1.0)
    if share >= 1.0:
        return end
    return {
        key: last - counts[key] + (max(1, int(counts[key] * share)) if counts[key] else 0) for key, last in end.items()
    }


def divide(spans: Iterable[Span], min_partitions: int, max_rows: int) -> Iterator[Span]:
    """Yield the spans in parts of at most ``max_rows``, and about ``min_partitions`` parts in all."""
    filled = [span for span in spans if span.end > span.start]
    total = sum(span.end - span.start for span in filled)
    if not total:
        return
    rows = min(max_rows, -(-total // min_partitions))
    for span in filled:
        yield from _parts(span, rows)


def _parts(span: Span, rows: int) -> Iterator[Span]:
    count = -(-(span.end - span.start) // rows)
    step = -(-(span.end - span.start) // count)
    start = span.start
    while start < span.end:
        end = start + step
        if step >= 2 * _ALIGNMENT:
            end -= end % _ALIGNMENT
        end = min(end, span.end) if end + step // 8 < span.end else span.end
        if end - start > rows:
            end = start + rows
        yield Span(span.key, start, end)
        start = end
