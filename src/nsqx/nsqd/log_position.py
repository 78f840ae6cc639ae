"""Positions in a log as text: ``beginning``, ``end``, an offset, or a time.

A time is RFC 3339, nanoseconds since 1970 with 16 digits or more, or a duration before now such as ``-1h``. The first
message at or after it is searched in a thread.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from nsqx.errors import HTTPError
from nsqx.gotext import INT64_MAX, parse_duration_ns
from nsqx.nsqd.log_flow import LogFlow
from nsqx.nsqd.sync_threads import completed
from nsqx.nsqd.topic_settings import BEGINNING, END
from nsqx.units import NS_PER_S

if TYPE_CHECKING:
    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.sync_threads import Job
    from nsqx.nsqd.topic import Topic
    from nsqx.queues.log.log import TopicLog

    AnyJob = TypeVar("AnyJob", bound=Job)

# An integer with so many digits is a time, and a shorter one is an offset.
_TIME_DIGITS = 16
_INTEGER = re.compile(r"[0-9]{1,19}", re.ASCII)
# A plus sign that was not escaped in a query is a space.
_RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9})\d*)?([Zz]|[+\- ]\d\d:\d\d)",
    re.ASCII,
)


class LogPosition(NamedTuple):
    """A position: an offset, or else a time, or else the beginning or the end."""

    name: str = ""
    offset: int | None = None
    time_ns: int | None = None


def parse_time(text: str, now_ns: int) -> int:
    """Return a time in nanoseconds since 1970; raises ValueError."""
    if _INTEGER.fullmatch(text) is not None and len(text) >= _TIME_DIGITS:
        return _within_range(int(text))
    if text.startswith("-"):
        return _within_range(now_ns + parse_duration_ns(text))
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError(f"invalid time {text!r}")
    date, time, fraction, zone = match.groups()
    zone = "+00:00" if zone in "Zz" else zone.replace(" ", "+")
    seconds = round(datetime.fromisoformat(f"{date}T{time}{zone}").timestamp())
    return _within_range(seconds * NS_PER_S + int((fraction or "0").ljust(9, "0")))


def _within_range(time_ns: int) -> int:
    if not 0 <= time_ns <= INT64_MAX:
        raise ValueError(f"the time {time_ns} is not between 1970 and 2262")
    return time_ns


def parse_position(text: str, now_ns: int) -> LogPosition:
    """Return a position; raises ValueError."""
    if text in (BEGINNING, END):
        return LogPosition(text)
    if _INTEGER.fullmatch(text) is not None and len(text) < _TIME_DIGITS:
        return LogPosition(offset=int(text))
    return LogPosition(time_ns=parse_time(text, now_ns))


def log_flow_of(topic: Topic) -> LogFlow:
    """Return the flow of a log topic; raises HTTPError for a classic one."""
    if not isinstance(topic.flow, LogFlow):
        raise HTTPError(400, "NOT_A_LOG")
    return topic.flow


class LogPositions:
    """Finds positions in the logs of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def parse(self, text: str, code: str) -> LogPosition:
        """Return the position in a query; raises HTTPError 400 with ``code``."""
        try:
            return parse_position(text, self._broker.clock.wall_ns())
        except ValueError:
            raise HTTPError(400, code) from None

    async def offset_of(self, topic: Topic, position: LogPosition) -> int:
        """Return the offset of a position to which a channel may move now; raises HTTPError.

        A time after the last message is the end.
        """
        log = log_flow_of(topic).log
        offset = position.offset
        if position.time_ns is not None:
            offset = await self.find_time(log, position.time_ns)
            self._refuse_if_changed(topic, log)
            offset = log.end if offset < 0 else max(offset, log.first_kept)
        elif offset is None:
            offset = log.first_kept if position.name == BEGINNING else log.end
        if offset < log.first_kept:
            raise HTTPError(410, "OFFSET_GONE", fields=(("first", log.first_kept),))
        if offset > log.end:
            raise HTTPError(416, "OFFSET_BEYOND_END", fields=(("end", log.end),))
        return offset

    def _refuse_if_changed(self, topic: Topic, log: TopicLog) -> None:
        """Raise HTTPError if the topic was deleted or has another store now."""
        if self._broker.find_topic(topic.name) is not topic or log.is_deleted:
            raise HTTPError(404, "TOPIC_NOT_FOUND")
        log_flow_of(topic)

    async def find_time(self, log: TopicLog, time_ns: int) -> int:
        """Return the offset of the first written message at or after a time; -1 if there is none."""
        while True:
            job = log.begin_find(time_ns)
            await self.run(job)
            try:
                offset = log.end_find(job)
            except OSError as error:
                self._broker.log.error("LOG(%s): failed to search a time - %s", log.topic, error)
                raise HTTPError(503, "READ_FAILED") from None
            # Messages after those that the job has searched may have left the memory meanwhile.
            if job.offset >= 0 or log.durable_end <= job.end or 0 <= log.tail.first <= job.end:
                return offset

    async def timestamp_at(self, log: TopicLog, offset: int) -> int | None:
        """Return the timestamp of the first message at or after an offset; None if there is none."""
        while offset < log.written and not log.is_deleted:
            batch = log.batch_at(offset)
            if batch is not None:
                return batch.timestamp
            job = await self.run(log.begin_read(offset, 1))
            if job.error is not None:
                raise HTTPError(503, "READ_FAILED")
            if job.batches:
                return job.batches[0].timestamp
            offset = job.next
        return None

    async def run(self, job: AnyJob) -> AnyJob:
        """Run a job in a thread, and return it when it has ended."""
        return await completed(self._broker.logs.read, job)
