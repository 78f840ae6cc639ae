"""The broker id: created once, durable, and replaced if it is damaged."""

from __future__ import annotations

import stat

import pytest

from nsqx.nsqd.broker_id import FILE_NAME, load_broker_id


def test_the_id_is_created_once(tmp_path):
    made = load_broker_id(str(tmp_path))
    assert len(made) == 32
    assert load_broker_id(str(tmp_path)) == made
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]
    assert stat.S_IMODE((tmp_path / FILE_NAME).stat().st_mode) == 0o600


def test_brokers_have_different_ids(tmp_path):
    made = set()
    for number in range(20):
        (tmp_path / str(number)).mkdir()
        made.add(load_broker_id(str(tmp_path / str(number))))
    assert len(made) == 20


@pytest.mark.parametrize("content", [b"", b"abc", b"\0" * 32, b"A" * 32 + b"\n", b"0" * 64])
def test_a_damaged_id_is_replaced(tmp_path, content):
    (tmp_path / FILE_NAME).write_bytes(content)
    made = load_broker_id(str(tmp_path))
    assert made.encode() not in content
    assert load_broker_id(str(tmp_path)) == made


def test_an_id_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        load_broker_id(str(tmp_path / "missing"))
