import random
from collections import Counter

import pytest

from nsqx.tools.hostpool import (
    BUCKETS,
    HISTORY_S,
    EpsilonGreedyPool,
    HostPool,
    ResponseTimes,
    RoundRobinHosts,
    make_pool,
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def chosen(pool: HostPool | RoundRobinHosts, count: int) -> str:
    return "".join(pool.choose().address for _ in range(count))


def test_hosts_are_chosen_in_turn(clock: Clock) -> None:
    assert chosen(HostPool("abc", clock), 7) == "abcabca"


def test_a_failed_host_is_left_out_for_a_growing_time(clock: Clock) -> None:
    pool = HostPool("ab", clock)
    pool.choose().failed()
    assert chosen(pool, 3) == "bbb"
    clock.now_s += 30.5
    # The host is tried once, and left out again until a request succeeds.
    assert sorted(chosen(pool, 4)) == ["a", "b", "b", "b"]
    clock.now_s += 59
    assert chosen(pool, 3) == "bbb"
    clock.now_s += 2
    while (choice := pool.choose()).address != "a":
        pass
    choice.succeeded()
    assert sorted(chosen(pool, 4)) == ["a", "a", "b", "b"]


def test_a_failed_host_is_left_out_for_at_most_15_minutes(clock: Clock) -> None:
    pool = HostPool("ab", clock)
    pool.choose().failed()
    for _ in range(10):
        clock.now_s += 901
        assert "a" in chosen(pool, 2)
    clock.now_s += 899
    assert "a" not in chosen(pool, 2)


def test_all_hosts_are_tried_when_all_have_failed(clock: Clock) -> None:
    pool = HostPool("ab", clock)
    pool.choose().failed()
    pool.choose().failed()
    assert chosen(pool, 4) == "abab"


def test_round_robin_does_not_leave_out_failed_hosts(clock: Clock) -> None:
    pool = RoundRobinHosts("abc", clock)
    pool.choose().failed()
    assert chosen(pool, 4) == "cabc"


def test_epsilon_greedy_chooses_fast_hosts_more_often(clock: Clock) -> None:
    pool = EpsilonGreedyPool("ab", clock, random.Random(1))
    taken: Counter[str] = Counter()
    for _ in range(2000):
        choice = pool.choose()
        taken[choice.address] += 1
        # Both times are below a millisecond, which the Go utilities cannot distinguish.
        clock.now_s += 0.0001 if choice.address == "a" else 0.0009
        choice.succeeded()
    assert taken["a"] > 5 * taken["b"] > 0


def test_epsilon_greedy_leaves_out_failed_hosts(clock: Clock) -> None:
    pool = EpsilonGreedyPool("ab", clock, random.Random(1))
    for _ in range(20):
        choice = pool.choose()
        clock.now_s += 0.001
        choice.succeeded()
    while (choice := pool.choose()).address != "a":
        pass
    choice.failed()
    assert "a" not in chosen(pool, 100)


def test_old_response_times_are_forgotten() -> None:
    times = ResponseTimes()
    times.add(1.0, 5000.0)
    assert times.weighted_ms(5000.0) == pytest.approx(1000)
    assert times.weighted_ms(5000.0 + HISTORY_S / 2) > 1000
    assert times.weighted_ms(5000.0 + HISTORY_S + HISTORY_S / BUCKETS) == 0


def test_each_mode_has_its_pool() -> None:
    assert type(make_pool("hostpool", "a")) is HostPool
    assert type(make_pool("epsilon-greedy", "a")) is EpsilonGreedyPool
    assert type(make_pool("round-robin", "a")) is RoundRobinHosts
    assert type(make_pool("anything", "a")) is RoundRobinHosts
