from log_bench import change, checkpoint, commit, items, open_store, publish

from nsqx.queues.log.ledger import LedgerEntry, LogLedger
from nsqx.queues.log.log import LEDGER_LOG
from nsqx.queues.log.state import Changes, LogState

NODES = ("one:4151", "two:4151")


def entry(batch, time_ns=5, nodes=NODES):
    return LedgerEntry(batch, nodes, 1, time_ns)


def ledger_of(*pairs):
    ledger = LogLedger()
    for query, each in pairs:
        ledger.set(query, each)
    return ledger


class TestLedger:
    def test_the_last_commit_is_the_last_entry(self):
        ledger = ledger_of(("a", entry(1)), ("b", entry(7)), ("a", entry(2)))
        assert list(ledger.items()) == [("b", entry(7)), ("a", entry(2))]
        assert (ledger.find("a"), ledger.find("c"), len(ledger)) == (entry(2), None, 2)
        assert ledger == ledger_of(("b", entry(7)), ("a", entry(2)))
        assert ledger != ledger_of(("a", entry(2)), ("b", entry(7)))

    def test_the_oldest_queries_are_forgettable(self):
        ledger = ledger_of(*((name, entry(1, time_ns)) for name, time_ns in (("a", 1), ("b", 5), ("c", 9))))
        assert ledger.forgettable(3, 0) == []
        assert ledger.forgettable(2, 0) == ["a"]
        assert ledger.forgettable(3, 6) == ["a", "b"]
        assert ledger.forgettable(0, 0) == ["a", "b", "c"]
        ledger.forget(["a", "unknown"])
        assert [query for query, _ in ledger.items()] == ["b", "c"]


class TestState:
    def test_changes_and_snapshots_keep_the_ledger(self):
        changes = Changes()
        changes.commit_batch("a", entry(1 << 61, 1 << 62))
        changes.commit_batch("b", entry(0, nodes=("ünï:1",)))
        changes.commit_batch("c", entry(3))
        changes.forget_queries(["c"])
        state = LogState(0)
        state.apply(changes.take())
        assert dict(state.ledger.items()) == {"a": entry(1 << 61, 1 << 62), "b": entry(0, nodes=("ünï:1",))}
        assert state.copy().ledger == state.ledger

    def test_the_ledger_survives_restarts_checkpoints_and_new_segments(self, tmp_path):
        store = open_store(tmp_path)
        ledger = store.create_log(LEDGER_LOG, 1 << 30, 5)
        for batch in range(200):
            change(ledger, lambda changes, batch=batch: changes.commit_batch("q", entry(batch)))
            commit(store)
            if batch % 50 == 49:
                checkpoint(store)
        store.close()
        assert (tmp_path / "nsqx.ledger").is_dir()
        again = open_store(tmp_path)
        assert again.logs[LEDGER_LOG].state.ledger.find("q") == entry(199)
        assert again.logs[LEDGER_LOG].writer.segments[0].first == 0


class TestLargeFrames:
    """A transaction is one frame, which may be larger than a commit file."""

    def test_a_frame_that_is_larger_than_a_commit_file_is_written_and_recovered(self, tmp_path):
        store = open_store(tmp_path)
        body = b"x" * 1000
        log = store.create_log("topic", 1 << 30, 5)
        ledger = store.create_log(LEDGER_LOG, 1 << 31, 5)
        publish(log, b"first")
        commit(store)
        for _ in range(100):
            log.append(items(body), 1, 5)
        change(ledger, lambda changes: changes.commit_batch("q", entry(1)))
        store.join(log, ledger)
        job = commit(store)
        assert (job.size > 100_000, log.stable, store.failure) == (True, 101, None)
        again = open_store(tmp_path)
        assert (again.logs["topic"].end, again.logs[LEDGER_LOG].state.ledger.find("q")) == (101, entry(1))
        for _ in range(30):  # the large file is used again
            publish(again.logs["topic"], body)
            commit(again)
            checkpoint(again)
        assert again.failure is None
        again.close()
        files = sorted(tmp_path.glob("nsqx.commit.*"))
        assert max(file.stat().st_size for file in files) > 100_000
        open_store(tmp_path).close()
        assert max(file.stat().st_size for file in files) <= 20_000
