"""A segment that is lost between nsqd and Spark ends the query, or is left out if that was asked for."""

from __future__ import annotations

import pytest
from pyspark.errors import StreamingQueryException
from streams import Query, bodies, make_channel, publish, source_options
from test_receiver import LONG_S, Running

from daemons import wait_until


def test_a_query_on_a_directory_without_its_middle_and_with_a_flipped_bit(spark, our_nsqd, topic, tmp_path):
    make_channel(our_nsqd, topic)
    options = source_options(our_nsqd, topic, tmp_path)
    with Running(options) as running:
        for start in range(0, 400, 100):
            publish(our_nsqd, topic, bodies(start, start + 100))
            wait_until(lambda end=start + 100: running.receiver.rows == end, "they are received", LONG_S)
    segments = sorted((tmp_path / "segments").glob("segment-*"))
    removed = next(each for each in segments if each.name.startswith("segment-00000000000000000100-"))
    removed.unlink()
    damaged = segments[-1]
    content = bytearray(damaged.read_bytes())
    content[content.index(b"399") + 2] ^= 1
    damaged.write_bytes(content)
    query = Query(spark, options, tmp_path)
    with pytest.raises(StreamingQueryException, match=r"rows 100 to .* are missing .*segment-00000000000000000100-"):
        query.run_available()
    lenient = Query(spark, {**options, "failOnDataLoss": "false"}, tmp_path)
    lenient.run_available()
    lost = {int(body) for each in (removed, damaged) for body in _bodies_of(each.name)}
    assert lenient.values == [body for body in bodies(0, 400) if int(body) not in lost]


def _bodies_of(name: str) -> list[bytes]:
    """Messages come in the order in which they were published, so a segment's name tells which it has."""
    first, rows = map(int, name.split("-")[1:3])
    return bodies(first, first + rows)
