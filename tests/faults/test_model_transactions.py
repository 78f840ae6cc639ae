"""Transactions under random use, with faults, crashes and power cuts, and under every fault at every file operation.

NSQX_SEED repeats the run of one seed; NSQX_SLOW or --run-slow performs thousands of runs. What the quick tests do does
not depend on the time that they take.
"""

from functools import partial

import pytest
from log_model import ModelTopic
from seeds import IS_GIVEN, NEW_SEED, QUICK_SEED
from transaction_model import ModelBatch, TransactionRun, run_transactions

from nsqx.queues.failpoints import Fault
from nsqx.queues.log import staging
from nsqx.queues.log.ledger import LedgerEntry
from nsqx.queues.log.log import TopicLog
from nsqx.queues.log.state import Changes

QUICK, MANY = 100, 5000
# A wrong nsqd must be noticed within this number of runs from seed 1000 on.
NOTICED_WITHIN = 300
ACTIONS = (("stop", ""), ("tear", ""), ("fail", "EIO"), ("short", "ENOSPC"))
SCRIPTS = {
    "commit": ("transact", "commit_now", "complete_checkpoint", "transact", "commit_now"),
    "crash": ("publish_much", "transact", "commit_unsynced", "cut_power", "transact", "commit_now"),
}


def run_many(first: int, count: int, run_class: type[TransactionRun] = TransactionRun) -> None:
    """Perform so many runs."""
    for seed in range(first, first + count):
        run_transactions(seed, run_class)


@pytest.mark.timeout(300)  # a busy machine
def test_random_transactions_are_stored_wholly_and_once() -> None:
    run_many(QUICK_SEED, 1 if IS_GIVEN else QUICK)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_many_random_transactions_are_stored_wholly_and_once() -> None:
    run_many(NEW_SEED, 1 if IS_GIVEN else MANY)


def test_a_seed_gives_the_same_transactions() -> None:
    assert run_transactions(5).history == run_transactions(5).history


def run_script(name: str, seed: int, fault: Fault | None) -> int:
    """Perform a script with a fault; return the number of file operations."""
    run = TransactionRun(seed)
    if fault is not None:
        run.arm(fault)
    try:
        run.perform(SCRIPTS[name])
    except Exception as failure:
        history = "\n".join(run.history)
        raise AssertionError(f"{failure!r}\n{history}\n{name}, seed {seed}, {fault}") from failure
    return run.operation_count


def run_script_with_every_fault(name: str, seed: int, action: str, argument: str) -> None:
    for number in range(1, run_script(name, seed, None) + 1):
        run_script(name, seed, Fault("*.*", action, argument, number, number))


@pytest.mark.timeout(300)  # a busy machine
@pytest.mark.parametrize(("action", "argument"), ACTIONS)
@pytest.mark.parametrize("name", SCRIPTS)
def test_every_fault_at_every_file_operation_leaves_a_transaction_whole(name: str, action: str, argument: str) -> None:
    run_script_with_every_fault(name, QUICK_SEED % 1000, action, argument)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("action", "argument"), ACTIONS)
@pytest.mark.parametrize("name", SCRIPTS)
def test_every_fault_at_every_file_operation_with_many_seeds_of_transactions(
    name: str, action: str, argument: str
) -> None:
    for seed in range(NEW_SEED % 1000, NEW_SEED % 1000 + 20):
        run_script_with_every_fault(name, seed, action, argument)


# Mutations: the model must notice each of these mistakes of nsqd.


class ApartRun(TransactionRun):
    """Writes the entry of the ledger and the messages wherever the store puts them, not in one frame."""

    def _note_entry(self, ledger: ModelTopic, changes: Changes, logs: list[TopicLog]) -> None:
        self._change(ledger, changes, 0, [])


class ForgetfulRun(TransactionRun):
    """Does not look into the ledger before it stores a batch."""

    def _is_duplicate(self, entry: LedgerEntry | None, batch: ModelBatch) -> bool:
        return False


class ExactRun(TransactionRun):
    """Takes only the last batch for a duplicate of itself, not the earlier ones, and every batch for a new one."""

    def _is_duplicate(self, entry: LedgerEntry | None, batch: ModelBatch) -> bool:
        return entry is not None and entry.batch > batch.batch


class HastyRun(TransactionRun):
    """Removes the parts of a batch before it is durable."""

    def _note_entry(self, ledger: ModelTopic, changes: Changes, logs: list[TopicLog]) -> None:
        super()._note_entry(ledger, changes, logs)
        for batch in self._unacknowledged():
            if batch.is_staged:
                self._remove_parts(batch)


class UnrecordedRun(TransactionRun):
    """Stores the messages without an entry in the ledger."""

    def _note_entry(self, ledger: ModelTopic, changes: Changes, logs: list[TopicLog]) -> None:
        self._store.join(ledger.log, *logs)


@pytest.mark.parametrize(
    ("run_class", "text"),
    [
        (ApartRun, "is in the ledger, but its rows are not|are stored, but it is not in the ledger|and . are not"),
        (ForgetfulRun, "is stored, but|is stored . times"),
        (ExactRun, "is stored, but|is stored . times"),
        (HastyRun, "was staged and is gone"),
        (UnrecordedRun, "not in the ledger|does not say so"),
    ],
)
def test_a_mistake_is_noticed(run_class: type[TransactionRun], text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        run_many(1000, NOTICED_WITHIN, run_class)


def test_parts_that_are_not_synced_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "replace_file", partial(staging.replace_file, is_durable=False))
    with pytest.raises(AssertionError, match="was staged and is gone|is damaged"):
        run_many(1000, NOTICED_WITHIN)
