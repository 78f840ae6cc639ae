"""The order and interruption of replays, without Spark."""

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
    """Records the published bodies, and fails after ``fails_at`` of them."""

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


def test_all_rows_are_published_in_order():
    publisher = Publisher()
    outcome = run(rows(2500), publisher)
    assert publisher.bodies == [b"%d" % number for number in range(2500)]
    assert (outcome.published, outcome.is_complete, outcome.error) == (2500, True, "")


def test_rows_without_a_value_are_skipped():
    given = rows(3)
    given[1].value = None
    outcome = run(given, Publisher())
    assert (outcome.published, outcome.skipped, outcome.is_complete) == (2, 1, True)


def test_a_failed_replay_returns_the_last_published_key():
    outcome = run(rows(5000), Publisher(fails_at=2000))
    assert (outcome.published, outcome.is_complete) == (2000, False)
    assert outcome.last_key == key_of(rows(2000)[-1])
    assert "gone" in outcome.error


def test_a_stopped_replay_counts_exactly_the_published_rows():
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


def test_a_key_consists_of_time_node_and_id():
    assert key_of(rows(2)[1]) == "2026-11-15T10:00:01.123456Z/n:1/0001"
    local = SimpleNamespace(timestamp=START.replace(tzinfo=None), node="", id="x")
    assert key_of(local) == "2026-11-15T10:00:00.123456Z//x"


def test_times_may_be_ages_dates_or_timestamps():
    now = datetime(2026, 11, 15, 12, tzinfo=UTC)
    assert parse_time("2h", now) == now - timedelta(hours=2)
    assert parse_time("2026-11-14", now) == datetime(2026, 11, 14, tzinfo=UTC)
    assert parse_time("2026-11-15T11:30", now) == datetime(2026, 11, 15, 11, 30, tzinfo=UTC)
    assert parse_time("2026-11-15T11:30+01:00", now).astimezone(UTC) == datetime(2026, 11, 15, 10, 30, tzinfo=UTC)
    with pytest.raises(ConfigError, match="is not a time such as"):
        parse_time("soon", now)


def test_the_after_flag_is_removed_from_the_words():
    assert _without_after(["d", "--after", "k", "--to", "t"]) == ["d", "--to", "t"]
    assert _without_after(["d", "-after=k", "--to", "t"]) == ["d", "--to", "t"]
    assert _without_after(["d", "--to", "t"]) == ["d", "--to", "t"]
