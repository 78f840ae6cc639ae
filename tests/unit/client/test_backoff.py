"""The backoff level rises on failure, falls on success, and does not change during a pause."""

import random

import pytest

from nsqx.client.backoff import NOTHING, PAUSE, RESTORE, Backoff, exponential, full_jitter, strategy_of
from nsqx.client.options import Options


def test_failures_raise_the_level_and_successes_lower_it():
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


def test_outcomes_during_a_pause_are_ignored():
    backoff = Backoff(exponential(1.0), 120.0)
    backoff.failed()
    assert [backoff.failed(), backoff.succeeded(), backoff.held()] == [NOTHING, NOTHING, NOTHING]
    assert backoff.level == 1


def test_a_success_at_level_0_needs_no_action():
    backoff = Backoff(exponential(1.0), 120.0)
    assert backoff.succeeded() == NOTHING
    assert backoff.held() == NOTHING
    assert backoff.level == 0


def test_the_level_does_not_rise_above_the_longest_pause():
    backoff = Backoff(exponential(1.0), 5.0)
    for _ in range(4):
        backoff.failed()
        backoff.resumed()
    assert (backoff.level, backoff.pause_s) == (2, 4.0)
    assert backoff.failed() == PAUSE
    assert (backoff.level, backoff.pause_s) == (2, 4.0)


def test_a_requeue_without_backoff_pauses_again_at_the_same_level():
    backoff = Backoff(exponential(1.0), 120.0)
    backoff.failed()
    backoff.resumed()
    assert backoff.held() == PAUSE
    assert backoff.level == 1


@pytest.mark.parametrize("multiplier_s", [0.0, 1.0])
def test_backoff_can_be_turned_off(multiplier_s):
    backoff = Backoff(exponential(multiplier_s), 0.0)
    assert backoff.failed() == NOTHING
    assert backoff.level == 0


def test_full_jitter_stays_below_the_exponential_pause():
    strategy = full_jitter(1.0, random.Random(1))
    pauses = [strategy(3) for _ in range(1000)]
    assert all(0 <= pause <= 8.0 for pause in pauses)
    assert max(pauses) > 7.0
    assert min(pauses) < 1.0


def test_jitter_never_exceeds_the_longest_pause():
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
