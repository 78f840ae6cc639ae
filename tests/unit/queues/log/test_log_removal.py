"""The removal of finished segments: which ones, and what readers and the next process see."""

import os
import shutil
from dataclasses import replace

import pytest
from log_bench import SMALL, Lines, bodies_of, change, checkpoint, commit, open_store, publish

from nsqx.queues import files
from nsqx.queues.failpoints import failpoints_of
from nsqx.queues.log.segment import KEEP_NOTHING
from nsqx.queues.log.segment_times import SegmentTimesJob
from nsqx.queues.log.state import Hole

OPTIONS = replace(SMALL, memory_size=0)


def new_log(path, options=OPTIONS, count=40):
    """Return a store and a log with a channel and several segments."""
    store = open_store(path, options)
    log = store.create_log("topic", 1 << 40, 5)
    change(log, lambda changes: changes.create_channel(1, "channel", 0))
    for number in range(count):
        publish(log, b"%d" % number + b"x" * 100)
        commit(store)
    checkpoint(store)
    assert len(log.writer.segments) > 3
    return store, log


def finish(store, log, end):
    change(log, lambda changes: changes.finish(1, [(0, end)]))
    commit(store)


def remove(store):
    store.find_finished()
    checkpoint(store)


def segment_files(path):
    return sorted(file.name for file in (path / "topic.topic").glob("*.*"))


def test_segments_are_removed_up_to_the_first_unfinished_message(tmp_path):
    store, log = new_log(tmp_path)
    firsts = [segment.first for segment in log.writer.segments]
    finish(store, log, firsts[2] + 1)
    remove(store)
    assert log.first == firsts[2]
    assert [int(name[:20]) for name in segment_files(tmp_path) if name.endswith(".seg")] == firsts[2:]
    assert bodies_of(log).keys() == set(range(firsts[2], log.end))


def test_a_deferred_message_keeps_its_segment(tmp_path):
    store = open_store(tmp_path, OPTIONS)
    store.create_log("topic", 1 << 40, 5).append_deferred(b"\0\0\0\1d", 1, 5, 77)
    store.close()
    store = open_store(tmp_path, OPTIONS)
    log = store.logs["topic"]
    for number in range(40):
        publish(log, b"%d" % number + b"x" * 100)
        commit(store)
    change(log, lambda changes: changes.set_unclaimed(log.end))
    commit(store)
    checkpoint(store)
    remove(store)
    assert log.first == 0
    change(log, lambda changes: changes.remove_deferred([0]))
    commit(store)
    remove(store)
    assert log.first > 0


def test_an_idle_log_has_one_small_segment(tmp_path):
    store, log = new_log(tmp_path, replace(OPTIONS, idle_size=100))
    finish(store, log, log.end)
    remove(store)
    assert (log.first, segment_files(tmp_path)) == (log.end, [f"{log.end:020d}.seg"])
    store.close()
    log = open_store(tmp_path).logs["topic"]
    assert (log.end, log.state.channels[1].next, log.state.depth(1, log.end)) == (40, 40, 0)


def test_a_reader_sees_removed_messages_as_finished(tmp_path):
    store, log = new_log(tmp_path)
    job = log.begin_read(0, 500)
    finish(store, log, log.end)
    remove(store)
    job.run()
    assert (log.end_read(job), job.batches, job.next > 0) == (0, [], True)
    job = log.begin_read(0, 500)
    job.run()
    assert (log.end_read(job), job.next >= log.first) == (0, True)
    find = log.begin_find(0)
    find.run()
    assert log.end_find(find) == log.first


def test_a_segment_that_disappears_is_reported_to_the_reader(tmp_path):
    _store, log = new_log(tmp_path)
    (tmp_path / "topic.topic" / f"{0:020d}.seg").unlink()
    job = log.begin_read(0, 500)
    job.run()
    assert log.end_read(job) == log.writer.segments[1].first


def test_a_removal_that_fails_is_repeated(tmp_path):
    store, log = new_log(tmp_path)
    finish(store, log, log.end)
    files.set_hook(failpoints_of("segment.unlink=fail:EIO@1"))
    try:
        with pytest.raises(OSError, match="Input/output error"):
            remove(store)
    finally:
        files.set_hook(None)
    remove(store)
    assert len(segment_files(tmp_path)) == 1


def test_removed_segments_that_a_power_cut_brings_back_are_removed_again(tmp_path):
    store, log = new_log(tmp_path)
    shutil.copytree(tmp_path / "topic.topic", tmp_path / "copy")
    finish(store, log, log.end)
    remove(store)
    store.close()
    for name in (f"{0:020d}.seg", f"{0:020d}.idx"):
        shutil.copy(tmp_path / "copy" / name, tmp_path / "topic.topic")
    lines = Lines()
    store = open_store(tmp_path, OPTIONS, lines=lines)
    log = store.logs["topic"]
    assert (log.first > 0, store.damaged_count, lines.lines) == (True, 0, [])
    remove(store)
    assert len(segment_files(tmp_path)) == 1


@pytest.mark.parametrize("index", [0, 1])
def test_a_missing_segment_with_unfinished_messages_is_reported(tmp_path, index):
    store, log = new_log(tmp_path)
    first, end = (segment.first for segment in log.writer.segments[index : index + 2])
    store.close()
    (tmp_path / "topic.topic" / f"{first:020d}.seg").unlink()
    lines = Lines()
    store = open_store(tmp_path, OPTIONS, lines=lines)
    log = store.logs["topic"]
    assert lines.lines == [f"LOG(topic): damaged - the segment from offset {first} on is missing"]
    assert (store.damaged_count, log.state.depth(1, log.end)) == (end - first, log.end - (end - first))
    commit(store)
    assert len(bodies_of(log)) == log.end - (end - first)


def test_one_damaged_snapshot_loses_no_channel(tmp_path):
    store, log = new_log(tmp_path)
    finish(store, log, log.end)
    remove(store)
    store.close()
    (path,) = (tmp_path / "topic.topic").glob("*.seg")
    content = bytearray(path.read_bytes())
    content[content.index(b"NXB1", 10) + 70] ^= 1
    path.write_bytes(content)
    store = open_store(tmp_path, OPTIONS)
    assert (store.logs["topic"].state.channels[1].next, store.damaged_count > 0) == (40, True)


def test_a_checkpoint_after_a_failed_sync_keeps_a_direct_write_that_is_not_durable(tmp_path):
    store, log = new_log(tmp_path, replace(OPTIONS, lease_step=1000, commit_size=100_000))
    finish(store, log, log.end)
    offset = publish(log, b"y" * OPTIONS.direct_size)
    commit(store, is_synced=False)
    assert (log.written, log.stable) == (offset + 1, offset)
    files.set_hook(failpoints_of("segment.datasync=fail:EIO@1"))
    try:
        with pytest.raises(OSError, match="Input/output error"):
            remove(store)
    finally:
        files.set_hook(None)
    remove(store)
    log = open_store(tmp_path, OPTIONS).logs["topic"]
    assert bodies_of(log)[offset] == b"y" * OPTIONS.direct_size


def test_a_channel_that_moves_back_keeps_the_segments_it_needs(tmp_path):
    store, log = new_log(tmp_path)
    firsts = [segment.first for segment in log.writer.segments]
    finish(store, log, log.end)
    store.find_finished()
    change(log, lambda changes: changes.move(1, firsts[1]))
    checkpoint(store)
    assert log.first == firsts[1]
    assert len(bodies_of(log)) == log.state.depth(1, log.end)


def test_a_channel_cannot_move_to_what_a_running_checkpoint_removes(tmp_path):
    store, log = new_log(tmp_path, replace(OPTIONS, idle_size=100_000))
    firsts = [segment.first for segment in log.writer.segments]
    finish(store, log, log.end)
    store.find_finished()
    job = store.begin_checkpoint()
    assert (log.first, log.first_kept) == (0, firsts[-1])
    change(log, lambda changes: changes.move(1, log.first_kept))
    job.run()
    store.end_checkpoint(job)
    assert log.first == log.first_kept == firsts[-1]
    assert len(bodies_of(log)) == log.state.depth(1, log.end)


def test_an_idle_log_that_gets_a_message_meanwhile_keeps_its_newest_segment(tmp_path):
    """The checkpoint finds everything finished in the segments. The newest state has an unfinished message."""
    store, log = new_log(tmp_path, replace(OPTIONS, idle_size=100))
    finish(store, log, log.end)
    checkpoint(store)
    store.find_finished()
    change(log, lambda changes: changes.move(1, 30))
    job = store.begin_checkpoint()
    assert log.first_kept <= 30
    job.run()
    store.end_checkpoint(job)
    assert log.first <= 30
    assert len(bodies_of(log, 30)) == log.state.depth(1, log.end) == 10


def test_segments_that_are_kept_are_not_removed(tmp_path):
    store, log = new_log(tmp_path, replace(OPTIONS, idle_size=100))
    firsts = [segment.first for segment in log.writer.segments]
    finish(store, log, log.end)
    log.writer.keep_from = firsts[2] + 1
    remove(store)
    assert [segment.first for segment in log.writer.segments] == firsts[2:]
    log.writer.keep_from = KEEP_NOTHING
    store.look_at(log)
    remove(store)
    assert segment_files(tmp_path) == [f"{log.end:020d}.seg"]


def test_a_segment_ends_early_if_that_is_wanted(tmp_path):
    store = open_store(tmp_path, OPTIONS)
    log = store.create_log("topic", 1 << 40, 5)
    assert log.newest_part_ns == 0
    publish(log, b"a", timestamp=7)
    publish(log, b"b", timestamp=8)
    assert log.newest_part_ns == 7
    commit(store)
    log.writer.is_roll_wanted = True
    remove(store)
    assert [segment.first for segment in log.writer.segments] == [0, 2]
    assert (log.newest_part_ns, log.writer.is_roll_wanted) == (0, False)
    publish(log, b"c", timestamp=9)
    commit(store)
    checkpoint(store)
    assert ([segment.max_time for segment in log.writer.segments], log.newest_part_ns) == ([8, 9], 9)


def test_the_times_of_segments_are_found_after_a_restart(tmp_path):
    store, log = new_log(tmp_path)
    count = len(log.writer.segments)
    store.close()
    (tmp_path / "topic.topic" / f"{0:020d}.idx").unlink()
    log = open_store(tmp_path).logs["topic"]
    assert [segment.max_time for segment in log.writer.segments] == [None] * (count - 1) + [5]
    job = SegmentTimesJob(log.writer.segments)
    job.run()
    assert [segment.max_time for segment in log.writer.segments] == [5] * count
    assert [segment.index is None for segment in log.writer.segments] == [True] * (count - 1) + [False]


def test_a_job_for_times_skips_a_removed_segment_and_reports_an_error(tmp_path):
    store, log = new_log(tmp_path)
    store.close()
    log = open_store(tmp_path).logs["topic"]
    for segment in log.writer.segments[:2]:
        os.unlink(segment.path)
        os.unlink(segment.index_path)
    files.set_hook(failpoints_of("index.read=fail:EIO@3"))
    job = SegmentTimesJob(log.writer.segments)
    try:
        job.run()
    finally:
        files.set_hook(None)
    assert "Input/output error" in str(job.error)


def test_a_trim_drops_messages_durably_and_frees_whole_segments(tmp_path):
    store, log = new_log(tmp_path)
    firsts = [segment.first for segment in log.writer.segments]
    change(log, lambda changes: changes.requeue(1, [(0, Hole(2, 0)), (firsts[2] + 1, Hole(1, 0))]))
    change(log, lambda changes: changes.trim(firsts[2] + 1))
    assert log.first == firsts[2] + 1
    commit(store)
    remove(store)
    assert [segment.first for segment in log.writer.segments] == firsts[2:]
    assert log.state.depth(1, log.end) == log.end - firsts[2] - 1
    find = log.begin_find(0)
    find.run()
    assert log.end_find(find) == log.first
    for is_clean in (False, True):
        if is_clean:
            store.close()
        store = open_store(tmp_path, OPTIONS)
        log = store.logs["topic"]
        assert (log.first, store.damaged_count) == (firsts[2] + 1, 0)
        assert log.state.channels[1].holes == {firsts[2] + 1: Hole(1, 0)}
        assert bodies_of(log).keys() >= set(range(firsts[2] + 1, log.end))


def test_a_damaged_message_below_a_trim_is_not_reported_as_lost(tmp_path):
    _store, log = new_log(tmp_path)
    end = log.writer.segments[1].first
    (tmp_path / "topic.topic" / f"{0:020d}.seg").unlink()
    change(log, lambda changes: changes.trim(end - 1))
    job = log.begin_read(0, 500)
    job.run()
    assert log.end_read(job) == 1


def test_a_segment_that_could_not_be_begun_is_not_taken_for_damage(tmp_path):
    store, log = new_log(tmp_path)
    store.close()
    store = open_store(tmp_path, OPTIONS)
    log = store.logs["topic"]
    log.writer.is_roll_wanted = True
    files.set_hook(failpoints_of("segment.writev=short:ENOSPC@1"))
    try:
        with pytest.raises(OSError, match="No space left"):
            remove(store)
    finally:
        files.set_hook(None)
    lines = Lines()
    store = open_store(tmp_path, OPTIONS, lines=lines)
    assert (store.damaged_count, lines.lines, len(bodies_of(store.logs["topic"]))) == (0, [], 40)
