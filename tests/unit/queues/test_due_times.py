"""The file of due times, which survive a restart."""

import json
import os
import struct

import pytest

from nsqx.queues.due_times import DueTime, due_times_path, load_due_times, save_due_times

NOTED_NS = 1_700_000_000_000_000_000
SECOND_NS = 1_000_000_000
DUE = {b"0123456789abcdef": DueTime(NOTED_NS, NOTED_NS + 1), b"fedcba9876543210": DueTime(0, 2**62 - 1)}


def test_saved_due_times_are_loaded(tmp_path):
    save_due_times(str(tmp_path), "topic:channel", DUE)
    assert load_due_times(str(tmp_path), "topic:channel") == DUE
    assert load_due_times(str(tmp_path), "topic") == {}


def test_the_bytes_of_the_file(tmp_path):
    save_due_times(str(tmp_path), "t:c", DUE)
    assert due_times_path(str(tmp_path), "t:c") == str(tmp_path / "t:c.deferred.dat")
    assert os.listdir(tmp_path) == ["t:c.deferred.dat"]
    entry = struct.pack(">16sqq", b"0123456789abcdef", NOTED_NS, NOTED_NS + 1)
    assert (tmp_path / "t:c.deferred.dat").read_bytes()[:48] == b"NSQXDUE1" + struct.pack(">Q", 16) + entry


def test_the_delay_decreases_with_the_clock():
    due_time = DueTime(NOTED_NS, NOTED_NS + 10 * SECOND_NS)
    assert due_time.delay_ns(NOTED_NS + 3 * SECOND_NS) == 7 * SECOND_NS
    assert due_time.delay_ns(NOTED_NS + 11 * SECOND_NS) == 0


def test_a_clock_set_back_does_not_extend_the_delay():
    due_time = DueTime(NOTED_NS, NOTED_NS + 10 * SECOND_NS)
    assert due_time.delay_ns(NOTED_NS - 86_400 * SECOND_NS) == 10 * SECOND_NS


def test_delays_from_the_file_of_an_earlier_version_are_limited(tmp_path):
    due_ns = NOTED_NS + 10 * SECOND_NS
    (tmp_path / "t.deferred.dat").write_bytes(json.dumps({"due": {"0123456789abcdef": due_ns}}).encode())
    [(message_id, due_time)] = load_due_times(str(tmp_path), "t", max_delay_ns=20 * SECOND_NS).items()
    assert message_id == b"0123456789abcdef"
    assert due_time.delay_ns(NOTED_NS) == 10 * SECOND_NS
    assert due_time.delay_ns(NOTED_NS - 86_400 * SECOND_NS) == 20 * SECOND_NS


def test_damaged_entries_are_left_out(tmp_path):
    save_due_times(str(tmp_path), "t", DUE)
    path = tmp_path / "t.deferred.dat"
    content = bytearray(path.read_bytes())
    content[32] |= 0x80  # makes the time of storing negative
    path.write_bytes(content + b"incomplete")
    assert load_due_times(str(tmp_path), "t") == {b"fedcba9876543210": DueTime(0, 2**62 - 1)}


def test_saving_no_due_times_removes_the_file(tmp_path):
    save_due_times(str(tmp_path), "t", DUE)
    save_due_times(str(tmp_path), "t", {})
    assert os.listdir(tmp_path) == []
    save_due_times(str(tmp_path), "t", {})


def test_saving_replaces_the_file(tmp_path):
    save_due_times(str(tmp_path), "t", DUE)
    save_due_times(str(tmp_path), "t", {b"0000000000000000": DueTime(4, 5)})
    assert load_due_times(str(tmp_path), "t") == {b"0000000000000000": DueTime(4, 5)}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"due":[]}',
        b'{"due":{"a":"x"}}',
        b'{"due":{"a":null}}',
        b'{"due":{"\xe2\x82\xac":1}}',
        b"\xff",
        b"NSQXDUE1",
        b"NSQXDUE1" + bytes(8),
        b"NSQXDUE9" + struct.pack(">Q", 16),
    ],
)
def test_an_invalid_file_is_refused(tmp_path, content):
    (tmp_path / "t.deferred.dat").write_bytes(content)
    with pytest.raises(ValueError):
        load_due_times(str(tmp_path), "t")
