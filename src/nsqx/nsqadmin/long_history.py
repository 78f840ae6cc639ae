"""The history beyond the last hour: tiers of coarser points, and the restarts, so that a day takes little memory.

The statistics remember every poll of about an hour. Here a first tier has a point for every two minutes of a day, and a
second one, if ``--history-window`` is longer, covers the rest. A point is the mean of the rates and the largest of the
other numbers of its time. No files; the time is an argument. Points are computed between the turns of the event loop,
because there can be thousands of topics.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from nsqx.names import is_ephemeral
from nsqx.nsqadmin.cluster_stats import MAX_SUBJECTS
from nsqx.nsqadmin.history import Track, WallClock

if TYPE_CHECKING:
    from nsqx.nsqadmin.cluster_stats import ClusterStats
    from nsqx.nsqadmin.subject import Subject

POINTS = 720
_DAY_S = 86400.0
# The mean is taken of these series, the maximum of all others.
RATES = frozenset(("rate", "rate_out", "requeued", "timed_out"))
MAX_EVENTS = 500
NSQADMIN_STOPPED, NSQD_STARTED = "nsqadmin_stopped", "nsqd_started"
_SLICE = 50

TrackKey = tuple[str, str]
"""A topic, and a channel or an empty name."""


class HistoryEvent(NamedTuple):
    """A restart. A stop of nsqadmin ends at ``until_s``; other events take no time."""

    kind: str
    time_s: float
    until_s: float
    node: str = ""


class HistoryStretch(NamedTuple):
    """Points of one resolution."""

    step_s: float
    times_s: list[float]
    series: list[list[float | None]]


@dataclass(slots=True)
class Tier:
    """Points of one resolution: their times, and the values of each topic and channel."""

    step_s: float
    clock: WallClock
    tracks: dict[TrackKey, Track] = field(default_factory=dict)
    folded: int = -1
    """The last number of the next finer resolution that is part of a point."""

    @classmethod
    def of(cls, span_s: float, least_step_s: float) -> Tier:
        """Return an empty tier for a span of time."""
        step_s = max(span_s / POINTS, least_step_s)
        return cls(step_s, WallClock(int(span_s / step_s) + 1))


def tiers_for(window_s: float, fine_s: float, interval_s: float) -> list[Tier]:
    """Return the tiers for a history of ``window_s`` if the polls of the last ``fine_s`` are remembered."""
    if window_s <= fine_s:
        return []
    if window_s <= _DAY_S or fine_s >= _DAY_S:
        return [Tier.of(window_s, 2 * interval_s)]
    day = Tier.of(_DAY_S, 2 * interval_s)
    return [day, Tier.of(window_s, 2 * day.step_s)]


class LongHistory:
    """The tiers of all topics and channels of one cluster."""

    def __init__(
        self,
        stats: ClusterStats,
        tiers: Sequence[Tier],
        fine_s: float,
        *,
        topic_series: Sequence[str],
        channel_series: Sequence[str],
    ) -> None:
        """``stats`` remembers the polls of the last ``fine_s``."""
        self.tiers = list(tiers)
        self.topic_series = tuple(topic_series)
        self.channel_series = tuple(channel_series)
        self.events: deque[HistoryEvent] = deque(maxlen=MAX_EVENTS)
        self.started_s: dict[str, float] = {}
        """The time at which each nsqd was started, at its last answer."""
        self.changing = asyncio.Lock()
        """Held while points are added, and by readers in other threads."""
        self._stats = stats
        self._fine_s = fine_s

    # Events

    def note_start(self, node: str, start_s: float, now_s: float) -> None:
        """Note when an nsqd was started; a later time than before is a restart."""
        before_s = self.started_s.get(node)
        self.started_s[node] = start_s
        if before_s is not None and start_s > before_s:
            self.events.append(HistoryEvent(NSQD_STARTED, min(start_s, now_s), min(start_s, now_s), node))

    def note_stop(self, last_s: float, now_s: float) -> None:
        """Note that nsqadmin did not run between two times."""
        if 0 < last_s < now_s:
            self.events.append(HistoryEvent(NSQADMIN_STOPPED, last_s, now_s))

    # Points

    async def advance(self, *, is_last: bool = False) -> None:
        """Add the points that the last poll completes; with ``is_last`` also those that are not complete."""
        if not self.tiers or self._stats.clock.number < 0:
            return
        async with self.changing:
            lower: _Lower = _Polls(self._stats)
            for tier in self.tiers:
                first = max(tier.folded + 1, lower.clock.range().start)
                numbers = range(first, lower.clock.number + 1)
                if not numbers:
                    return
                lasted_s = lower.clock.time_s(numbers.stop - 1) - lower.clock.time_s(first)
                if lasted_s < tier.step_s and not is_last:
                    return
                await self._fold(tier, lower, numbers)
                tier.folded = numbers.stop - 1
                lower = _Points(tier)

    async def _fold(self, tier: Tier, lower: _Lower, numbers: range) -> None:
        """Add one point to a tier, from the values of the next finer resolution."""
        number = tier.clock.tick(lower.clock.time_s(numbers.stop - 1))
        for count, (key, track) in enumerate(lower.tracks()):
            reducers = self._reducers(key)
            values = track.reduce(numbers, reducers)
            if values is not None:
                own = tier.tracks.get(key)
                if own is None:
                    if len(tier.tracks) >= MAX_SUBJECTS:
                        continue
                    own = tier.tracks[key] = Track(tier.clock, len(reducers))
                own.put(number, values)
            if count % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
        oldest = number - tier.clock.capacity
        for key in [key for key, track in tier.tracks.items() if track.last <= oldest]:
            del tier.tracks[key]

    def _reducers(self, key: TrackKey) -> list[Callable[[list[float]], float]]:
        return [_mean if name in RATES else max for name in self.series_of(key)]

    def series_of(self, key: TrackKey) -> tuple[str, ...]:
        """Return the names of the series of a topic or channel."""
        return self.channel_series if key[1] else self.topic_series

    # Reading

    def stretches(self, subject: Subject | None, key: TrackKey, since_s: float) -> list[HistoryStretch]:
        """Return the points later than a time, oldest first: from each tier those before the next finer one begins."""
        found: list[HistoryStretch] = []
        until_s = float("inf")
        if subject is not None:
            clock = self._stats.clock
            numbers = clock.range(since_s)
            if numbers:
                found.append(_stretch(clock, subject.track, numbers, len(self.series_of(key)), 0.0))
                until_s = clock.time_s(numbers.start)
        for tier in self.tiers:
            track = tier.tracks.get(key)
            numbers = tier.clock.range(since_s)
            kept = [number for number in numbers if tier.clock.time_s(number) < until_s]
            if track is None or not kept:
                continue
            found.append(
                _stretch(tier.clock, track, range(kept[0], kept[-1] + 1), len(self.series_of(key)), tier.step_s)
            )
            until_s = tier.clock.time_s(kept[0])
        return found[::-1]

    def span(self, subject: Subject | None, key: TrackKey, span_s: float, now_s: float) -> list[HistoryStretch]:
        """Return the points of a span that ends now, in the finest resolution that covers it."""
        since_s = now_s - span_s
        tier = next((each for each in self.tiers if each.step_s * each.clock.capacity >= span_s), None)
        tier = tier or (self.tiers[-1] if self.tiers else None)
        if tier is None or span_s <= self._fine_s:
            return self.stretches(subject, key, since_s)
        # The time since the last point comes from the polls.
        last_s = tier.clock.time_s(tier.clock.number) if tier.clock.number >= 0 else since_s
        return [*self._only(tier, key, since_s), *self.stretches(subject, key, max(last_s, since_s))]

    def _only(self, tier: Tier, key: TrackKey, since_s: float) -> Iterator[HistoryStretch]:
        track, numbers = tier.tracks.get(key), tier.clock.range(since_s)
        if track is not None and numbers:
            yield _stretch(tier.clock, track, numbers, len(self.series_of(key)), tier.step_s)

    @property
    def size_bytes(self) -> int:
        """The memory used by the rings."""
        return sum(track.size_bytes for tier in self.tiers for track in tier.tracks.values())


class _Lower:
    """The next finer resolution: its clock and its tracks."""

    clock: WallClock

    def tracks(self) -> Iterable[tuple[TrackKey, Track]]:
        raise NotImplementedError


class _Polls(_Lower):
    def __init__(self, stats: ClusterStats) -> None:
        self.clock = stats.clock
        self._topics = stats.topics

    def tracks(self) -> Iterable[tuple[TrackKey, Track]]:
        # Copies, because topics come and go between two slices. Those that end with their nsqd have no long history.
        for topic in list(self._topics.values()):
            if is_ephemeral(topic.name):
                continue
            yield (topic.name, ""), topic.track
            for channel in list(topic.channels.values()):
                if not is_ephemeral(channel.name):
                    yield (topic.name, channel.name), channel.track


class _Points(_Lower):
    def __init__(self, tier: Tier) -> None:
        self.clock = tier.clock
        self._tracks = tier.tracks

    def tracks(self) -> Iterable[tuple[TrackKey, Track]]:
        return list(self._tracks.items())


def _stretch(clock: WallClock, track: Track, numbers: range, width: int, step_s: float) -> HistoryStretch:
    times_s = [clock.time_s(number) for number in numbers]
    return HistoryStretch(step_s, times_s, [track.series(index, numbers) for index in range(width)])


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def join(
    stretches: Iterable[HistoryStretch], width: int, gap_s: float, stops: Sequence[HistoryEvent] = ()
) -> tuple[list[float], list[list[float | None]]]:
    """Return the times and the series of stretches in one, with a null wherever nothing was measured for a time.

    ``gap_s`` is the least length of such a time between two polls; between coarser points it is longer, unless nsqadmin
    did not run, which ``stops`` says.
    """
    times_s: list[float] = []
    series: list[list[float | None]] = [[] for _ in range(width)]
    step_s = 0.0
    for stretch in stretches:
        for index, time_s in enumerate(stretch.times_s):
            last_s = times_s[-1] if times_s else time_s
            is_gap = time_s - last_s > max(gap_s, 2.5 * step_s, 2.5 * stretch.step_s)
            if is_gap or any(min(time_s, each.until_s) - max(last_s, each.time_s) > gap_s for each in stops):
                times_s.append(last_s + 0.001)
                for values in series:
                    values.append(None)
            times_s.append(time_s)
            for values, own in zip(series, stretch.series, strict=True):
                values.append(own[index])
            step_s = stretch.step_s
    return times_s, series


def event_documents(events: Iterable[HistoryEvent], nodes: Container[str], since_s: float) -> list[dict[str, Any]]:
    """Return the events after a time in the form of nsqadmin's API; restarts only of nsqds in ``nodes``."""
    return [
        {"kind": each.kind, "time_s": round(each.time_s, 3), "until_s": round(each.until_s, 3), "node": each.node}
        for each in events
        if each.until_s > since_s and (not each.node or each.node in nodes)
    ]
