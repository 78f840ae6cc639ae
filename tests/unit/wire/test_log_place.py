"""The answer to SUB that names the log of the topic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqx.wire.log_place import LogPlace, decode_log_place, encode_log_place
from nsqx.wire.message import advance_id

PLACE = LogPlace("6f1c2a9e40d34b7c", 0x0C9F33D0A3C14000)
ANSWER = b'OK {"log":"6f1c2a9e40d34b7c","first_id":"0c9f33d0a3c14000"}'


def test_an_answer_is_encoded_and_decoded():
    assert encode_log_place(PLACE) == ANSWER
    assert decode_log_place(ANSWER) == PLACE
    assert decode_log_place(b"OK") is None


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"OK ",
        b"OK []",
        b"OK {}",
        b'OK {"log":"1","first_id":"2"}',
        b'OK {"log":"6f1c2a9e40d34b7c","first_id":"xxxxxxxxxxxxxxxx"}',
        b'OK {"log":1,"first_id":2}',
        ANSWER[:-1],
    ],
)
def test_other_answers_are_rejected(answer):
    with pytest.raises(ValueError, match="not an answer to SUB"):
        decode_log_place(answer)


@given(st.integers(0, (1 << 62) - 1), st.integers(0, 1 << 40))
def test_the_offset_of_a_message_is_found_from_its_id(first_id, offset):
    message_id = b"%016x" % advance_id(first_id, offset)
    assert LogPlace("", first_id).offset(message_id) == offset
