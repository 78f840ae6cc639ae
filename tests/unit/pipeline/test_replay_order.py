"""The order, pace and interruption of replays, without Spark."""

import threading
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from nsqx.cli.replay import _without_after
from nsqx.errors import ConfigError, PublishFailed
from nsqx.pipeline.replay import key_of, parse_time, replay

START = datetime(2026, 11, 15, 10, 0, 0, 123456, tzinfo=UTC)


def rows(count):
    return [
        SimpleNamespace(
            value=b"%d" % number, timestamp=START + timedelta(seconds=number), node="n:1", id=f"{number:04}"
        )
        for number in range(count)
    ]


class Publisher:
    """Remembers what it was given, and fails when it is told to."""

    def __init__(self, fails_at=None):
        self.bodies = []
        self._fails_at = fails_at

    def submit_many(self, topic, bodies):
        assert topic == "t"
        future = Future()
        if self._fails_at is not None and len(self.bodies) >= self._fails_at:
            future.set_exception(PublishFailed("t", 3, "gone"))
        else:
            self.bodies += bodies
            future.set_result(None)
        return future


def run(given, publisher, rate=0, stopping=None, progress=lambda _: None):
    return replay(given, "t", publisher, rate=rate, stopping=stopping or threading.Event(), progress=progress)


def test_all_are_published_in_order():
    publisher = Publisher()
    outcome = run(rows(2500), publisher)
    assert publisher.bodies == [b"%d" % number for number in range(2500)]
    assert (outcome.published, outcome.is_complete, outcome.error) == (2500, True, "")


def test_rows_without_a_value_are_left_out():
    given = rows(3)
    given[1].value = None
    outcome = run(given, Publisher())
    assert (outcome.published, outcome.skipped, outcome.is_complete) == (2, 1, True)


def test_a_failure_tells_how_far_it_came():
    outcome = run(rows(5000), Publisher(fails_at=2000))
    assert (outcome.published, outcome.is_complete) == (2000, False)
    assert outcome.last_key == key_of(rows(2000)[-1])
    assert "gone" in outcome.error


def test_it_stops_between_two_sendings():
    stopping = threading.Event()
    counted = []

    def progress(count):
        counted.append(count)
        if sum(counted) >= 100:
            stopping.set()

    publisher = Publisher()
    outcome = run(rows(5000), publisher, rate=100_000_000, stopping=stopping, progress=progress)
    assert not outcome.is_complete
    assert outcome.published == len(publisher.bodies) == sum(counted)


def test_a_key_says_where_a_row_stands():
    assert key_of(rows(2)[1]) == "2026-11-15T10:00:01.123456Z/n:1/0001"
    local = SimpleNamespace(timestamp=START.replace(tzinfo=None), node="", id="x")
    assert key_of(local) == "2026-11-15T10:00:00.123456Z//x"


def test_moments():
    now = datetime(2026, 11, 15, 12, tzinfo=UTC)
    assert parse_time("2h", now) == now - timedelta(hours=2)
    assert parse_time("2026-11-14", now) == datetime(2026, 11, 14, tzinfo=UTC)
    assert parse_time("2026-11-15T11:30", now) == datetime(2026, 11, 15, 11, 30, tzinfo=UTC)
    assert parse_time("2026-11-15T11:30+01:00", now).astimezone(UTC) == datetime(2026, 11, 15, 10, 30, tzinfo=UTC)
    with pytest.raises(ConfigError, match="is not a time such as"):
        parse_time("soon", now)


def test_the_command_to_go_on_has_one_key():
    assert _without_after(["d", "--after", "k", "--to", "t"]) == ["d", "--to", "t"]
    assert _without_after(["d", "-after=k", "--to", "t"]) == ["d", "--to", "t"]
    assert _without_after(["d", "--to", "t"]) == ["d", "--to", "t"]
