"""Conversions of topics between the classic store and the log, in one process with a clock that the test moves."""

import pytest
from test_log_cursor import finish_all

from broker_bench import MS, SECOND
from conversion_bench import ConversionBench, received
from rawclient import sized


@pytest.fixture(params=["classic", "log"])
def stores(request):
    """The store before the conversion, and the one after it."""
    return request.param, "log" if request.param == "classic" else "classic"


def bodies(messages):
    return sorted(message.body for message in messages)


def test_every_message_is_moved_with_its_timestamp(tmp_path, stores):
    bench = ConversionBench(tmp_path, stores[0], mem_queue_size=3)
    for name in ("c", "d"):
        bench.broker.topic("t").channel(name)
    expected = [b"%d" % number for number in range(10)]
    stamps = {}
    for body in expected:
        stamps[body] = bench.clock.wall_ns()
        bench.publish("t", body)
        bench.clock.advance(MS)
    assert bench.convert(stores[1])
    assert bench.store_of() == stores[1]
    assert (bench.counts("c"), bench.counts("d")) == ((10, 0, 0), (10, 0, 0))
    assert bench.broker.topic("t").conversion_stats() is None
    for name in ("c", "d"):
        messages = received(bench, name)
        assert {message.body: message.timestamp_ns for message in messages} == stamps
        assert len(messages) == 10
    bench.publish("t", b"new")
    again = bench.restart(stores[0])
    assert again.store_of() == stores[1]
    assert bodies(received(again)) == [b"new"]
    if stores[1] == "log":
        assert again.files() == {"t.topic"}
    else:
        again.advance(2 * SECOND)
        assert not (tmp_path / "t.topic").exists()


def test_messages_in_flight_requeued_and_deferred_keep_attempts_and_due_times(tmp_path, stores):
    bench = ConversionBench(tmp_path, stores[0])
    client = bench.consume("t", "c", 3)
    bench.publish("t", b"in flight", b"requeued", b"finished", b"waiting")
    bench.defer("t", b"deferred", 10 * SECOND)
    by_body = {message.body: message for message in client.link.take_messages()}
    client.ready_count = 0
    client.channel.requeue(client, by_body[b"requeued"].id, 5 * SECOND)
    client.channel.finish(client, by_body[b"finished"].id)
    bench.convert(stores[1])
    assert client.link.is_closed
    assert sum(bench.counts()) == 4
    messages = received(bench)
    assert {message.body: message.attempts for message in messages} == {b"in flight": 2, b"waiting": 1}
    assert bench.counts() == (0, 0, 2)
    client = bench.consume("t", "c", 10)
    bench.advance(5 * SECOND - 1 * MS)
    assert client.link.take_messages() == []
    bench.advance(1 * MS)
    assert [(message.body, message.attempts) for message in client.link.take_messages()] == [(b"requeued", 2)]
    bench.advance(5 * SECOND - 1 * MS)
    assert client.link.take_messages() == []
    bench.advance(1 * MS)
    assert [(message.body, message.attempts) for message in client.link.take_messages()] == [(b"deferred", 1)]


def test_a_topic_without_channels_keeps_its_messages(tmp_path, stores):
    bench = ConversionBench(tmp_path, stores[0])
    bench.publish("t", b"1", b"2")
    bench.defer("t", b"3", SECOND)
    bench.convert(stores[1])
    assert bench.broker.topic("t").depth == 3
    client = bench.consume("t", "c", 10)
    assert finish_all(client) == [b"1", b"2"]
    bench.advance(SECOND)
    assert finish_all(client) == [b"3"]
    assert bench.counts() == (0, 0, 0)


def test_pauses_and_counts_survive(tmp_path, stores):
    bench = ConversionBench(tmp_path, stores[0])
    topic = bench.broker.topic("t")
    for name in ("c", "d"):
        topic.channel(name)
    bench.publish("t", b"1")
    topic.channel("d").pause()
    topic.pause()
    bench.publish("t", b"2")
    bench.convert(stores[1])
    assert topic is bench.broker.topics["t"]
    again = bench.restart(stores[0])
    for each in (bench, again):
        topic = each.broker.topic("t")
        assert (topic.paused, topic.channel("c").paused, topic.channel("d").paused) == (True, False, True)
    assert bench.broker.topic("t").message_count == 2
    assert bench.broker.topic("t").channel("c").message_count == 1
    assert (again.broker.topic("t").depth, again.counts()) == (1, (1, 0, 0))
    client = again.consume("t", "c", 10)
    assert finish_all(client) == [b"1"]
    again.broker.topic("t").unpause()
    again.settle()
    assert finish_all(client) == [b"2"]


def test_a_conversion_back_and_forth_keeps_everything(tmp_path, stores):
    bench = ConversionBench(tmp_path, stores[0])
    bench.broker.topic("t").channel("c")
    bench.broker.topic("t").channel("e#ephemeral")
    expected = []
    for round_ in range(4):
        expected.append(b"%d" % round_)
        bench.publish("t", expected[-1])
        assert bench.convert(stores[(round_ + 1) % 2])
        bench.advance(2 * SECOND)
    assert list(bench.broker.topic("t").channels) == ["c"]
    again = bench.restart(stores[0])
    assert again.counts() == (4, 0, 0)
    assert bodies(received(again)) == expected


def test_a_topic_that_has_the_store_keeps_it_after_a_restart(tmp_path, stores):
    bench = ConversionBench(tmp_path, stores[0])
    bench.broker.topic("t").channel("c")
    bench.publish("t", b"1")
    assert not bench.convert(stores[0])
    again = bench.restart(stores[1])
    assert again.store_of() == stores[0]
    again.broker.delete_topic("t")
    again.publish("t", b"2")
    assert again.store_of() == stores[1]


def test_a_changed_flag_converts_at_the_next_start(tmp_path, stores):
    bench = ConversionBench(tmp_path, stores[0])
    bench.broker.topic("t").channel("c").pause()
    bench.broker.topic("u")
    bench.publish("t", b"1", b"2")
    bench.publish("u", b"3")
    bench = bench.restart(stores[1])
    bench.settle()
    assert (bench.store_of("t"), bench.store_of("u")) == (stores[1], stores[1])
    assert (bench.counts(), bench.broker.topic("u").depth) == ((2, 0, 0), 1)
    assert bench.broker.topic("t").channel("c").paused
    back = bench.restart(stores[0])
    back.settle()
    assert (back.store_of("t"), back.counts(), back.broker.topic("u").depth) == (stores[0], (2, 0, 0), 1)


def test_queues_that_go_nsqd_has_left_are_moved_into_the_log(tmp_path):
    """Go's nsqd does not see the log: it takes new messages of the topic into disk queues."""
    bench = ConversionBench(tmp_path, "log")
    bench.broker.topic("t").channel("c")
    bench.publish("t", b"1")
    bench.broker.close_topics()
    (tmp_path / "t.topic").rename(tmp_path / "aside")
    go = ConversionBench(tmp_path, "classic", bench.clock)
    go.broker.topic("t").channel("new")
    go.publish("t", b"2")
    go.broker.topic("t").channel("empty")
    go.metadata_store.save()
    go.broker.close_topics()
    (tmp_path / "aside").rename(tmp_path / "t.topic")
    again = go.crash("log")
    again.settle()
    assert (again.counts("c"), again.counts("new"), again.counts("empty")) == ((2, 0, 0), (1, 0, 0), (0, 0, 0))
    assert bodies(received(again)) == [b"1", b"2"]


def test_publishes_during_a_conversion_go_to_the_new_store(tmp_path, stores):
    bench = ConversionBench(tmp_path, stores[0])
    bench.broker.topic("t").channel("c")
    for number in range(5):
        bench.publish("t", *(b"%d-%d" % (number, each) for each in range(1000)))
    begin(bench, stores[1])
    assert bench.store_of() == stores[1]
    stats = bench.broker.topic("t").conversion_stats()
    assert (stats["from"], stats["to"], stats["moved"] + stats["left"]) == (*stores, 5000)
    outcomes = []
    bench.broker.topic("t").publish(sized(b"new"), 1)
    bench.broker.commits.when_written(outcomes.append, bench.broker.topic("t"))
    for _ in range(200):
        bench.settle()
        assert 5000 + len(outcomes) <= sum(bench.counts()) <= 5001
        bench.sync_threads.finish()
        bench.clock.advance(30 * MS)
    assert outcomes == [None]
    assert bench.broker.topic("t").conversion_stats() is None
    assert sum(bench.counts()) == 5001


def begin(bench, store):
    """Switch the store, and leave the messages where they are until jobs are allowed to finish."""
    bench.sync_threads.is_slow = True
    bench.begin(store)


def finish(bench):
    for _ in range(100):
        bench.sync_threads.finish()
        bench.advance(30 * MS)
    bench.sync_threads.is_slow = False
    bench.sync_threads.finish()
    bench.settle()


@pytest.mark.parametrize("steps", range(6))
def test_topics_and_channels_are_emptied_and_deleted_in_both_stores(tmp_path, stores, steps):
    bench = ConversionBench(tmp_path, stores[0])
    topic = bench.broker.topic("t")
    for name in ("kept", "emptied", "deleted"):
        topic.channel(name)
    bench.publish("t", b"1", b"2")
    topic.pause()
    bench.publish("t", b"3")
    begin(bench, stores[1])
    for _ in range(steps):
        bench.sync_threads.finish()
        bench.settle()
    topic.channel("emptied").empty()
    topic.delete_channel("deleted")
    topic.empty()
    assert (topic.depth, bench.counts("kept"), bench.counts("emptied")) == (0, (2, 0, 0), (0, 0, 0))
    finish(bench)
    again = bench.restart(stores[1])
    again.settle()
    topic = again.broker.topic("t")
    assert sorted(topic.channels) == ["emptied", "kept"]
    assert (topic.depth, again.counts("kept"), again.counts("emptied")) == (0, (2, 0, 0), (0, 0, 0))


@pytest.mark.parametrize("steps", range(6))
def test_a_topic_deleted_during_its_conversion_does_not_come_back(tmp_path, stores, steps):
    bench = ConversionBench(tmp_path, stores[0])
    bench.broker.topic("t").channel("c")
    bench.publish("t", b"1", b"2")
    begin(bench, stores[1])
    for _ in range(steps):
        bench.sync_threads.finish()
        bench.settle()
    bench.broker.delete_topic("t")
    bench.broker.topic("t").channel("c")
    bench.broker.topic("t").publish(sized(b"new"), 1)
    finish(bench)
    assert bench.counts() == (1, 0, 0)
    for store in (*stores, stores[0]):
        bench = bench.restart(store)
        bench.settle()
        assert bench.counts() == (1, 0, 0)
    assert bodies(received(bench)) == [b"new"]


@pytest.mark.parametrize("steps", range(8))
def test_an_exit_during_a_conversion_repeats_nothing(tmp_path, stores, steps):
    bench = ConversionBench(tmp_path, stores[0])
    bench.broker.topic("t").channel("c")
    bench.publish("t", *(b"%d" % number for number in range(50)))
    begin(bench, stores[1])
    for _ in range(steps):
        bench.sync_threads.finish()
        bench.settle()
    bench.broker.exiting = True
    bench.broker.logs.stop()
    bench.sync_threads.finish()
    again = bench.restart(stores[1])
    again.settle()
    assert (again.store_of(), again.counts()) == (stores[1], (50, 0, 0))
    messages = received(again)
    assert bodies(messages) == sorted(b"%d" % number for number in range(50))


def test_the_log_stays_until_nsqd_dat_names_the_topic(tmp_path):
    bench = ConversionBench(tmp_path, "log")
    bench.broker.topic("t").channel("c")
    bench.publish("t", b"1")
    bench.metadata_store.is_failing = True
    bench.convert("classic")
    bench.advance(SECOND)
    assert bench.broker.logs.find("t") is not None
    again = bench.crash("log")
    again.settle()
    assert again.store_of() == "classic"
    assert set(bodies(received(again))) == {b"1"}
