"""The identity of a log, and the message ids that follow from it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqx.queues.log.identity import LogIdentity, decode_identity, load_identity, next_tick, save_identity

IDENTITY = LogIdentity("topic", 0xFEDC_BA98_7654_3210, (77 << 22) | (5 << 12) | 4000, 9, 1000)


@given(st.integers(0, 1 << 40))
def test_an_id_gives_its_offset(offset):
    number = IDENTITY.id_number(offset)
    assert IDENTITY.offset(number) == offset
    assert number & 0x3FF000 == 5 << 12


def test_an_older_id_has_a_negative_offset():
    assert IDENTITY.offset(IDENTITY.first_id - 1) == -1


def test_the_next_tick_is_above_every_id_of_this_tick():
    highest = IDENTITY.id_number(5000)
    assert next_tick(highest, IDENTITY.first_id) > highest
    assert next_tick(highest, IDENTITY.first_id) & 0x3FFFFF == 5 << 12


def test_an_identity_is_read_as_it_was_saved(tmp_path):
    save_identity(str(tmp_path), IDENTITY)
    assert load_identity(str(tmp_path)) == IDENTITY


def test_a_damaged_identity_is_refused():
    data = IDENTITY.encode()
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1
        with pytest.raises(ValueError, match="identity"):
            decode_identity(bytes(damaged))


@pytest.mark.parametrize("text", [b"[]", b"{}", b'{"log_id": "x"}'])
def test_something_else_is_refused(text):
    from zlib import crc32

    with pytest.raises(ValueError):
        decode_identity(b"%s\n%08x\n" % (text, crc32(text)))
