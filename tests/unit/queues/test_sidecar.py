"""Sidecars: detection of damage, when checksums are saved, and damaged or outdated sidecars."""

import os

import pytest
from diskqueue_bench import HEAD, META, data_name, drain, open_queue, put, record, sums_name, sync, take, write

from broker_bench import BenchLog
from nsqx.queues import sidecar as sidecars
from nsqx.queues.files import set_hook
from nsqx.queues.recovery import DAMAGED, GOOD, UNCHECKED, UNREADABLE, Stretch, count_records, remove_leftovers, scan
from nsqx.queues.sidecar import Sidecar, add_sums, prepare_sidecar
from nsqx.wire.message import new_message

SIZE = HEAD + 4  # the size of every record here


def fill(directory, *bodies, serial=0, **options):
    """Fill and close a queue; each message has its own timestamp and id."""
    queue = open_queue(directory, **options)
    for number, body in enumerate(bodies, serial):
        queue.put_message(new_message(b"%016x" % number, body, 1000 + number, 0))
    queue.close()


def flip(path, position, bit=0):
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


def blocks(directory, number=0):
    sidecar = Sidecar(str(directory / data_name(number)))
    found = []
    while sidecar.next_block():
        found.append((sidecar.start, sidecar.end, sidecar.count))
    return found


@pytest.fixture
def four(tmp_path):
    fill(tmp_path, b"aaaa", b"bbbb", b"cccc", b"dddd")
    return tmp_path


# Damage


@pytest.mark.parametrize("position", [0, 3, 4, 12, 14, 29, HEAD, SIZE - 1])
@pytest.mark.parametrize("damaged", range(4))
def test_only_the_damaged_record_is_skipped(four, damaged, position):
    flip(four / data_name(0), damaged * SIZE + position, bit=4)
    log = BenchLog()
    queue = open_queue(four, log=log)
    bodies = [b"aaaa", b"bbbb", b"cccc", b"dddd"]
    del bodies[damaged]
    assert drain(queue) == bodies
    assert queue.depth == 0
    assert any(f"corrupt record at {damaged * SIZE} of" in line for line in log.errors())
    write(queue, b"more")
    assert drain(queue) == [b"more"]
    queue.close()


def test_a_finished_damaged_file_is_kept_as_bad_file(four):
    flip(four / data_name(0), HEAD)
    content = (four / data_name(0)).read_bytes()
    queue = open_queue(four, max_file_size=4 * SIZE)
    write(queue, b"next")
    assert drain(queue) == [b"bbbb", b"cccc", b"dddd", b"next"]
    queue.close()
    assert (four / (data_name(0) + ".bad")).read_bytes() == content
    assert (four / (sums_name(0) + ".bad")).exists()


def test_a_file_is_not_set_aside_while_its_messages_are_in_flight(four):
    os.truncate(four / data_name(0), 4 * SIZE - 2)
    queue = open_queue(four)
    messages = [queue.get() for _ in range(3)]
    assert queue.get() is None
    sync(queue)
    after_crash = open_queue(four)
    assert drain(after_crash) == [b"aaaa", b"bbbb", b"cccc"]
    for message in messages:
        queue.finish(message.record)
    sync(queue)
    assert (four / (data_name(0) + ".bad")).exists()
    queue.close()


def test_records_without_checksums_end_where_checksums_start(tmp_path):
    """The process was killed before the first sync, and a length written before the kill is damaged."""
    queue = open_queue(tmp_path)
    write(queue, b"aaaa", b"bbbb")
    job = queue.begin_sync()
    job.sums.clear()
    job.run()
    queue.end_sync(job)
    write(queue, b"cccc")
    queue.close()
    assert blocks(tmp_path) == [(2 * SIZE, 3 * SIZE, 1)]
    flip(tmp_path / data_name(0), SIZE + 3, bit=4)
    queue = open_queue(tmp_path)
    assert drain(queue) == [b"aaaa", b"cccc"]
    queue.close()


def test_records_larger_than_the_read_buffer_are_verified(tmp_path):
    bodies = [b"a" * 100_000, b"b" * 70_000, b"c", b"d" * 200_000, b"e"]
    queue = open_queue(tmp_path, max_message_size=300_000)
    put(queue, *bodies)
    queue.close()
    queue = open_queue(tmp_path, max_message_size=300_000)
    assert drain(queue) == bodies
    queue.close()
    (tmp_path / META).unlink()
    flip(tmp_path / data_name(0), 100_030 + 50_000)
    queue = open_queue(tmp_path, max_message_size=300_000)
    assert drain(queue) == [bodies[0], *bodies[2:]]


# When checksums are saved


def test_checksums_are_saved_when_their_records_are_durable(tmp_path):
    queue = open_queue(tmp_path)
    write(queue, b"aaaa")
    job = queue.begin_sync()
    write(queue, b"bbbb")
    assert blocks(tmp_path) == []
    job.run()
    assert blocks(tmp_path) == []
    queue.end_sync(job)
    assert blocks(tmp_path) == [(0, SIZE, 1)]
    sync(queue)
    assert blocks(tmp_path) == [(0, SIZE, 1), (SIZE, 2 * SIZE, 1)]
    queue.close()


def test_a_sync_saves_checksums_for_every_file(tmp_path):
    queue = open_queue(tmp_path, 2 * SIZE)
    write(queue, b"aaaa", b"bbbb", b"cccc")
    queue.close()
    assert [blocks(tmp_path, number) for number in (0, 1)] == [[(0, 2 * SIZE, 2)], [(0, SIZE, 1)]]


def test_a_failed_sync_saves_no_checksums(tmp_path, monkeypatch):
    queue = open_queue(tmp_path)
    write(queue, b"aaaa")
    job = queue.begin_sync()
    write(queue, b"bbbb")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", _fail)
        job.run()
    queue.end_sync(job)
    write(queue, b"cccc")
    queue.close()
    assert [blocks(tmp_path, number) for number in (0, 1)] == [[], [(0, SIZE, 1)]]


def test_a_failure_to_save_checksums_is_not_an_error(tmp_path):
    log = BenchLog()
    queue = open_queue(tmp_path, log=log)
    write(queue, b"aaaa")
    set_hook(lambda operation: _fail() if operation.point == "sums.write" else None)
    try:
        sync(queue)
    finally:
        set_hook(None)
    assert queue.failure is None
    write(queue, b"bbbb")
    queue.close()
    assert blocks(tmp_path) == [(SIZE, 2 * SIZE, 1)]
    assert drain(open_queue(tmp_path)) == [b"aaaa", b"bbbb"]


def test_sidecars_are_removed_with_their_data_files(tmp_path):
    queue = open_queue(tmp_path, SIZE)
    write(queue, b"aaaa", b"bbbb", b"cccc")
    sync(queue)
    assert take(queue, 3) == [b"aaaa", b"bbbb", b"cccc"]
    sync(queue)
    assert sorted(path.name for path in tmp_path.glob("*.crc")) == [sums_name(2)]
    queue.empty()
    assert [path.name for path in tmp_path.iterdir()] == [META]
    queue.close()


def test_checksums_are_appended_after_a_restart(four):
    fill(four, b"eeee", serial=4)
    assert blocks(four) == [(0, 4 * SIZE, 4), (4 * SIZE, 5 * SIZE, 1)]


# Damaged and outdated sidecars


def damage_sidecar(path, how):
    content = path.read_bytes()
    if how == "removed":
        path.unlink()
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "cut":
        path.write_bytes(content[: len(content) // 2])
    else:
        path.write_bytes(bytes(number * 37 % 256 for number in range(len(content))))


@pytest.mark.parametrize("how", ["removed", "empty", "cut", "garbage"])
def test_a_useless_sidecar_does_no_harm(four, how):
    damage_sidecar(four / sums_name(0), how)
    log = BenchLog()
    queue = open_queue(four, log=log)
    write(queue, b"eeee")
    assert drain(queue) == [b"aaaa", b"bbbb", b"cccc", b"dddd", b"eeee"]
    queue.close()
    assert log.errors() == []
    assert (4 * SIZE, 5 * SIZE, 1) in blocks(four)


def test_no_changed_bit_of_a_sidecar_loses_a_message(four):
    path = four / sums_name(0)
    content = path.read_bytes()
    for position in range(8 * len(content)):
        path.write_bytes(content)
        flip(path, position // 8, position % 8)
        assert drain(open_queue(four)) == [b"aaaa", b"bbbb", b"cccc", b"dddd"]


def test_a_damaged_block_does_not_hide_the_next(four):
    fill(four, b"eeee", b"ffff", serial=4)
    flip(four / sums_name(0), 60)
    assert blocks(four) == [(4 * SIZE, 6 * SIZE, 2)]
    flip(four / data_name(0), 5 * SIZE + HEAD)
    assert drain(open_queue(four)) == [b"aaaa", b"bbbb", b"cccc", b"dddd", b"eeee"]


def test_a_sidecar_of_an_earlier_file_of_the_same_name_is_ignored(four):
    """Go nsqd has deleted the queue and created it again."""
    sums = (four / sums_name(0)).read_bytes()
    (four / META).unlink()
    (four / data_name(0)).unlink()
    fill(four, b"1111", b"2222", b"3333", serial=100)
    (four / sums_name(0)).write_bytes(sums)
    log = BenchLog()
    queue = open_queue(four, log=log)
    assert drain(queue) == [b"1111", b"2222", b"3333"]
    write(queue, b"4444")
    queue.close()
    assert log.errors() == []
    assert blocks(four) == [(3 * SIZE, 4 * SIZE, 1)]


def test_the_sidecar_is_used_if_the_first_record_is_destroyed(four):
    content = (four / data_name(0)).read_bytes()
    (four / data_name(0)).write_bytes(b"\x00" * SIZE + content[SIZE:])
    assert drain(open_queue(four)) == [b"bbbb", b"cccc", b"dddd"]


def test_the_sidecar_is_used_if_the_only_record_is_damaged(tmp_path):
    fill(tmp_path, b"aaaa")
    flip(tmp_path / data_name(0), HEAD + 2)
    assert drain(open_queue(tmp_path)) == []


def test_records_added_by_go_nsqd_have_no_checksums(four):
    """Go nsqd appends after the described records, and this nsqd appends after those."""
    data = four / data_name(0)
    data.write_bytes(data.read_bytes() + record(b"gggg", 2000, 0, b"f" * 16))
    (four / META).write_bytes(b"5\n0,0\n0,%d\n" % (5 * SIZE))
    fill(four, b"hhhh", serial=9)
    assert blocks(four) == [(0, 4 * SIZE, 4), (5 * SIZE, 6 * SIZE, 1)]
    assert drain(open_queue(four)) == [b"aaaa", b"bbbb", b"cccc", b"dddd", b"gggg", b"hhhh"]


def test_checksums_beyond_the_file_are_removed_before_it_is_appended_to(four):
    """The data file comes from an older backup than its sidecar."""
    os.truncate(four / data_name(0), 2 * SIZE)
    (four / META).write_bytes(b"2\n0,0\n0,%d\n" % (2 * SIZE))
    queue = open_queue(four)
    write(queue, b"CCCC")
    assert blocks(four) == []
    after_crash = open_queue(four)
    assert drain(after_crash) == [b"aaaa", b"bbbb", b"CCCC"]
    queue.close()
    assert blocks(four) == [(2 * SIZE, 3 * SIZE, 1)]


def test_blocks_before_the_write_position_are_kept(four):
    fill(four, b"eeee", serial=4)
    prepare_sidecar(str(four / data_name(0)), 4 * SIZE)
    assert blocks(four) == [(0, 4 * SIZE, 4)]
    prepare_sidecar(str(four / data_name(0)), 4 * SIZE)
    assert blocks(four) == [(0, 4 * SIZE, 4)]


def test_sidecars_without_a_data_file_are_removed(four):
    (four / sums_name(7)).write_bytes(b"of a file that Go nsqd has removed")
    (four / (sums_name(8) + ".12.tmp")).touch()
    remove_leftovers(str(four))
    assert sorted(path.name for path in four.iterdir()) == [sums_name(0), data_name(0), META]


def test_a_sidecar_can_be_read_while_it_grows(four, monkeypatch):
    monkeypatch.setattr(sidecars, "_CHUNK_SIZE", 7)
    sidecar = Sidecar(str(four / data_name(0)))
    assert sidecar.seek(3 * SIZE)
    assert not sidecar.seek(4 * SIZE)
    with (four / sums_name(0)).open("ab") as file:
        file.write(b"SUMS half a block")
    add_sums(str(four / data_name(0)), 4 * SIZE, 5 * SIZE, b"\x00\x00\x00\x22abcd")
    assert not sidecar.seek(4 * SIZE)
    sidecar.note_growth()
    assert sidecar.seek(4 * SIZE)
    assert (sidecar.start, sidecar.entry_at(4 * SIZE), sidecar.next_after(4 * SIZE)) == (4 * SIZE, 0, 5 * SIZE)


# Scanning


def test_scan_reports_good_damaged_unchecked_and_unreadable_stretches(four, tmp_path):
    data = four / data_name(0)
    data.write_bytes(data.read_bytes() + record(b"eeee", 1, 0, b"f" * 16) + b"\x00" * 10)
    flip(data, SIZE + HEAD)
    expected = [
        Stretch(GOOD, 0, SIZE, 1),
        Stretch(DAMAGED, SIZE, 2 * SIZE, 1),
        Stretch(GOOD, 2 * SIZE, 4 * SIZE, 2),
        Stretch(UNCHECKED, 4 * SIZE, 5 * SIZE, 1),
        Stretch(UNREADABLE, 5 * SIZE, 5 * SIZE + 10, 0),
    ]
    assert list(scan(str(data), 0, 1000)) == expected
    assert list(scan(str(data), 2 * SIZE, 1000)) == expected[2:]
    assert count_records(str(data), 0, 1000) == 4


def test_scan_of_a_file_truncated_within_a_record(four):
    os.truncate(four / data_name(0), 3 * SIZE + 5)
    assert list(scan(str(four / data_name(0)), 0, 1000)) == [
        Stretch(GOOD, 0, 3 * SIZE, 3),
        Stretch(UNREADABLE, 3 * SIZE, 3 * SIZE + 5, 0),
    ]


def _fail(*arguments):
    raise OSError(5, "Input/output error")
