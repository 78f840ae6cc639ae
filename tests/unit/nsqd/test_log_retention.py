"""The limits of a topic log: what is kept for replay, what is dropped, and what channels and publishers see of it."""

import pytest
from test_log_cursor import LogBench, finish_all

import nsqx.nsqd.log_cursor
from broker_bench import MINUTE, MS, SECOND
from nsqx.errors import DiskQueueError
from nsqx.nsqd.publish_options import PublishOptions
from nsqx.queues import files
from nsqx.queues.failpoints import failpoints_of
from nsqx.queues.log.store import LogOptions

HOUR = 60 * MINUTE
# Four of these messages fill a segment.
BODY = b"x" * 5000
SEGMENT = 22_000


class RetentionBench(LogBench):
    """A broker whose segments have four messages. Every publish is written to a segment at once."""

    def start(self, saved):
        options = LogOptions(
            commit_size=1 << 20,
            segment_size=SEGMENT,
            direct_size=1,
            unsynced_direct_size=1,
            memory_size=0,
            idle_size=500,
        )
        self.broker.logs.options = options
        super().start(saved)

    def crash(self, **options):
        return RetentionBench(self.data_path, self.clock, **options)

    @property
    def flow(self):
        return self.broker.topic("t").flow

    @property
    def log_stats(self):
        return self.broker.topic("t").log_stats()

    def cursor(self, name="c"):
        return self.broker.topic("t").channel(name).store.cursor_stats()

    def publish_each(self, count):
        for number in range(count):
            self.publish("t", b"%03d" % number + BODY)

    def check(self):
        """Let the limits be applied, twice, because a segment can be ended first."""
        for _ in range(3):
            self.advance(1100 * MS)

    def set(self, **values):
        self.broker.configs.change(self.broker.topic("t"), values)

    def warnings(self):
        return [line for level, line in self.log.lines if level == "warn"]


def bench_with(tmp_path, **settings):
    return RetentionBench(tmp_path, **{f"log_{name}": value for name, value in settings.items()})


def consume_all(bench, count, channel_name="c"):
    """Publish and finish messages."""
    client = bench.consume("t", channel_name, 100)
    for _ in range(count):
        bench.publish("t", BODY)
        assert len(finish_all(client)) == 1
        bench.advance(20 * MS)
    return client


def test_without_limits_finished_segments_go_at_once(tmp_path):
    bench = RetentionBench(tmp_path)
    consume_all(bench, 20)
    bench.check()
    assert (bench.log_stats["first"], bench.log_stats["kept_bytes"]) == (20, 0)


def test_finished_segments_stay_for_their_age(tmp_path):
    bench = bench_with(tmp_path, retain_age=HOUR)
    consume_all(bench, 20)
    bench.check()
    stats = bench.log_stats
    assert stats["first"] == 0
    assert stats["kept_bytes"] == pytest.approx(20 * 5000, rel=0.3)
    bench.advance(50 * MINUTE)
    again = bench.crash(log_retain_age=HOUR)
    again.check()
    assert again.log_stats["first"] == 0, "the age of segments survives a restart"
    again.advance(12 * MINUTE)
    again.check()
    assert (again.log_stats["first"], again.log_stats["kept_bytes"]) == (20, 0)


def test_a_short_age_ends_segments_early(tmp_path):
    bench = bench_with(tmp_path, retain_age=MINUTE)
    client = consume_all(bench, 1)
    bench.advance(30 * SECOND)
    bench.publish("t", BODY)
    finish_all(client)
    for _ in range(45):
        bench.advance(SECOND)
    assert bench.log_stats["first"] == 1, "the second message is 45 s old"
    for _ in range(30):
        bench.advance(SECOND)
    assert bench.log_stats["first"] == 2


def test_the_newest_bytes_stay(tmp_path):
    bench = bench_with(tmp_path, retain_bytes=60_000)
    consume_all(bench, 40)
    bench.check()
    stats = bench.log_stats
    assert 60_000 <= stats["bytes"] < 60_000 + 2 * SEGMENT
    assert 0 < stats["first"] < 40 - 60_000 // 5100
    bench.set(retain_bytes=0)
    bench.check()
    assert bench.log_stats["first"] == 40


def test_an_unfinished_message_is_kept_whatever_the_limits_for_replay(tmp_path):
    bench = bench_with(tmp_path, retain_age=SECOND, retain_bytes=1)
    bench.broker.topic("t").channel("c")
    bench.publish_each(20)
    bench.advance(HOUR)
    bench.check()
    assert (bench.log_stats["first"], bench.counts()) == (0, (20, 0, 0))


def test_a_full_log_refuses_publishes_until_messages_are_finished(tmp_path):
    bench = bench_with(tmp_path, max_bytes=100_000)
    client = bench.consume("t", "c", 0)
    with pytest.raises(DiskQueueError, match="log full: max_bytes is 100000") as caught:
        bench.publish_each(40)
    assert caught.value.is_log_full
    depth = bench.counts()[0]
    assert 15 <= depth <= 19
    with pytest.raises(DiskQueueError, match="log full"):
        bench.defer("t", BODY, SECOND)
    assert bench.log_stats["refused"] == {"no_space": 0, "write_failed": 0, "log_full": 2}
    assert bench.broker.is_healthy
    again = bench.crash(log_max_bytes=100_000)
    with pytest.raises(DiskQueueError, match="log full"):
        again.publish("t", BODY)
    client = again.consume("t", "c", 10)
    assert len(finish_all(client)) == 10
    again.advance(200 * MS)
    again.publish("t", BODY)
    assert again.log_stats["dropped"] == 0


def test_segments_that_are_kept_for_replay_go_before_a_log_is_full(tmp_path):
    bench = bench_with(tmp_path, retain_age=HOUR, max_bytes=100_000)
    consume_all(bench, 100)
    bench.check()
    stats = bench.log_stats
    assert stats["refused"]["log_full"] == 0
    assert 50_000 < stats["bytes"] <= 100_000
    assert stats["first"] > 70


def test_a_full_log_drops_its_oldest_messages_if_told_so(tmp_path):
    bench = bench_with(tmp_path, max_bytes=100_000, when_full="drop-oldest")
    client = bench.consume("t", "c", 2)
    bench.broker.topic("t").channel("other")
    bench.publish_each(2)
    messages = client.link.take_messages()
    assert client.in_flight_count == 2
    bench.publish_each(60)
    bench.check()
    stats = bench.log_stats
    first = stats["first"]
    assert stats["bytes"] <= 100_000
    assert first >= 40
    assert (bench.cursor()["dropped"], bench.cursor("other")["dropped"]) == (first, first)
    assert stats["dropped"] == 2 * first
    assert (bench.counts(), bench.counts("other")) == ((62 - first - 2, 2, 0), (62 - first, 0, 0))
    assert client.in_flight_count == 2, "it got other messages in place of the dropped ones"
    assert client.channel.finish(client, messages[0].id) == "ID not in flight"
    assert any(line.startswith("LOG(t): max_bytes dropped ") and "channel(other)" in line for line in bench.warnings())
    again = bench.crash(log_max_bytes=100_000, log_when_full="drop-oldest")
    assert (again.counts("other"), again.log_stats["first"]) == ((62 - first, 0, 0), first)


def test_one_large_segment_can_be_dropped(tmp_path):
    bench = LogBench(tmp_path, log_max_bytes=300_000, log_when_full="drop-oldest")
    bench.broker.topic("t").channel("c")
    for _ in range(100):
        bench.publish("t", BODY)
        bench.advance(100 * MS)
    for _ in range(5):
        bench.advance(1100 * MS)
    stats = bench.broker.topic("t").log_stats()
    assert stats["bytes"] <= 300_000
    assert bench.counts() == (100 - stats["first"], 0, 0)


def test_old_messages_are_dropped(tmp_path):
    bench = bench_with(tmp_path, max_age=10 * MINUTE)
    client = bench.consume("t", "c", 1)
    bench.publish_each(10)
    bench.defer("t", b"later", HOUR)
    bench.advance(6 * MINUTE)
    bench.publish_each(10)
    assert bench.counts() == (19, 1, 1)
    for _ in range(6):
        bench.advance(MINUTE)
    assert bench.log_stats["first"] == 11
    assert bench.counts() == (9, 1, 0)
    assert (bench.cursor()["dropped"], bench.log_stats["dropped"]) == (10, 11)
    assert bench.warnings() == [
        "LOG(t): max_age dropped 10 unfinished messages of channel(c), offsets 0 to 10",
        "LOG(t): max_age dropped 1 unfinished messages of the topic, offsets 0 to 10",
    ]
    assert client.in_flight_count == 1
    for _ in range(15):
        bench.advance(MINUTE)
    assert bench.counts() == (0, 0, 0)
    assert bench.crash().counts() == (0, 0, 0)


@pytest.mark.parametrize("has_channel", [True, False])
def test_old_messages_of_a_topic_that_does_not_flow_are_dropped(tmp_path, has_channel):
    bench = bench_with(tmp_path, max_age=MINUTE)
    topic = bench.broker.topic("t")
    if has_channel:
        topic.channel("c")
        topic.pause()
    bench.publish_each(10)
    bench.defer("t", b"soon", 90 * SECOND)
    bench.advance(50 * SECOND)
    bench.publish_each(5)
    assert topic.depth == 16
    for _ in range(25):
        bench.advance(SECOND)
    assert (topic.depth, bench.log_stats["first"], bench.log_stats["dropped"]) == (5, 11, 11)
    again = bench.crash(log_max_age=MINUTE)
    topic = again.broker.topic("t")
    assert topic.depth == 5
    if has_channel:
        topic.unpause()
        again.settle()
    client = again.consume("t", "c", 10)
    assert len(finish_all(client)) == 5
    assert (topic.depth, client.channel.message_count) == (0, 5)


def test_a_trim_keeps_counts_exact_while_messages_are_requeued_and_deferred(tmp_path):
    bench = RetentionBench(tmp_path)
    client = bench.consume("t", "c", 6)
    bench.publish_each(12)
    messages = client.link.take_messages()
    client.channel.requeue(client, messages[0].id, HOUR)
    client.channel.requeue(client, messages[1].id, HOUR)
    client.channel.finish(client, messages[2].id)
    bench.set_ready(client, 0)
    client.channel.requeue(client, messages[3].id, 0)
    bench.defer("t", b"later", HOUR)
    bench.settle()
    client.link.take_messages()
    before = bench.counts()
    assert bench.flow.count_below(5) == {"c": 4}
    assert bench.flow.trim(5, "a test") == {"c": 4}
    bench.settle()
    depth, in_flight, deferred = bench.counts()
    assert sum(before) - sum((depth, in_flight, deferred)) == 4
    assert (in_flight, deferred) == (client.in_flight_count, 1)
    again = bench.crash()
    assert sum(again.counts()) == sum((depth, in_flight, deferred))
    assert again.log_stats["first"] == 5
    assert again.flow.trim(again.log_stats["end"], "a test") == {"c": 7, "": 1}
    again.settle()
    assert again.counts() == (0, 0, 0)
    assert again.crash().counts() == (0, 0, 0)


def test_trimmed_messages_of_a_cursor_that_reads_are_not_delivered(tmp_path):
    bench = RetentionBench(tmp_path)
    bench.broker.topic("t").channel("c")
    bench.publish_each(20)
    bench.sync_threads.is_slow = True
    client = bench.consume("t", "c", 100)
    assert client.link.take_messages() == []
    bench.flow.trim(15, "a test")
    bench.sync_threads.is_slow = False
    bench.sync_threads.finish()
    bench.settle()
    assert [body[:3] for body in finish_all(client)] == [b"015", b"016", b"017", b"018", b"019"]
    assert bench.counts() == (0, 0, 0)


# Time to live


def test_an_expired_message_is_finished_when_it_would_be_delivered(tmp_path):
    bench = bench_with(tmp_path, message_ttl=MINUTE)
    bench.broker.topic("t").channel("c")
    bench.publish_each(3)
    bench.advance(30 * SECOND)
    bench.publish("t", b"new")
    bench.advance(31 * SECOND)
    assert bench.counts() == (4, 0, 0), "nothing is delivered, so nothing is finished"
    client = bench.consume("t", "c", 10)
    assert finish_all(client) == [b"new"]
    assert (bench.counts(), bench.cursor()["expired"], bench.log_stats["expired"]) == ((0, 0, 0), 3, 3)
    bench.advance(60 * MS)
    assert bench.crash().counts() == (0, 0, 0)


def test_a_requeued_message_expires_too(tmp_path):
    bench = bench_with(tmp_path, message_ttl=MINUTE)
    client = bench.consume("t", "c", 1)
    bench.publish("t", b"1")
    (message,) = client.link.take_messages()
    client.channel.requeue(client, message.id, 2 * MINUTE)
    bench.advance(2 * MINUTE)
    assert client.link.take_messages() == []
    assert (bench.counts(), bench.cursor()["expired"]) == ((0, 0, 0), 1)


def test_the_setting_can_be_changed_while_messages_wait(tmp_path):
    bench = RetentionBench(tmp_path)
    bench.broker.topic("t").channel("c")
    bench.publish("t", b"1")
    bench.advance(HOUR)
    bench.set(message_ttl="30m")
    assert finish_all(bench.consume("t", "c", 1)) == []
    bench.publish("t", b"2")
    bench.advance(HOUR)
    bench.set(message_ttl="2h")
    client = bench.consume("t", "d", 1)
    bench.publish("t", b"3")
    assert finish_all(client) == [b"3"]


def test_a_publish_has_a_ttl_of_its_own(tmp_path):
    bench = bench_with(tmp_path, message_ttl=HOUR)
    topic = bench.broker.topic("t")
    topic.channel("c")
    for ttl_ns in (MINUTE, 2 * HOUR):
        topic.publish_with(b"\0\0\0\1a\0\0\0\1b", 2, PublishOptions(ttl_ns=ttl_ns))
    topic.publish_with(b"\0\0\0\1c", 1, PublishOptions(ttl_ns=MINUTE, defer_ns=2 * SECOND))
    topic.publish_with(b"\0\0\0\1d", 1, PublishOptions(ttl_ns=MINUTE, defer_ns=10 * MINUTE))
    topic.publish_with(b"\0\0\0\1e", 1, PublishOptions(ttl_ns=1 << 62))
    bench.settle()
    assert (topic.message_count, topic.message_bytes) == (7, 7)
    bench.advance(90 * MINUTE)
    again = bench.crash(log_message_ttl=HOUR)
    again.advance(0)
    assert finish_all(again.consume("t", "c", 10)) == [b"a", b"b", b"e"]
    assert (again.counts(), again.cursor()["expired"]) == ((0, 0, 0), 4)


def test_many_expired_messages_are_finished_in_several_turns(tmp_path, monkeypatch):
    monkeypatch.setattr(nsqx.nsqd.log_cursor, "_EXPIRED_PER_TURN", 10)
    bench = LogBench(tmp_path, log_message_ttl=SECOND)
    bench.broker.topic("t").channel("c")
    bench.publish("t", *[b"m"] * 35)
    bench.advance(2 * SECOND)
    client = bench.consume("t", "c", 1)
    assert bench.counts() == (25, 0, 0)
    bench.advance(0)
    bench.publish("t", b"new")
    bench.advance(0)
    bench.advance(0)
    assert (client.link.take_bodies(), bench.counts()) == ([b"new"], (0, 1, 0))


# Copies of unfinished messages


def stuck(bench, delay_ns=HOUR, count=60):
    """Publish many messages, all of which are finished, except for the first, which is requeued for an hour."""
    client = bench.consume("t", "c", 100)
    bench.publish("t", b"stuck")
    (message,) = client.link.take_messages()
    client.channel.requeue(client, message.id, delay_ns)
    for _ in range(count):
        bench.publish("t", BODY)
        assert len(finish_all(client)) == 1
    return client


def test_one_requeued_message_does_not_keep_the_log(tmp_path):
    bench = RetentionBench(tmp_path)
    client = stuck(bench)
    assert bench.log_stats["bytes"] > 200_000
    bench.check()
    stats = bench.log_stats
    assert (stats["first"] > 50, stats["end"]) == (True, 62)
    assert stats["bytes"] < 2 * SEGMENT
    assert (bench.counts(), client.channel.message_count) == ((0, 0, 1), 61)
    again = bench.crash()
    assert sum(again.counts()) == 1
    client = again.consume("t", "c", 1)
    assert again.counts() == (0, 0, 1)
    again.advance(HOUR)
    (message,) = client.link.take_messages()
    assert (message.body, message.attempts) == (b"stuck", 2)
    assert message.timestamp_ns < again.clock.wall_ns() - HOUR
    client.channel.finish(client, message.id)
    again.check()
    assert (again.counts(), again.log_stats["first"]) == ((0, 0, 0), 62)


def test_copied_messages_count_as_deferred_in_a_channel_without_consumers(tmp_path):
    bench = RetentionBench(tmp_path)
    client = stuck(bench)
    bench.leave(client)
    bench.check()
    assert (bench.log_stats["first"] > 50, bench.counts()) == (True, (0, 0, 1))
    bench.advance(2 * HOUR)
    assert bench.counts() == (1, 0, 0)
    client = bench.consume("t", "c", 1)
    assert finish_all(client) == [b"stuck"]
    assert bench.counts() == (0, 0, 0)


def test_a_copied_message_can_be_emptied_and_trimmed(tmp_path):
    bench = RetentionBench(tmp_path)
    bench.leave(stuck(bench))
    bench.check()
    assert bench.counts() == (0, 0, 1)
    bench.broker.topic("t").channel("c").empty()
    assert bench.counts() == (0, 0, 0)
    bench.leave(stuck(bench))
    bench.check()
    assert bench.counts() == (0, 0, 1)
    assert bench.flow.trim(bench.log_stats["end"], "a test") == {"c": 1}
    assert bench.counts() == (0, 0, 0)


@pytest.mark.parametrize("channel_name", ["c", "c#ephemeral"])
def test_one_deferred_publish_does_not_keep_the_log(tmp_path, channel_name):
    bench = RetentionBench(tmp_path)
    topic = bench.broker.topic("t")
    topic.channel(channel_name)
    bench.defer("t", b"later", HOUR)
    consume_all(bench, 60, channel_name)
    bench.check()
    stats = bench.log_stats
    assert (stats["first"] > 50, stats["deferred_count"]) == (True, 1)
    assert (bench.counts(channel_name), topic.depth) == ((0, 0, 1), 0)
    bench.clock.wall_offset_ns -= 24 * HOUR  # the copy is due as if it had stayed
    bench.advance(59 * MINUTE)
    client = bench.consume("t", channel_name, 1)
    assert bench.counts(channel_name) == (0, 0, 1)
    bench.advance(MINUTE)
    assert finish_all(client) == [b"later"]
    bench.check()
    assert (bench.counts(channel_name), bench.log_stats["deferred_count"]) == ((0, 0, 0), 0)


def test_a_copied_deferred_publish_survives_a_crash(tmp_path):
    bench = RetentionBench(tmp_path)
    bench.defer("t", b"later", HOUR)
    consume_all(bench, 60)
    bench.check()
    again = bench.crash()
    assert (again.log_stats["first"] > 50, again.counts()) == (True, (0, 0, 1))
    client = again.consume("t", "c", 9)
    again.advance(HOUR)
    assert finish_all(client) == [b"later"]


def test_messages_in_flight_are_not_copied(tmp_path):
    bench = RetentionBench(tmp_path)
    client = bench.consume("t", "c", 100, msg_timeout_ns=10 * SECOND)
    bench.publish("t", b"slow")
    (message,) = client.link.take_messages()
    other = consume_all(bench, 60, "d")
    finish_all(client)
    bench.check()
    assert (bench.log_stats["first"], bench.counts()) == (0, (0, 1, 0))
    assert client.channel.requeue(client, message.id, HOUR) is None
    bench.check()
    assert (bench.log_stats["first"] > 50, bench.counts()) == (True, (0, 0, 1))
    bench.advance(HOUR)
    assert (client.link.take_bodies(), other.link.take_bodies()) == ([b"slow"], [])


def test_many_unfinished_messages_are_not_copied(tmp_path):
    bench = RetentionBench(tmp_path)
    client = bench.consume("t", "c", 100)
    for number in range(60):
        bench.publish("t", BODY)
        (message,) = client.link.take_messages()
        if number % 8:
            client.channel.finish(client, message.id)
        else:
            client.channel.requeue(client, message.id, HOUR)
    bench.check()
    assert (bench.log_stats["first"], bench.log_stats["end"]) == (0, 60)
    assert bench.counts() == (0, 0, 8)


def test_one_large_message_is_not_copied(tmp_path):
    bench = RetentionBench(tmp_path)
    client = bench.consume("t", "c", 100)
    bench.publish("t", b"y" * 100_000)
    (message,) = client.link.take_messages()
    client.channel.requeue(client, message.id, HOUR)
    for _ in range(60):
        bench.publish("t", BODY)
        finish_all(client)
    bench.check()
    assert (bench.log_stats["first"], bench.log_stats["end"], bench.counts()) == (0, 61, (0, 0, 1))


def test_cold_messages_are_copied_when_they_can_be_read(tmp_path):
    bench = RetentionBench(tmp_path)
    stuck(bench)
    bench.advance(60 * MS)
    again = bench.crash()
    files.set_hook(failpoints_of("segment.open=fail:EIO@1"))
    try:
        again.check()
    finally:
        files.set_hook(None)
    assert "LOG(t): failed to read - [Errno 5] Input/output error" in again.log.errors()
    assert (again.log_stats["end"], again.counts()) == (61, (0, 0, 1))
    again.publish("t", b"a change")
    again.check()
    assert (again.log_stats["first"] > 50, again.counts()) == (True, (1, 0, 1))


def test_the_age_of_a_channel_is_read_from_an_index(tmp_path):
    bench = RetentionBench(tmp_path)
    bench.broker.topic("t").channel("c")
    start_ns = bench.clock.wall_ns()
    for _ in range(20):
        bench.publish("t", BODY)
        bench.advance(SECOND)
    assert start_ns <= bench.cursor()["oldest"] <= start_ns + 4 * SECOND
    again = bench.crash()
    again.sync_threads.is_slow = True
    assert again.cursor()["oldest"] == 0
    again.sync_threads.finish()
    assert start_ns <= again.cursor()["oldest"] <= start_ns + 4 * SECOND
    finish_all(again.consume("t", "c", 100))
    again.sync_threads.is_slow = False
    again.sync_threads.finish()
    again.settle()
    finish_all(next(iter(again.broker.clients.values())))
    assert (again.counts(), again.cursor()["oldest"]) == ((0, 0, 0), 0)


def test_a_full_log_without_segments_has_room_again_when_messages_are_finished(tmp_path):
    """The messages are only in a commit file, and the next message needs nearly all of the limit."""
    bench = LogBench(tmp_path, log_max_bytes=100_000)
    client = bench.consume("t", "c", 0)
    for _ in range(15):
        bench.publish("t", BODY)
    with pytest.raises(DiskQueueError, match="log full"):
        bench.publish("t", b"y" * 80_000)
    bench.set_ready(client, 100)
    assert len(finish_all(client)) == 15
    for _ in range(4):
        bench.advance(1100 * MS)
    bench.publish("t", b"y" * 80_000)
    assert bench.counts() == (0, 1, 0)
