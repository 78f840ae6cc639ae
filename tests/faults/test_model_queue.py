"""The disk queue under random use, with faults, crashes and power cuts, against a model of losses.

NSQX_SEED repeats the run of one seed; NSQX_SLOW or --run-slow performs thousands of runs.
"""

import time
from collections import Counter

import pytest
from queue_model import run_seed
from seeds import IS_GIVEN, NEW_SEED, QUICK_SEED

QUICK, MANY = 150, 3000
AT_MOST_S = 8.0  # for the quick tests, on a busy machine


def run_many(first: int, count: int, at_most_s: float = float("inf")) -> Counter[str]:
    """Perform so many runs, or as many as there is time for; return how often each action occurred."""
    counts: Counter[str] = Counter()
    deadline_s = time.monotonic() + at_most_s
    for seed in range(first, first + count):
        counts += run_seed(seed).counts
        if time.monotonic() > deadline_s:
            break
    return counts


def test_random_use_loses_only_what_it_may() -> None:
    run_many(QUICK_SEED, 1 if IS_GIVEN else QUICK, AT_MOST_S)


def test_the_model_of_a_queue_kills_cuts_the_power_restarts_and_fails() -> None:
    counts = run_many(1000, 30)
    assert all(counts[what] > 3 for what in ("killed", "power cut", "restart_cleanly", "order_fault")), counts


def test_a_seed_gives_the_same_run() -> None:
    assert run_seed(5).history == run_seed(5).history


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_much_random_use_loses_only_what_it_may() -> None:
    run_many(NEW_SEED, 1 if IS_GIVEN else MANY)
