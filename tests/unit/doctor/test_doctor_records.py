"""Valid records are found in damaged files without checksums."""

import struct

import pytest

from nsqx.doctor.records import file_parts

SIZE = 30 + 20


def record(number, length=None):
    body = b"message %012d" % number
    length = 26 + len(body) if length is None else length
    return struct.pack(">iqH16s", length, 1_700_000_000_000_000_000 + number, 1, b"%016x" % (1 << 60 | number)) + body


def readable_records(tmp_path, content, start=0):
    """Return the records that are found, and the number of other bytes."""
    path = tmp_path / "q.diskqueue.000000.dat"
    path.write_bytes(content)
    found, lost, position = [], 0, start
    for part in file_parts(str(path), start):
        assert part.start == position
        position = part.end
        if not part.is_readable:
            lost += part.end - part.start
            continue
        records = content[part.start : part.end]
        assert part.count == len(records) // SIZE
        found += [int(records[offset + 38 : offset + 50]) for offset in range(0, len(records), SIZE)]
    assert position == len(content)
    return found, lost


def test_all_records_of_an_intact_file_are_found(tmp_path):
    content = b"".join(map(record, range(5)))
    assert readable_records(tmp_path, content) == ([0, 1, 2, 3, 4], 0)
    assert readable_records(tmp_path, content, 2 * SIZE) == ([2, 3, 4], 0)
    assert readable_records(tmp_path, b"") == ([], 0)


@pytest.mark.parametrize("length", [0, -1, 25, 1 << 29, 46 + 16, 46 - 16, 46 + 4])
@pytest.mark.parametrize("damaged", [0, 2, 3])
def test_a_wrong_length_loses_one_record(tmp_path, length, damaged):
    content = b"".join(record(number, length if number == damaged else None) for number in range(5))
    expected = [number for number in range(5) if number != damaged]
    assert readable_records(tmp_path, content) == (expected, SIZE)


def test_a_wrong_id_loses_one_record(tmp_path):
    content = bytearray(b"".join(map(record, range(5))))
    content[2 * SIZE + 20] = 0
    assert readable_records(tmp_path, bytes(content)) == ([0, 1, 3, 4], SIZE)


@pytest.mark.parametrize("left", [1, 3, 4, 20, 49])
def test_a_torn_end_loses_only_the_last_record(tmp_path, left):
    content = b"".join(map(record, range(3)))
    assert readable_records(tmp_path, content + record(3)[:left]) == ([0, 1, 2], left)


@pytest.mark.parametrize("offset", [0, 7])
def test_records_after_a_hole_of_zeros_are_found(tmp_path, offset):
    content = bytearray(b"".join(map(record, range(20))))
    content[4 * SIZE + offset : 9 * SIZE + 20] = bytes(5 * SIZE - offset + 20)
    assert readable_records(tmp_path, bytes(content)) == ([0, 1, 2, 3, *range(10, 20)], 6 * SIZE)


def test_ids_in_bodies_are_not_taken_for_records(tmp_path):
    text = b"0123456789abcdef" * 4
    one = struct.pack(">iqH16s", 26 + len(text), 1, 1, b"%016x" % 1) + text
    path = tmp_path / "q.diskqueue.000000.dat"
    path.write_bytes(one * 2 + one[:50])
    first, rest = file_parts(str(path), 0)
    assert (first.is_readable, first.count, first.largest) == (True, 2, len(text))
    assert (rest.is_readable, rest.start, rest.end) == (False, 2 * len(one), 2 * len(one) + 50)
