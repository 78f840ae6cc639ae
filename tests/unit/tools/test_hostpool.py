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


def test_hosts_are_taken_in_turn(clock: Clock) -> None:
    assert chosen(HostPool("abc", clock), 7) == "abcabca"


def test_a_host_that_failed_rests_and_rests_longer_each_time(clock: Clock) -> None:
    pool = HostPool("ab", clock)
    pool.choose().failed()
    assert chosen(pool, 3) == "bbb"
    clock.now_s += 30.5
    # It is tried once, and is dead until it answers well.
    assert sorted(chosen(pool, 4)) == ["a", "b", "b", "b"]
    clock.now_s += 59
    assert chosen(pool, 3) == "bbb"
    clock.now_s += 2
    while (choice := pool.choose()).address != "a":
        pass
    choice.succeeded()
    assert sorted(chosen(pool, 4)) == ["a", "a", "b", "b"]


def test_the_rest_has_a_limit(clock: Clock) -> None:
    pool = HostPool("ab", clock)
    pool.choose().failed()
    for _ in range(10):
        clock.now_s += 901
        assert "a" in chosen(pool, 2)
    clock.now_s += 899
    assert "a" not in chosen(pool, 2)


def test_if_all_are_dead_all_are_tried(clock: Clock) -> None:
    pool = HostPool("ab", clock)
    pool.choose().failed()
    pool.choose().failed()
    assert chosen(pool, 4) == "abab"


def test_round_robin_knows_no_dead_hosts(clock: Clock) -> None:
    pool = RoundRobinHosts("abc", clock)
    pool.choose().failed()
    assert chosen(pool, 4) == "cabc"


def test_fast_hosts_get_more(clock: Clock) -> None:
    pool = EpsilonGreedyPool("ab", clock, random.Random(1))
    taken: Counter[str] = Counter()
    for _ in range(2000):
        choice = pool.choose()
        taken[choice.address] += 1
        # Both below a millisecond: the Go utilities could not tell them apart.
        clock.now_s += 0.0001 if choice.address == "a" else 0.0009
        choice.succeeded()
    assert taken["a"] > 5 * taken["b"] > 0


def test_a_dead_host_is_not_taken_for_its_speed(clock: Clock) -> None:
    pool = EpsilonGreedyPool("ab", clock, random.Random(1))
    for _ in range(20):
        choice = pool.choose()
        clock.now_s += 0.001
        choice.succeeded()
    while (choice := pool.choose()).address != "a":
        pass
    choice.failed()
    assert "a" not in chosen(pool, 100)


def test_old_times_are_forgotten() -> None:
    times = ResponseTimes()
    times.add(1.0, 5000.0)
    assert times.weighted_ms(5000.0) == pytest.approx(1000)
    assert times.weighted_ms(5000.0 + HISTORY_S / 2) > 1000
    assert times.weighted_ms(5000.0 + HISTORY_S + HISTORY_S / BUCKETS) == 0


def test_modes() -> None:
    assert type(make_pool("hostpool", "a")) is HostPool
    assert type(make_pool("epsilon-greedy", "a")) is EpsilonGreedyPool
    assert type(make_pool("round-robin", "a")) is RoundRobinHosts
    assert type(make_pool("anything", "a")) is RoundRobinHosts
