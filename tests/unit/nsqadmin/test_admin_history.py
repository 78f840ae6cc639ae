"""Time series in rings."""

import math

from hypothesis import given
from hypothesis import strategies as st

from nsqx.nsqadmin.history import Track, WallClock, condense


def test_a_series_returns_the_stored_values() -> None:
    clock = WallClock(10)
    track = Track(clock, 2)
    for number in range(3):
        assert clock.tick(100.0 + number) == number
        track.put(number, (number * 1.5, 7))
    assert track.series(0, clock.range()) == [0, 1.5, 3]
    assert track.series(1, clock.range()) == [7, 7, 7]
    assert [clock.time_s(number) for number in clock.range()] == [100, 101, 102]


def test_only_the_latest_polls_are_remembered() -> None:
    clock = WallClock(3)
    track = Track(clock, 1)
    for number in range(8):
        track.put(clock.tick(float(number)), (number,))
    assert clock.range() == range(5, 8)
    assert track.series(0, clock.range()) == [5, 6, 7]


def test_polls_since_a_time() -> None:
    clock = WallClock(5)
    for number in range(7):
        clock.tick(number * 10.0)
    assert clock.range(30.0) == range(4, 7)
    assert clock.range(35.0) == range(4, 7)
    assert clock.range(60.0) == range(7, 7)
    assert clock.range(math.inf) == range(7, 7)
    assert clock.range(-math.inf) == range(2, 7)


def test_an_empty_history() -> None:
    clock = WallClock(5)
    assert clock.range() == range(0)
    assert Track(clock, 1).series(0, clock.range()) == []


def test_a_missing_value_is_a_gap() -> None:
    clock = WallClock(10)
    track = Track(clock, 1)
    for number in range(9):
        clock.tick(float(number))
        if number in (2, 3, 6):
            track.put(number, (number,))
    assert track.series(0, clock.range()) == [None, None, 2, 3, None, None, 6, None, None]
    assert track.series(0, range(4, 7)) == [None, None, 6]


def test_a_gap_does_not_show_overwritten_values() -> None:
    clock = WallClock(4)
    track = Track(clock, 1)
    for number in range(4):
        track.put(clock.tick(float(number)), (number + 100,))
    clock.tick(4.0)
    clock.tick(5.0)
    track.put(clock.tick(6.0), (6,))
    assert track.series(0, clock.range()) == [103, None, None, 6]


def test_an_idle_series_allocates_nothing() -> None:
    clock = WallClock(1000)
    track = Track(clock, 3)
    track.put(clock.tick(0.0), (0, 0.0, 0))
    assert track.size_bytes == 0
    track.put(clock.tick(1.0), (0, 5, 0))
    assert track.size_bytes == 4000
    assert track.series(1, clock.range()) == [0, 5]


@given(
    capacity=st.integers(1, 6),
    steps=st.lists(st.one_of(st.none(), st.integers(0, 1000)), max_size=30),
)
def test_any_sequence_of_values_and_gaps(capacity: int, steps: list[int | None]) -> None:
    clock = WallClock(capacity)
    track = Track(clock, 1)
    for time_s, value in enumerate(steps):
        number = clock.tick(float(time_s))
        if value is not None:
            track.put(number, (value,))
    assert track.series(0, clock.range()) == steps[-capacity:]


def test_a_series_is_condensed_to_means() -> None:
    assert condense([1, 2, 3], 5) == [1, 2, 3]
    assert condense([1, 3, 5, 7], 2) == [2, 6]
    assert condense([None, 3, None, None], 2) == [3, None]
    assert condense([], 5) == []
    assert len(condense([1.0] * 61, 30)) == 30
