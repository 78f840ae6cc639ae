"""Numbers of variable size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqx.queues.log.varints import NumberReader, append_bytes, append_number


@given(st.lists(st.integers(0, 1 << 70)), st.binary(max_size=300))
def test_numbers_and_bytes_are_read_as_they_were_written(numbers, data):
    out = bytearray()
    for number in numbers:
        append_number(out, number)
    append_bytes(out, data)
    out += b"rest"
    reader = NumberReader(bytes(out))
    assert [reader.number() for _ in numbers] == numbers
    assert reader.data() == data
    assert not reader.is_at_end
    assert reader.rest() == b"rest"
    assert reader.is_at_end


@pytest.mark.parametrize("data", [b"", b"\x80", b"\x05abc"])
def test_missing_data_is_an_error(data):
    with pytest.raises(IndexError):
        NumberReader(data).data()
