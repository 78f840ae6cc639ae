"""Messages at the attempt limit: where they go, when, and what a crash leaves."""

import contextlib

import orjson
import pytest
from letter_bench import LetterBench, fail_once, fail_until_dead

from broker_bench import MS, SECOND, BenchDisk
from nsqx.errors import DiskQueueError
from nsqx.queues import files
from nsqx.queues.failpoints import Failpoints, Fault, Stopped
from nsqx.queues.log.batch import origin_of
from nsqx.queues.log.store import LogOptions


def origins(bench, topic="t.dead"):
    log = bench.broker.logs.find(topic)
    return [orjson.loads(origin_of(log.batch_at(offset))) for offset in range(log.written)]


@pytest.fixture(params=["classic", "log"])
def bench(request, tmp_path):
    return LetterBench(tmp_path, store=request.param)


@pytest.fixture
def logs(tmp_path):
    return LetterBench(tmp_path, store="log")


@pytest.fixture
def disk(tmp_path):
    """A classic broker that keeps every message on disk."""
    return LetterBench(tmp_path, store="classic", mem_queue_size=0)


def test_a_message_that_is_requeued_at_the_limit_goes_to_the_dead_letter_topic(bench):
    client = bench.consume("t", "c", 1)
    bench.publish("t", b"poison", b"good")
    attempts = []
    for _ in range(4):
        (message,) = client.link.take_messages()
        if message.body == b"poison":
            attempts.append(message.attempts)
            client.channel.requeue(client, message.id, 0)
        else:
            client.channel.finish(client, message.id)
        bench.settle()
    assert attempts == [1, 2, 3]
    assert client.link.take_messages() == []
    assert bench.counts() == (0, 0, 0)
    assert client.channel.dead_count == 1
    assert bench.counts("t.dead", "dead") == (1, 0, 0)
    assert bench.broker.topics["t.dead"].message_count == 1
    assert bench.broker.topics["t.dead"].message_bytes == len(b"poison")
    assert bench.letters() == [b"poison"]


def test_a_message_that_times_out_at_the_limit_goes_to_the_dead_letter_topic(bench):
    client = bench.consume("t", "c", 1, msg_timeout_ns=SECOND)
    bench.publish("t", b"poison")
    for _ in range(3):
        assert client.link.take_bodies() == [b"poison"]
        bench.advance(SECOND)
    assert client.link.take_bodies() == []
    assert client.channel.timeout_count == 3
    assert client.in_flight_count == 0
    assert bench.counts() == (0, 0, 0)
    assert bench.letters() == [b"poison"]


def test_a_delay_of_the_last_requeue_is_not_waited_for(bench):
    client = bench.consume("t", "c", 1)
    bench.publish("t", b"poison")
    fail_until_dead(bench, client, 2)
    fail_once(bench, client, delay_ns=MS)
    assert bench.counts() == (0, 0, 0)
    assert bench.letters() == [b"poison"]


def test_a_letter_has_its_origin(logs):
    client = logs.consume("t", "c", 1)
    logs.publish("t", b"good")
    client.channel.finish(client, client.link.take_messages()[0].id)
    logs.publish("t", b"poison")
    published_ns = logs.clock.wall_ns()
    (message,) = client.link.take_messages()
    client.channel.requeue(client, message.id, 0)
    logs.settle()
    fail_until_dead(logs, client, 2)
    assert origins(logs) == [
        {
            "topic": "t",
            "channel": "c",
            "offset": 1,
            "id": message.id.decode(),
            "timestamp": published_ns,
            "attempts": 3,
            "reason": "requeued",
            "consumer": "127.0.0.1:1234",
            "time": logs.clock.wall_ns(),
        }
    ]


def test_the_origin_names_a_consumer_that_has_left(logs):
    logs.publish("t", b"poison")
    for _ in range(3):
        client = logs.consume("t", "c", 1, msg_timeout_ns=SECOND)
        assert client.link.take_bodies() == [b"poison"]
        logs.leave(client)
        logs.advance(SECOND)
    (origin,) = origins(logs)
    assert (origin["reason"], origin["consumer"]) == ("timed out", "127.0.0.1:1234")


def test_only_some_consumers_that_have_left_are_remembered(logs):
    letters = logs.broker.dead_letters
    for _ in range(1100):
        letters.note_left(logs.connect())
    assert len(letters._left) == 1000


def test_without_a_dead_letter_topic_a_message_is_finished_and_counted(tmp_path):
    for store in ("classic", "log"):
        (tmp_path / store).mkdir()
        bench = LetterBench(tmp_path / store, store=store, dead_letter_suffix="")
        client = bench.consume("t", "c", 1)
        bench.publish("t", b"poison")
        assert fail_until_dead(bench, client) == [1, 2, 3]
        assert bench.counts() == (0, 0, 0)
        assert client.channel.dead_count == 1
        assert list(bench.broker.topics) == ["t"]


def test_a_dead_letter_topic_has_no_limit(bench):
    bench.publish("t.dead", b"1")
    client = bench.consume("t.dead", "dead", 1)
    assert fail_until_dead(bench, client, 10) == list(range(1, 11))


def test_a_topic_that_becomes_a_dead_letter_topic_loses_its_limit(bench):
    client = bench.consume("morgue", "c", 1)
    bench.broker.topic("t")
    assert client.channel.max_attempts == 3
    bench.broker.configs.change(bench.broker.topics["t"], {"dead_letter": "morgue"})
    assert client.channel.max_attempts == 0
    bench.broker.configs.change(bench.broker.topics["t"], {"dead_letter": None})
    assert client.channel.max_attempts == 3


def test_a_lower_limit_applies_at_the_next_requeue(bench):
    client = bench.consume("t", "c", 1)
    bench.publish("t", b"1")
    fail_until_dead(bench, client, 2)
    bench.broker.configs.change(bench.broker.topics["t"], {"max_attempts": 1})
    bench.settle()
    assert bench.counts() == (0, 1, 0)
    assert fail_once(bench, client) == [3]
    assert bench.letters() == [b"1"]


def test_a_channel_has_a_limit_and_a_dead_letter_topic_of_its_own(bench):
    first, second = bench.consume("t", "c", 1), bench.consume("t", "d", 1)
    values = {"max_attempts": 1, "dead_letter": "morgue"}
    bench.broker.configs.change(bench.broker.topics["t"], values, "d")
    bench.publish("t", b"1")
    fail_once(bench, first)
    fail_once(bench, second)
    assert bench.letters("morgue") == [b"1"]
    assert first.link.take_bodies() == [b"1"]


@pytest.mark.parametrize("store", ["classic", "log"])
def test_the_dead_letter_topic_has_the_store_of_its_source(tmp_path, store):
    other = "log" if store == "classic" else "classic"
    bench = LetterBench(tmp_path, store=other, store_rules=[f"t={store}"])
    client = bench.consume("t", "c", 1)
    bench.publish("t", b"1")
    fail_until_dead(bench, client)
    letters = bench.broker.topics["t.dead"]
    assert (letters.log_stats() is not None) == (store == "log")
    assert letters.settings.store == store
    bench.publish("t.dead", b"2")
    assert bench.letters() == [b"1", b"2"]


def test_the_chosen_store_of_a_dead_letter_topic_survives_a_crash(tmp_path):
    bench = LetterBench(tmp_path, store="classic", store_rules=["t=log"])
    client = bench.consume("t", "c", 1)
    bench.publish("t", b"1")
    fail_until_dead(bench, client)
    again = bench.crash()
    assert again.broker.topics["t.dead"].log_stats() is not None
    assert again.letters() == [b"1"]


@pytest.mark.parametrize("store", ["classic", "log"])
def test_a_dead_letter_topic_of_another_store_gets_the_letters(tmp_path, store):
    other = "log" if store == "classic" else "classic"
    bench = LetterBench(tmp_path, store=store, store_rules=[f"t.dead={other}"])
    bench.publish("t.dead", b"0")
    client = bench.consume("t", "c", 1)
    bench.publish("t", b"1")
    fail_until_dead(bench, client)
    bench.advance(60 * MS)
    assert bench.counts() == (0, 0, 0)
    assert bench.letters() == [b"0", b"1"]


def test_an_ephemeral_channel_and_an_ephemeral_topic_have_the_limit_too(bench):
    client = bench.consume("t", "c#ephemeral", 1)
    bench.publish("t", b"1")
    assert fail_until_dead(bench, client) == [1, 2, 3]
    assert bench.letters() == [b"1"]
    client = bench.consume("e#ephemeral", "c", 1)
    bench.publish("e#ephemeral", b"2")
    assert fail_until_dead(bench, client) == [1, 2, 3]
    assert bench.letters("e.dead#ephemeral") == [b"2"]


def test_letters_wait_in_a_paused_dead_letter_topic(bench):
    bench.broker.topic("t.dead").channel("dead")
    bench.broker.topic("t.dead").pause()
    client = bench.consume("t", "c", 1)
    bench.broker.topic("t").pause()
    bench.broker.topic("t").unpause()
    bench.publish("t", b"1")
    bench.broker.topic("t").pause()
    fail_until_dead(bench, client)
    assert bench.broker.topics["t.dead"].depth == 1
    bench.broker.topic("t.dead").unpause()
    bench.settle()
    assert bench.letters() == [b"1"]


def test_a_deleted_dead_letter_topic_is_created_again(bench):
    client = bench.consume("t", "c", 1)
    bench.publish("t", b"1")
    fail_until_dead(bench, client)
    bench.broker.delete_topic("t.dead")
    bench.publish("t", b"2")
    fail_until_dead(bench, client)
    assert bench.letters() == [b"2"]


def test_a_topic_that_is_deleted_in_the_turn_of_its_failure_has_no_letter(bench):
    client = bench.consume("t", "c", 1)
    bench.publish("t", b"1")
    fail_until_dead(bench, client, 2)

    def fail_and_delete():
        client.channel.requeue(client, client.link.take_messages()[0].id, 0)
        bench.broker.delete_topic("t")

    bench.broker.turn.run(fail_and_delete)
    bench.settle()
    assert "t.dead" not in bench.broker.topics


def test_an_emptied_channel_has_no_letter_of_a_failure_in_the_same_turn(bench):
    client = bench.consume("t", "c", 1)
    bench.publish("t", b"1")
    fail_until_dead(bench, client, 2)

    def fail_and_empty():
        client.channel.requeue(client, client.link.take_messages()[0].id, 0)
        client.channel.empty()

    bench.broker.turn.run(fail_and_empty)
    bench.settle()
    assert bench.counts() == (0, 0, 0)
    assert "t.dead" not in bench.broker.topics


def test_a_failure_is_repeated_if_nsqd_stops_before_the_letter_is_written(bench):
    """The last attempt is not counted until there is a letter."""
    client = bench.consume("t", "c", 1)
    bench.publish("t", b"1")
    fail_until_dead(bench, client, 2)

    def fail_and_stop():
        client.channel.requeue(client, client.link.take_messages()[0].id, 0)
        bench.broker.exiting = True

    bench.broker.turn.run(fail_and_stop)
    assert bench.counts() == (1, 0, 0)
    again = bench.restart()
    client = again.consume("t", "c", 1)
    assert fail_once(again, client) == [3]
    assert again.letters() == [b"1"]


def test_a_letter_that_cannot_be_written_is_tried_each_second(logs):
    client = logs.consume("t", "c", 1)
    logs.publish("t", b"1")
    fail_until_dead(logs, client, 2)
    disk = BenchDisk()
    logs.broker.logs._free_disk = disk.free_disk()
    fail_once(logs, client)
    for _ in range(3):
        assert logs.counts() == (1, 0, 0)
        assert client.channel.store.cursor_stats()["holes"] == 1
        assert client.link.take_messages() == []
        logs.advance(SECOND)
    assert [line for line in logs.log.errors() if "dead letters" in line] == [
        "TOPIC(t.dead): cannot write dead letters, trying again each second - "
        "0 bytes of disk are free, --min-free-disk is 1"
    ]
    disk.is_full = False
    logs.advance(SECOND)
    assert logs.counts() == (0, 0, 0)
    assert logs.letters() == [b"1"]


def test_a_letter_of_a_classic_topic_that_cannot_be_written_is_tried_each_second(disk, monkeypatch):
    client = disk.consume("t", "c", 1)
    disk.publish("t", b"1")
    fail_until_dead(disk, client, 2)
    real = type(disk.broker.dead_letters).open_topic

    def refuse_topic(self, name, store):
        raise DiskQueueError("too many open files")

    monkeypatch.setattr(type(disk.broker.dead_letters), "open_topic", refuse_topic)
    fail_once(disk, client)
    disk.advance(2 * SECOND)
    assert disk.counts() == (1, 0, 0)
    monkeypatch.setattr(type(disk.broker.dead_letters), "open_topic", real)
    disk.advance(SECOND)
    assert disk.counts() == (0, 0, 0)
    assert disk.letters() == [b"1"]


def test_a_message_on_disk_is_finished_when_its_letter_is_durable(disk):
    """A crash in between repeats the letter, and loses nothing."""
    client = disk.consume("t", "c", 1)
    disk.publish("t", b"1")
    disk.broker.topic("t.dead").channel("dead")
    disk.settle()
    fail_until_dead(disk, client, 2)
    disk.sync_threads.is_slow = True
    fail_once(disk, client)
    assert disk.counts() == (1, 0, 0)
    while disk.sync_threads.is_busy:
        disk.sync_threads.finish()
        disk.settle()
    assert disk.counts() == (0, 0, 0)
    assert disk.letters() == [b"1"]


def test_a_failed_sync_of_a_letter_on_disk_is_repeated(disk):
    client = disk.consume("t", "c", 1)
    disk.publish("t", b"1")
    disk.broker.topic("t.dead").channel("dead")
    fail_until_dead(disk, client, 2)
    failpoints = Failpoints([Fault("data.sync", "fail", "EIO", 1, 1)], stop)
    files.set_hook(failpoints)
    try:
        fail_once(disk, client)
        disk.advance(5 * SECOND)
    finally:
        files.set_hook(None)
    assert any("Input/output error" in line for line in disk.log.errors())
    assert disk.counts() == (0, 0, 0)
    assert set(disk.letters()) == {b"1"}


def stop():
    raise Stopped


@pytest.fixture
def cold(tmp_path):
    """A broker that keeps almost nothing in memory, so that bodies are read from segments."""
    bench = LetterBench(tmp_path, store="log")
    bench.publish("t", b"0" * 5000)
    bench.restart()
    bench = LetterBench(tmp_path, store="log")
    bench.broker.logs._store.options = LogOptions(commit_size=16384, direct_size=4096, memory_size=0)
    return bench


def evict(bench):
    """Forget everything that was read from segments."""
    bench.broker.logs.blocks.forget(bench.broker.logs.find("t"))


def test_a_body_that_is_read_from_a_segment_delays_only_the_letter(cold):
    client = cold.consume("t", "c", 1)
    fail_until_dead(cold, client, 2)
    (message,) = client.link.take_messages()
    evict(cold)
    cold.sync_threads.is_slow = True
    client.channel.requeue(client, message.id, 0)
    cold.settle()
    assert cold.counts() == (1, 0, 0)
    assert client.link.take_messages() == []
    assert "t.dead" not in cold.broker.topics
    cold.sync_threads.is_slow = False
    cold.sync_threads.finish()
    cold.settle()
    assert cold.counts() == (0, 0, 0)
    assert cold.letters() == [b"0" * 5000]


def test_a_failed_read_of_a_body_is_repeated(cold):
    client = cold.consume("t", "c", 1)
    fail_until_dead(cold, client, 2)
    (message,) = client.link.take_messages()
    evict(cold)
    files.set_hook(Failpoints([Fault("segment.open", "fail", "EIO", 1, 1)], stop))
    try:
        client.channel.requeue(client, message.id, 0)
        cold.settle()
        assert cold.counts() == (1, 0, 0)
        cold.advance(SECOND)
    finally:
        files.set_hook(None)
    assert cold.counts() == (0, 0, 0)
    assert cold.letters() == [b"0" * 5000]


def test_many_failures_of_one_turn_are_one_change_of_the_log(logs):
    client = logs.consume("t", "c", 2500, msg_timeout_ns=SECOND)
    logs.broker.configs.change(logs.broker.topics["t"], {"max_attempts": 1})
    logs.publish("t", *[b"%d" % number for number in range(2500)])
    assert len(client.link.take_messages()) == 2500
    logs.advance(2 * SECOND)
    assert logs.counts() == (0, 0, 0)
    assert logs.counts("t.dead", "dead") == (2500, 0, 0)
    assert client.channel.dead_count == 2500


def run_poison(data_path, failpoints, *, is_armed_late=False):
    """Fail a message three times with a broker whose file operations ``failpoints`` sees; return the broker.

    If it is armed late, it sees the operations of the last failure only.
    """
    try:
        if not is_armed_late:
            files.set_hook(failpoints)
        bench = LetterBench(data_path, store="log")
        client = bench.consume("t", "c", 1)
        bench.publish("t", b"poison")
        fail_until_dead(bench, client, 2)
        files.set_hook(failpoints)
        fail_once(bench, client)
        bench.advance(5 * SECOND)
        return bench
    finally:
        files.set_hook(None)


class Counted:
    """Counts file operations."""

    def __init__(self):
        self.count = 0

    def __call__(self, _operation):
        self.count += 1


def count_operations(directory, **settings):
    counted = Counted()
    directory.mkdir()
    run_poison(directory, counted, **settings).broker.close_topics()
    return counted.count


@pytest.mark.parametrize("action", ["stop", "tear"])
def test_a_kill_at_any_file_operation_leaves_the_message_in_one_place(tmp_path, action):
    count = count_operations(tmp_path / "all")
    assert count > 5
    places = []
    for number in range(1, count + 1):
        directory = tmp_path / str(number)
        directory.mkdir()
        with contextlib.suppress(Stopped):
            run_poison(directory, Failpoints([Fault("*.*", action, "", number, number)], stop))
        bench = LetterBench(directory, store="log")
        depth = bench.counts()[0] if "t" in bench.broker.topics else 0
        letters = bench.letters() if "t.dead" in bench.broker.topics else []
        places.append((depth, letters))
        bench.broker.close_topics()
    assert all(place in ((0, []), (1, []), (0, [b"poison"])) for place in places), places
    assert (1, []) in places
    assert (0, [b"poison"]) in places


@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_a_failed_file_operation_delays_the_letter_and_loses_nothing(tmp_path, error):
    count = count_operations(tmp_path / "all", is_armed_late=True)
    assert count > 1
    for number in range(1, count + 1):
        directory = tmp_path / str(number)
        directory.mkdir()
        fault = Fault("*.*", "fail", error, number, number)
        bench = run_poison(directory, Failpoints([fault], stop), is_armed_late=True)
        assert bench.counts() == (0, 0, 0), number
        assert bench.letters() == [b"poison"], number
        bench.broker.close_topics()
