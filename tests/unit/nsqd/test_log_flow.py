"""The flow of a log topic: publishing, deferred messages, pauses, and commits that fail."""

import errno
import os

import pytest
from test_free_disk import FileSystem
from test_log_cursor import LogBench, finish_all

import nsqx.nsqd.log_commits
from broker_bench import MS, SECOND, Bench
from nsqx.errors import DiskQueueError
from nsqx.nsqd.free_disk import FreeDisk
from nsqx.nsqd.stats import commit_stats
from rawclient import sized


@pytest.fixture
def bench(tmp_path):
    return LogBench(tmp_path)


def no_space(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def acknowledged(bench, topic_name="t"):
    """Return a list that gets the outcome of the publishes so far."""
    outcomes = []
    bench.broker.turn.run(bench.broker.commits.when_written, outcomes.append, bench.broker.topic(topic_name))
    return outcomes


def test_a_topic_without_channels_keeps_its_messages_for_the_first_one(bench):
    bench.publish("t", b"1", b"2")
    assert bench.broker.topic("t").depth == 2
    again = bench.crash()
    assert again.broker.topic("t").depth == 2
    client = again.consume("t", "c", 10)
    assert client.link.take_bodies() == [b"1", b"2"]
    assert (again.broker.topic("t").depth, client.channel.message_count) == (0, 2)


def test_a_paused_topic_keeps_what_is_published_after_the_pause(bench):
    client = bench.consume("t", "c", 1)
    topic = bench.broker.topic("t")
    bench.publish("t", b"1", b"2")
    topic.pause()
    bench.publish("t", b"3")
    assert (topic.depth, bench.counts()) == (1, (1, 1, 0))
    again = bench.crash()
    topic = again.broker.topic("t")
    assert topic.paused
    assert (topic.depth, again.counts()) == (1, (2, 0, 0))
    client = again.consume("t", "c", 10)
    assert client.link.take_bodies() == [b"1", b"2"]
    topic.unpause()
    again.settle()
    assert (client.link.take_bodies(), topic.depth) == ([b"3"], 0)


def test_empty_discards_only_what_no_channel_has(bench):
    bench.broker.topic("t").channel("c")
    topic = bench.broker.topic("t")
    bench.publish("t", b"1")
    topic.pause()
    bench.publish("t", b"2")
    bench.defer("t", b"3", SECOND)
    assert topic.depth == 2
    topic.empty()
    topic.unpause()
    bench.publish("t", b"4")
    assert (topic.depth, bench.counts()) == (0, (2, 0, 0))
    again = bench.crash()
    assert again.counts() == (2, 0, 0)
    assert again.consume("t", "c", 9).link.take_bodies() == [b"1", b"4"]


def test_the_last_channel_takes_its_messages_with_it(bench):
    bench.broker.topic("t").channel("c")
    bench.publish("t", b"1")
    bench.broker.delete_channel("t", "c")
    bench.publish("t", b"2")
    again = bench.crash()
    assert again.broker.topic("t").depth == 1
    assert again.consume("t", "d", 9).link.take_bodies() == [b"2"]


def test_a_deleted_topic_does_not_come_back(bench):
    bench.broker.topic("t").channel("c")
    bench.publish("t", b"1")
    bench.publish("u", b"2")
    bench.broker.delete_topic("t")
    bench.publish("t", b"3")
    bench.broker.delete_topic("u")
    bench.settle()
    again = bench.crash()
    assert list(again.broker.topics) == ["t"]
    assert again.consume("t", "d", 9).link.take_bodies() == [b"3"]


@pytest.mark.parametrize("has_channel", [True, False])
def test_a_deferred_message_survives_a_crash_and_arrives_on_time(bench, has_channel):
    if has_channel:
        bench.broker.topic("t").channel("c")
    bench.defer("t", b"later", 10 * SECOND)
    bench.publish("t", b"now")
    bench.clock.advance(4 * SECOND)
    again = bench.crash()
    client = again.consume("t", "c", 9)
    assert finish_all(client) == [b"now"]
    assert again.counts() == (0, 0, 1)
    again.advance(5999 * MS)
    assert client.link.take_frames() == []
    again.advance(1 * MS)
    (message,) = client.link.take_messages()
    assert message.timestamp_ns == again.clock.wall_ns() - 10 * SECOND
    assert again.counts() == (0, 1, 0)
    client.channel.finish(client, message.id)
    assert again.restart().counts() == (0, 0, 0)


def test_a_message_that_became_due_while_nsqd_was_down_is_delivered_at_once(bench):
    bench.broker.topic("t").channel("c")
    bench.defer("t", b"later", SECOND)
    bench.broker.close_topics()
    bench.clock.advance(5 * SECOND)
    again = bench.crash()
    again.advance(0)
    assert again.consume("t", "c", 9).link.take_bodies() == [b"later"]


def test_a_deferred_message_is_on_time_if_the_clock_is_set_while_it_waits(bench):
    client = bench.consume("t", "c", 10)
    bench.defer("t", b"1", 10 * SECOND)
    bench.clock.wall_offset_ns -= 24 * 3600 * SECOND
    bench.advance(9 * SECOND)
    assert finish_all(client) == []
    bench.advance(SECOND)
    assert finish_all(client) == [b"1"]


def test_a_deferred_message_waits_at_most_max_req_timeout_after_the_clock_was_set_back(bench):
    bench.broker.topic("t").channel("c")
    bench.defer("t", b"1", 10 * SECOND)
    bench.settle()
    bench.clock.wall_offset_ns -= 24 * 3600 * SECOND
    again = bench.crash()
    client = again.consume("t", "c", 10)
    again.advance(again.broker.options.max_req_timeout - SECOND)
    assert finish_all(client) == []
    again.advance(SECOND)
    assert finish_all(client) == [b"1"]


def test_a_deferred_message_is_delivered_once(bench):
    bench.broker.topic("t").channel("c")
    bench.defer("t", b"later", SECOND)
    bench.advance(SECOND)
    again = bench.crash()
    again.advance(SECOND)
    assert again.counts() == (1, 0, 0)


def test_a_due_message_is_counted_while_its_commit_runs(bench):
    client = bench.consume("t", "c", 1)
    bench.publish("t", b"now")
    for number in range(3):
        bench.defer("t", b"%d" % number, SECOND)
    bench.sync_threads.is_slow = True
    bench.publish("t", b"unacknowledged")
    bench.advance(SECOND)
    assert bench.counts() == (0, 1, 3)
    late = bench.broker.topic("t").channel("late")
    assert late.deferred_count == 0, "the due messages are older than the channel"
    bench.sync_threads.finish()
    assert bench.counts() == (1, 1, 3)
    assert client.channel.message_count == 5
    bench.sync_threads.finish()
    assert bench.counts() == (4, 1, 0)
    assert client.channel.message_count == 5
    assert (late.depth, late.deferred_count, late.message_count) == (0, 0, 0)


def test_a_due_message_counts_for_a_paused_topic_and_then_for_its_channels(bench):
    topic = bench.broker.topic("t")
    topic.channel("c")
    bench.defer("t", b"earlier", SECOND)
    topic.pause()
    bench.defer("t", b"meanwhile", SECOND)
    bench.settle()
    assert (topic.depth, bench.counts()) == (1, (0, 0, 1))
    bench.sync_threads.is_slow = True
    bench.publish("u", b"in the commit that runs")
    bench.advance(SECOND)
    assert (topic.depth, bench.counts()) == (2, (0, 0, 0))
    topic.unpause()
    bench.settle()
    assert (topic.depth, bench.counts()) == (0, (0, 0, 2))
    topic.pause()
    bench.sync_threads.is_slow = False
    bench.sync_threads.finish()
    bench.settle()
    assert (topic.depth, bench.counts()) == (0, (2, 0, 0))
    assert topic.channel("c").message_count == 2


def test_emptying_discards_due_messages_while_their_commit_runs(bench):
    topic = bench.broker.topic("t")
    channel = topic.channel("c")
    bench.defer("t", b"for the channel", SECOND)
    bench.sync_threads.is_slow = True
    bench.publish("u", b"in the commit that runs")
    bench.advance(SECOND)
    channel.empty()
    assert bench.counts() == (0, 0, 0)
    bench.sync_threads.is_slow = False
    bench.sync_threads.finish()
    topic.pause()
    bench.defer("t", b"for the topic", SECOND)
    bench.sync_threads.is_slow = True
    bench.publish("u", b"in the commit that runs")
    bench.advance(SECOND)
    topic.empty()
    topic.unpause()
    bench.settle()
    assert (topic.depth, bench.counts()) == (0, (0, 0, 0))
    bench.sync_threads.is_slow = False
    bench.sync_threads.finish()
    bench.settle()
    assert (topic.depth, bench.counts()) == (0, (0, 0, 0))
    assert bench.crash().counts() == (0, 0, 0)


def test_the_only_channel_takes_its_deferred_messages_with_it(bench):
    topic = bench.broker.topic("t")
    topic.channel("c")
    bench.defer("t", b"of the channel", SECOND)
    topic.pause()
    bench.defer("t", b"of the topic", SECOND)
    topic.delete_channel("c")
    assert topic.depth == 1
    bench.advance(SECOND)
    assert topic.depth == 1
    assert bench.crash().broker.topic("t").depth == 1


def test_deferred_messages_of_an_ephemeral_channel_count_for_the_topic_after_a_crash(bench):
    bench.broker.topic("t").channel("c#ephemeral")
    bench.defer("t", b"later", 10 * SECOND)
    bench.publish("t", b"now")
    bench.advance(SECOND)
    again = bench.crash()
    topic = again.broker.topic("t")
    assert topic.depth == 1
    topic.empty()
    assert topic.depth == 0
    again.settle()
    assert again.crash().broker.topic("t").depth == 0


def test_after_a_power_cut_a_message_that_no_publisher_waits_for_is_written_at_once(bench, monkeypatch):
    bench.broker.topic("t").channel("c")
    bench.publish("t", b"before")
    monkeypatch.setattr(nsqx.nsqd.log_commits, "read_boot_id", lambda: b"another boot id.")
    again = bench.crash()
    client = again.consume("t", "c", 10)
    again.publish("t", b"after")
    assert client.link.take_bodies() == [b"before", b"after"]


def test_depths_are_exact_after_a_start_that_could_not_write(bench, monkeypatch):
    client = bench.consume("t", "c", 3)
    bench.publish("t", *(b"%d" % number for number in range(5)))
    finish_all(client)
    bench.advance(60 * MS)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", no_space)
        again = bench.crash()
        assert not again.broker.is_healthy
    again.advance(SECOND)
    assert again.broker.is_healthy
    assert again.counts() == (2, 0, 0)
    assert again.consume("t", "c", 9).link.take_bodies() == [b"3", b"4"]


def test_publishers_wait_for_the_write(bench):
    bench.sync_threads.is_slow = True
    bench.broker.topic("t").publish(sized(b"1"), 1)
    outcomes = acknowledged(bench)
    bench.settle()
    assert (outcomes, bench.broker.topic("t").depth) == ([], 1)
    bench.sync_threads.finish()
    assert outcomes == [None]


def test_publishes_during_a_write_share_the_next_one(bench):
    topic = bench.broker.topic("t")
    bench.sync_threads.is_slow = True
    topic.publish(sized(b"1"), 1)
    first = acknowledged(bench)
    bench.settle()
    later = []
    for number in range(3):
        topic.publish(sized(b"%d" % number), 1)
        later.append(acknowledged(bench))
        bench.settle()
    bench.sync_threads.finish()
    assert (first, later) == ([None], [[], [], []])
    bench.sync_threads.finish()
    assert later == [[None], [None], [None]]


def test_a_failed_write_is_reported_refused_and_retried(bench, monkeypatch):
    topic = bench.broker.topic("t")
    client = bench.consume("t", "c", 10)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", no_space)
        topic.publish(sized(b"1"), 1)
        outcomes = acknowledged(bench)
        bench.settle()
        assert [str(outcome) for outcome in outcomes] == ["No space left on device"]
        assert not bench.broker.is_healthy
        with pytest.raises(DiskQueueError, match="No space left on device"):
            topic.publish(sized(b"2"), 1)
        assert topic.log_stats()["refused"] == {"no_space": 2, "write_failed": 0, "log_full": 0}
        bench.advance(SECOND)
        assert not bench.broker.is_healthy
        assert client.link.take_bodies() == []
    bench.advance(SECOND)
    assert bench.broker.is_healthy
    assert client.link.take_bodies() == [b"1"]
    bench.publish("t", b"3")
    assert client.link.take_bodies() == [b"3"]


def test_a_failed_sync_is_repeated_in_another_file_before_publishes_are_refused(tmp_path, monkeypatch):
    bench = LogBench(tmp_path)
    bench.publish("t", b"1")
    bench.settle()
    path = tmp_path / "nsqx.commit.0"
    first = path.stat().st_ino
    kept = os.open(path, os.O_RDONLY)  # its number is not given to a new file
    synced = []

    def fail_once(descriptor):
        synced.append(os.fstat(descriptor).st_ino)
        if len(synced) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", fail_once)
    bench.broker.topic("t").publish(sized(b"2"), 1)
    outcomes = acknowledged(bench)
    bench.settle()
    assert outcomes == [None]
    assert synced[0] == first
    assert bench.broker.is_healthy
    assert first not in synced[1:], "the file is trusted again"
    os.close(kept)
    assert bench.crash().broker.topic("t").depth == 2


def test_a_waiter_for_the_first_change_after_a_power_cut_is_answered(tmp_path, monkeypatch):
    bench = LogBench(tmp_path)
    bench.publish("t", b"1")
    bench.settle()
    monkeypatch.setattr(nsqx.nsqd.log_commits, "read_boot_id", lambda: b"another boot id.")
    again = bench.crash()
    outcomes = []
    assert again.broker.turn.run(again.broker.topic("t").when_committed, outcomes.append)
    again.settle()
    assert outcomes == [None]


def test_publishes_are_refused_while_little_disk_is_free(bench):
    client = bench.consume("t", "c", 10)
    topic = bench.broker.topic("t")
    bench.publish("t", b"1")
    bench.defer("t", b"2", SECOND)
    files = FileSystem(free_blocks=0)
    bench.broker.logs._free_disk = FreeDisk("", 1024, files.statvfs)
    for _ in range(2):
        with pytest.raises(DiskQueueError, match="^0 bytes of disk are free"):
            topic.publish(sized(b"3"), 1)
        with pytest.raises(DiskQueueError, match="^0 bytes of disk are free"):
            topic.publish_deferred(b"3", SECOND)
        assert not bench.broker.is_healthy
        bench.advance(SECOND)
    assert topic.log_stats()["refused"] == {"no_space": 4, "write_failed": 0, "log_full": 0}
    assert finish_all(client) == [b"1", b"2"], "acknowledged messages are delivered"
    files.free_blocks = 2
    bench.advance(SECOND)
    assert bench.broker.is_healthy
    bench.publish("t", b"4")
    assert finish_all(client) == [b"4"]


def test_topics_share_the_commit(tmp_path):
    bench = LogBench(tmp_path)
    names = [f"t{number}" for number in range(20)]
    for name in names:
        bench.broker.topic(name).publish(sized(name.encode()), 1)
    outcomes = [acknowledged(bench, name) for name in names]
    bench.settle()
    assert outcomes == [[None]] * 20
    again = bench.crash()
    assert {name: topic.depth for name, topic in again.broker.topics.items()} == dict.fromkeys(names, 1)


def test_many_messages_go_through_small_commit_files(tmp_path):
    bench = LogBench(tmp_path)
    client = bench.consume("t", "c", 2500)
    total = 0
    for _ in range(60):
        bench.publish("t", *(b"x" * 1000 for _ in range(100)))
        total += len(finish_all(client))
    bench.advance(SECOND)
    assert total == 6000
    assert bench.restart().counts() == (0, 0, 0)


def test_the_numbers_of_a_log_and_its_cursor(bench):
    client = bench.consume("t", "c", 2)
    bench.publish("t", *(b"m" * 100 for _ in range(5)))
    bench.defer("t", b"later", SECOND)
    first, _ = client.link.take_messages()
    client.channel.finish(client, first.id)
    bench.settle()
    log = bench.broker.topic("t").log_stats()
    assert (log["store"], log["durability"]) == ("log", "fsync")
    assert (log["first"], log["stable"], log["end"], log["deferred_count"]) == (0, 6, 6, 1)
    assert 500 < log["bytes"] < 2000
    cursor = {"floor": 1, "next": 3, "holes": 2, "dropped": 0, "expired": 0, "oldest": bench.clock.wall_ns()}
    assert client.channel.store.cursor_stats() == {**cursor, "dead": 0}
    again = bench.restart()
    restored = again.broker.topic("t").log_stats()
    assert restored["id"] == log["id"]
    assert (restored["stable"], restored["end"], restored["segments"]) == (6, 6, 1)
    assert restored["bytes"] == sum(path.stat().st_size for path in again.data_path.glob("t.topic/*.seg"))


def test_commits_are_measured(bench):
    assert commit_stats(bench.broker) is None
    bench.publish("t", b"1")
    bench.settle()
    stats = commit_stats(bench.broker)
    assert sum(stats.commits.counts) == sum(stats.messages.counts) > 0
    assert (stats.messages.sum, stats.cold_read_count) == (1, 0)
    assert 0 < stats.fill_ratio < 0.01
    assert (stats.held_clients, stats.damaged_count) == (0, 0)
    assert stats.memory_size > 0


def test_a_classic_topic_has_no_log_numbers(tmp_path):
    bench = Bench(tmp_path, store="classic")
    channel = bench.broker.topic("t").channel("c")
    assert bench.broker.topic("t").log_stats() is None
    assert channel.store.cursor_stats() is None
    assert commit_stats(bench.broker) is None


def flow_of(bench):
    return bench.broker.logs._flows[bench.broker.logs.find("t")]


def move_to(bench, *bodies, attempts=0, due_ns=0, channel="c"):
    """Append messages for one channel, as a conversion does."""
    store = bench.broker.topic("t").channel(channel).store
    flow_of(bench).append_moved_to(store, b"".join(map(sized, bodies)), len(bodies), 7, attempts, due_ns)
    bench.settle()


def test_moved_messages_of_a_channel_go_to_that_channel_only(bench):
    for name in ("c", "d"):
        bench.broker.topic("t").channel(name)
    bench.publish("t", b"1")
    move_to(bench, b"2", b"3")
    bench.publish("t", b"4")
    assert (bench.counts("c"), bench.counts("d")) == ((4, 0, 0), (2, 0, 0))
    again = bench.crash()
    assert (again.counts("c"), again.counts("d")) == ((4, 0, 0), (2, 0, 0))
    client = again.consume("t", "c", 9)
    messages = client.link.take_messages()
    assert [(message.body, message.attempts) for message in messages] == [(b"%d" % n, 1) for n in (1, 2, 3, 4)]
    assert messages[1].timestamp_ns == 7
    assert again.counts("c") == (0, 4, 0)


def test_moved_messages_keep_their_attempts_and_due_times(bench):
    bench.broker.topic("t").channel("c")
    wall_ns = bench.clock.wall_ns()
    move_to(bench, b"later", attempts=2, due_ns=wall_ns + 10 * SECOND)
    move_to(bench, b"again", attempts=4)
    move_to(bench, b"late", due_ns=wall_ns - 1)
    assert bench.counts() == (3, 0, 0)
    client = bench.consume("t", "c", 9)
    messages = client.link.take_messages()
    assert {message.body: message.attempts for message in messages} == {b"again": 5, b"late": 1}
    assert bench.counts() == (0, 2, 1)
    for message in messages:
        client.channel.finish(client, message.id)
    bench.advance(60 * MS)
    again = bench.crash()
    assert again.counts() == (0, 0, 1)
    client = again.consume("t", "c", 9)
    again.advance(10 * SECOND - 61 * MS)
    assert client.link.take_messages() == []
    again.advance(1 * MS)
    assert [(message.body, message.attempts) for message in client.link.take_messages()] == [(b"later", 3)]


def test_moved_messages_of_a_channel_do_not_wait_for_a_paused_topic(bench):
    client = bench.consume("t", "c", 9)
    topic = bench.broker.topic("t")
    topic.pause()
    move_to(bench, b"1")
    assert finish_all(client) == [b"1"]
    bench.publish("t", b"2")
    move_to(bench, b"3", b"4")
    assert (topic.depth, bench.counts(), finish_all(client)) == (1, (2, 0, 0), [])
    again = bench.crash()
    assert (again.broker.topic("t").depth, again.counts()) == (1, (2, 0, 0))
    again.broker.topic("t").empty()
    again.settle()
    assert (again.broker.topic("t").depth, again.counts()) == (0, (2, 0, 0))
    assert finish_all(again.consume("t", "c", 9)) == [b"3", b"4"]


def test_emptying_a_channel_discards_its_moved_messages(bench):
    bench.broker.topic("t").channel("c")
    bench.broker.topic("t").channel("d")
    bench.broker.topic("t").pause()
    bench.publish("t", b"1")
    move_to(bench, b"2")
    move_to(bench, b"3", channel="d")
    bench.broker.topic("t").channel("c").empty()
    bench.settle()
    again = bench.crash()
    assert (again.broker.topic("t").depth, again.counts("c"), again.counts("d")) == (1, (0, 0, 0), (1, 0, 0))
    again.broker.topic("t").unpause()
    again.settle()
    assert (again.counts("c"), again.counts("d")) == ((1, 0, 0), (2, 0, 0))


def test_moved_messages_of_the_topic_go_to_every_channel_when_they_are_due(bench):
    for name in ("c", "d"):
        bench.broker.topic("t").channel(name)
    flow = flow_of(bench)
    flow.append_moved(sized(b"1") + sized(b"2"), 2, 7, 0)
    flow.append_moved(sized(b"3"), 1, 7, bench.clock.wall_ns() + SECOND)
    bench.settle()
    assert bench.counts("d") == (2, 0, 1)
    again = bench.crash()
    assert again.counts("d") == (2, 0, 1)
    again.advance(SECOND)
    assert finish_all(again.consume("t", "d", 9)) == [b"1", b"2", b"3"]
