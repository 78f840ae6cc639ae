"""Statistics of the cluster's topics and channels: sums over all nsqds at the last poll, rates, and their history.

A poll is opened, fed with each nsqd's /stats, and closed. Readers see the new values when the poll is closed. Rates are
computed from each node's own counters, so that a node that joins, leaves or restarts causes no false peak. Messages on
missing nsqds are not part of the sums; they are counted separately as stranded. No I/O; the time is an argument.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Any

from nsqx.names import is_ephemeral
from nsqx.nsqadmin import trouble
from nsqx.nsqadmin.history import Track, WallClock, condense
from nsqx.nsqadmin.inventory import Holding, Holdings
from nsqx.nsqadmin.trouble import TroubleList

# The series in the history of a topic and of a channel, in storage order.
CHANNEL_SERIES = ("rate", "depth", "in_flight", "deferred", "requeued", "timed_out", "clients", "missing_nodes")
TOPIC_SERIES = (*CHANNEL_SERIES, "channels_depth")

MAX_SUBJECTS = 100_000
SPARKLINE_POINTS = 30
_COUNTERS = 3
_DEPTH = CHANNEL_SERIES.index("depth")
_NEVER = -1_000_000_000


class Subject:
    """A topic or a channel: the sums of the open poll, the row of the last poll, and the history."""

    __slots__ = (
        "backend_depth",
        "changed",
        "channels",
        "clients",
        "deferred",
        "depth",
        "in_flight",
        "message_count",
        "missing_nodes",
        "name",
        "nodes",
        "paused",
        "poll",
        "rate",
        "requeue_count",
        "requeued",
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
        self.timed_out_poll = _NEVER
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
        self.rate = self.requeued = self.timed_out = 0.0
        self.paused = False


class NodeCounters:
    """The counters of one nsqd at the last poll, in the order of its /stats: three for each topic and channel."""

    __slots__ = ("_places", "counts", "per_s", "subjects", "time_s", "unfinished")

    def __init__(self, time_s: float, before: NodeCounters | None) -> None:
        self.time_s = time_s
        self.per_s = 0.0 if before is None else 1 / max(time_s - before.time_s, 1e-3)
        self.subjects: list[Subject] = []
        self.counts = array("q")
        self.unfinished = array("q")
        """The number of messages of each subject: waiting, in flight or deferred."""
        self._places: dict[int, int] | None = None

    def place_of(self, subject: Subject, expected: int) -> int:
        """Return the index of a subject's counters, -1 without counters; checks the index of the last poll first."""
        if expected < len(self.subjects) and self.subjects[expected] is subject:
            return expected * _COUNTERS
        if self._places is None:
            self._places = {id(each): index * _COUNTERS for index, each in enumerate(self.subjects)}
        return self._places.get(id(subject), -1)


class ClusterStats:
    """The statistics of all topics, by name."""

    def __init__(self, capacity: int, trouble_polls: int = 12) -> None:
        """``trouble_polls`` is the number of recent polls that the trouble rules examine."""
        self.clock = WallClock(capacity)
        self._trouble_polls = max(2, min(trouble_polls, capacity - 1))
        self.topics: dict[str, Subject] = {}
        self.removed: list[str] = []
        """Topics that disappeared with the last poll."""
        self.totals: dict[str, Any] = {}
        self.trouble: dict[str, Any] = TroubleList().document()
        self.subject_count = 0
        self._nodes: dict[str, NodeCounters] = {}
        self._poll = 0

    # A poll

    def open(self) -> None:
        """Begin a poll."""
        self._poll = self.clock.number + 1

    def skip(self, time_s: float) -> None:
        """Record a failed poll: a gap in the history; the last values stay."""
        self.clock.tick(time_s)
        self.removed = []

    def add_node(self, address: str, topics: list[dict[str, Any]], time_s: float) -> None:
        """Add the topics in the /stats of one nsqd; raise ValueError if they are not nsqd's."""
        before = self._nodes.get(address)
        now = NodeCounters(time_s, before)
        try:
            for topic in topics:
                self._add_topic(topic, before, now)
        except (TypeError, KeyError, AttributeError, OverflowError) as error:
            raise ValueError(f"not nsqd's stats: {error!r}") from None
        self._nodes[address] = now

    def _add_topic(self, stats: dict[str, Any], before: NodeCounters | None, now: NodeCounters) -> None:
        subject = self._subject(self.topics, stats["topic_name"], len(TOPIC_SERIES))
        if subject is None:
            return
        _add(subject, stats)
        per_s = now.per_s
        now.unfinished.append(stats["depth"])
        subject.rate += per_s * _advance(subject, (stats["message_count"], 0, 0), before, now)[0]
        for channel in stats["channels"] or ():
            each = self._subject(subject.channels, channel["channel_name"], len(CHANNEL_SERIES), subject.name)
            if each is None:
                continue
            _add(each, channel)
            now.unfinished.append(channel["depth"] + channel["in_flight_count"] + channel["deferred_count"])
            each.in_flight += channel["in_flight_count"]
            each.deferred += channel["deferred_count"]
            each.requeue_count += channel["requeue_count"]
            each.timeout_count += channel["timeout_count"]
            each.clients += channel["client_count"]
            counters = channel["message_count"], channel["requeue_count"], channel["timeout_count"]
            messages, requeues, timeouts = _advance(each, counters, before, now)
            each.rate += per_s * messages
            each.requeued += per_s * requeues
            each.timed_out += per_s * timeouts

    def _add_absent(self, holdings: Holdings) -> None:
        """Add the messages that a missing nsqd had."""
        for name, holding in holdings.items():
            topic = self._subject(self.topics, name, len(TOPIC_SERIES))
            if topic is None:
                continue
            topic.missing_nodes += 1
            topic.stranded += holding.total
            for channel_name, waiting in holding.channels.items():
                channel = self._subject(topic.channels, channel_name, len(CHANNEL_SERIES), name)
                if channel is not None:
                    channel.missing_nodes += 1
                    channel.stranded += waiting

    def _subject(self, known: dict[str, Subject], name: str, width: int, topic: str = "") -> Subject | None:
        subject = known.get(name)
        if subject is None:
            if self.subject_count >= MAX_SUBJECTS:
                return None
            self.subject_count += 1
            subject = known[name] = Subject(name, Track(self.clock, width), topic)
        if subject.poll != self._poll:
            subject.begin(self._poll)
        return subject

    def close(
        self, addresses: set[str], time_s: float, absent: Iterable[Holdings] = (), registered: Iterable[str] = ()
    ) -> None:
        """End the poll and publish its values.

        ``addresses`` are all nsqds queried, including those that failed. ``absent`` holds the messages of each missing
        nsqd. ``registered`` are the topics that nsqlookupd knows; they are listed even if no nsqd has them.
        """
        for address in self._nodes.keys() - addresses:
            del self._nodes[address]
        for holdings in absent:
            self._add_absent(holdings)
        for name in registered:
            self._subject(self.topics, name, len(TOPIC_SERIES))
        poll = self.clock.tick(time_s)
        self.removed = []
        found = TroubleList()
        for topic in list(self.topics.values()):
            if topic.poll == poll:
                self._close_topic(topic, poll, found)
            elif topic.row:
                topic.row = {}
                self.removed.append(topic.name)
            self._forget_old(topic)
        self.totals = self._sum_up()
        self.trouble = found.document()

    def _close_topic(self, topic: Subject, poll: int, found: TroubleList) -> None:
        channels_depth = channel_count = channel_messages = 0
        kinds: dict[str, None] = {}
        for channel in topic.channels.values():
            if channel.poll != poll:
                channel.row = {}
                continue
            channel_count += 1
            channels_depth += channel.depth
            channel_messages += channel.message_count
            topic.in_flight += channel.in_flight
            topic.deferred += channel.deferred
            topic.requeue_count += channel.requeue_count
            topic.timeout_count += channel.timeout_count
            topic.clients += channel.clients
            topic.requeued += channel.requeued
            topic.timed_out += channel.timed_out
            own = self._troubles(channel, poll)
            found.add(topic.name, channel.name, own, channel.depth)
            kinds.update(dict.fromkeys(own))
            _close(channel, poll, {"topic": topic.name, "trouble": own}, ())
        if not channel_count and topic.depth:
            kinds[trouble.NO_CONSUMER] = None
            found.add(topic.name, "", [trouble.NO_CONSUMER], topic.depth)
        extra = {
            "channels": channel_count,
            "channels_depth": channels_depth,
            "channel_message_count": channel_messages,
            "trouble": [kind for kind in trouble.KINDS if kind in kinds],
        }
        _close(topic, poll, extra, (channels_depth,))

    def _troubles(self, channel: Subject, poll: int) -> list[str]:
        """Return the kinds of trouble of a channel."""
        kinds = []
        if not channel.clients and (channel.depth or channel.deferred or channel.in_flight):
            kinds.append(trouble.NO_CONSUMER)
        if trouble.is_growing(channel.track, _DEPTH, poll, self._trouble_polls, channel.depth):
            kinds.append(trouble.GROWING)
        if channel.timed_out:
            channel.timed_out_poll = poll
        if poll - channel.timed_out_poll <= self._trouble_polls:
            kinds.append(trouble.TIMING_OUT)
        return kinds

    def _forget_old(self, topic: Subject) -> None:
        """Drop subjects that no remembered poll contains."""
        poll = self.clock.number
        oldest = poll - self.clock.capacity
        for channel in [each for each in topic.channels.values() if each.track.last <= oldest and each.poll != poll]:
            del topic.channels[channel.name]
            self.subject_count -= 1
        if topic.track.last <= oldest and topic.poll != poll:
            del self.topics[topic.name]
            self.subject_count -= 1 + len(topic.channels)

    def _sum_up(self) -> dict[str, Any]:
        rows = [topic.row for topic in self.topics.values() if topic.row]
        totals: dict[str, Any] = {"topics": len(rows)}
        for key in (
            "channels",
            "depth",
            "channels_depth",
            "in_flight",
            "deferred",
            "clients",
            "message_count",
            "stranded",
        ):
            totals[key] = sum(row[key] for row in rows)
        totals["channel_message_count"] = sum(row["channel_message_count"] for row in rows)
        for key in ("rate", "requeued", "timed_out"):
            totals[key] = round(sum(row[key] for row in rows), 3)
        return totals

    # Reading

    def holdings(self, address: str) -> Holdings:
        """Return the messages of one nsqd at its last answer; empty if it never answered.

        Ephemeral topics and channels are left out, because they end with their nsqd.
        """
        counters = self._nodes.get(address)
        held: Holdings = {}
        if counters is None:
            return held
        for subject, unfinished in zip(counters.subjects, counters.unfinished, strict=True):
            if is_ephemeral(subject.name):
                continue
            if subject.topic:
                if subject.topic in held:
                    held[subject.topic].channels[subject.name] = unfinished
            else:
                held[subject.name] = Holding(unfinished, {})
        return held

    def present_topics(self) -> Iterator[Subject]:
        """Yield the topics of the last poll."""
        return (topic for topic in self.topics.values() if topic.row)

    def channel_rows(self, topic: Subject) -> list[dict[str, Any]]:
        """Return the rows of a topic's channels at the last poll, sorted by name."""
        return [topic.channels[name].row for name in sorted(topic.channels) if topic.channels[name].row]

    def sparkline(self, topic: Subject) -> list[float | None]:
        """Return a topic's recent rate in a few points."""
        recent = self.clock.range()[-SPARKLINE_POINTS * 2 :]
        return condense(topic.track.series(0, recent), SPARKLINE_POINTS)

    @property
    def size_bytes(self) -> int:
        """The memory used by the rings."""
        return sum(
            topic.track.size_bytes + sum(channel.track.size_bytes for channel in topic.channels.values())
            for topic in self.topics.values()
        )


def _add(subject: Subject, stats: dict[str, Any]) -> None:
    subject.nodes += 1
    subject.depth += stats["depth"]
    subject.backend_depth += stats["backend_depth"]
    subject.message_count += stats["message_count"]
    if stats["paused"]:
        subject.paused = True


def _advance(
    subject: Subject, counters: tuple[int, int, int], before: NodeCounters | None, now: NodeCounters
) -> tuple[int, int, int]:
    """Store one node's counters; return their growth since the last poll."""
    expected = len(now.subjects)
    now.subjects.append(subject)
    now.counts.extend(counters)
    if before is None:
        return 0, 0, 0
    place = before.place_of(subject, expected)
    if place < 0:
        return counters
    counts = before.counts
    messages, requeues, timeouts = counters
    messages -= counts[place]
    requeues -= counts[place + 1]
    timeouts -= counts[place + 2]
    if messages < 0 or requeues < 0 or timeouts < 0:  # the node restarted and counts from 0
        return counters
    return messages, requeues, timeouts


def _close(subject: Subject, poll: int, extra: dict[str, Any], more_values: tuple[float, ...]) -> None:
    rate = round(subject.rate, 3)
    requeued = round(subject.requeued, 3)
    timed_out = round(subject.timed_out, 3)
    row = {
        "name": subject.name,
        **extra,
        "nodes": subject.nodes,
        "missing_nodes": subject.missing_nodes,
        "stranded": subject.stranded,
        "paused": subject.paused,
        "depth": subject.depth,
        "backend_depth": subject.backend_depth,
        "message_count": subject.message_count,
        "rate": rate,
        "in_flight": subject.in_flight,
        "deferred": subject.deferred,
        "requeue_count": subject.requeue_count,
        "requeued": requeued,
        "timeout_count": subject.timeout_count,
        "timed_out": timed_out,
        "clients": subject.clients,
    }
    if row != subject.row:
        subject.row = row
        subject.changed = poll
    if not subject.nodes:
        # No node was measured: record a gap, not a zero.
        return
    values = (
        rate,
        subject.depth,
        subject.in_flight,
        subject.deferred,
        requeued,
        timed_out,
        subject.clients,
        subject.missing_nodes,
    )
    subject.track.put(poll, (*values, *more_values))
