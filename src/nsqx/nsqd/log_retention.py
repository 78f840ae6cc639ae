"""How long the log of a topic keeps its messages: the limits of the topic's settings, applied to whole segments.

- ``retain_age`` and ``retain_bytes``: finished segments stay at least that long, or as long as the newest segments
  have fewer bytes together. The writer of the log gets the offset from which on it keeps segments.
- ``max_age`` and ``max_bytes``: older segments, or more bytes, are dropped, finished or not. Segments that are only
  kept for replay go first. If the others exceed ``max_bytes``, publishes are refused, or the oldest segments are
  dropped, as ``when_full`` says.

The limits are applied once a second while the log changes, when an age is exceeded, and when a publish finds the log
full. Only whole segments can be removed. So the newest segment is ended early if its messages reach a part of the age,
and segments are smaller if the number of bytes is limited.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nsqx.errors import DiskQueueError
from nsqx.nsqd.log_copies import LogCopies
from nsqx.nsqd.topic_settings import DROP_OLDEST
from nsqx.queues.log.segment import KEEP_NOTHING, finished_count
from nsqx.queues.log.segment_times import SegmentTimesJob
from nsqx.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.clock import Timer
    from nsqx.nsqd.log_flow import LogFlow
    from nsqx.nsqd.topic import Topic
    from nsqx.nsqd.topic_settings import TopicSettings
    from nsqx.queues.log.log import TopicLog
    from nsqx.queues.log.segment import LogSegment

# The room of a log without ``max_bytes``.
NO_LIMIT = 1 << 62
# A log with a limit has about so many segments: the age of a segment, and its size if that is not very small.
_SEGMENTS_PER_LIMIT = 10
_MIN_SEGMENT_SIZE = 64 * 1024
_MAX_SEGMENT_AGE_NS = 3600 * NS_PER_S
# Limits are applied at most this often because of their age, and because of refused publishes.
_MIN_DELAY_NS = NS_PER_S
_FULL_CHECK_NS = 100 * NS_PER_MS


def log_full(max_bytes: int) -> DiskQueueError:
    """Return the error of a publish to a log that has reached its limit."""
    error = DiskQueueError(f"log full: max_bytes is {max_bytes}")
    error.is_log_full = True
    return error


class _Segments(NamedTuple):
    """The segments of a log at one moment."""

    all: list[LogSegment]
    finished_count: int  # of the oldest ones, never the newest
    unwritten_size: int  # of the batches that are in no segment
    unwritten_from: int  # the first offset that is in no segment

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.all) + self.unwritten_size

    @property
    def finished_size(self) -> int:
        return sum(segment.size for segment in self.all[: self.finished_count])

    @property
    def newest_size(self) -> int:
        """The bytes of the newest segment, and of the batches that will be written to it."""
        return self.unwritten_size + (self.all[-1].size if self.all else 0)

    def first_of(self, index: int) -> int:
        """Return the offset before which the segments before ``index`` are."""
        return self.all[index].first if self.all else 0

    def aged_count(self, oldest_ns: int) -> int:
        """Return how many of the oldest segments have no message at or after a time, without the newest.

        A segment whose time is unknown counts as new.
        """
        for index, segment in enumerate(self.all[:-1]):
            if segment.max_time is None or segment.max_time >= oldest_ns:
                return index
        return max(0, len(self.all) - 1)

    def excess_count(self, max_bytes: int) -> int:
        """Return how many of the oldest segments must go so that at most ``max_bytes`` are left, without the newest."""
        excess = self.size - max_bytes
        for index, segment in enumerate(self.all[:-1]):
            if excess <= 0:
                return index
            excess -= segment.size
        return max(0, len(self.all) - 1)

    def keep_from(self, settings: TopicSettings, now_ns: int) -> int:
        """Return the offset from which on segments are kept for replay."""
        if not (settings.retain_age or settings.retain_bytes):
            return KEEP_NOTHING
        keep_from = self.unwritten_from
        if settings.retain_bytes:
            size = self.unwritten_size
            for segment in reversed(self.all):
                if size >= settings.retain_bytes:
                    break
                size += segment.size
                keep_from = segment.first
        if settings.retain_age and self.all:
            index = self.aged_count(now_ns - settings.retain_age)
            newest_ns = self.all[-1].max_time
            is_newest_aged = newest_ns is not None and newest_ns < now_ns - settings.retain_age
            if index < len(self.all) - 1 or not is_newest_aged:
                keep_from = min(keep_from, self.all[index].first)
        return keep_from


class LogRetention:
    """The limits of one log."""

    def __init__(self, flow: LogFlow, topic: Topic, log: TopicLog, broker: Broker) -> None:
        self.kept_bytes = 0  # of finished segments that are kept for replay
        self._flow = flow
        self._topic = topic
        self._log = log
        self._broker = broker
        self._clock = broker.clock
        self._logs = broker.logs
        self._timer: Timer | None = None
        self._is_loading = False
        self._full_checked_ns = 0
        self._is_refusing = False  # the last publish that needed more room was refused
        self._copies = LogCopies(flow, log, broker)
        self._set_room(self._segments())

    def _segments(self) -> _Segments:
        log = self._log
        segments = log.writer.segments[:]
        unwritten_size = max(0, log.size - sum(segment.size for segment in segments))
        return _Segments(segments, finished_count(segments, log.state), unwritten_size, log.durable_end)

    # Applying the limits

    def note_settings(self) -> None:
        """Apply changed limits soon."""
        self._set_room(self._segments())
        self._logs.look_at(self._log)

    def check(self) -> None:
        """Apply the limits. The next search for finished segments uses the result."""
        log, settings = self._log, self._topic.settings
        if log.is_deleted or self._topic.exiting:
            return
        now_ns = self._clock.wall_ns()
        found = self._segments()
        self._load_times(found, settings)
        self._drop(found, settings, now_ns)
        found = self._segments()
        keep_from = found.keep_from(settings, now_ns)
        if settings.max_age:
            keep_from = max(keep_from, found.first_of(found.aged_count(now_ns - settings.max_age)))
        if settings.max_bytes:
            # Segments that are kept for replay go before anything is refused or dropped.
            keep_from = max(keep_from, found.first_of(found.excess_count(settings.max_bytes)))
        after = found.all[1 : found.finished_count + 1]
        self.kept_bytes = sum(
            one.size for one, following in zip(found.all, after, strict=False) if following.first > keep_from
        )
        self._set_room(found)
        if not log.is_writing:  # otherwise the log is searched again soon
            writer = log.writer
            writer.keep_from = keep_from
            writer.max_size = self._segment_size(settings)
            writer.is_roll_wanted = self._is_roll_wanted(found, settings, now_ns)
            if not self._logs.is_recovering:
                self._copies.plan(found.all, keep_from)
        self._arm(found, settings, now_ns)

    def _drop(self, found: _Segments, settings: TopicSettings, now_ns: int) -> None:
        """Drop the segments that exceed a limit, if messages in them are unfinished."""
        aged_count = found.aged_count(now_ns - settings.max_age) if settings.max_age else 0
        if aged_count > found.finished_count:
            self._flow.trim(found.first_of(aged_count), "max_age")
        if settings.max_bytes and settings.when_full == DROP_OLDEST:
            excess_count = found.excess_count(settings.max_bytes)
            if excess_count > max(aged_count, found.finished_count):
                self._flow.trim(found.first_of(excess_count), "max_bytes")

    def _segment_size(self, settings: TopicSettings) -> int:
        limits = [limit for limit in (settings.max_bytes, settings.retain_bytes) if limit]
        size = self._logs.options.segment_size
        if not limits:
            return size
        return min(size, max(_MIN_SEGMENT_SIZE, min(limits) // _SEGMENTS_PER_LIMIT), *limits)

    def _is_roll_wanted(self, found: _Segments, settings: TopicSettings, now_ns: int) -> bool:
        """True if the newest messages must be in a segment of their own, so that they can go later."""
        started_ns = self._log.newest_part_ns
        if not started_ns:
            return False
        if settings.max_bytes and (self._is_refusing or found.size > settings.max_bytes):
            state = self._log.state
            if found.newest_size >= self._segment_size(settings) or state.is_finished(state.end):
                return True
        age_ns = _segment_age(settings)
        return bool(age_ns) and now_ns - started_ns >= age_ns

    def _set_room(self, found: _Segments) -> None:
        """Compute how many bytes can be published. Finished segments do not count, because they can be removed."""
        max_bytes = self._topic.settings.max_bytes
        self._flow.room = max_bytes - (found.size - found.finished_size) if max_bytes else NO_LIMIT

    def make_room(self, size: int) -> None:
        """Raise DiskQueueError if a publish of ``size`` bytes exceeds ``max_bytes`` and must be refused."""
        settings = self._topic.settings
        now_ns = self._clock.now_ns()
        if now_ns - self._full_checked_ns >= _FULL_CHECK_NS:
            self._full_checked_ns = now_ns
            self._flow.write_changes()  # finished messages
            self.check()
            self._logs.look_at(self._log)
            if self._flow.room >= size:
                self._is_refusing = False
                return
        if settings.max_bytes and settings.when_full != DROP_OLDEST:
            self._is_refusing = True
            raise log_full(settings.max_bytes)

    # Times

    def _load_times(self, found: _Segments, settings: TopicSettings) -> None:
        """Find the age of segments that an earlier process has written, in a thread."""
        if not (settings.retain_age or settings.max_age) or self._is_loading:
            return
        if any(segment.max_time is None for segment in found.all):
            self._is_loading = True
            self._logs.read(SegmentTimesJob(found.all), self._on_times)

    def _on_times(self, job: SegmentTimesJob) -> None:
        self._is_loading = False
        if job.error is not None:
            self._broker.log.error("LOG(%s): failed to read the age of segments - %s", self._topic.name, job.error)
        elif not self._log.is_deleted:
            self._logs.look_at(self._log)

    def _arm(self, found: _Segments, settings: TopicSettings, now_ns: int) -> None:
        """Set the timer for the next age that is exceeded."""
        self._cancel_timer()
        due = []
        started_ns = self._log.newest_part_ns
        if started_ns and _segment_age(settings):
            due.append(started_ns + _segment_age(settings))
        for age_ns in (settings.retain_age, settings.max_age):
            if age_ns:
                due += (one.max_time + age_ns for one in found.all if one.max_time is not None)
        due = [due_ns for due_ns in due if due_ns >= now_ns]
        if due:
            self._timer = self._broker.call_in(max(_MIN_DELAY_NS, min(due) + 1 - now_ns), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._logs.look_at(self._log)

    def stop(self) -> None:
        """Cancel the timers."""
        self._copies.stop()
        self._cancel_timer()

    def delete(self) -> None:
        """Forget the flow, whose log is deleted. This breaks a reference cycle."""
        self.stop()
        self._copies.delete()
        del self._flow

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _segment_age(settings: TopicSettings) -> int:
    """Return how long the newest segment gets messages; 0 if there is no limit by age."""
    ages = [age for age in (settings.retain_age, settings.max_age) if age]
    return min(_MAX_SEGMENT_AGE_NS, max(_MIN_DELAY_NS, min(ages) // _SEGMENTS_PER_LIMIT)) if ages else 0
