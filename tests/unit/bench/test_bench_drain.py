"""Consuming: whatever pieces the frames come in, each message is counted, answered and timed."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqx.bench.drain import Drain
from nsqx.bench.failure import BenchFailed

HEARTBEAT = struct.pack(">ii", 15, 0) + b"_heartbeat_"


def message(number, body):
    data = struct.pack(">qH", 1, 1) + b"%016x" % number + body
    return struct.pack(">ii", len(data) + 4, 2) + data


@given(count=st.integers(0, 6), cuts=st.lists(st.integers(0, 300), max_size=5))
def test_any_split_gives_the_same(count, cuts):
    stream = b"".join(message(number, b"x" * number) for number in range(count))
    ends = sorted(min(cut, len(stream)) for cut in cuts)
    drain = Drain()
    pieces = [stream[start:end] for start, end in zip([0, *ends], [*ends, len(stream)], strict=True)]
    answers = b"".join(bytes(drain.take(piece, 0)) for piece in pieces)
    assert drain.count == count
    assert answers == b"".join(b"FIN %016x\n" % number for number in range(count))


def test_lateness_is_reckoned_from_the_stamp():
    drain = Drain(True)
    drain.take(message(1, struct.pack(">q", 100) + b"rest") + message(2, struct.pack(">q", 250)), 300)
    assert list(drain.lateness_ns) == [200, 50]


def test_a_heartbeat_is_answered():
    assert Drain().take(HEARTBEAT, 0) == b"NOP\n"


def test_an_error_ends_it():
    error = struct.pack(">ii", 9, 1) + b"E_BAD"
    with pytest.raises(BenchFailed, match="the broker answered E_BAD"):
        Drain().take(error, 0)
