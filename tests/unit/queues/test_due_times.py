"""Due times of deferred messages, over a restart."""

import json
import os

import pytest

from nsqx.queues.due_times import due_times_path, load_due_times, save_due_times

DUE = {b"0123456789abcdef": 1_700_000_000_000_000_001, b"fedcba9876543210": 2**63 - 1}


def test_saved_and_loaded(tmp_path):
    save_due_times(str(tmp_path), "topic:channel", DUE)
    assert load_due_times(str(tmp_path), "topic:channel") == DUE
    assert load_due_times(str(tmp_path), "topic") == {}


def test_the_file(tmp_path):
    save_due_times(str(tmp_path), "t:c", DUE)
    assert due_times_path(str(tmp_path), "t:c") == str(tmp_path / "t:c.deferred.dat")
    assert os.listdir(tmp_path) == ["t:c.deferred.dat"]
    content = json.loads((tmp_path / "t:c.deferred.dat").read_bytes())
    assert content == {"due": {key.decode(): due for key, due in DUE.items()}}


def test_nothing_to_save_removes_the_file(tmp_path):
    save_due_times(str(tmp_path), "t", DUE)
    save_due_times(str(tmp_path), "t", {})
    assert os.listdir(tmp_path) == []
    save_due_times(str(tmp_path), "t", {})


def test_saving_replaces(tmp_path):
    save_due_times(str(tmp_path), "t", DUE)
    save_due_times(str(tmp_path), "t", {b"0000000000000000": 5})
    assert load_due_times(str(tmp_path), "t") == {b"0000000000000000": 5}


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
    ],
)
def test_a_file_that_makes_no_sense(tmp_path, content):
    (tmp_path / "t.deferred.dat").write_bytes(content)
    with pytest.raises(ValueError):
        load_due_times(str(tmp_path), "t")
