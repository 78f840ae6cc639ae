"""Commits of topic logs: publishes that come within a moment share a sync."""

import pytest

from broker_bench import Bench
from rawclient import sized

US = 1_000


@pytest.fixture
def bench(tmp_path):
    """Return a broker that polls, with a log topic whose first commit is done."""
    bench = Bench(tmp_path, store="log")
    bench.publish("t", b"first")
    bench.broker.turn.busy_poll.start(bench.soon.append, bench.clock.now_ns, lambda: None)
    bench.sync_threads.is_slow = True
    return bench


def publish(bench, body):
    bench.broker.topic("t").publish(sized(body), 1)


def turn(bench):
    """Run one iteration of the loop."""
    callbacks = bench.soon[:]
    bench.soon.clear()
    for callback in callbacks:
        callback()


def is_committing(bench):
    return bench.sync_threads.is_busy


def finish(bench, duration_ns):
    bench.clock.advance(duration_ns)
    bench.sync_threads.finish()


def test_a_lone_publish_is_committed_at_once(bench):
    for body in (b"a", b"b"):
        publish(bench, body)
        turn(bench)
        assert is_committing(bench)
        finish(bench, 100 * US)
        turn(bench)


def test_a_commit_waits_for_the_publisher_that_was_just_answered(bench):
    publish(bench, b"a")
    turn(bench)
    publish(bench, b"b")
    finish(bench, 100 * US)
    for _ in range(5):
        turn(bench)
        assert not is_committing(bench)
    publish(bench, b"c")
    turn(bench)
    turn(bench)
    assert is_committing(bench)
    finish(bench, 100 * US)
    assert bench.broker.logs.find("t").stable == 4


def test_a_commit_waits_no_longer_than_the_last_one_took_and_the_next_ones_do_not_wait(bench):
    publish(bench, b"a")
    turn(bench)
    publish(bench, b"b")
    finish(bench, 100 * US)
    turn(bench)
    bench.clock.advance(100 * US)
    turn(bench)
    assert is_committing(bench)
    publish(bench, b"c")
    finish(bench, 100 * US)
    turn(bench)
    assert is_committing(bench)
    finish(bench, 100 * US)
    assert bench.broker.logs.find("t").stable == 4
