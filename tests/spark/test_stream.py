"""Streaming reads: every message once, within the limits, from where the checkpoint stands."""

from __future__ import annotations

from datetime import UTC, datetime

from streams import Query, bodies, make_channel, publish, source_options, until


def test_every_message_comes_once_with_its_columns(spark, nsqd, topic, tmp_path):
    publish(nsqd, topic, bodies(0, 3000))
    query = Query(spark, source_options(nsqd, topic, tmp_path), tmp_path)
    query.run_available()
    assert query.values() == bodies(0, 3000)
    row = query.rows().first()
    assert row.topic == topic
    assert row.node == nsqd.tcp_address
    assert row.attempts == 1
    assert len(row.id) == 16
    assert abs((datetime.now(UTC).replace(tzinfo=None) - row.timestamp).total_seconds()) < 300
    assert nsqd.channel_stats(topic, "spark")["depth"] == 0
