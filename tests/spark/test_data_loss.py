"""A lost segment ends the query, or is skipped with failOnDataLoss=false."""

from __future__ import annotations

import pytest
from pyspark.errors import StreamingQueryException
from streams import Query, bodies, make_channel, publish, source_options
from test_receiver import LONG_S, RunningReceiver

from daemons import wait_until


def test_a_query_fails_on_a_removed_segment_or_skips_lost_segments(spark, our_nsqd, topic, tmp_path):
    make_channel(our_nsqd, topic)
    options = source_options(our_nsqd, topic, tmp_path)
    with RunningReceiver(options) as running:
        for start in range(0, 400, 100):
            publish(our_nsqd, topic, bodies(start, start + 100))
            wait_until(lambda end=start + 100: running.receiver.rows == end, "the messages are received", LONG_S)
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
    lost = {int(body) for each in (removed, damaged) for body in _bodies_in_segment(each.name)}
    assert lenient.values == [body for body in bodies(0, 400) if int(body) not in lost]


def _bodies_in_segment(name: str) -> list[bytes]:
    """Return the bodies in a segment.

    Messages are received in publishing order, so the row numbers in the name of the segment are the bodies.
    """
    first, rows = map(int, name.split("-")[1:3])
    return bodies(first, first + rows)
