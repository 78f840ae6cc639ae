"""Scenarios of a wall clock that is set back while nsqd runs, with libfaketime (row 23)."""

from pathlib import Path

import pytest
from stage import TOPIC, Outcome, Stage, bodies, create_channel

from rawclient import OK, RawClient

LIBRARIES = [
    *Path("/usr/lib").glob("**/faketime/libfaketime.so.1"),
    *Path("/usr/local/lib").glob("**/faketime/libfaketime.so.1"),
]


class FakedClock:
    """The wall clock of one daemon, which can be moved by hours; its monotonic clock is not affected."""

    def __init__(self, directory: Path) -> None:
        if not LIBRARIES:
            pytest.skip("libfaketime missing: install libfaketime")
        self._file = directory / "faketime"
        self.move(0)
        self.env = {
            "LD_PRELOAD": str(LIBRARIES[0]),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def move(self, hours: int) -> None:
        temporary = self._file.with_suffix(".new")
        temporary.write_text(f"{hours:+d}h\n")
        temporary.rename(self._file)


def set_back(stage: Stage) -> Outcome:
    """Publish, set the clock back by an hour, publish, defer and time out, reset the clock, publish."""
    clock = FakedClock(stage.directory)
    daemon = stage.nsqd("--msg-timeout=500ms", env=clock.env)
    create_channel(daemon)
    timestamps = []
    ids: list[bytes] = []
    with stage.consumer(daemon, ready=1) as consumer, RawClient(daemon.tcp_address) as producer:
        for hours, prefix in ((0, "before"), (-1, "set back"), (0, "right again")):
            clock.move(hours)
            for body in bodies(prefix, 20):
                assert producer.pub(TOPIC, body) == OK
                message = consumer.read_message()
                assert message.body == body
                consumer.fin(message.id)
                ids.append(message.id)
                timestamps.append(message.timestamp_ns)
        clock.move(-1)
        late = _deadlines_hold(producer, consumer)
    hour_ns = 3600 * 10**9
    return Outcome(
        seen={
            "clock was moved": timestamps[0] - timestamps[20] > hour_ns // 2,
            "ids are unique": len(set(ids)) == len(ids),
            "ids grow": ids == sorted(ids),
            "deadlines hold": late,
        }
    )


def _deadlines_hold(producer: RawClient, consumer: RawClient) -> bool:
    """Check that a deferred message and a timed-out one are delivered on time, by the monotonic clock."""
    assert producer.dpub(TOPIC, 200, b"deferred") == OK
    deferred = consumer.read_message(5.0)
    again = consumer.read_message(5.0)
    consumer.fin(again.id)
    return (deferred.body, again.body, again.attempts) == (b"deferred", b"deferred", 2)


def set_back_over_a_restart(stage: Stage) -> Outcome:
    """A daemon whose clock is an hour ahead leaves messages; the next one publishes at the right time."""
    clock = FakedClock(stage.directory)
    clock.move(1)
    ahead = stage.nsqd("--mem-queue-size=0", env=clock.env)
    create_channel(ahead)
    stage.tracker.publish_many(ahead, TOPIC, bodies("ahead", 50))
    ahead.stop()
    daemon = stage.nsqd("--mem-queue-size=0")
    create_channel(daemon)
    stage.tracker.publish_many(daemon, TOPIC, bodies("at the right time", 50))
    stage.drain(daemon)
    return stage.tracker.outcome()
