"""Valid options are read; invalid options are rejected with an error that says what to do."""

from __future__ import annotations

import pytest

from nsqx.errors import ConfigError
from nsqx.spark.options import read_sink_options, read_source_options

GOOD = {"nsq.nsqd": "127.0.0.1:4150", "subscribe": "t", "channel": "c", "segmentDir": "/data"}


def test_options_have_defaults():
    options = read_source_options(GOOD)
    assert options.topics == ("t",)
    assert options.cluster.nsqd_tcp_addresses == ("127.0.0.1:4150",)
    assert (options.max_rows, options.max_bytes, options.min_rows) == (0, 0, 0)
    assert options.fail_on_data_loss
    assert not options.segment_dir_is_shared


def test_every_option_is_read():
    options = read_source_options(
        {
            "nsq.lookupd": "a:4161, b:4161",
            "subscribe": "t, u ,t",
            "channel": "c",
            "segmentDir": "s3://bucket/x",
            "maxOffsetsPerTrigger": "500",
            "maxBytesPerTrigger": "64m",
            "minRowsPerTrigger": "10",
            "maxTriggerDelay": "1m30s",
            "minPartitions": "4",
            "maxInFlight": "2000",
            "maxInFlightBytes": "16m",
            "maxBufferedRows": "7000",
            "maxBufferedBytes": "1g",
            "dedupWindow": "50000",
            "drainIdle": "500ms",
            "failOnDataLoss": "False",
            "startingOffsets": "latest",
            "readId": "2026-11-15",
            "readTTL": "24h",
            "nsq.snappy": "true",
            "nsq.auth_secret": "x,y",
            "path": "ignored",
        }
    )
    assert options.cluster.lookupd_http_addresses == ("a:4161", "b:4161")
    assert options.topics == ("t", "u")
    assert options.max_rows == 500
    assert options.max_bytes == 64 * 1024**2
    assert options.min_rows == 10
    assert options.max_trigger_delay_s == 90
    assert options.min_partitions == 4
    assert options.max_in_flight == 2000
    assert options.max_in_flight_bytes == 16 * 1024**2
    assert (options.max_buffered_rows, options.max_buffered_bytes) == (7000, 1024**3)
    assert options.dedup_window == 50_000
    assert options.drain_idle_s == 0.5
    assert not options.fail_on_data_loss
    assert options.starts_at_latest
    assert (options.read_id, options.read_ttl_s) == ("2026-11-15", 86400)
    assert dict(options.cluster.client_options) == {"snappy": True, "auth_secret": "x,y"}


def test_the_dedup_window_is_at_least_ten_times_max_in_flight():
    assert read_source_options({**GOOD, "dedupWindow": "10", "maxInFlight": "100"}).dedup_window == 1000


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"nsq.nsqd": ""}, "option nsq.lookupd or nsq.nsqd is required"),
        ({"subscribe": ""}, "neither of subscribe and subscribePattern given"),
        ({"subscribePattern": ".*"}, "both of subscribe and subscribePattern given"),
        ({"subscribe": "", "subscribePattern": ".*"}, "subscribePattern requires nsq.lookupd"),
        ({"subscribe": "", "subscribePattern": "(", "nsq.lookupd": "a:1"}, "not a regular expression"),
        ({"subscribe": "a b"}, "invalid topic name 'a b'"),
        ({"channel": ""}, "option channel is required"),
        ({"channel": "a/b"}, "invalid channel name 'a/b'"),
        ({"segmentDir": ""}, "option segmentDir is required"),
        ({"maxRowsPerTrigger": "many"}, "maxRowsPerTrigger: 'many' is not an integer"),
        ({"maxRowsPerTrigger": "0"}, "0 is too small, use at least 1"),
        ({"maxRowsPerTrigger": "1", "maxOffsetsPerTrigger": "1"}, "have the same meaning: set only one"),
        ({"maxBytesPerTrigger": "64x"}, "not a size such as"),
        ({"maxTriggerDelay": "soon"}, "not a duration such as"),
        ({"failOnDataLoss": "perhaps"}, "neither true nor false"),
        ({"startingOffsets": "{}"}, "earliest .* or latest"),
        ({"readId": "a b"}, "invalid readId 'a b'"),
        ({"nsq.max_in_flight": "5"}, "set maxInFlight instead"),
        ({"nsq.max_attempts": "5"}, "the source drops no message"),
        ({"nsq.snapy": "true"}, "did you mean snappy"),
        ({"nsq.snappy": "true", "nsq.deflate": "true"}, "only one compression"),
        ({"chanel": "x"}, r"unknown option chanel: did you mean channel\?"),
        ({"colour": "red"}, "unknown option colour: use one of nsq.lookupd, "),
    ],
)
def test_invalid_options_are_rejected(changes, expected):
    with pytest.raises(ConfigError, match=expected):
        read_source_options({**GOOD, **changes})


def test_the_sink_needs_a_topic_option_or_column():
    given = {"nsq.nsqd": "127.0.0.1:4150"}
    assert read_sink_options(given, has_topic_column=True).topic == ""
    assert read_sink_options({**given, "topic": "t"}, has_topic_column=False).topic == "t"
    with pytest.raises(ConfigError, match="no topic to publish to"):
        read_sink_options(given, has_topic_column=False)
    with pytest.raises(ConfigError, match="invalid topic name 'a b'"):
        read_sink_options({**given, "topic": "a b"}, has_topic_column=False)
