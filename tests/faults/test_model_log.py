"""The topic log under random use, with faults, crashes and power cuts, and under every fault at every file operation.

NSQX_SEED repeats the run of one seed; NSQX_SLOW or --run-slow performs thousands of runs.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable

import pytest
from log_model import TOPICS, Run, run_seed
from seeds import IS_GIVEN, NEW_SEED, QUICK_SEED

from nsqx.queues.failpoints import Fault
from nsqx.queues.log import jobs
from nsqx.queues.log.jobs import CheckpointJob, CommitJob
from nsqx.queues.log.log import TopicLog
from nsqx.queues.log.recovery import _LogLoader
from nsqx.queues.log.segment import finished_count
from nsqx.queues.log.store import LogStore

QUICK, MANY = 200, 5000
AT_MOST_S = 8.0  # for the quick test, on a busy machine
# A model that has a fault of its own must notice it within this number of runs from seed 1000 on.
NOTICED_WITHIN = 1000
# A test that replaces a method of a compiled class runs on the uncompiled package: make pure.
needs_uncompiled = pytest.mark.skipif(
    str(jobs.__file__).endswith(".so"), reason="a compiled method cannot be replaced: make pure runs this"
)
# In these runs, a power cut tears the header of a commit file with several frames while it is erased.
TORN_HEADER_SEEDS = (2001791, 3001408)

# Short runs that use everything once. Each is repeated with a fault at each of its file operations.
SCRIPTS = {
    "publish": ("create_channel", "publish", "commit_now", "finish", "publish", "commit_now", "checkpoint_now"),
    "large": ("publish_much", "commit_now", "create_channel", "publish_much", "commit_now", "finish", "commit_now"),
    "checkpoint": (
        *("create_channel", "publish", "publish_deferred", "commit_now", "begin_commit", "publish", "end_commit"),
        *("complete_checkpoint", "finish", "release", "commit_now", "complete_checkpoint"),
    ),
    "restart": ("create_channel", "publish", "commit_now", "crash", "publish", "checkpoint_now", "commit_now"),
    "move": ("create_channel", "publish", "commit_now", "move_message", "commit_now", "requeue", "commit_now"),
    "redrive": (
        *("create_channels", "publish", "commit_now", "move_message", "commit_now", "redrive_all", "commit_now"),
        *("finish", "move_message", "redrive_all", "commit_now", "complete_checkpoint", "crash"),
    ),
    "cancel": (
        *("create_channel", "publish_deferred", "publish_deferred", "commit_now", "cancel", "commit_now"),
        *("complete_checkpoint", "cancel", "commit_now", "crash", "cancel", "commit_now"),
    ),
    "remove": (
        *("create_channel", "publish_much", "commit_now", "complete_checkpoint", "publish_much", "commit_now"),
        *("complete_checkpoint", "finish_all", "commit_now", "remove_finished", "publish", "commit_now"),
        *("begin_read", "finish_all", "commit_now", "remove_finished", "end_read", "remove_and_crash"),
    ),
    "seek": (
        *("create_channel", "publish_much", "commit_now", "complete_checkpoint", "publish_much", "commit_now"),
        *("complete_checkpoint", "finish_all", "commit_now", "find_finished", "seek", "begin_checkpoint"),
        *("seek", "commit_now", "end_checkpoint", "finish_all", "commit_now", "seek", "remove_finished", "crash"),
        *("seek", "remove_finished", "finish_all", "remove_and_crash"),
    ),
    "numbered": (
        *("publish_numbered", "commit_now", "publish_numbered", "publish_numbered", "commit_unsynced", "cut_power"),
        *("repeat_all", "publish_numbered", "commit_now", "complete_checkpoint", "forget_producers"),
        "publish_numbered",
    ),
    "trim": (
        *("create_channel", "publish_much", "commit_now", "complete_checkpoint", "publish_much", "publish_deferred"),
        *("commit_now", "keep", "requeue", "trim", "commit_now", "remove_finished", "publish", "commit_now"),
        *("end_segment", "remove_finished", "trim_and_crash"),
    ),
    "copy": (
        *("create_channel", "publish_deferred", "publish_much", "commit_now", "complete_checkpoint", "requeue"),
        *("finish", "copy_forward", "publish_much", "commit_now", "remove_finished"),
    ),
    "delete": ("publish", "commit_now", "delete", "commit_now", "complete_checkpoint", "publish", "commit_now"),
}
ACTIONS = (("stop", ""), ("tear", ""), ("fail", "EIO"), ("short", "ENOSPC"))


def run_many(first: int, count: int, at_most_s: float = float("inf")) -> Counter[str]:
    """Perform so many runs, or as many as there is time for; return how often each action occurred."""
    counts: Counter[str] = Counter()
    deadline_s = time.monotonic() + at_most_s
    for seed in range(first, first + count):
        counts += run_seed(seed).counts
        if time.monotonic() > deadline_s:
            break
    return counts


def test_random_use_of_a_log_loses_only_what_it_may() -> None:
    run_many(QUICK_SEED, 1 if IS_GIVEN else QUICK, AT_MOST_S)


def test_the_model_of_a_log_kills_cuts_the_power_restarts_and_fails() -> None:
    counts = run_many(1000, 20)
    assert all(counts[what] > 3 for what in ("killed", "power cut", "restart_cleanly", "fault")), counts


@pytest.mark.parametrize("seed", TORN_HEADER_SEEDS)
def test_a_header_that_is_torn_while_it_is_erased_is_not_reported(seed: int) -> None:
    run_seed(seed)


def test_a_seed_gives_the_same_run_of_a_log() -> None:
    assert run_seed(5).history == run_seed(5).history


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_much_random_use_of_a_log_loses_only_what_it_may() -> None:
    run_many(NEW_SEED, 1 if IS_GIVEN else MANY)


def remove_too_early(job: CheckpointJob, log: TopicLog) -> None:
    """Remove segments that are finished, although this is not durable yet."""
    writer = log.writer
    if writer.segments:
        writer.remove_below(writer.segments[finished_count(writer.segments, log.state)].first)
    writer.remove_finished(job.idle_size)


def remove_in_spite_of_seeks(job: CheckpointJob, log: TopicLog) -> None:
    """Remove segments that are durably finished, although a channel may have moved back to them since."""
    log.writer.removable_end = log.end
    log.writer.remove_finished(job.idle_size)


@pytest.mark.parametrize("remove", [remove_too_early, remove_in_spite_of_seeks])
def test_the_removal_of_segments_before_it_is_safe_is_noticed(
    monkeypatch: pytest.MonkeyPatch, remove: Callable[[CheckpointJob, TopicLog], None]
) -> None:
    monkeypatch.setattr(CheckpointJob, "_remove_finished", remove)
    with pytest.raises(AssertionError, match="Lost"):
        run_many(1000, NOTICED_WITHIN)


def test_a_recovery_of_batches_after_a_torn_one_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    report = _LogLoader._report

    def use_everything(loader: _LogLoader) -> int:
        report(loader)
        return len(loader._bad_parts)

    monkeypatch.setattr(_LogLoader, "_report", use_everything)
    with pytest.raises(
        AssertionError, match="are missing before|there without change|has the channels|NumberedPublish"
    ):
        run_many(1000, NOTICED_WITHIN)


@needs_uncompiled
def test_frames_before_the_direct_writes_that_they_follow_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    run = CommitJob.run

    def run_at_once(job: CommitJob) -> None:
        job.earlier_writes.clear()
        run(job)

    monkeypatch.setattr(CommitJob, "run", run_at_once)
    with pytest.raises(AssertionError, match="Lost"):
        run_many(1000, NOTICED_WITHIN)


def run_script(name: str, seed: int, fault: Fault | None) -> int:
    """Perform a script with a fault; return the number of file operations."""
    run = Run(seed, TOPICS[:1])
    if fault is not None:
        run.arm(fault)
    try:
        run.perform(SCRIPTS[name])
    except Exception as failure:
        history = "\n".join(run.history)
        raise AssertionError(f"{failure!r}\n{history}\n{name}, seed {seed}, {fault}") from failure
    return run.operation_count


def run_script_with_every_fault(name: str, seed: int) -> int:
    """Perform a script again and again, with each fault at each of its file operations; return the number of runs."""
    count = run_script(name, seed, None)
    for number in range(1, count + 1):
        for action, argument in ACTIONS:
            run_script(name, seed, Fault("*.*", action, argument, number, number))
    return count * len(ACTIONS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_fault_at_every_file_operation_loses_only_what_it_may(name: str) -> None:
    assert run_script_with_every_fault(name, QUICK_SEED % 1000) > 50


def run_scripts_with_every_fault(name: str, seeds: Iterable[int]) -> None:
    """Perform a script with each fault, with several seeds."""
    for seed in seeds:
        run_script_with_every_fault(name, seed)


def join_nothing(store: LogStore, *logs: TopicLog) -> None:
    """Write a copy and the end of the old message as two writes, if they are large."""


@needs_uncompiled
def test_a_copy_that_is_not_written_with_the_end_of_the_old_message_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogStore, "join", join_nothing)
    with pytest.raises(AssertionError, match="was copied to"):
        run_scripts_with_every_fault("copy", range(20))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", SCRIPTS)
def test_every_fault_at_every_file_operation_with_many_seeds(name: str) -> None:
    run_scripts_with_every_fault(name, range(NEW_SEED % 1000, NEW_SEED % 1000 + 30))
