"""A body that arrives in pieces."""

import sys

from hypothesis import given
from hypothesis import strategies as st

from nsqx.net.body_buffer import BodyBuffer


@given(st.lists(st.integers(0, 3000)))
def test_pieces_are_joined_in_order(lengths: list[int]) -> None:
    pieces = BodyBuffer()
    added = [bytes([index % 256]) * length for index, length in enumerate(lengths)]
    for piece in added:
        pieces.add(piece)
    assert pieces.join() == b"".join(added)
    assert pieces.size == sum(lengths)


def test_large_pieces_are_kept_not_copied() -> None:
    pieces = BodyBuffer()
    piece = b"x" * 4096
    before = sys.getrefcount(piece)
    pieces.add(piece)
    assert sys.getrefcount(piece) == before + 1


def test_single_bytes_share_a_buffer() -> None:
    pieces = BodyBuffer()
    for _ in range(100_000):
        pieces.add(b"x")
    assert len(pieces._pieces) == 1
