"""A topic or a channel, the growth of its counters on each nsqd, and its values at a poll.

Counters are compared with those of the same nsqd at its last answer, so that a node that joins, leaves or restarts
causes no false peak. Does not know when a poll begins and ends, nor which topics there are.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nsqx.cluster.flow import messages_out
from nsqx.nsqadmin.backlog_state import BacklogState

if TYPE_CHECKING:
    from nsqx.nsqadmin.history import Track

# The series in the history of a topic and of a channel, in storage order.
CHANNEL_SERIES = (
    "rate",
    "rate_out",
    "depth",
    "in_flight",
    "deferred",
    "requeued",
    "timed_out",
    "clients",
    "missing_nodes",
)
TOPIC_SERIES = (*CHANNEL_SERIES, "channels_depth")

NEVER = -1_000_000_000
_COUNTERS = 4
_UNFINISHED = 3
_NO_GROWTH = 0, 0, 0, 0


class Subject:
    """A topic or a channel: the sums of the open poll, the row of the last poll, and the history."""

    __slots__ = (
        "backend_depth",
        "backlog",
        "changed",
        "channels",
        "clients",
        "deferred",
        "depth",
        "in_flight",
        "latency_ns",
        "message_count",
        "missing_nodes",
        "name",
        "nodes",
        "oldest_ms",
        "paused",
        "poll",
        "rate",
        "rate_out",
        "requeue_count",
        "requeued",
        "requeued_poll",
        "row",
        "stranded",
        "timed_out",
        "timed_out_poll",
        "timeout_count",
        "topic",
        "track",
    )

    def __init__(self, name: str, track: Track, topic: str = "") -> None:
        """``topic`` is the topic of a channel."""
        self.name = name
        self.topic = topic
        self.track = track
        self.timed_out_poll = self.requeued_poll = NEVER
        self.backlog = BacklogState()
        self.channels: dict[str, Subject] = {}
        self.row: dict[str, Any] = {}
        self.changed = -1
        self.poll = -1
        self.begin(-1)

    def begin(self, poll: int) -> None:
        """Reset the sums for a new poll."""
        self.poll = poll
        self.nodes = self.missing_nodes = self.stranded = 0
        self.depth = self.backend_depth = self.message_count = 0
        self.in_flight = self.deferred = self.requeue_count = self.timeout_count = self.clients = 0
        self.rate = self.rate_out = self.requeued = self.timed_out = 0.0
        self.oldest_ms: int | None = None
        self.paused = False
        self.latency_ns: dict[str, float] = {}


class NodeCounters:
    """The counters of one nsqd at the last poll, in the order of its /stats.

    Each topic and channel has four: messages, requeues and timeouts so far, and its unfinished messages, which wait,
    are in flight or deferred. They are a list while they are added, then an array, which takes less memory.
    """

    __slots__ = (
        "_places",
        "added",
        "channels",
        "clients",
        "counts",
        "depth",
        "per_s",
        "rate",
        "rate_out",
        "subjects",
        "time_s",
        "topics",
    )

    def __init__(self, time_s: float, before: NodeCounters | None) -> None:
        self.time_s = time_s
        self.per_s = 0.0 if before is None else 1 / max(time_s - before.time_s, 1e-3)
        self.subjects: list[Subject] = []
        self.added: list[int] = []
        self.counts = array("q")
        self.rate = self.rate_out = 0.0
        """Messages published to the topics and messages that left the channels, per second."""
        self.topics = self.channels = self.clients = self.depth = 0
        self._places: dict[int, int] | None = None

    def finish(self) -> None:
        """End the adding; raise TypeError or OverflowError if a counter is not a 64-bit integer."""
        self.counts = array("q", self.added)
        self.added = []

    @property
    def unfinished(self) -> Sequence[int]:
        """The unfinished messages of each subject."""
        return self.counts[_UNFINISHED::_COUNTERS]

    def place_of(self, subject: Subject) -> int:
        """Return the index of a subject's counters, -1 without counters."""
        if self._places is None:
            self._places = {id(each): index * _COUNTERS for index, each in enumerate(self.subjects)}
        return self._places.get(id(subject), -1)


def add_stats(subject: Subject, stats: dict[str, Any]) -> None:
    """Add what topics and channels have in common in the /stats of one nsqd."""
    subject.nodes += 1
    oldest_ms = stats.get("oldest_ms")
    if oldest_ms is not None:
        subject.oldest_ms = max(oldest_ms, subject.oldest_ms or 0)
    subject.depth += stats["depth"]
    subject.backend_depth += stats["backend_depth"]
    subject.message_count += stats["message_count"]
    if stats["paused"]:
        subject.paused = True


def advance(
    subject: Subject, counters: tuple[int, int, int, int], before: NodeCounters | None, now: NodeCounters
) -> tuple[int, int, int, int]:
    """Store one node's counters of a subject; return their growth since the last poll, and how many messages left."""
    index = len(now.subjects)
    now.subjects.append(subject)
    now.added += counters
    if before is None:
        return _NO_GROWTH
    # Nearly always the order is that of the last poll.
    if index < len(before.subjects) and before.subjects[index] is subject:
        place = index * _COUNTERS
    else:
        place = before.place_of(subject)
    messages, requeues, timeouts, unfinished = counters
    if place >= 0:
        counts = before.counts
        came = messages - counts[place]
        requeued = requeues - counts[place + 1]
        timed_out = timeouts - counts[place + 2]
        if came >= 0 and requeued >= 0 and timed_out >= 0:
            # messages_out, without the call
            went = came + counts[place + _UNFINISHED] - unfinished
            return came, requeued, timed_out, went if went > 0 else 0
    # The subject is new on the node, or the node restarted and counts from 0.
    return messages, requeues, timeouts, messages_out(messages, 0, unfinished)


def add_latency(subject: Subject, percentiles: list[dict[str, float]]) -> None:
    """Note the latency of the slowest node, by percentile."""
    known = subject.latency_ns
    for each in percentiles:
        name, value = f"{each['quantile']:g}", each["value"]
        known[name] = max(value, known.get(name, 0))


def poll_values(subject: Subject) -> tuple[float, ...]:
    """Return the values of a poll, in the order of CHANNEL_SERIES."""
    return (
        round(subject.rate, 3),
        round(subject.rate_out, 3),
        subject.depth,
        subject.in_flight,
        subject.deferred,
        round(subject.requeued, 3),
        round(subject.timed_out, 3),
        subject.clients,
        subject.missing_nodes,
    )


def poll_row(subject: Subject, extra: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a poll in the form of nsqadmin's API, but without the numbers that need the history."""
    return {
        "name": subject.name,
        **extra,
        "nodes": subject.nodes,
        "missing_nodes": subject.missing_nodes,
        "stranded": subject.stranded,
        "paused": subject.paused,
        "depth": subject.depth,
        "backend_depth": subject.backend_depth,
        "message_count": subject.message_count,
        "rate": round(subject.rate, 3),
        "rate_out": round(subject.rate_out, 3),
        **subject.backlog.fields(),
        "in_flight": subject.in_flight,
        "deferred": subject.deferred,
        "requeue_count": subject.requeue_count,
        "requeued": round(subject.requeued, 3),
        "timeout_count": subject.timeout_count,
        "timed_out": round(subject.timed_out, 3),
        "clients": subject.clients,
    }
