"""Both sides of nsqlookupd's protocol: each reads what the other writes, in chunks of any size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqx.errors import ProtocolError
from nsqx.wire.lookup import (
    MAX_LINE_LENGTH,
    PING,
    Announcement,
    Introduction,
    LookupCommandReader,
    decode_announcement,
    decode_introduction,
    encode_answer,
    encode_identify,
    encode_introduction,
    encode_register,
    encode_unregister,
    is_refusal,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
PORT = st.integers(-(2**63), 2**63 - 1)
ANNOUNCEMENT = Announcement("host", 4150, 4151, "1.3.0", "name", "zone", "region")


def chunks_of(data, cuts):
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in zip(places, places[1:], strict=False)]


class TestCommands:
    def test_commands_are_encoded_as_lines(self):
        assert encode_register("t") == b"REGISTER t\n"
        assert encode_register("t", "c") == b"REGISTER t c\n"
        assert encode_unregister("t") == b"UNREGISTER t\n"
        assert encode_unregister("t", "c#ephemeral") == b"UNREGISTER t c#ephemeral\n"
        assert PING == b"PING\n"

    @given(st.builds(Announcement, TEXT, PORT, PORT, TEXT, TEXT, TEXT, TEXT))
    def test_identify_round_trip(self, announcement):
        reader = LookupCommandReader()
        reader.feed(encode_identify(announcement))
        assert reader.line() == "IDENTIFY"
        assert decode_announcement(reader.body(reader.size())) == announcement
        assert reader.line() is None

    @pytest.mark.parametrize("missing", ["broadcast_address", "tcp_port", "http_port", "version"])
    def test_an_announcement_without_a_required_field_is_incomplete(self, missing):
        given_fields = {"broadcast_address": "b", "tcp_port": 1, "http_port": 2, "version": "v"}
        assert Announcement(**given_fields).is_complete
        given_fields[missing] = type(given_fields[missing])()
        assert not Announcement(**given_fields).is_complete

    def test_remote_address_is_ignored(self):
        assert decode_announcement(b'{"remote_address":"x","hostname":"h"}') == Announcement(hostname="h")


class TestCommandReader:
    @given(st.lists(st.integers(0, 200)))
    def test_any_split_gives_the_same_commands(self, cuts):
        reader = LookupCommandReader()
        seen = []
        wanted = ["line", "size", "body", "line", "line"]
        for piece in chunks_of(encode_identify(ANNOUNCEMENT) + b"PING\r\n  X \xff y\t\n", cuts):
            reader.feed(piece)
            while wanted:
                found = reader.body(seen[1]) if wanted[0] == "body" else getattr(reader, wanted[0])()
                if found is None:
                    break
                seen.append(found)
                wanted.pop(0)
        assert seen[0] == "IDENTIFY"
        assert decode_announcement(seen[2]) == ANNOUNCEMENT
        assert seen[3:] == ["PING", "X \udcff y"]

    def test_only_the_whitespace_of_go_is_trimmed(self):
        reader = LookupCommandReader()
        reader.feed("\u2000\u200a\u3000\x85\xa0\v\f A\u200b\x1c\t\n".encode())
        assert reader.line() == "A\u200b\x1c"

    def test_a_line_at_the_limit_is_accepted(self):
        reader = LookupCommandReader()
        reader.feed(b"x" * (MAX_LINE_LENGTH - 1))
        assert reader.line() is None
        reader.feed(b"\n")
        assert reader.line() == "x" * (MAX_LINE_LENGTH - 1)

    @pytest.mark.parametrize("end", [b"", b"\n"])
    def test_a_line_above_the_limit_is_refused(self, end):
        reader = LookupCommandReader()
        reader.feed(b"x" * MAX_LINE_LENGTH + end)
        with pytest.raises(ProtocolError, match="E_INVALID command line too long > 16384"):
            reader.line()

    def test_a_size_can_be_negative(self):
        reader = LookupCommandReader()
        reader.feed(b"\xff\xff\xff")
        assert reader.size() is None
        reader.feed(b"\xff")
        assert reader.size() == -1


class TestAnswers:
    def test_answer_bytes(self):
        assert encode_answer(b"OK") == b"\0\0\0\2OK"

    @given(st.builds(Introduction, TEXT, TEXT, PORT, PORT, TEXT))
    def test_introduction_round_trip(self, introduction):
        assert decode_introduction(encode_introduction(introduction)) == introduction

    def test_introduction_has_sorted_keys(self):
        assert (
            encode_introduction(Introduction("b", "h", 1, 2, "v"))
            == b'{"broadcast_address":"b","hostname":"h","http_port":1,"tcp_port":2,"version":"v"}'
        )

    def test_an_answer_that_starts_with_e_is_an_error(self):
        assert is_refusal(b"E_INVALID client must IDENTIFY")
        assert not is_refusal(b"OK")
        assert not is_refusal(b'{"version":"E_"}')
