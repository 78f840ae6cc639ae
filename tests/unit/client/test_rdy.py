"""RDY counts: shares, turns and backoff, with time that moves only when told."""

import random

import pytest

from broker_bench import SECOND, BenchClock
from nsqx.client.options import Options
from nsqx.client.rdy import ReadyDistribution


class BenchTap:
    """A connection that takes note of its RDY counts."""

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


class Bench:
    """A flow on a bench, with as many connections as wanted."""

    def __init__(self, targets=0, **options):
        self.clock = BenchClock()
        self.rdy = ReadyDistribution(Options.of(options), self.now_s, self.call_later, random.Random(1))
        self.targets = [self.add() for _ in range(targets)]

    def now_s(self):
        return self.clock.monotonic_ns / SECOND

    def call_later(self, delay_s, callback):
        return self.clock.call_at(self.clock.monotonic_ns + round(delay_s * SECOND), callback)

    def add(self, **options):
        target = BenchTap(self.now_s, **options)
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
def test_equal_shares(max_in_flight, targets, counts):
    assert Bench(targets, max_in_flight=max_in_flight).counts() == counts


def test_a_count_never_exceeds_what_nsqd_allows():
    bench = Bench(max_in_flight=100)
    bench.add(max_ready_count=7)
    assert bench.counts() == [7]


def test_a_new_connection_takes_from_the_others_first():
    bench = Bench(1, max_in_flight=10)
    bench.add()
    assert bench.targets[0].sent == [10, 5]
    assert bench.counts() == [5, 5]


def test_what_a_lost_connection_had_goes_to_the_others():
    bench = Bench(3, max_in_flight=9)
    bench.rdy.remove(bench.targets[0])
    assert bench.counts() == [4, 4]
    bench.rdy.remove(bench.targets[0])
    assert bench.counts() == [4, 4]


def test_the_total_never_exceeds_max_in_flight():
    rng = random.Random(7)
    bench = Bench(max_in_flight=5)
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
    bench = Bench(2, max_in_flight=10)
    bench.rdy.change_max_in_flight(0)
    assert bench.counts() == [0, 0]
    bench.rdy.change_max_in_flight(4)
    assert bench.counts() == [2, 2]
    bench.rdy.change_max_in_flight(2)
    assert bench.counts() == [1, 1]


def test_nothing_is_sent_twice():
    bench = Bench(2, max_in_flight=10)
    bench.rdy.change_max_in_flight(10)
    assert bench.targets[1].sent == [5]


# Taking turns


def test_an_idle_connection_gives_its_turn_up():
    bench = Bench(3, max_in_flight=1, rdy_redistribute_interval="1s", low_rdy_idle_timeout="10s")
    assert bench.counts() == [1, 0, 0]
    bench.advance(10)
    assert bench.counts() == [1, 0, 0]
    had = set()
    for _ in range(200):
        bench.advance(11)
        assert sum(bench.counts()) == 1
        had.add(bench.counts().index(1))
    assert had == {0, 1, 2}


def test_a_busy_connection_keeps_its_turn_until_the_longer_limit():
    bench = Bench(2, max_in_flight=1, rdy_redistribute_interval="1s")
    for _ in range(30):
        bench.targets[0].got_message()
        bench.advance(1)
        assert bench.counts() == [1, 0]
    bench.targets[0].got_message()
    bench.targets[0].sent.clear()
    bench.advance(1)
    assert bench.targets[0].sent[0] == 0


def test_no_turns_while_there_is_enough_for_all():
    bench = Bench(2, max_in_flight=2)
    bench.targets[0].sent.clear()
    bench.advance(1000)
    assert [target.sent for target in bench.targets] == [[], [1]]


# Backoff


def test_backoff_stops_everything_and_then_tries_one():
    bench = Bench(3, max_in_flight=9, backoff_multiplier="1s")
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


def test_a_failure_of_the_one_tried_doubles_the_pause():
    bench = Bench(1, max_in_flight=9)
    bench.rdy.failed()
    bench.advance(2)
    assert bench.counts() == [1]
    bench.rdy.failed()
    assert bench.counts() == [0]
    bench.advance(3.9)
    assert bench.counts() == [0]
    bench.advance(0.2)
    assert bench.counts() == [1]


def test_many_failures_at_once_count_once():
    bench = Bench(1, max_in_flight=9)
    for _ in range(9):
        bench.rdy.failed()
    bench.advance(2)
    assert bench.counts() == [1]


def test_a_connection_made_in_backoff_waits_like_the_others():
    bench = Bench(1, max_in_flight=9)
    bench.rdy.failed()
    target = bench.add()
    assert target.is_backing_off
    assert bench.counts() == [0, 0]
    bench.advance(2)
    assert sum(bench.counts()) == 1


def test_the_one_tried_is_lost_and_another_is_tried():
    bench = Bench(2, max_in_flight=9)
    bench.rdy.failed()
    bench.advance(2)
    bench.rdy.remove(next(target for target in bench.targets if target.ready_count))
    assert bench.counts() == [1]


def test_in_backoff_max_in_flight_can_change():
    bench = Bench(2, max_in_flight=9)
    bench.rdy.failed()
    bench.advance(2)
    bench.rdy.change_max_in_flight(0)
    assert bench.counts() == [0, 0]
    bench.rdy.change_max_in_flight(3)
    assert sum(bench.counts()) == 1


def test_without_connections_the_pause_goes_on():
    bench = Bench(1, max_in_flight=9)
    bench.rdy.failed()
    bench.rdy.remove(bench.targets[0])
    bench.advance(10)
    bench.add()
    assert bench.counts() == [0]
    bench.advance(1)
    assert bench.counts() == [1]


def test_in_backoff_the_one_message_takes_turns():
    bench = Bench(2, max_in_flight=9, rdy_redistribute_interval="1s")
    bench.rdy.failed()
    bench.advance(2)
    had = set()
    for _ in range(100):
        bench.advance(11)
        assert sum(bench.counts()) == 1
        had.add(bench.counts().index(1))
    assert had == {0, 1}


def test_after_the_stop_nothing_is_given_out():
    bench = Bench(2, max_in_flight=9)
    bench.rdy.failed()
    bench.rdy.stop()
    bench.advance(100)
    assert bench.counts() == [0, 0]


def test_starvation():
    bench = Bench(2, max_in_flight=20)
    assert not bench.rdy.is_starved
    bench.targets[0].in_flight_count = 7
    assert not bench.rdy.is_starved
    bench.targets[0].in_flight_count = 8
    assert bench.rdy.is_starved
    bench.targets[0].is_closing = True
    assert not bench.rdy.is_starved
