"""Segments: writing, rolling, failed writes, and reading after damage."""

import os
from pathlib import Path

import pytest
from log_bench import items

from nsqx.queues import files
from nsqx.queues.failpoints import failpoints_of
from nsqx.queues.log.batch import DELTA, MESSAGES, new_batch, new_record
from nsqx.queues.log.identity import LogIdentity
from nsqx.queues.log.segment import SegmentReader, SegmentWriter, identity_in, list_segments
from nsqx.queues.log.state import Changes, LogState

IDENTITY = LogIdentity("topic", 42, 1, 2, 1000)


@pytest.fixture
def fail():
    """Return a function that injects faults."""
    yield lambda text: files.set_hook(failpoints_of(text))
    files.set_hook(None)


def new_writer(path, max_size=100_000):
    writer = SegmentWriter(str(path / "topic.topic"), IDENTITY, LogState(1000), [], max_size)
    writer.is_new = True
    return writer


def messages(first, *bodies):
    return new_batch(MESSAGES, first, len(bodies), 5, items(*bodies))


def write_and_sync(writer, batches):
    writer.write(batches)
    writer.sync()


def read(segment):
    with SegmentReader(segment) as reader:
        batches = [reader.batch(part) for part in reader.parts(0)]
    return [list(batch.bodies()) for batch in batches if batch is not None and batch.has_offsets]


def firsts(writer):
    return [segment.first for segment in list_segments(writer.directory, IDENTITY.log_id)]


def test_batches_are_read_as_they_were_written(tmp_path):
    writer = new_writer(tmp_path)
    writer.write([messages(0, b"a", b"b")])
    assert (writer.written_count, writer.synced_count, writer.state.end) == (1, 0, 0)
    writer.write([messages(2, b"c")])
    writer.sync()
    assert (writer.written_count, writer.synced_count, writer.state.end) == (2, 2, 3)
    assert read(writer.segments[0]) == [[(0, b"a"), (1, b"b")], [(2, b"c")]]
    writer.close()


def test_a_full_segment_is_followed_by_one_with_a_snapshot(tmp_path):
    writer = new_writer(tmp_path, 500)
    changes = Changes()
    changes.create_channel(1, "channel", 0)
    writer.write([new_record(DELTA, 1, changes.take())])
    for number in range(10):
        writer.write([messages(number, b"x" * 60)])
    writer.sync()
    assert len(writer.segments) > 3
    assert firsts(writer) == [segment.first for segment in writer.segments]
    sizes = [segment.size for segment in writer.segments]
    assert sizes == [segment.size for segment in list_segments(writer.directory, IDENTITY.log_id)]
    assert sizes == [os.stat(segment.path).st_size for segment in writer.segments]
    with SegmentReader(writer.segments[-1]) as reader:
        state = LogState(0)
        state.load(reader.snapshot())
    assert (state.end, state.channels[1].name, state.lease) == (writer.segments[-1].first, "channel", 1000)
    assert os.path.exists(writer.segments[0].index_path)
    writer.close()


def test_a_segment_with_changes_only_is_replaced_when_it_is_full(tmp_path):
    writer = new_writer(tmp_path, 600)
    for number in range(30):
        changes = Changes()
        changes.set_setting("a", str(number))
        writer.write([new_record(DELTA, number + 1, changes.take())])
    writer.sync()
    assert firsts(writer) == [0]
    assert os.stat(writer.segments[0].path).st_size < 1200
    assert (writer.state.serial, writer.state.settings) == (30, {"a": "29"})
    writer.close()


@pytest.mark.parametrize("fault", ["segment.datasync=fail:EIO", "segment.writev=short:ENOSPC"])
def test_after_a_failure_the_same_batches_go_to_a_new_segment(tmp_path, fail, fault):
    writer = new_writer(tmp_path)
    writer.write([messages(0, b"a")])
    writer.sync()
    batches = [messages(1, b"b"), messages(2, b"c")]
    fail(fault)
    with pytest.raises(OSError, match=r"\[Errno"):
        write_and_sync(writer, batches)
    assert (writer.written_count, writer.synced_count, writer.written_size) == (1, 1, messages(0, b"a").size)
    writer.write(batches)
    writer.sync()
    assert writer.written_size == sum(batch.size for batch in (messages(0, b"a"), *batches))
    assert firsts(writer) == [0, 1]
    assert read(writer.segments[1]) == [[(1, b"b")], [(2, b"c")]]
    writer.close()


def test_a_new_segment_that_was_never_durable_is_replaced(tmp_path, fail):
    writer = new_writer(tmp_path)
    fail("segment.datasync=fail:EIO")
    writer.write([messages(0, b"a")])
    with pytest.raises(OSError, match="Input/output"):
        writer.sync()
    files.set_hook(None)
    writer.write([messages(0, b"a")])
    assert (writer.written_count, writer.synced_count) == (1, 1)
    assert not os.path.exists(writer.segments[0].path + ".tmp")
    assert firsts(writer) == [0]
    assert read(writer.segments[0]) == [[(0, b"a")]]
    writer.close()


def test_batches_after_a_damaged_head_are_found(tmp_path):
    writer = new_writer(tmp_path)
    batches = [messages(number, b"x" * 50) for number in range(5)]
    writer.write(batches)
    writer.sync()
    size = batches[0].size
    path = Path(writer.segments[0].path)
    content = bytearray(path.read_bytes())
    content[len(content) - 3 * size + 8] ^= 1
    path.write_bytes(content)
    assert [pairs[0][0] for pairs in read(writer.segments[0])] == [0, 1, 3, 4]
    writer.close()


def test_a_tail_that_is_cut_short_is_marked(tmp_path):
    writer = new_writer(tmp_path)
    writer.write([messages(0, b"a"), messages(1, b"b" * 100)])
    writer.sync()
    os.truncate(writer.segments[0].path, writer.position - 20)
    with SegmentReader(writer.segments[0]) as reader:
        assert [part.is_cut_short for part in reader.parts(0)] == [False, False, False, False, True]
    writer.close()


def test_the_identity_is_in_every_segment(tmp_path):
    writer = new_writer(tmp_path)
    writer.write([messages(0, b"a")])
    writer.sync()
    assert identity_in(writer.directory) == IDENTITY
    writer.close()


@pytest.mark.parametrize("name", ["0.seg", "99999999999999999999.seg", "00000000000000000001.seg~", f"{'²':0>20}.seg"])
def test_files_with_other_names_are_no_segments(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    assert list_segments(str(tmp_path), 1) == []


def test_the_index_is_built_again_if_it_is_missing(tmp_path):
    writer = new_writer(tmp_path)
    writer.write([messages(number, b"x" * 5000) for number in range(50)])
    writer.sync()
    built = list_segments(writer.directory, IDENTITY.log_id)[0].loaded_index()
    known = writer.segments[0].loaded_index()
    assert [built.position_of(offset) for offset in range(50)] == [known.position_of(offset) for offset in range(50)]
    assert built.position_of(49) > 64 * 1024
    writer.close()
