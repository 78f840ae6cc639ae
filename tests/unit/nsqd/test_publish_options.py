"""The options of a publish, numbered publishes to log topics, and what their answers wait for."""

import os

import pytest
from test_log_cursor import LogBench
from test_log_flow import no_space

from broker_bench import SECOND, ClassicBench
from nsqx.errors import BrokerExiting, DiskQueueError, HTTPError, NotALogTopic
from nsqx.nsqd.publish_options import NO_OFFSET, PublishOptions, PublishOutcome, has_options, query_options
from rawclient import sized

DAY = 86_400 * SECOND


@pytest.fixture(params=["fsync", "write"])
def bench(request, tmp_path):
    return LogBench(tmp_path, durability=request.param)


def publish(bench, seq, *bodies, producer="p", **options):
    """Publish with a number; return the result, and a list that gets the outcome."""
    topic = bench.broker.topic("t")
    outcomes = []

    def work():
        items = b"".join(map(sized, bodies))
        result = topic.publish_with(items, len(bodies), PublishOptions(producer, seq, **options))
        bench.broker.commits.when_written(outcomes.append, topic)
        return result

    result = bench.broker.turn.run(work)
    bench.settle()
    return result, outcomes


def log_stats(bench):
    return bench.broker.topic("t").log_stats()


def consumed(bench):
    return bench.consume("t", "c", 100).link.take_bodies()


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ({}, PublishOptions()),
        ({"producer": "billing-1", "seq": "1"}, PublishOptions("billing-1", 1)),
        ({"producer": "x" * 64, "seq": str(2**62 - 1)}, PublishOptions("x" * 64, 2**62 - 1)),
    ],
)
def test_options_of_a_query(query, options):
    assert query_options({"topic": "t", **query}) == options
    assert has_options(query) is bool(query)


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"seq": "1"}, "INVALID_PRODUCER"),
        ({"producer": "", "seq": "1"}, "INVALID_PRODUCER"),
        ({"producer": "a b", "seq": "1"}, "INVALID_PRODUCER"),
        ({"producer": "x" * 65, "seq": "1"}, "INVALID_PRODUCER"),
        ({"producer": "a#ephemeral", "seq": "1"}, "INVALID_PRODUCER"),
        ({"producer": "a"}, "INVALID_SEQ"),
        ({"producer": "a", "seq": ""}, "INVALID_SEQ"),
        ({"producer": "a", "seq": "0"}, "INVALID_SEQ"),
        ({"producer": "a", "seq": "-1"}, "INVALID_SEQ"),
        ({"producer": "a", "seq": "1.0"}, "INVALID_SEQ"),
        ({"producer": "a", "seq": str(2**62)}, "INVALID_SEQ"),
        ({"producer": "a", "seq": "9" * 5000}, "INVALID_SEQ"),
    ],
)
def test_invalid_options_of_a_query(query, code):
    with pytest.raises(HTTPError) as caught:
        query_options(query)
    assert (caught.value.status, caught.value.code) == (400, code)


def test_a_repeated_publish_is_not_stored_twice(bench):
    assert publish(bench, 1, b"1", b"2") == (PublishOutcome(0, 2), [None])
    assert publish(bench, 1, b"1", b"2") == (PublishOutcome(0, 2, is_duplicate=True), [None])
    assert publish(bench, 5, b"3") == (PublishOutcome(2, 1), [None])
    # What is before the last number is known to be stored, but not where.
    assert publish(bench, 1, b"1", b"2") == (PublishOutcome(NO_OFFSET, 0, is_duplicate=True), [None])
    assert publish(bench, 1, b"4", producer="q") == (PublishOutcome(3, 1), [None])
    assert consumed(bench) == [b"1", b"2", b"3", b"4"]
    topic = bench.broker.topic("t")
    assert (topic.message_count, topic.message_bytes) == (4, 4)
    assert (log_stats(bench)["duplicates"], log_stats(bench)["producers"]) == (2, 2)


@pytest.mark.parametrize("end", ["crash", "restart"])
def test_a_repeated_publish_is_not_stored_twice_after_a_restart(bench, end):
    publish(bench, 1, b"1")
    publish(bench, 3, b"3")
    again = getattr(bench, end)()
    assert publish(again, 3, b"3") == (PublishOutcome(1, 1, is_duplicate=True), [None])
    assert publish(again, 4, b"4") == (PublishOutcome(2, 1), [None])
    assert consumed(again) == [b"1", b"3", b"4"]


def test_a_deferred_publish_is_not_stored_twice(bench):
    bench.consume("t", "c", 0)
    assert publish(bench, 1, b"1", b"2", defer_ns=SECOND)[0] == PublishOutcome(0, 2)
    assert publish(bench, 1, b"1", b"2", defer_ns=SECOND)[0] == PublishOutcome(0, 2, is_duplicate=True)
    assert bench.counts() == (0, 0, 2)
    bench.advance(SECOND)
    assert consumed(bench) == [b"1", b"2"]


def test_a_duplicate_is_answered_when_the_first_publish_is_durable(bench):
    publish(bench, 1, b"0")
    bench.sync_threads.is_slow = True
    first, first_outcomes = publish(bench, 2, b"1" * 300_000)
    second, second_outcomes = publish(bench, 2, b"1" * 300_000)
    known, known_outcomes = publish(bench, 1, b"0")
    assert (first.is_duplicate, second.is_duplicate, known.is_duplicate) == (False, True, True)
    assert (first_outcomes, second_outcomes) == ([], [])
    for _ in range(3):
        bench.sync_threads.finish()
        bench.settle()
    assert (first_outcomes, second_outcomes, known_outcomes) == ([None], [None], [None])


def test_a_failed_write_refuses_both_publishes_and_the_message_is_stored_once(bench, monkeypatch):
    publish(bench, 1, b"0")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", no_space)
        _, first_outcomes = publish(bench, 2, b"1")
        _, second_outcomes = publish(bench, 2, b"1")
        assert [str(one) for one in (*first_outcomes, *second_outcomes)] == ["No space left on device"] * 2
        # What is durable is known, also while nothing can be written.
        assert publish(bench, 1, b"0")[0].is_duplicate
        with pytest.raises(DiskQueueError, match="No space left on device"):
            publish(bench, 3, b"2")
    bench.advance(2 * SECOND)
    assert publish(bench, 2, b"1") == (PublishOutcome(1, 1, is_duplicate=True), [None])
    assert consumed(bench) == [b"0", b"1"]


def test_the_answer_waits_for_the_sync_if_the_publish_demands_it(tmp_path):
    bench = LogBench(tmp_path, durability="write")
    publish(bench, 1, b"0", is_synced=True)
    assert log_stats(bench)["stable"] == 1
    publish(bench, 2, b"1")
    assert (log_stats(bench)["stable"], log_stats(bench)["end"]) == (1, 2)
    publish(bench, 2, b"1", is_synced=True)
    assert log_stats(bench)["stable"] == 2


def test_the_least_recent_producer_is_forgotten(tmp_path):
    bench = LogBench(tmp_path, dedup_producers=2)
    for number, name in enumerate("abac"):
        publish(bench, number + 1, name.encode(), producer=name)
    assert (log_stats(bench)["producers"], log_stats(bench)["producers_forgotten"]) == (2, 1)
    again = bench.crash(dedup_producers=2)
    assert publish(again, 3, b"a", producer="a")[0].is_duplicate
    assert not publish(again, 2, b"b", producer="b")[0].is_duplicate


def test_a_silent_producer_is_forgotten(tmp_path):
    bench = LogBench(tmp_path, dedup_age=DAY)
    publish(bench, 1, b"1")
    bench.advance(DAY)
    assert publish(bench, 1, b"1")[0].is_duplicate
    bench.advance(1)
    assert not publish(bench, 1, b"1")[0].is_duplicate
    assert log_stats(bench)["producers_forgotten"] == 1


def test_numbers_of_a_deleted_topic_are_forgotten(bench):
    publish(bench, 1, b"1")
    bench.broker.delete_topic("t")
    bench.settle()
    assert not publish(bench, 1, b"1")[0].is_duplicate


def test_a_topic_that_exits_refuses_the_publish(bench):
    topic = bench.broker.topic("t")
    bench.broker.delete_topic("t")
    with pytest.raises(BrokerExiting):
        topic.publish_with(sized(b"1"), 1, PublishOptions("p", 1))


def test_a_classic_topic_refuses_what_needs_a_log(tmp_path):
    bench = ClassicBench(tmp_path)
    for options, name in ((PublishOptions("p", 1), "producer"), (PublishOptions(is_synced=True), "sync")):
        with pytest.raises(NotALogTopic, match=f"{name} needs a log topic, and t is not a log topic"):
            bench.broker.topic("t").publish_with(sized(b"1"), 1, options)
    client = bench.consume("t", "c", 10)
    topic = bench.broker.topic("t")
    assert topic.publish_with(sized(b"1") + sized(b"2"), 2, PublishOptions()) == PublishOutcome(NO_OFFSET, 2)
    topic.publish_with(sized(b"3") + sized(b"4"), 2, PublishOptions(defer_ns=SECOND))
    bench.settle()
    assert client.link.take_bodies() == [b"1", b"2"]
    bench.advance(SECOND)
    assert client.link.take_bodies() == [b"3", b"4"]
