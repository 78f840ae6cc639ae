"""The store of topic logs: commits, checkpoints, limits, failures, deletion, and reading."""

import errno
import os

import pytest
from log_bench import BOOT_ID, SMALL, Lines, bodies_of, change, checkpoint, commit, items, open_store, publish

from nsqx.queues import files
from nsqx.queues.failpoints import failpoints_of
from nsqx.queues.log.store import LogOptions, LogStore


@pytest.fixture
def fail():
    """Return a function that injects faults and returns the hook."""

    def inject(text):
        hook = failpoints_of(text)
        files.set_hook(hook)
        return hook

    yield inject
    files.set_hook(None)


def new_log(store, topic="topic"):
    return store.create_log(topic, 1 << 40, 5)


def test_a_commit_makes_all_logs_durable_with_one_sync(tmp_path, fail):
    store = open_store(tmp_path, LogOptions())
    logs = [new_log(store, f"topic{number}") for number in range(20)]
    publish(logs[0], b"first")
    commit(store)
    for log in logs:
        publish(log, b"a", b"b")
    hook = fail("")
    commit(store)
    assert (hook.counts["commit.writev"], hook.counts["commit.datasync"], sum(hook.counts.values())) == (1, 1, 2)
    assert all(log.stable == log.written == log.end for log in logs)


def test_a_commit_without_sync_is_written_but_not_stable(tmp_path):
    store = open_store(tmp_path)
    log = new_log(store)
    publish(log, b"a")
    commit(store)
    publish(log, b"b")
    assert (log.end, log.written, log.stable) == (2, 1, 1)
    commit(store, is_synced=False)
    assert (log.end, log.written, log.stable) == (2, 2, 1)
    assert store.has_unsynced
    commit(store)
    assert (log.stable, store.has_unsynced) == (2, False)


def gather(log, *bodies, timestamp=5):
    return log.gather(items(*bodies), len(bodies), timestamp)


def test_messages_of_a_millisecond_share_a_batch(tmp_path):
    store = open_store(tmp_path, LogOptions())
    log = new_log(store)
    assert [gather(log, b"a", b"b"), gather(log, b"c", timestamp=1_000_004)] == [0, 2]
    assert (log.end, log.pending_count) == (3, 1)
    assert [(batch.first, batch.count, batch.timestamp) for batch in log.pending] == [(0, 3, 5)]
    assert log.pending_size == log.pending[0].size
    commit(store)
    assert (log.written, log.pending_count, list(bodies_of(log).values())) == (3, 0, [b"a", b"b", b"c"])


@pytest.mark.parametrize("timestamp", [1_000_005, 4])
def test_messages_of_different_times_do_not_share_a_batch(tmp_path, timestamp):
    log = new_log(open_store(tmp_path, LogOptions()))
    gather(log, b"a")
    gather(log, b"b", timestamp=timestamp)
    assert [(batch.first, batch.timestamp) for batch in log.pending] == [(0, 5), (1, timestamp)]


def test_large_messages_and_changes_end_a_shared_batch(tmp_path):
    store = open_store(tmp_path, LogOptions())
    log = new_log(store)
    gather(log, b"a")
    gather(log, b"x" * 16_384)
    gather(log, b"b")
    change(log, lambda changes: changes.set_unclaimed(1))
    gather(log, b"c")
    publish(log, b"d")
    gather(log, b"e")
    pending_count = log.pending_count
    assert [(batch.first, batch.count) for batch in log.pending if batch.has_offsets] == [
        (0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1),
    ]  # fmt: skip
    assert len(log.pending) == pending_count == 7
    commit(store)
    assert list(bodies_of(log).values()) == [b"a", b"x" * 16_384, b"b", b"c", b"d", b"e"]


def test_messages_that_are_gathered_while_a_commit_runs_are_in_the_next_one(tmp_path):
    store = open_store(tmp_path, LogOptions())
    log = new_log(store)
    gather(log, b"a")
    job = store.begin_commit(is_synced=True)
    gather(log, b"b")
    job.run()
    store.end_commit(job)
    assert (log.written, log.end) == (1, 2)
    commit(store)
    assert (log.written, bodies_of(log)) == (2, {0: b"a", 1: b"b"})


def test_gathered_messages_of_a_deleted_log_are_dropped(tmp_path):
    store = open_store(tmp_path, LogOptions())
    log = new_log(store)
    gather(log, b"a")
    store.delete_log(log)
    assert [batch.has_offsets for batch in log.pending] == [False]
    commit(store)
    assert log.pending_count == 0


def test_there_is_nothing_to_commit_without_changes(tmp_path):
    store = open_store(tmp_path)
    new_log(store)
    assert commit(store) is None
    assert os.listdir(tmp_path) == []


def test_batches_gather_while_a_commit_runs(tmp_path):
    store = open_store(tmp_path)
    log = new_log(store)
    publish(log, b"a")
    job = store.begin_commit(is_synced=True)
    publish(log, b"b")
    assert store.begin_commit(is_synced=True) is None
    job.run()
    store.end_commit(job)
    assert (log.written, log.end) == (1, 2)
    commit(store)
    assert log.written == 2


def test_a_large_batch_goes_to_the_segment_directly(tmp_path, fail):
    store = open_store(tmp_path, LogOptions(direct_size=3000))
    log = new_log(store)
    publish(log, b"small")
    commit(store)
    hook = fail("")
    publish(log, b"x" * 5000)
    commit(store)
    assert hook.counts["segment.datasync"] == 1
    assert (log.stable, b"xxx" in (tmp_path / "nsqx.commit.0").read_bytes()) == (2, False)
    assert bodies_of(log) == {0: b"small", 1: b"x" * 5000}


def test_large_batches_that_nobody_syncs_go_to_the_segment_without_a_sync(tmp_path, fail):
    store = open_store(tmp_path, LogOptions(direct_size=3000, unsynced_direct_size=3000, unsynced_size=20_000))
    log = new_log(store)
    publish(log, b"x" * 5000)
    commit(store)
    hook = fail("")
    for _ in range(4):
        publish(log, b"y" * 5000)
        assert commit(store, is_synced=False).is_brief(6000)
    # The sync before has closed the file.
    assert dict(hook.counts) == {"segment.open": 1, "segment.writev": 4}
    assert (log.written, log.stable) == (5, 1)
    publish(log, b"y" * 5000)
    assert not commit(store, is_synced=False).is_brief(6000)  # enough is not durable
    assert (log.written, log.stable) == (6, 6)


def test_a_frame_that_is_not_durable_is_synced_before_a_direct_write(tmp_path, fail):
    store = open_store(tmp_path, LogOptions(unsynced_direct_size=3000))
    log = new_log(store)
    publish(log, b"x" * 5000)
    commit(store)
    publish(log, b"small")
    commit(store, is_synced=False)
    hook = fail("")
    publish(log, b"y" * 5000)
    commit(store, is_synced=False)
    assert hook.counts["commit.datasync"] == hook.counts["segment.datasync"] == 1
    assert log.stable == 3


def test_a_small_write_after_a_direct_one_that_is_not_durable_goes_to_the_segment_too(tmp_path, fail):
    store = open_store(tmp_path, LogOptions(direct_size=3000, unsynced_direct_size=3000))
    log, other = new_log(store), new_log(store, "other")
    publish(log, b"x" * 5000)
    publish(other, b"small")
    commit(store)
    publish(log, b"y" * 5000)
    commit(store, is_synced=False)
    hook = fail("")
    publish(log, b"small")
    publish(other, b"small")
    commit(store, is_synced=False)
    assert dict(hook.counts) == {"commit.writev": 1, "segment.writev": 1}
    assert (log.written, log.stable) == (3, 1)
    checking = store.begin_checkpoint(is_complete=True)
    publish(log, b"waits")
    assert commit(store, is_synced=False) is None
    checking.run()
    store.end_checkpoint(checking)
    assert commit(store).framed[0][0] is log
    assert (log.written, log.stable) == (4, 4)


def joined_after_direct(store):
    """Return two logs with joined batches, after a direct write of the first one that is not durable."""
    log, other = new_log(store), new_log(store, "other")
    publish(log, b"x" * 5000)
    commit(store)
    publish(log, b"y" * 5000)
    commit(store, is_synced=False)
    publish(log, b"joined")
    publish(other, b"joined")
    store.join(log, other)
    return log, other


def test_a_direct_write_is_synced_before_a_frame_with_later_batches(tmp_path, fail):
    store = open_store(tmp_path, LogOptions(direct_size=3000, unsynced_direct_size=3000))
    log, other = joined_after_direct(store)
    fail("commit.*=fail:EIO@1")
    commit(store)
    assert (store.failure.errno, log.writer.synced_count, log.written, other.written) == (errno.EIO, 2, 2, 0)
    fail("")
    assert len(commit(store).framed) == 2
    assert (log.stable, other.stable) == (3, 1)


def test_a_frame_is_not_written_if_the_direct_write_before_it_cannot_be_synced(tmp_path, fail):
    store = open_store(tmp_path, LogOptions(direct_size=3000, unsynced_direct_size=3000))
    log, other = joined_after_direct(store)
    hook = fail("segment.datasync=fail:EIO@1")
    commit(store)
    assert (store.failure.errno, hook.counts["commit.writev"], log.stable, other.written) == (errno.EIO, 0, 1, 0)
    fail("")
    commit(store)
    assert (store.failure, log.stable, other.stable) == (None, 3, 1)
    assert list(bodies_of(log).values()) == [b"x" * 5000, b"y" * 5000, b"joined"]


def test_joined_logs_wait_for_a_checkpoint_that_syncs_a_direct_write(tmp_path):
    store = open_store(tmp_path, LogOptions(direct_size=3000, unsynced_direct_size=3000))
    log, other = joined_after_direct(store)
    checking = store.begin_checkpoint(is_complete=True)
    job = store.begin_commit(is_synced=False)
    assert job is None
    checking.run()
    store.end_checkpoint(checking)
    commit(store)
    assert (log.stable, other.stable) == (3, 1)


def test_a_job_that_begins_a_segment_is_not_brief(tmp_path):
    store = open_store(tmp_path, LogOptions(unsynced_direct_size=3000, segment_size=12_000))
    log = new_log(store)
    publish(log, b"x" * 5000)
    commit(store)
    are_brief = []
    for _ in range(3):
        publish(log, b"y" * 5000)
        job = store.begin_commit(is_synced=False)
        are_brief.append(job.is_brief(6000))
        job.run()
        store.end_commit(job)
    assert are_brief == [False, False, True]  # the first one creates the directory


def test_full_commit_files_stop_commits_until_a_checkpoint(tmp_path):
    store = open_store(tmp_path)
    log = new_log(store)
    published = 0
    while not store.is_full:
        publish(log, b"x" * 1000)
        published += 1
        commit(store)
    assert log.end == published > log.written > 10
    checkpoint(store, is_complete=False)
    assert not store.is_full
    commit(store)
    assert log.written == published
    assert bodies_of(log) == dict.fromkeys(range(published), b"x" * 1000)


def test_small_frames_are_written_over_zeros(tmp_path):
    store = open_store(tmp_path, LogOptions(commit_size=1 << 20))
    log = new_log(store)
    publish(log, b"a")
    commit(store)
    path = tmp_path / "nsqx.commit.0"
    size = path.stat().st_size
    for body in (b"b", b"c"):
        publish(log, body)
        commit(store)
        assert path.stat().st_size == size
    assert path.read_bytes().endswith(bytes(1000))
    publish(log, b"x" * 4096)
    commit(store)
    assert not path.read_bytes().endswith(bytes(1000))
    assert bodies_of(log) == {0: b"a", 1: b"b", 2: b"c", 3: b"x" * 4096}


def test_the_space_of_the_second_commit_file_is_reserved_in_advance(tmp_path):
    store = open_store(tmp_path)
    publish(new_log(store), b"a")
    commit(store)
    assert store.wants_checkpoint
    checkpoint(store, is_complete=False)
    assert (tmp_path / "nsqx.commit.1").read_bytes() == bytes(SMALL.commit_size)
    assert not store.wants_checkpoint


def test_memory_is_limited(tmp_path):
    store = open_store(tmp_path)
    log = new_log(store)
    for _ in range(100):
        publish(log, b"x" * 500)
        commit(store)
        if store.wants_checkpoint:
            checkpoint(store, is_complete=False)
    assert store.memory_size <= SMALL.memory_size + 2 * SMALL.commit_size
    checkpoint(store)
    assert store.memory_size <= SMALL.memory_size
    assert log.batch_at(0) is None
    assert bodies_of(log) == dict.fromkeys(range(100), b"x" * 500)


def test_after_a_failed_write_the_batches_are_written_later(tmp_path, fail):
    store = open_store(tmp_path)
    log = new_log(store)
    fail("commit.writev=short:ENOSPC")
    publish(log, b"a")
    commit(store)
    assert (store.failure.errno, log.written, log.end) == (errno.ENOSPC, 0, 1)
    publish(log, b"b")
    commit(store)
    assert (store.failure, log.stable) == (None, 2)
    assert bodies_of(open_store(tmp_path).logs["topic"]) == {0: b"a", 1: b"b"}


def test_after_a_failed_sync_the_batches_go_to_another_file(tmp_path, fail):
    store = open_store(tmp_path)
    log = new_log(store)
    publish(log, b"a")
    commit(store)
    publish(log, b"b")
    commit(store, is_synced=False)
    fail("commit.datasync=fail:EIO")
    publish(log, b"c")
    commit(store)
    assert (store.failure.errno, log.written, log.stable) == (errno.EIO, 2, 1)
    commit(store)
    assert (store.failure, log.written, log.stable) == (None, 3, 3)
    assert sorted(os.listdir(tmp_path)) == ["nsqx.commit.0", "nsqx.commit.1"]
    (tmp_path / "nsqx.commit.0").unlink()
    after = open_store(tmp_path).logs["topic"]
    assert bodies_of(after).items() >= {1: b"b", 2: b"c"}.items()


def test_a_file_with_a_failed_sync_is_not_used_again(tmp_path, fail):
    store = open_store(tmp_path)
    log = new_log(store)
    publish(log, b"a")
    commit(store)
    fail("commit.datasync=fail:EIO")
    publish(log, b"b")
    commit(store)
    commit(store)
    checkpoint(store, is_complete=False)
    checkpoint(store, is_complete=False)
    assert "nsqx.commit.0" not in os.listdir(tmp_path) or (tmp_path / "nsqx.commit.0").read_bytes()[:4] == bytes(4)
    assert bodies_of(open_store(tmp_path).logs["topic"]) == {0: b"a", 1: b"b"}


def test_a_failed_checkpoint_keeps_the_commit_file(tmp_path, fail):
    store = open_store(tmp_path)
    log = new_log(store)
    publish(log, b"a")
    commit(store)
    fail("segment.datasync=fail:EIO")
    with pytest.raises(OSError, match="Input/output"):
        checkpoint(store)
    assert bodies_of(LogStore(str(tmp_path), SMALL, BOOT_ID, Lines()).logs["topic"], 0) == {}
    assert bodies_of(open_store(tmp_path).logs["topic"]) == {0: b"a"}


def test_joined_logs_are_written_in_one_frame(tmp_path, fail):
    store = open_store(tmp_path, LogOptions(direct_size=500))
    one, two = new_log(store, "one"), new_log(store, "two")
    publish(one, b"x" * 1000)
    publish(two, b"y")
    store.join(one, two)
    hook = fail("")
    commit(store)
    assert hook.counts["segment.writev"] == 0
    assert (one.stable, two.stable) == (1, 1)


def test_a_deleted_log_is_gone_after_a_restart(tmp_path):
    store = open_store(tmp_path)
    log = new_log(store)
    publish(log, b"a")
    commit(store)
    checkpoint(store)
    store.delete_log(log)
    commit(store)
    checkpoint(store)
    assert not (tmp_path / "topic.topic").exists()
    assert open_store(tmp_path).logs == {}


def test_a_deletion_that_was_interrupted_is_completed(tmp_path):
    store = open_store(tmp_path)
    log = new_log(store)
    publish(log, b"a")
    commit(store)
    checkpoint(store)
    store.delete_log(log)
    commit(store)
    assert open_store(tmp_path).logs == {}
    assert not (tmp_path / "topic.topic").exists()


def test_a_topic_that_is_created_again_has_new_offsets_and_higher_ids(tmp_path):
    store = open_store(tmp_path)
    old = new_log(store)
    publish(old, b"a")
    commit(store)
    checkpoint(store)
    store.delete_log(old)
    new = new_log(store)
    publish(new, b"b")
    commit(store)
    checkpoint(store)
    checkpoint(store)
    assert new.identity.log_id != old.identity.log_id
    assert new.identity.id_number(0) > old.identity.id_number(0)
    assert bodies_of(open_store(tmp_path).logs["topic"]) == {0: b"b"}


def test_ids_go_on_above_those_of_a_deleted_log_after_a_restart(tmp_path):
    store = open_store(tmp_path)
    log = new_log(store)
    publish(log, b"a")
    commit(store)
    highest = log.identity.id_number(0)
    store.delete_log(log)
    commit(store)
    assert open_store(tmp_path).create_log("other", 1 << 30, 5).identity.first_id > highest


def test_batches_are_found_by_offset(tmp_path):
    store = open_store(tmp_path)
    log = new_log(store)
    for number in range(40):
        publish(log, b"%d" % (3 * number), b"%d" % (3 * number + 1), b"%d" % (3 * number + 2))
        commit(store)
    checkpoint(store)
    for offset in range(0, 120, 7):
        batch = log.batch_at(offset)
        if batch is None:
            job = log.begin_read(offset, 1)
            job.run()
            assert log.end_read(job) == 0
            batch = job.batches[0]
        assert dict(batch.bodies())[offset] == b"%d" % offset


@pytest.mark.parametrize("segment_size", [400, 100_000])
def test_a_message_is_found_by_time_in_segments_and_in_memory(tmp_path, segment_size):
    times = [10, 20, 15, 30, 25, 40, 50, 50, 45, 60, 70]
    store = open_store(tmp_path, LogOptions(segment_size=segment_size, memory_size=0))
    log = new_log(store)
    for number, timestamp in enumerate(times):
        if number == 6:
            checkpoint(store)  # the rest stays in memory
        publish(log, b"x" * 100, timestamp=timestamp)
        commit(store)
    for time_ns in range(0, 80, 5):
        job = log.begin_find(time_ns)
        job.run()
        expected = next((offset for offset, timestamp in enumerate(times) if timestamp >= time_ns), -1)
        assert log.end_find(job) == expected


def test_a_damaged_message_is_noted_when_it_is_read(tmp_path):
    store = open_store(tmp_path)
    log = new_log(store)
    change(log, lambda changes: changes.create_channel(1, "channel", 0))
    log.append(items(b"good1", b"wrong", b"good2"), 3, 5)
    store.close()
    (path,) = (tmp_path / "topic.topic").glob("*.seg")
    path.write_bytes(path.read_bytes().replace(b"wrong", b"wr0ng"))
    store = open_store(tmp_path)
    log = store.logs["topic"]
    assert log.state.depth(1, log.written) == 3
    assert bodies_of(log) == {0: b"good1", 2: b"good2"}
    assert log.state.depth(1, log.written) == 2


def test_close_fails_if_the_disk_is_full_and_loses_nothing_durable(tmp_path, fail):
    store = open_store(tmp_path)
    log = new_log(store)
    publish(log, b"a")
    commit(store)
    publish(log, b"b")
    fail("commit.*=fail:ENOSPC@1+")
    with pytest.raises(OSError, match="No space"):
        store.close()
    files.set_hook(None)
    assert bodies_of(open_store(tmp_path).logs["topic"])[0] == b"a"


def open_segments():
    links = (os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd"))
    return [path for path in (os.readlink(link) for link in links if os.path.islink(link)) if path.endswith(".seg")]


def test_a_segment_is_open_only_until_it_is_synced(tmp_path):
    store = open_store(tmp_path, LogOptions(direct_size=1000, unsynced_direct_size=1000))
    logs = [new_log(store, f"topic{number}") for number in range(20)]
    before = len(open_segments())
    for is_synced, count in ((False, 0), (False, 20), (True, 0)):
        for log in logs:
            publish(log, b"x" * 1000)
        commit(store, is_synced=is_synced)
        assert len(open_segments()) - before == count
    checkpoint(store, is_complete=True)
    assert len(open_segments()) == before


def test_many_unsynced_segments_are_synced(tmp_path):
    store = open_store(tmp_path, LogOptions(direct_size=1000, unsynced_direct_size=1000))
    for log in [new_log(store, f"topic{number}") for number in range(300)]:
        publish(log, b"small")
    commit(store)
    before = len(open_segments())
    for first in range(0, 300, 100):
        for log in list(store.logs.values())[first : first + 100]:
            publish(log, b"x" * 1000)
        commit(store, is_synced=False)
    assert len(open_segments()) == before
