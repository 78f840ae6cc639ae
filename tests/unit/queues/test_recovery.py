"""Counting the records of data files."""

import pytest
from diskqueue_bench import record

from nsqx.queues import recovery
from nsqx.queues.recovery import count_records, data_file_numbers


def test_data_file_numbers(tmp_path):
    for name in (
        "q.diskqueue.000010.dat",
        "q.diskqueue.000002.dat",
        "q.diskqueue.1000000.dat",
        "q.diskqueue.meta.dat",
        "q.diskqueue.000003.dat.bad",
        "q.diskqueue.000004.dat.1.tmp",
        "q.diskqueue.05.dat",
        "aq.diskqueue.000005.dat",
        "q:c.diskqueue.000006.dat",
        "qxdiskqueue.000007.dat",
    ):
        (tmp_path / name).touch()
    assert data_file_numbers(str(tmp_path)) == {"q": [2, 10, 1000000], "aq": [5], "q:c": [6]}


@pytest.mark.parametrize("tail", [b"", b"\x00", b"\x00\x00\x00\x1b" + b"x" * 26, b"\xff" * 40, b"\x00" * 40])
def test_count_records_stops_at_invalid_bytes(tmp_path, tail):
    path = tmp_path / "file"
    path.write_bytes(record(b"one") + record(b"two") + record(b"three") + tail)
    assert count_records(str(path), 0, 1000) == 3
    assert count_records(str(path), 33, 1000) == 2
    assert count_records(str(path), 101, 1000) == 0


def test_count_records_counts_valid_records_above_the_size_limit(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(record(b"one") + record(b"three") + record(b"seven"))
    assert count_records(str(path), 0, 26 + 4) == 3


def test_count_records_stops_at_a_damaged_record_above_the_size_limit(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(record(b"one") + record(b"three", message_id=b"not an id, no...") + record(b"two"))
    assert count_records(str(path), 0, 26 + 4) == 1


def test_count_records_reads_in_several_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(recovery, "_CHUNK_SIZE", 50)
    path = tmp_path / "file"
    path.write_bytes(record(b"body") * 20)
    assert count_records(str(path), 0, 60) == 20
