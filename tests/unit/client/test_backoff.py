"""The backoff level: up on failure, down on success, unmoved during a pause."""

import random

import pytest

from nsqx.client.backoff import NOTHING, PAUSE, RESTORE, Backoff, exponential, full_jitter, strategy_of
from nsqx.client.options import Options


def test_the_level_rises_and_falls():
    backoff = Backoff(exponential(1.0), 120.0)
    pauses = []
    for _ in range(3):
        assert backoff.failed() == PAUSE
        pauses.append((backoff.level, backoff.pause_s))
        backoff.resumed()
    assert pauses == [(1, 2.0), (2, 4.0), (3, 8.0)]
    assert backoff.succeeded() == PAUSE
    assert (backoff.level, backoff.pause_s) == (2, 4.0)
    backoff.resumed()
    assert backoff.succeeded() == PAUSE
    backoff.resumed()
    assert backoff.succeeded() == RESTORE
    assert backoff.level == 0


def test_during_a_pause_nothing_counts():
    backoff = Backoff(exponential(1.0), 120.0)
    backoff.failed()
    assert [backoff.failed(), backoff.succeeded(), backoff.held()] == [NOTHING, NOTHING, NOTHING]
    assert backoff.level == 1


def test_success_without_backoff_is_nothing():
    backoff = Backoff(exponential(1.0), 120.0)
    assert backoff.succeeded() == NOTHING
    assert backoff.held() == NOTHING
    assert backoff.level == 0


def test_the_level_stops_where_the_pause_would_exceed_the_most():
    backoff = Backoff(exponential(1.0), 5.0)
    for _ in range(4):
        backoff.failed()
        backoff.resumed()
    assert (backoff.level, backoff.pause_s) == (2, 4.0)
    assert backoff.failed() == PAUSE
    assert (backoff.level, backoff.pause_s) == (2, 4.0)


def test_a_message_held_back_pauses_again_at_the_same_level():
    backoff = Backoff(exponential(1.0), 120.0)
    backoff.failed()
    backoff.resumed()
    assert backoff.held() == PAUSE
    assert backoff.level == 1


@pytest.mark.parametrize("multiplier_s", [0.0, 1.0])
def test_no_backoff(multiplier_s):
    backoff = Backoff(exponential(multiplier_s), 0.0)
    assert backoff.failed() == NOTHING
    assert backoff.level == 0


def test_full_jitter_stays_below_the_exponential_pause():
    strategy = full_jitter(1.0, random.Random(1))
    pauses = [strategy(3) for _ in range(1000)]
    assert all(0 <= pause <= 8.0 for pause in pauses)
    assert max(pauses) > 7.0
    assert min(pauses) < 1.0


def test_jitter_never_pauses_longer_than_the_most():
    backoff = Backoff(full_jitter(1.0, random.Random(2)), 3.0)
    for _ in range(200):
        if backoff.failed() == PAUSE:
            assert backoff.pause_s <= 3.0
            backoff.resumed()
    assert backoff.level > 0


def test_the_options_choose_the_strategy():
    rng = random.Random(3)
    assert strategy_of(Options.of({"backoff_multiplier": "100ms"}), rng)(1) == pytest.approx(0.2)
    jittery = strategy_of(Options.of({"backoff_strategy": "full_jitter"}), rng)
    assert len({jittery(4) for _ in range(5)}) == 5


def test_huge_levels_do_not_overflow():
    assert exponential(1.0)(10_000) > 1e18
