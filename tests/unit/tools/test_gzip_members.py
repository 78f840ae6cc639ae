import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqx.tools.gzip_members import GzipMember


@given(st.lists(st.lists(st.binary(max_size=200), max_size=5), min_size=1, max_size=4), st.integers(1, 9))
def test_concatenated_members_are_decompressed_as_one_stream(contents: list[list[bytes]], level: int) -> None:
    written = b""
    for pieces in contents:
        member = GzipMember(level)
        written += b"".join(map(member.add, pieces)) + member.end()
    assert gzip.decompress(written) == b"".join(b"".join(pieces) for pieces in contents)


@pytest.mark.parametrize(("level", "mark"), [(1, 4), (6, 0), (9, 2)])
def test_the_header_has_the_level_but_no_time_and_no_file_name(level: int, mark: int) -> None:
    assert GzipMember(level).end()[:10] == bytes([0x1F, 0x8B, 8, 0, 0, 0, 0, 0, mark, 0xFF])


def test_an_empty_member_is_valid() -> None:
    assert gzip.decompress(GzipMember(6).end()) == b""
