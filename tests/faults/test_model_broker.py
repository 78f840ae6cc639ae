"""A whole broker under random use, and the state that a power cut at any moment would leave (rows 5, 34 and 42).

NSQX_SEED repeats the run of one seed; NSQX_SLOW or --run-slow checks at least 500 power cuts for each set of flags.
"""

from collections import Counter
from typing import Any

import pytest
from broker_model import run_broker_seed
from seeds import IS_GIVEN, NEW_SEED, QUICK_SEED

QUICK = 1 if IS_GIVEN else 3
MANY_CUTS = 500
MOST_RUNS = 20

SYNC_ALWAYS = {"mem_queue_size": 0, "sync_every": 1, "store": "classic"}
DISK_ONLY = {"mem_queue_size": 0, "sync_every": 2500}
DEFAULTS = {"mem_queue_size": 1000, "sync_every": 2500}
LOG_FSYNC = {"store": "log", "durability": "fsync"}
LOG_WRITE = {"store": "log", "durability": "write"}
LIMIT = {"max_attempts": 3}


def run_until(wanted: dict[str, int], flags: dict[str, Any]) -> None:
    """Run the broker until each event occurred so often, with as many seeds as that takes, up to MOST_RUNS.

    A run of the broker depends on its threads, so even a fixed seed need not contain every event.
    """
    counts: Counter[str] = Counter()
    for seed in range(QUICK_SEED, QUICK_SEED + (1 if IS_GIVEN else MOST_RUNS)):
        counts += run_broker_seed(seed, **flags).counts
        if all(counts[what] >= count for what, count in wanted.items()):
            return
    assert IS_GIVEN, counts


@pytest.mark.parametrize("number", range(QUICK))
def test_power_cuts_with_any_flags_lose_only_what_they_may(number: int) -> None:
    run_broker_seed(QUICK_SEED + number)


def test_power_cuts_with_sync_every_1_lose_nothing() -> None:
    run_until({"cuts": 5, "acked": 100}, SYNC_ALWAYS)


@pytest.mark.parametrize("flags", [LOG_FSYNC, LOG_WRITE], ids=["fsync", "write"])
def test_power_cuts_with_topic_logs_lose_only_what_they_may(flags: dict[str, Any]) -> None:
    run_until({"cuts": 5, "acked": 100}, flags)


@pytest.mark.parametrize("flags", [LOG_FSYNC, LOG_WRITE, SYNC_ALWAYS], ids=["fsync", "write", "sync always"])
def test_power_cuts_leave_each_dead_letter_in_one_place(flags: dict[str, Any]) -> None:
    wanted = ("cuts", "failed", "redriven", *(("letters",) if flags["store"] == "log" else ()))
    run_until(dict.fromkeys(wanted, 1), flags | LIMIT)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    "flags",
    [SYNC_ALWAYS, DISK_ONLY, DEFAULTS, LOG_FSYNC, LOG_WRITE, LOG_FSYNC | LIMIT, LOG_WRITE | LIMIT, SYNC_ALWAYS | LIMIT],
    ids=[
        *("sync always", "disk only", "defaults", "log with fsync", "log with write"),
        *("log with fsync and limit", "log with write and limit", "sync always and limit"),
    ],
)
def test_many_power_cuts_lose_only_what_they_may(flags: dict[str, Any]) -> None:
    counts: Counter[str] = Counter()
    seed = NEW_SEED
    while counts["cuts"] < MANY_CUTS:
        counts += run_broker_seed(seed, **flags).counts
        seed += 1
    print(f"{seed - NEW_SEED} runs from seed {NEW_SEED}: {dict(counts)}")
