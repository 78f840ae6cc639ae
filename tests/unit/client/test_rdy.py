"""RDY counts: shares, turns and backoff. The clock is controlled by the tests."""

import random

import pytest

from broker_bench import SECOND, BenchClock
from nsqx.client.options import Options
from nsqx.client.rdy import ReadyDistribution


class RecordingTarget:
    """A connection that records its RDY counts."""

    def __init__(self, clock, max_ready_count=2500):
        self.clock = clock
        self.ready_count = 0
        self.max_ready_count = max_ready_count
        self.in_flight_count = 0
        self.last_message_s = self.ready_at_s = clock()
        self.is_backing_off = False
        self.is_closing = False
        self.sent = []

    def set_ready(self, count, now_s):
        self.ready_count = count
        self.ready_at_s = now_s
        self.sent.append(count)

    def got_message(self):
        self.last_message_s = self.clock()


class RdyHarness:
    """A distribution of RDY counts over recording connections."""

    def __init__(self, targets=0, **options):
        self.clock = BenchClock()
        self.rdy = ReadyDistribution(Options.of(options), self.now_s, self.call_later, random.Random(1))
        self.targets = [self.add() for _ in range(targets)]

    def now_s(self):
        return self.clock.monotonic_ns / SECOND

    def call_later(self, delay_s, callback):
        return self.clock.call_at(self.clock.monotonic_ns + round(delay_s * SECOND), callback)

    def add(self, **options):
        target = RecordingTarget(self.now_s, **options)
        self.rdy.add(target)
        return target

    def advance(self, seconds):
        self.clock.advance(round(seconds * SECOND))

    def counts(self):
        return [target.ready_count for target in self.rdy.targets]


@pytest.mark.parametrize(
    ("max_in_flight", "targets", "counts"),
    [
        (1, 1, [1]),
        (10, 1, [10]),
        (10, 2, [5, 5]),
        (10, 3, [3, 3, 3]),
        (3, 3, [1, 1, 1]),
        (2, 3, [1, 1, 0]),
        (0, 2, [0, 0]),
    ],
)
def test_connections_get_equal_shares(max_in_flight, targets, counts):
    assert RdyHarness(targets, max_in_flight=max_in_flight).counts() == counts


def test_a_count_never_exceeds_the_limit_of_nsqd():
    bench = RdyHarness(max_in_flight=100)
    bench.add(max_ready_count=7)
    assert bench.counts() == [7]


def test_a_new_connection_gets_its_share_from_the_others():
    bench = RdyHarness(1, max_in_flight=10)
    bench.add()
    assert bench.targets[0].sent == [10, 5]
    assert bench.counts() == [5, 5]


def test_the_share_of_a_lost_connection_goes_to_the_others():
    bench = RdyHarness(3, max_in_flight=9)
    bench.rdy.remove(bench.targets[0])
    assert bench.counts() == [4, 4]
    bench.rdy.remove(bench.targets[0])
    assert bench.counts() == [4, 4]


def test_the_total_never_exceeds_max_in_flight():
    rng = random.Random(7)
    bench = RdyHarness(max_in_flight=5)
    for _ in range(300):
        action = rng.choice(["add", "remove", "fail", "succeed", "wait", "change"])
        if action == "add":
            bench.add(max_ready_count=rng.choice([1, 3, 100]))
        elif action == "remove" and bench.rdy.targets:
            bench.rdy.remove(rng.choice(bench.rdy.targets))
        elif action == "fail":
            bench.rdy.failed()
        elif action == "succeed":
            bench.rdy.succeeded()
        elif action == "change":
            bench.rdy.change_max_in_flight(rng.randrange(8))
        else:
            bench.advance(rng.random() * 20)
        assert sum(bench.counts()) <= max(bench.rdy.max_in_flight, 0)


def test_max_in_flight_can_change():
    bench = RdyHarness(2, max_in_flight=10)
    bench.rdy.change_max_in_flight(0)
    assert bench.counts() == [0, 0]
    bench.rdy.change_max_in_flight(4)
    assert bench.counts() == [2, 2]
    bench.rdy.change_max_in_flight(2)
    assert bench.counts() == [1, 1]


def test_an_unchanged_count_is_not_sent_again():
    bench = RdyHarness(2, max_in_flight=10)
    bench.rdy.change_max_in_flight(10)
    assert bench.targets[1].sent == [5]


# Taking turns


def test_an_idle_connection_gives_up_its_count():
    bench = RdyHarness(3, max_in_flight=1, rdy_redistribute_interval="1s", low_rdy_idle_timeout="10s")
    assert bench.counts() == [1, 0, 0]
    bench.advance(10)
    assert bench.counts() == [1, 0, 0]
    had = set()
    for _ in range(200):
        bench.advance(11)
        assert sum(bench.counts()) == 1
        had.add(bench.counts().index(1))
    assert had == {0, 1, 2}


def test_a_busy_connection_keeps_its_count_until_low_rdy_timeout():
    bench = RdyHarness(2, max_in_flight=1, rdy_redistribute_interval="1s")
    for _ in range(30):
        bench.targets[0].got_message()
        bench.advance(1)
        assert bench.counts() == [1, 0]
    bench.targets[0].got_message()
    bench.targets[0].sent.clear()
    bench.advance(1)
    assert bench.targets[0].sent[0] == 0


def test_connections_take_no_turns_if_max_in_flight_suffices():
    bench = RdyHarness(2, max_in_flight=2)
    bench.targets[0].sent.clear()
    bench.advance(1000)
    assert [target.sent for target in bench.targets] == [[], [1]]


# Backoff


def test_backoff_sets_all_counts_to_0_and_then_allows_one_message():
    bench = RdyHarness(3, max_in_flight=9, backoff_multiplier="1s")
    bench.rdy.failed()
    assert bench.counts() == [0, 0, 0]
    assert all(target.is_backing_off for target in bench.targets)
    bench.advance(1.9)
    assert bench.counts() == [0, 0, 0]
    bench.advance(0.2)
    assert sorted(bench.counts()) == [0, 0, 1]
    bench.rdy.succeeded()
    assert bench.counts() == [3, 3, 3]
    assert not any(target.is_backing_off for target in bench.targets)


def test_a_failure_after_the_pause_doubles_the_pause():
    bench = RdyHarness(1, max_in_flight=9)
    bench.rdy.failed()
    bench.advance(2)
    assert bench.counts() == [1]
    bench.rdy.failed()
    assert bench.counts() == [0]
    bench.advance(3.9)
    assert bench.counts() == [0]
    bench.advance(0.2)
    assert bench.counts() == [1]


def test_many_failures_at_once_raise_the_level_once():
    bench = RdyHarness(1, max_in_flight=9)
    for _ in range(9):
        bench.rdy.failed()
    bench.advance(2)
    assert bench.counts() == [1]


def test_a_connection_added_in_backoff_gets_no_count():
    bench = RdyHarness(1, max_in_flight=9)
    bench.rdy.failed()
    target = bench.add()
    assert target.is_backing_off
    assert bench.counts() == [0, 0]
    bench.advance(2)
    assert sum(bench.counts()) == 1


def test_if_the_allowed_connection_is_lost_another_is_allowed():
    bench = RdyHarness(2, max_in_flight=9)
    bench.rdy.failed()
    bench.advance(2)
    bench.rdy.remove(next(target for target in bench.targets if target.ready_count))
    assert bench.counts() == [1]


def test_max_in_flight_can_change_in_backoff():
    bench = RdyHarness(2, max_in_flight=9)
    bench.rdy.failed()
    bench.advance(2)
    bench.rdy.change_max_in_flight(0)
    assert bench.counts() == [0, 0]
    bench.rdy.change_max_in_flight(3)
    assert sum(bench.counts()) == 1


def test_the_pause_continues_without_connections():
    bench = RdyHarness(1, max_in_flight=9)
    bench.rdy.failed()
    bench.rdy.remove(bench.targets[0])
    bench.advance(10)
    bench.add()
    assert bench.counts() == [0]
    bench.advance(1)
    assert bench.counts() == [1]


def test_in_backoff_the_connections_take_turns():
    bench = RdyHarness(2, max_in_flight=9, rdy_redistribute_interval="1s")
    bench.rdy.failed()
    bench.advance(2)
    had = set()
    for _ in range(100):
        bench.advance(11)
        assert sum(bench.counts()) == 1
        had.add(bench.counts().index(1))
    assert had == {0, 1}


def test_after_stop_no_count_is_sent():
    bench = RdyHarness(2, max_in_flight=9)
    bench.rdy.failed()
    bench.rdy.stop()
    bench.advance(100)
    assert bench.counts() == [0, 0]


def test_a_connection_near_its_count_is_starved():
    bench = RdyHarness(2, max_in_flight=20)
    assert not bench.rdy.is_starved
    bench.targets[0].in_flight_count = 7
    assert not bench.rdy.is_starved
    bench.targets[0].in_flight_count = 8
    assert bench.rdy.is_starved
    bench.targets[0].is_closing = True
    assert not bench.rdy.is_starved
