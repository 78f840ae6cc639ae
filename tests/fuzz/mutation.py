"""Makes inputs for parsers: the stored corpus with random changes.

``Mutator`` is fast, repeatable by its seed, and endless. ``inputs`` is a hypothesis strategy, whose failing inputs are
shrunk. Neither depends on the meaning of the bytes.
"""

import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hypothesis import strategies as st

CORPUS = Path(__file__).resolve().parent / "corpus"
MAX_INPUT_BYTES = 64 * 1024

# Numbers at which size checks often fail.
INTERESTING_SIZES = (-(1 << 31), -1, 0, 1, 4, 25, 26, 255, 256, 65535, 65536, 1 << 20, (1 << 20) + 1, (1 << 31) - 1)


def corpus(name: str) -> list[bytes]:
    """Return the stored inputs of one target, ordered by name."""
    return [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))]


class Mutator:
    """An endless stream of inputs, equal for equal seeds."""

    def __init__(self, seed: int, seeds: Sequence[bytes], tokens: Sequence[bytes]) -> None:
        self._random = random.Random(seed)
        self._seeds = list(seeds) or [b""]
        self._tokens = list(tokens) or [b"\x00"]
        self._changes: tuple[Callable[[bytearray], None], ...] = (
            self._flip_bit,
            self._set_byte,
            self._set_number,
            self._insert_token,
            self._insert_token,
            self._overwrite_with_token,
            self._insert_noise,
            self._delete_span,
            self._repeat_span,
            self._swap_spans,
            self._splice,
            self._cut_off,
        )

    def __iter__(self) -> Iterator[bytes]:
        while True:
            yield self.next()

    def next(self) -> bytes:
        """Return a stored input with a few changes, sometimes none, or rarely random bytes."""
        pick = self._random
        if pick.random() < 0.02:
            return pick.randbytes(pick.randrange(200))
        data = bytearray(pick.choice(self._seeds))
        for _ in range(min(int(pick.expovariate(0.4)), 12)):
            pick.choice(self._changes)(data)
        return bytes(data[:MAX_INPUT_BYTES])

    def _span(self, data: bytearray) -> tuple[int, int]:
        start = self._random.randrange(len(data) + 1)
        return start, min(len(data), start + int(self._random.expovariate(0.08)) + 1)

    def _flip_bit(self, data: bytearray) -> None:
        if data:
            data[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)

    def _set_byte(self, data: bytearray) -> None:
        if data:
            data[self._random.randrange(len(data))] = self._random.choice((0, 9, 10, 13, 32, 45, 47, 58, 127, 128, 255))

    def _set_number(self, data: bytearray) -> None:
        place = self._random.randrange(len(data) + 1)
        number = self._random.choice(INTERESTING_SIZES)
        if self._random.random() < 0.3:
            number = self._random.randrange(len(data) + 2)
        data[place : place + 4] = number.to_bytes(4, "big", signed=True)

    def _insert_token(self, data: bytearray) -> None:
        place = self._random.randrange(len(data) + 1)
        data[place:place] = self._random.choice(self._tokens)

    def _overwrite_with_token(self, data: bytearray) -> None:
        start, end = self._span(data)
        data[start:end] = self._random.choice(self._tokens)

    def _insert_noise(self, data: bytearray) -> None:
        place = self._random.randrange(len(data) + 1)
        data[place:place] = self._random.randbytes(self._random.randrange(1, 12))

    def _delete_span(self, data: bytearray) -> None:
        start, end = self._span(data)
        del data[start:end]

    def _repeat_span(self, data: bytearray) -> None:
        start, end = self._span(data)
        times = self._random.choice((1, 1, 2, 3, 8, 100))
        data[end:end] = (data[start:end] * times)[:MAX_INPUT_BYTES]

    def _swap_spans(self, data: bytearray) -> None:
        start, end = self._span(data)
        span = data[start:end]
        del data[start:end]
        place = self._random.randrange(len(data) + 1)
        data[place:place] = span

    def _splice(self, data: bytearray) -> None:
        other = self._random.choice(self._seeds)
        data[self._random.randrange(len(data) + 1) :] = other[self._random.randrange(len(other) + 1) :]

    def _cut_off(self, data: bytearray) -> None:
        del data[self._random.randrange(len(data) + 1) :]


def inputs(seeds: Sequence[bytes], tokens: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Return a hypothesis strategy for the same kind of inputs."""
    edits = st.tuples(
        st.floats(0, 1), st.integers(0, 12), st.one_of(st.sampled_from([b"", *tokens]), st.binary(max_size=8))
    )
    edited = st.builds(_edit, st.sampled_from(list(seeds) or [b""]), st.lists(edits, max_size=6))
    pieces = st.one_of(st.sampled_from([b"", *tokens]), st.sampled_from(list(seeds) or [b""]), st.binary(max_size=20))
    return st.one_of(edited, edited, st.lists(pieces, max_size=8).map(b"".join))


def _edit(data: bytes, edits: list[tuple[float, int, bytes]]) -> bytes:
    for share, removed, inserted in edits:
        place = int(share * len(data))
        data = data[:place] + inserted + data[place + removed :]
    return data


def in_pieces(data: bytes) -> list[bytes]:
    """Cut ``data`` at places computed from its content, so that failures repeat; cut short data into single bytes."""
    pick = random.Random(zlib.crc32(data))
    if len(data) < 40 or (len(data) < 2000 and pick.random() < 0.1):
        return [data[place : place + 1] for place in range(len(data))]
    cuts = sorted(pick.sample(range(len(data) + 1), min(len(data), pick.randrange(1, 9))))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def assert_one_line(refusal: Exception) -> None:
    """Assert that an error has a text of one line."""
    assert str(refusal), "an error without a text"
    assert "\n" not in str(refusal), "an error of several lines"
