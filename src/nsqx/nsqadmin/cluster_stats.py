"""Statistics of the cluster's topics and channels: sums over all nsqds at the last poll, rates, and their history.

A poll is opened, fed with each nsqd's /stats, and closed. Readers see the new values when the poll is closed. Rates are
computed from each node's own counters, so that a node that joins, leaves or restarts causes no false peak. Messages on
missing nsqds are not part of the sums; they are counted separately as stranded. No I/O; the time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from nsqx.cluster.flow import Flow
from nsqx.names import is_ephemeral
from nsqx.nsqadmin import trouble
from nsqx.nsqadmin.history import Track, WallClock, condense
from nsqx.nsqadmin.inventory import Holding, Holdings
from nsqx.nsqadmin.subject import (
    CHANNEL_SERIES,
    TOPIC_SERIES,
    NodeCounters,
    Subject,
    add_latency,
    add_stats,
    advance,
    poll_row,
    poll_values,
)
from nsqx.nsqadmin.trouble import TroubleList

MAX_SUBJECTS = 100_000
SPARKLINE_POINTS = 30
_DEPTH = CHANNEL_SERIES.index("depth")
_REQUEUED = CHANNEL_SERIES.index("requeued")
_TIMED_OUT = CHANNEL_SERIES.index("timed_out")


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
        self._closed_s = 0.0
        self._step_s = 0.0
        self._last_minute: list[tuple[int, float]] = []

    # A poll

    def open(self) -> None:
        """Begin a poll."""
        self._poll = self.clock.number + 1

    def skip(self, time_s: float) -> None:
        """Record a failed poll: a gap in the history; the last values stay."""
        self.clock.tick(time_s)
        self.removed = []

    def node(self, address: str) -> NodeCounters | None:
        """Return the counters of one nsqd at its last answer; None if it has not answered."""
        return self._nodes.get(address)

    def add_node(self, address: str, topics: list[dict[str, Any]], time_s: float) -> None:
        """Add the topics in the /stats of one nsqd; raise ValueError if they are not nsqd's."""
        before = self._nodes.get(address)
        now = NodeCounters(time_s, before)
        try:
            for topic in topics:
                self._add_topic(topic, before, now)
            now.finish()
        except (TypeError, KeyError, AttributeError, OverflowError) as error:
            raise ValueError(f"not nsqd's stats: {error!r}") from None
        self._nodes[address] = now

    def _add_topic(self, stats: dict[str, Any], before: NodeCounters | None, now: NodeCounters) -> None:
        # 100 nsqds with 1,000 topics pass here 100,000 times a poll, so attributes are read and written once.
        poll = self._poll
        subject = self.topics.get(stats["topic_name"])
        if subject is None or subject.poll != poll:
            subject = self._subject(self.topics, stats["topic_name"], len(TOPIC_SERIES))
            if subject is None:
                return
        add_stats(subject, stats)
        known = subject.channels
        per_s = now.per_s
        waiting = depth = stats["depth"]
        came = advance(subject, (stats["message_count"], 0, 0, depth), before, now)[0]
        if came:
            subject.rate += per_s * came
            now.rate += per_s * came
        channels = stats["channels"] or ()
        for channel in channels:
            each = known.get(channel["channel_name"])
            if each is None or each.poll != poll:
                each = self._subject(known, channel["channel_name"], len(CHANNEL_SERIES), subject.name)
                if each is None:
                    continue
            add_stats(each, channel)
            depth, in_flight, deferred = channel["depth"], channel["in_flight_count"], channel["deferred_count"]
            requeue_count, timeout_count = channel["requeue_count"], channel["timeout_count"]
            clients = channel["client_count"]
            each.in_flight += in_flight
            each.deferred += deferred
            each.requeue_count += requeue_count
            each.timeout_count += timeout_count
            each.clients += clients
            counters = channel["message_count"], requeue_count, timeout_count, depth + in_flight + deferred
            messages, requeues, timeouts, went = advance(each, counters, before, now)
            if messages:
                each.rate += per_s * messages
            if went:
                each.rate_out += per_s * went
                now.rate_out += per_s * went
            if requeues:
                each.requeued += per_s * requeues
            if timeouts:
                each.timed_out += per_s * timeouts
            now.channels += 1
            now.clients += clients
            waiting += depth
            latency = channel.get("e2e_processing_latency")
            if latency and latency["percentiles"]:
                add_latency(each, latency["percentiles"])
        now.topics += 1
        now.depth += waiting

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
        self._step_s = time_s - self._closed_s if self._closed_s else 0.0
        self._closed_s = time_s
        poll = self.clock.tick(time_s)
        self.removed = []
        self._last_minute = self._polls_of_last_minute()
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
            topic.rate_out += channel.rate_out
            own = self._troubles(channel, poll)
            found.add(topic.name, channel.name, own, channel.depth)
            kinds.update(dict.fromkeys(own))
            self._judge(channel)
            if trouble.GROWING in own:
                channel.backlog.is_backlog = True
            extra: dict[str, Any] = {"topic": topic.name, "trouble": own, "latency_ns": channel.latency_ns}
            self._close_subject(channel, poll, extra, ())
        if not channel_count and topic.depth:
            kinds[trouble.NO_CONSUMER] = None
            found.add(topic.name, "", [trouble.NO_CONSUMER], topic.depth)
        self._judge(topic, is_topic=True)
        topic.backlog.join(channel.backlog for channel in topic.channels.values() if channel.poll == poll)
        extra = {
            "channels": channel_count,
            "channels_depth": channels_depth,
            "channel_message_count": channel_messages,
            "trouble": [kind for kind in trouble.KINDS if kind in kinds],
        }
        self._close_subject(topic, poll, extra, (channels_depth,))

    def _judge(self, subject: Subject, *, is_topic: bool = False) -> None:
        """Judge the backlog of a channel, or the messages of a topic that no channel has."""
        # The first poll of a subject has no rates. Messages leave a topic when its channels get them.
        is_first = not self._step_s or subject.track.last < 0
        rates = None if is_first else Flow(subject.rate, 0.0 if is_topic else subject.rate_out)
        subject.backlog.judge(subject.depth, subject.oldest_ms, rates, self._step_s, self._closed_s)

    def _close_subject(
        self, subject: Subject, poll: int, extra: dict[str, Any], more_values: tuple[float, ...]
    ) -> None:
        values = poll_values(subject)
        if subject.nodes:  # if no node was measured: a gap, not a zero
            subject.track.put(poll, (*values, *more_values))
        if subject.requeued:
            subject.requeued_poll = poll
        if subject.timed_out:
            subject.timed_out_poll = poll
        row: dict[str, Any] = {
            **poll_row(subject, extra),
            "requeued_per_min": _count_in(self._last_minute, subject.track, _REQUEUED, subject.requeued_poll),
            "timed_out_per_min": _count_in(self._last_minute, subject.track, _TIMED_OUT, subject.timed_out_poll),
        }
        if row != subject.row:
            subject.row = row
            subject.changed = poll

    def _polls_of_last_minute(self) -> list[tuple[int, float]]:
        """Return the numbers of the polls of the last minute, newest first, each with the time since the poll before.

        Polls can be late, so a rate counts for that time.
        """
        clock = self.clock
        number = clock.number
        now_s = time_s = clock.time_s(number)
        oldest = max(0, number - clock.capacity + 1)
        polls = []
        while number > oldest and now_s - time_s < trouble.WINDOW_S:
            before_s = clock.time_s(number - 1)
            polls.append((number, time_s - before_s))
            number, time_s = number - 1, before_s
        return polls

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
        for key in ("rate", "rate_out", "requeued", "timed_out", "requeued_per_min", "timed_out_per_min"):
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

    def nodes_with(self, subject: Subject) -> set[str]:
        """Return the nsqds that had a topic or channel at their last answer."""
        return {address for address, node in self._nodes.items() if subject in node.subjects}

    def present_topics(self) -> Iterator[Subject]:
        """Yield the topics of the last poll."""
        return (topic for topic in self.topics.values() if topic.row)

    def channel_rows(self, topic: Subject) -> list[dict[str, Any]]:
        """Return the rows of a topic's channels at the last poll, sorted by name."""
        return [topic.channels[name].row for name in sorted(topic.channels) if topic.channels[name].row]

    def value_before(self, channel: Subject, series: str, ago_s: float) -> float | None:
        """Return the value of one series that was measured this long ago; None if it is not remembered."""
        number = self.clock.at(self.clock.time_s(self.clock.number) - ago_s)
        return None if number is None else channel.track.value(CHANNEL_SERIES.index(series), number)

    def mean_since(self, channel: Subject, series: str, span_s: float) -> float | None:
        """Return the mean of one series over a time that ends now; None if the history is shorter."""
        clock = self.clock
        first = clock.at(clock.time_s(clock.number) - span_s)
        if first is None:
            return None
        values = channel.track.series(CHANNEL_SERIES.index(series), range(first + 1, clock.number + 1))
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else None

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


def _count_in(polls: list[tuple[int, float]], track: Track, series: int, last_poll: int) -> int:
    """Return how many messages a rate was in these polls; ``last_poll`` is the last one at which it was not 0."""
    if not polls or last_poll < polls[-1][0]:
        return 0
    count = 0.0
    for number, span_s in polls:
        if number <= last_poll:
            count += (track.value(series, number) or 0.0) * span_s
    return round(count)
