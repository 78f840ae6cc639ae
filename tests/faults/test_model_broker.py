"""A whole broker under random use, and the state that a power cut at any moment would leave (rows 5, 34 and 42).

NSQX_SEED repeats the run of one seed; NSQX_SLOW or --run-slow checks at least 500 power cuts for each set of flags.
"""

import os
import random
from collections import Counter
from typing import Any

import pytest
from broker_model import run_broker_seed

IS_GIVEN = "NSQX_SEED" in os.environ
FIRST = int(os.environ["NSQX_SEED"]) if IS_GIVEN else random.SystemRandom().randrange(1 << 40)
QUICK = 1 if IS_GIVEN else 3
MANY_CUTS = 500
# Not every run has a power cut while there are dead letters.
MOST_RUNS = 8

SYNC_ALWAYS = {"mem_queue_size": 0, "sync_every": 1, "store": "classic"}
DISK_ONLY = {"mem_queue_size": 0, "sync_every": 2500}
DEFAULTS = {"mem_queue_size": 1000, "sync_every": 2500}
LOG_FSYNC = {"store": "log", "durability": "fsync"}
LOG_WRITE = {"store": "log", "durability": "write"}
LIMIT = {"max_attempts": 3}


@pytest.mark.parametrize("number", range(QUICK))
def test_power_cuts_with_any_flags_lose_only_what_they_may(number: int) -> None:
    run_broker_seed(FIRST + number)


def test_power_cuts_with_sync_every_1_lose_nothing() -> None:
    counts = run_broker_seed(FIRST, **SYNC_ALWAYS).counts
    assert counts["cuts"] > 5
    assert counts["acked"] > 100


@pytest.mark.parametrize("flags", [LOG_FSYNC, LOG_WRITE], ids=["fsync", "write"])
def test_power_cuts_with_topic_logs_lose_only_what_they_may(flags: dict[str, Any]) -> None:
    counts = run_broker_seed(FIRST, **flags).counts
    assert counts["cuts"] > 5
    assert counts["acked"] > 100


@pytest.mark.parametrize("flags", [LOG_FSYNC, LOG_WRITE, SYNC_ALWAYS], ids=["fsync", "write", "sync always"])
def test_power_cuts_leave_each_dead_letter_in_one_place(flags: dict[str, Any]) -> None:
    counts: Counter[str] = Counter()
    wanted = ("cuts", "failed", "redriven", *(("letters",) if flags["store"] == "log" else ()))
    for seed in range(FIRST, FIRST + (1 if IS_GIVEN else MOST_RUNS)):
        counts += run_broker_seed(seed, **flags, **LIMIT).counts
        if all(counts[what] for what in wanted):
            return
    assert IS_GIVEN, counts


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
    seed = FIRST
    while counts["cuts"] < MANY_CUTS:
        counts += run_broker_seed(seed, **flags).counts
        seed += 1
    print(f"{seed - FIRST} runs from seed {FIRST}: {dict(counts)}")
