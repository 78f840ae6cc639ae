"""The model of the log store with transactions: batches of queries that are staged in parts, and committed once.

A query numbers its batches and repeats a batch until its commit is acknowledged, as a streaming query of Spark does.
Before a repetition, the rows of the batch may be distributed over other parts. The model checks after each restart
that of a batch all rows are there or none, that no row is there twice, and that the ledger says the same. A part that
was staged stays until its batch is durable.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from log_model import Fact, Lost, ModelTopic, Run, items_of

from nsqx.queues.failpoints import Fault
from nsqx.queues.log.batch import DEFERRED, MESSAGES
from nsqx.queues.log.ledger import LedgerEntry
from nsqx.queues.log.log import LEDGER_LOG, TopicLog
from nsqx.queues.log.staging import PartMessages, PartName, ReadPartsJob, RemovePartsJob, StageJob
from nsqx.queues.log.state import Changes

QUERIES = ("daily-totals", "x" * 64)
NODES = ("one:4151", "two:4151")
_STAGE_FAULTS = ("stage.write", "stage.sync", "stage.rename", "stage.read", "stage.unlink", "stage.*", "directory.*")


@dataclass
class Row:
    """A row of a batch. ``place`` is where it is stored: topic and offset."""

    topic_name: str
    body: bytes
    is_deferred: bool
    place: tuple[ModelTopic, int] | None = None


@dataclass
class ModelBatch:
    """A batch of a query. It is acknowledged when ``number`` batches of the ledger are durable."""

    query: str
    batch: int
    rows: list[Row]
    parts: list[list[Row]] = field(default_factory=list)  # of the current attempt
    attempt: int = 0
    staged: list[PartName] = field(default_factory=list)  # parts of the current attempt
    is_stored: bool = False
    number: int = 0
    is_acknowledged: bool = False

    @property
    def is_staged(self) -> bool:
        return bool(self.parts) and len(self.staged) == len(self.parts)


class BatchGroup(NamedTuple):
    """Messages of a part for one topic."""

    topic_name: str
    is_deferred: bool


class TransactionRun(Run):
    """A run in which queries commit batches, beside some other use of the logs."""

    def __init__(self, seed: int, topics: tuple[str, ...] | None = None) -> None:
        super().__init__(seed) if topics is None else super().__init__(seed, topics)
        self._choices = _TRANSACTION_CHOICES
        self._batches: dict[str, list[ModelBatch]] = {query: [] for query in QUERIES}
        self._deleted: set[int] = set()  # log ids
        self._has_staged = False  # in this life

    # Use

    def _ledger(self) -> ModelTopic:
        return self._topic([LEDGER_LOG])

    def _current(self, query: str) -> ModelBatch:
        """Return the batch that a query works at: the first one that is not acknowledged, or a new one."""
        batches = self._batches[query]
        if not batches or batches[-1].is_acknowledged:
            last = batches[-1].batch if batches else -1
            rows = []
            for fact in self._facts(self._rng.randint(0, 12), size=self._rng.choice((40, 40, 150))):
                rows.append(Row(self._rng.choice(self._names), fact.body, self._rng.random() < 0.1))
            batches.append(ModelBatch(query, last + self._rng.randint(1, 3), rows))
        return batches[-1]

    def _split(self, batch: ModelBatch) -> None:
        """Distribute the rows over new parts."""
        batch.attempt += 1
        batch.staged = []
        batch.parts = [[] for _ in range(self._rng.randint(1, 3))]
        for row in batch.rows:
            self._rng.choice(batch.parts).append(row)

    def _stage(self) -> None:
        """Stage the next part of a batch."""
        batch = self._current(self._rng.choice(QUERIES))
        if not batch.parts:
            self._split(batch)
        if not batch.is_staged:
            self._stage_part(batch)

    def _stage_part(self, batch: ModelBatch) -> None:
        index = len(batch.staged)
        name = PartName(batch.query, batch.batch, str(index), str(batch.attempt))
        groups: dict[BatchGroup, list[bytes]] = {}
        for row in batch.parts[index]:
            groups.setdefault(BatchGroup(row.topic_name, row.is_deferred), []).append(row.body)
        job = StageJob(
            str(self._directory),
            name,
            [PartMessages(g.topic_name, int(g.is_deferred), len(b), items_of(b)) for g, b in groups.items()],
            is_first=not self._has_staged,
        )
        job.run()
        if job.error is None:
            self._has_staged = True
            batch.staged.append(name)

    def _commit_batch(self) -> None:
        """Commit a batch if all its parts are staged, as nsqd does."""
        batch = self._current(self._rng.choice(QUERIES))
        if batch.is_staged:
            self._store_batch(batch)

    def _transact(self) -> None:
        """Stage and commit a batch of each query; for scripts."""
        for query in QUERIES:
            batch = self._current(query)
            self._split(batch)
            while not batch.is_staged:
                count = len(batch.staged)
                self._stage_part(batch)
                if len(batch.staged) == count:
                    return
            self._store_batch(batch)

    def _store_batch(self, batch: ModelBatch) -> None:
        ledger = self._ledger()
        entry = ledger.log.state.ledger.find(batch.query)
        if self._is_duplicate(entry, batch):
            if not batch.is_stored:
                raise Lost(f"batch {batch.batch} of {batch.query} is not stored, but {entry} says so")
            self.counts["duplicate batch"] += 1
            batch.number = ledger.log.given_count + ledger.log.pending_count
            return
        if batch.is_stored:
            raise Lost(f"batch {batch.batch} of {batch.query} is stored, but {entry} does not say so")
        job = ReadPartsJob(str(self._directory), batch.staged)
        job.run()
        if job.missing is not None:
            raise Lost(f"part {job.missing} was staged and is gone")
        if job.error is not None:
            return
        logs = [self._append_group(batch, group) for group in job.groups]
        changes = Changes()
        changes.commit_batch(batch.query, LedgerEntry(batch.batch, NODES, batch.batch % 2, self._serial))
        self._note_entry(ledger, changes, logs)
        batch.is_stored = True
        batch.number = ledger.log.given_count + ledger.log.pending_count
        self.counts["batch"] += 1

    def _append_group(self, batch: ModelBatch, group: PartMessages) -> TopicLog:
        topic = self._topic([group.topic])
        due_ns = self._serial + group.defer_ns if group.defer_ns else 0
        first = topic.log.append_checked(group.items, group.sums, group.message_count, self._serial, due_ns)
        bodies = {row.body: row for row in batch.rows}
        position, facts = 0, []
        for offset in range(first, first + group.message_count):
            end = position + 4 + int.from_bytes(group.items[position : position + 4], "big")
            row = bodies[group.items[position + 4 : end]]
            row.place = (topic, offset)
            facts.append(Fact(DEFERRED if due_ns else MESSAGES, row.body, due_ns=due_ns))
            position = end
        self._note_appended(topic, first, facts)
        if due_ns:
            topic.deferred.update(dict.fromkeys(range(first, first + group.message_count), due_ns))
        return topic.log

    def _delete_topic(self) -> None:
        super()._delete_topic()
        self._deleted.update(key for key, topic in self._topics.items() if topic.is_deleted)

    # What nsqd does, which tests replace by something wrong

    def _is_duplicate(self, entry: LedgerEntry | None, batch: ModelBatch) -> bool:
        return entry is not None and entry.batch >= batch.batch

    def _note_entry(self, ledger: ModelTopic, changes: Changes, logs: list[TopicLog]) -> None:
        self._change(ledger, changes, 0, [])
        self._store.join(ledger.log, *logs)

    def _remove_parts(self, batch: ModelBatch) -> None:
        RemovePartsJob(str(self._directory), batch.staged).run()

    # Faults

    def _order_stage_fault(self) -> None:
        first = self._rng.randint(1, 3)
        action, argument = self._rng.choice((("fail", "EIO"), ("fail", "ENOSPC"), ("stop", ""), ("tear", "")))
        self.arm(Fault(self._rng.choice(_STAGE_FAULTS), action, argument, first, first))

    def _open(self) -> None:
        super()._open()
        self._has_staged = False

    # Checks

    def _note_progress(self) -> None:
        super()._note_progress()
        ledger = next((topic for topic in self._topics.values() if topic.log.topic == LEDGER_LOG), None)
        for batch in self._unacknowledged():
            if ledger is not None and batch.is_stored and ledger.log.safe_count >= batch.number > 0:
                batch.is_acknowledged = True
                self._remove_parts(batch)

    def _unacknowledged(self) -> list[ModelBatch]:
        return [batch for batches in self._batches.values() for batch in batches if not batch.is_acknowledged]

    def _repeat_all(self) -> None:
        """Repeat what was not acknowledged, too, some of it with other parts."""
        super()._repeat_all()
        self._order_nothing()
        for batch in self._unacknowledged():
            if batch.is_stored or (batch.is_staged and self._rng.random() < 0.5):
                self._store_batch(batch)
            else:
                self._split(batch)

    def _settle(self, topic: ModelTopic) -> None:
        super()._settle(topic)
        if topic.log.topic == LEDGER_LOG:
            for batch in self._unacknowledged():
                batch.is_acknowledged = batch.is_stored

    def _check_restart(self, is_power_cut: bool) -> None:
        super()._check_restart(is_power_cut)
        ledger = self._store.logs.get(LEDGER_LOG)
        places = self._places()
        for query, batches in self._batches.items():
            entry = ledger.state.ledger.find(query) if ledger is not None else None
            last = entry.batch if entry is not None else -1
            for batch in batches:
                if is_power_cut and self._was_recovering and self._has_lost_pages:
                    # A sync had failed, so the next process could not make its frames durable before the segments.
                    batch.rows, batch.parts, batch.staged = [], [], []
                    batch.is_acknowledged = batch.is_acknowledged and batch.batch <= last
                self._check_batch(batch, batch.batch <= last, places)
            if last not in (-1, *(batch.batch for batch in batches)):
                raise Lost(f"the ledger has batch {last} of {query}, which was never committed")

    def _places(self) -> dict[bytes, list[tuple[ModelTopic, int]]]:
        places: dict[bytes, list[tuple[ModelTopic, int]]] = {}
        for topic in self._topics.values():
            if not topic.is_deleted:
                for offset in (topic.present | topic.recovered) - topic.copied:
                    places.setdefault(topic.fact(offset).body, []).append((topic, offset))
        return places

    def _check_batch(
        self, batch: ModelBatch, is_in_ledger: bool, places: dict[bytes, list[tuple[ModelTopic, int]]]
    ) -> None:
        name = f"batch {batch.batch} of {batch.query}"
        if batch.is_acknowledged and not is_in_ledger:
            raise Lost(f"{name} was acknowledged, but is not in the ledger")
        stored = Counter[bool]()
        for row in batch.rows:
            found = [place for place in places.get(row.body, []) if place[1] >= place[0].log.first]
            if len(found) > 1:
                raise Lost(f"a row of {name} is stored {len(found)} times, at {[place[1] for place in found]}")
            if row.place is None or self._is_unknown(*row.place):
                continue
            stored[bool(found)] += 1
        if len(stored) > 1:
            raise Lost(f"{stored[True]} rows of {name} are stored, and {stored[False]} are not")
        if stored and stored[True] > 0 and not is_in_ledger:
            raise Lost(f"the rows of {name} are stored, but it is not in the ledger")
        if stored and stored[False] > 0 and is_in_ledger:
            raise Lost(f"{name} is in the ledger, but its rows are not stored")
        batch.is_stored = is_in_ledger
        if not is_in_ledger:
            for row in batch.rows:
                row.place = None

    def _is_unknown(self, topic: ModelTopic, offset: int) -> bool:
        """True if a row may be gone for another reason: its topic was deleted, or the row was finished and removed.

        A deletion drops the rows that are pending. A power cut may take the deletion away, and then the topic is back.
        """
        return topic.key in self._deleted or self._topics.get(topic.key) is not topic or offset < topic.log.first


_TRANSACTION_CHOICES: dict[Callable[[TransactionRun], None], int] = {
    TransactionRun._stage: 30,
    TransactionRun._commit_batch: 20,
    TransactionRun._publish: 6,
    TransactionRun._publish_much: 2,
    TransactionRun._publish_numbered: 2,
    TransactionRun._publish_deferred: 1,
    TransactionRun._create_channel: 2,
    TransactionRun._finish: 3,
    TransactionRun._finish_all: 2,
    TransactionRun._requeue: 1,
    TransactionRun._move_message: 2,
    TransactionRun._delete_topic: 1,
    TransactionRun._begin_commit: 5,
    TransactionRun._end_commit: 5,
    TransactionRun._commit_now: 8,
    TransactionRun._commit_unsynced: 5,
    TransactionRun._begin_checkpoint: 3,
    TransactionRun._end_checkpoint: 3,
    TransactionRun._checkpoint_now: 3,
    TransactionRun._remove_finished: 2,
    TransactionRun._order_fault: 2,
    TransactionRun._order_stage_fault: 3,
    TransactionRun._order_stop: 4,
    TransactionRun._order_nothing: 2,
    TransactionRun._cut_power: 2,
    TransactionRun._crash: 3,
    TransactionRun._restart_cleanly: 1,
}


def run_transactions(seed: int, run_class: type[TransactionRun] = TransactionRun, steps: int = 80) -> TransactionRun:
    """Perform the run of a seed; a failure includes the seed."""
    run = run_class(seed)
    try:
        run.perform(steps)
    except Exception as failure:
        tail = "\n".join(run.history[-60:])
        raise AssertionError(f"{failure!r}\n{tail}\nNSQX_SEED={seed} repeats this run") from failure
    return run
