"""Offsets of topic logs: what is available, how much of it the next batch gets, and how tasks divide it.

An offset of Spark is ``{topic: {log id: next offset}}``. The id of a log names a partition of a topic, because an nsqd
may change its address, and a topic that was deleted and created again has another log. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from nsqx.errors import NSQError

# Tasks begin at multiples of this, so that they share few blocks of a segment.
_ALIGNMENT = 4096
# A task costs Spark about 50 ms of CPU time without any rows, and 100,000 small rows cost as much.
_LEAST_TASK_ROWS = 50_000
_MOST_TASK_ROWS = 1 << 19
_MOST_TASK_BYTES = 128 * 1024 * 1024

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


def divide(spans: Iterable[Span], min_partitions: int, rows_of: Callable[[LogKey, int], int]) -> Iterator[Span]:
    """Yield the spans in parts, and about ``min_partitions`` parts in all.

    ``rows_of`` returns the most rows of a part of a log, given the number of all rows.
    """
    filled = [span for span in spans if span.end > span.start]
    total = sum(span.end - span.start for span in filled)
    if not total:
        return
    share = -(-total // min_partitions)
    for span in filled:
        yield from _parts(span, min(share, rows_of(span.key, total)))


def rows_per_task(total: int, cores: int, bytes_per_message: int) -> int:
    """Return the rows of a task without a limit by the user.

    Each of ``cores`` gets a task, but a small task costs more than its rows, and a large one delays the end.
    """
    rows = max(_LEAST_TASK_ROWS, min(_MOST_TASK_ROWS, -(-total // cores)))
    rows += -rows % _ALIGNMENT
    return max(1, min(rows, _MOST_TASK_BYTES // max(1, bytes_per_message)))


def _parts(span: Span, rows: int) -> Iterator[Span]:
    """Yield as few parts as possible, of about the same size."""
    start = span.start
    for left in range(-(-(span.end - start) // rows), 0, -1):
        step = -(-(span.end - start) // left)
        end = start + step
        aligned = end - end % _ALIGNMENT
        if left > 1 and step >= 2 * _ALIGNMENT and span.end - aligned <= (left - 1) * rows:
            end = aligned
        yield Span(span.key, start, end)
        start = end
