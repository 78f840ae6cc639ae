"""/dead, /dead/redrive, /dead/purge and /log/cancel on a broker without sockets."""

import asyncio
import inspect
import json
from urllib.parse import urlencode

import pytest
from letter_bench import LetterBench, fail_once, fail_until_dead

from broker_bench import MS, SECOND, BenchDisk
from nsqx.errors import DiskQueueError, HTTPError
from nsqx.net.http_head import parse_query
from nsqx.nsqd import dead_channel
from nsqx.nsqd.dead_api import DeadAPI
from nsqx.queues import files
from nsqx.queues.failpoints import Failpoints, Fault, Stopped
from nsqx.queues.log.store import LogOptions


class RequestStandIn:
    def __init__(self, **query):
        self.raw_query = urlencode(query, doseq=True).encode()
        self.query = parse_query(self.raw_query)


def ask(bench, name, **query):
    """Call a handler; return the JSON of its answer, or the status and code of an error."""

    async def answer():
        handler = getattr(DeadAPI(bench.broker), name)
        response = bench.broker.turn.run(handler, RequestStandIn(**query))
        if inspect.isawaitable(response):
            task = asyncio.ensure_future(response)
            for _ in range(10_000):
                bench.settle()
                await asyncio.sleep(0)
                if task.done():
                    break
            response = task.result()
        return json.loads(response.body)

    try:
        return asyncio.run(answer())
    except HTTPError as error:
        return error.status, error.code


def bodies(client):
    return client.link.take_bodies()


@pytest.fixture(params=["classic", "log"])
def bench(request, tmp_path):
    return LetterBench(tmp_path, store=request.param)


@pytest.fixture
def logs(tmp_path):
    return LetterBench(tmp_path, store="log")


# Showing


def test_letters_are_shown_with_their_origins(logs):
    logs.kill_messages(b"one", b"\xff\xfe")
    answer = ask(logs, "show", topic="t")
    first, second = answer.pop("messages")
    assert answer == {"topic": "t", "dead_letter": "t.dead", "count": 2, "next": 2, "complete": True}
    assert (first["offset"], first["state"], first["size"], first["text"]) == (0, "waiting", 3, "one")
    assert (first["origin"]["topic"], first["origin"]["channel"], first["origin"]["attempts"]) == ("t", "c", 3)
    assert second["base64"] == "//4="
    assert "text" not in second


def test_showing_letters_changes_nothing(bench):
    bench.kill_messages(b"1", b"2")
    assert [letter["text"] for letter in ask(bench, "show", topic="t")["messages"]] == ["1", "2"]
    assert bench.counts("t.dead", "dead") == (2, 0, 0)
    assert bench.letters() == [b"1", b"2"]


def test_letters_are_shown_in_parts(logs):
    logs.kill_messages(*[b"%d" % number for number in range(5)])
    answer = ask(logs, "show", topic="t", count=2)
    assert ([letter["text"] for letter in answer["messages"]], answer["complete"]) == (["0", "1"], False)
    answer = ask(logs, "show", topic="t", count=3, offset=answer["next"])
    assert ([letter["text"] for letter in answer["messages"]], answer["complete"]) == (["2", "3", "4"], True)


def test_the_first_letters_of_a_classic_topic_are_shown(tmp_path):
    bench = LetterBench(tmp_path, store="classic")
    bench.broker.topic("t.dead").channel("dead")
    bench.publish("t.dead", b"0", b"1", b"2")
    answer = ask(bench, "show", topic="t", count=2)
    assert ([letter["text"] for letter in answer["messages"]], answer["complete"]) == (["0", "1"], False)
    assert bench.letters() == [b"0", b"1", b"2"]


def test_a_body_that_is_no_text_after_the_cut_is_base64(bench):
    bench.kill_messages(b"123\xff")
    (letter,) = ask(bench, "show", topic="t", max_bytes=3)["messages"]
    assert (letter["base64"], letter["size"], letter["truncated"]) == ("MTIz", 4, True)


@pytest.mark.parametrize("store", ["classic", "log"])
def test_bodies_are_cut_to_max_bytes(tmp_path, store):
    bench = LetterBench(tmp_path, store=store)
    bench.kill_messages(b"12345", b"678", "äö".encode())
    answer = ask(bench, "show", topic="t", max_bytes=3)
    (letter,) = answer["messages"]
    assert (letter["text"], letter["size"], letter["truncated"], answer["complete"]) == ("123", 5, True, False)
    if store == "log":
        (letter,) = ask(bench, "show", topic="t", max_bytes=3, offset=2)["messages"]
        assert (letter["text"], letter["truncated"]) == ("ä", True)


def test_the_state_of_a_letter_is_shown(logs):
    logs.kill_messages(b"1", b"2", b"3", b"4")
    client = logs.consume("t.dead", "dead", 3)
    first, second, _ = client.link.take_messages()
    client.ready_count = 0
    client.channel.finish(client, first.id)
    client.channel.requeue(client, second.id, 10 * SECOND)
    logs.settle()
    answer = ask(logs, "show", topic="t")
    assert [(letter["text"], letter["state"]) for letter in answer["messages"]] == [
        ("2", "deferred"),
        ("3", "in_flight"),
        ("4", "waiting"),
    ]
    assert answer["messages"][0]["due"] == logs.clock.wall_ns() + 10 * SECOND
    assert answer["count"] == 3


def test_letters_are_filtered_by_channel_and_topic(tmp_path):
    bench = LetterBench(tmp_path, store="log", topic=[{"match": "*", "dead_letter": "morgue"}])
    bench.kill_messages(b"t c")
    bench.kill_messages(b"u c", topic="u")
    bench.broker.topic("u").channel("d")
    bench.consume("u", "c", 0)
    bench.kill_messages(b"u d", topic="u", channel="d")

    def shown(**query):
        return [letter["text"] for letter in ask(bench, "show", **query)["messages"]]

    assert shown(topic="t") == ["t c"]
    assert shown(topic="u") == ["u c", "u d"]
    assert shown(topic="u", channel="d") == ["u d"]


def test_a_channel_may_have_a_dead_letter_topic_of_its_own(bench):
    bench.broker.topic("t").channel("c")
    bench.broker.configs.change(bench.broker.topics["t"], {"dead_letter": "morgue"}, "c")
    bench.kill_messages(b"1")
    assert ask(bench, "show", topic="t") == (404, "NO_DEAD_LETTERS")
    answer = ask(bench, "show", topic="t", channel="c")
    assert (answer["dead_letter"], answer["count"]) == ("morgue", 1)


def test_letters_of_a_deleted_topic_are_shown_and_purged(logs):
    logs.kill_messages(b"1")
    logs.broker.delete_topic("t")
    logs.settle()
    assert ask(logs, "show", topic="t")["count"] == 1
    assert ask(logs, "redrive", topic="t") == (404, "TOPIC_NOT_FOUND")
    assert ask(logs, "purge", topic="t") == {"purged": 1, "left": 0}


def test_letters_on_disk_of_a_classic_topic_are_counted_and_listed(tmp_path):
    bench = LetterBench(tmp_path, store="classic", mem_queue_size=0)
    bench.kill_messages(b"1", b"2")
    answer = ask(bench, "show", topic="t")
    assert [message["text"] for message in answer["messages"]] == ["1", "2"]
    assert (answer["count"], answer["next"], answer["complete"]) == (2, 2, True)


@pytest.mark.parametrize("name", ["show", "redrive", "purge"])
def test_bad_requests_for_letters(logs, name):
    assert ask(logs, name) == (400, "MISSING_ARG_TOPIC")
    assert ask(logs, name, topic="a b") == (400, "INVALID_ARG_TOPIC")
    assert ask(logs, name, topic="t", channel="a b") == (400, "INVALID_ARG_CHANNEL")
    assert ask(logs, name, topic="t", offset="x") == (400, "INVALID_OFFSET")
    assert ask(logs, name, topic="t", offset="-1") == (400, "INVALID_OFFSET")
    assert ask(logs, name, topic="t") == (404, "NO_DEAD_LETTERS")
    logs.kill_messages(b"1")
    assert ask(logs, name, topic="t", count="0") == (400, "INVALID_COUNT")
    assert ask(logs, name, topic="t", count="many") == (400, "INVALID_COUNT")


def test_bad_requests_to_show_letters(logs):
    logs.kill_messages(b"1")
    assert ask(logs, "show", topic="t", count="1001") == (400, "INVALID_COUNT")
    assert ask(logs, "show", topic="t", max_bytes="0") == (400, "INVALID_MAX_BYTES")
    assert ask(logs, "show", topic="t", offset=[1, 2]) == (400, "INVALID_OFFSET")
    assert ask(logs, "purge", topic="t", offset=list(range(1001))) == (400, "INVALID_OFFSET")


def test_letters_of_classic_topics_have_no_offsets(tmp_path):
    bench = LetterBench(tmp_path, store="classic")
    bench.kill_messages(b"1")
    for name in ("show", "redrive", "purge"):
        assert ask(bench, name, topic="t", channel="c", offset=0) == (400, "NOT_A_LOG")


# Redriving


def test_letters_are_redriven_to_the_channel_that_failed(logs):
    logs.broker.topic("t").channel("other")
    other = logs.consume("t", "other", 10)
    logs.kill_messages(b"1", b"2")
    assert bodies(other) == [b"1", b"2"]
    assert ask(logs, "redrive", topic="t") == {"redriven": 2, "left": 0}
    assert logs.counts() == (2, 0, 0)
    assert bodies(other) == []
    client = logs.consume("t", "c", 10)
    messages = client.link.take_messages()
    assert [(message.body, message.attempts) for message in messages] == [(b"1", 1), (b"2", 1)]
    for message in messages:
        client.channel.finish(client, message.id)
    assert logs.counts() == (0, 0, 0)


def test_a_redriven_letter_that_fails_again_is_a_letter_again(bench):
    bench.kill_messages(b"1")
    for _ in range(2):
        assert ask(bench, "redrive", topic="t", channel="c") == {"redriven": 1, "left": 0}
        client = bench.consume("t", "c", 1)
        assert fail_until_dead(bench, client) == [1, 2, 3]
        bench.leave(client)
    assert bench.letters() == [b"1"]


def test_some_letters_are_redriven(logs):
    logs.kill_messages(*[b"%d" % number for number in range(6)])
    assert ask(logs, "redrive", topic="t", count=2) == {"redriven": 2, "left": 4}
    assert ask(logs, "redrive", topic="t", offset=[5, 3, 3, 99]) == {"redriven": 2, "left": 2}
    assert bodies(logs.consume("t", "c", 10)) == [b"0", b"1", b"3", b"5"]
    assert logs.counts("t.dead", "dead") == (2, 0, 0)
    assert logs.letters() == [b"2", b"4"]


def test_a_letter_taken_out_of_order_stays_taken_after_a_restart(logs):
    logs.kill_messages(*[b"%d" % number for number in range(6)])
    assert ask(logs, "purge", topic="t", offset=[4, 1]) == {"purged": 2, "left": 4}
    again = logs.crash()
    assert again.counts("t.dead", "dead") == (4, 0, 0)
    again = again.restart()
    assert sorted(again.letters()) == [b"0", b"2", b"3", b"5"]


def test_a_redrive_is_in_one_frame(logs):
    """The letter is in exactly one place after a crash at any file operation of the redrive."""
    places = []
    for number in range(1, 20):
        directory = logs.data_path / str(number)
        directory.mkdir()
        bench = LetterBench(directory, store="log")
        bench.kill_messages(b"1")
        bench.advance(SECOND)
        files.set_hook(Failpoints([Fault("*.*", "stop", "", number, number)], stop))
        try:
            ask(bench, "redrive", topic="t")
            bench.advance(SECOND)
            is_stopped = False
        except Stopped:
            is_stopped = True
        finally:
            files.set_hook(None)
        again = bench.crash()
        places.append((again.counts()[0], again.counts("t.dead", "dead")[0]))
        if not is_stopped:
            break
    assert len(places) > 2
    assert set(places) == {(0, 1), (1, 0)}


def stop():
    raise Stopped


def test_letters_in_flight_are_not_redriven(bench):
    bench.kill_messages(b"1", b"2")
    client = bench.consume("t.dead", "dead", 1)
    (message,) = client.link.take_messages()
    client.ready_count = 0
    assert ask(bench, "redrive", topic="t", channel="c") == {"redriven": 1, "left": 1}
    assert client.channel.finish(client, message.id) is None
    assert ask(bench, "redrive", topic="t", channel="c") == {"redriven": 0, "left": 0}


def test_deferred_letters_are_redriven(logs):
    logs.kill_messages(b"1")
    client = logs.consume("t.dead", "dead", 1)
    fail_once(logs, client, 10 * SECOND)
    assert logs.counts("t.dead", "dead") == (0, 0, 1)
    assert ask(logs, "redrive", topic="t") == {"redriven": 1, "left": 0}
    logs.advance(11 * SECOND)
    assert bodies(client) == []
    assert logs.counts() == (1, 0, 0)


def test_a_channel_filters_what_is_redriven(logs):
    logs.broker.topic("t").channel("d")
    logs.kill_messages(b"1")
    client = logs.consume("t", "d", 1)
    fail_until_dead(logs, client)
    assert ask(logs, "redrive", topic="t", channel="d") == {"redriven": 1, "left": 1}
    assert bodies(client) == [b"1"]
    assert logs.counts() == (0, 0, 0)


def test_letters_of_a_deleted_channel_are_not_redriven(logs):
    logs.broker.topic("t").channel("d")
    logs.kill_messages(b"1")
    client = logs.consume("t", "d", 1)
    fail_until_dead(logs, client)
    logs.broker.delete_channel("t", "c")
    assert ask(logs, "redrive", topic="t", channel="c") == (404, "CHANNEL_NOT_FOUND")
    assert ask(logs, "redrive", topic="t") == {"redriven": 1, "left": 1}
    assert ask(logs, "redrive", topic="t") == (404, "CHANNEL_NOT_FOUND")
    assert logs.counts("t.dead", "dead") == (1, 0, 0)


def test_letters_of_an_ephemeral_channel_cannot_be_redriven(logs):
    logs.broker.topic("t").channel("c")
    client = logs.consume("t", "e#ephemeral", 1)
    logs.publish("t", b"1")
    fail_until_dead(logs, client)
    assert ask(logs, "redrive", topic="t") == (404, "CHANNEL_NOT_FOUND")


def test_letters_without_origin_need_a_channel(bench):
    bench.broker.topic("t").channel("c")
    bench.broker.topic("t.dead").channel("dead")
    assert ask(bench, "redrive", topic="t") == {"redriven": 0, "left": 0}
    bench.publish("t.dead", b"1")
    assert ask(bench, "redrive", topic="t") == (400, "MISSING_ARG_CHANNEL")
    assert ask(bench, "redrive", topic="t", channel="x") == (404, "CHANNEL_NOT_FOUND")
    assert ask(bench, "redrive", topic="t", channel="c") == {"redriven": 1, "left": 0}
    assert bodies(bench.consume("t", "c", 1)) == [b"1"]


def test_many_letters_are_redriven_in_slices(bench):
    count = 5000
    bench.broker.topic("t").channel("c")
    bench.broker.topic("t.dead").channel("dead")
    bench.publish("t.dead", *[b"%d" % number for number in range(count)])
    assert ask(bench, "redrive", topic="t", channel="c", count=count - 1) == {"redriven": count - 1, "left": 1}
    assert bench.counts() == (count - 1, 0, 0)
    assert bench.counts("t.dead", "dead") == (1, 0, 0)


def test_a_letter_far_behind_is_taken_in_slices(logs):
    count = 5000
    logs.broker.topic("t.dead").channel("dead")
    logs.publish("t.dead", *[b"%d" % number for number in range(count)])
    assert ask(logs, "purge", topic="t", offset=count - 1) == {"purged": 1, "left": count - 1}
    assert logs.counts("t.dead", "dead") == (count - 1, 0, 0)
    assert logs.crash().counts("t.dead", "dead") == (count - 1, 0, 0)


@pytest.mark.parametrize("store", ["classic", "log"])
def test_letters_are_redriven_to_another_store(tmp_path, store):
    other = "log" if store == "classic" else "classic"
    bench = LetterBench(tmp_path, store=store, store_rules=[f"t.dead={other}"])
    bench.broker.topic("t.dead")
    bench.kill_messages(b"1", b"2", b"3")
    bench.advance(60 * MS)
    assert ask(bench, "redrive", topic="t", channel="c", count=2) == {"redriven": 2, "left": 1}
    assert bench.counts() == (2, 0, 0)
    assert bodies(bench.consume("t", "c", 5)) == [b"1", b"2"]


def test_a_classic_letter_on_disk_is_redriven_to_disk(tmp_path):
    bench = LetterBench(tmp_path, store="classic", mem_queue_size=0)
    bench.kill_messages(b"1")
    bench.settle()
    assert ask(bench, "redrive", topic="t", channel="c") == {"redriven": 1, "left": 0}
    assert bench.broker.topics["t"].channels["c"].backend_depth == 1
    assert bodies(bench.consume("t", "c", 1)) == [b"1"]


def test_a_letter_is_redriven_to_a_paused_topic(logs):
    logs.kill_messages(b"1")
    logs.broker.topics["t"].pause()
    logs.publish("t", b"later")
    assert ask(logs, "redrive", topic="t") == {"redriven": 1, "left": 0}
    client = logs.consume("t", "c", 5)
    logs.broker.topics["t"].unpause()
    logs.settle()
    assert sorted(bodies(client)) == [b"1", b"later"]


def test_nothing_is_redriven_to_a_full_disk_but_purging_is_possible(logs):
    logs.kill_messages(b"1")
    logs.broker.logs._free_disk = BenchDisk().free_disk()
    assert ask(logs, "redrive", topic="t") == (503, "EXITING")
    assert logs.counts("t.dead", "dead") == (1, 0, 0)
    assert logs.counts() == (0, 0, 0)
    assert ask(logs, "purge", topic="t") == {"purged": 1, "left": 0}


def test_a_failed_write_is_reported_and_repeated(logs):
    logs.kill_messages(b"1")
    logs.advance(SECOND)
    files.set_hook(Failpoints([Fault("commit.*", "fail", "EIO", 1, 2)], stop))
    try:
        assert ask(logs, "purge", topic="t") == (503, "EXITING")
    finally:
        files.set_hook(None)
    logs.advance(2 * SECOND)
    assert logs.crash().counts("t.dead", "dead") == (0, 0, 0)


def test_a_classic_target_that_cannot_be_written_keeps_the_letters(tmp_path, monkeypatch):
    bench = LetterBench(tmp_path, store="classic", mem_queue_size=0)
    bench.kill_messages(b"1")

    def refuse(_target, _count):
        raise DiskQueueError("too many open files")

    monkeypatch.setattr(dead_channel._Target, "refuse_if_full", refuse)
    assert ask(bench, "redrive", topic="t", channel="c") == (503, "EXITING")
    assert bench.counts("t.dead", "dead") == (1, 0, 0)


def test_letters_are_put_back_if_their_copies_cannot_be_synced(tmp_path):
    bench = LetterBench(tmp_path, store="classic", mem_queue_size=0)
    bench.kill_messages(b"1")
    files.set_hook(Failpoints([Fault("data.sync", "fail", "EIO", 1, 1)], stop))
    try:
        assert ask(bench, "redrive", topic="t", channel="c") == (503, "EXITING")
    finally:
        files.set_hook(None)
    assert bench.counts("t.dead", "dead") == (1, 0, 0)


def test_letters_in_segments_are_read_for_redriving(tmp_path):
    bench = LetterBench(tmp_path, store="log")
    bench.kill_messages(b"0" * 5000, b"1" * 5000)
    bench = bench.restart()
    bench.broker.logs._store.options = LogOptions(commit_size=16384, direct_size=4096, memory_size=0)
    assert [letter["size"] for letter in ask(bench, "show", topic="t")["messages"]] == [5000, 5000]
    bench.broker.logs.blocks.forget(bench.broker.logs.find("t.dead"))
    files.set_hook(Failpoints([Fault("segment.open", "fail", "EIO", 1, 2)], stop))
    try:
        assert ask(bench, "redrive", topic="t") == (503, "EXITING")
        assert ask(bench, "show", topic="t") == (503, "EXITING")
    finally:
        files.set_hook(None)
    assert ask(bench, "redrive", topic="t") == {"redriven": 2, "left": 0}
    assert bodies(bench.consume("t", "c", 2)) == [b"0" * 5000, b"1" * 5000]


# Purging


def test_letters_are_purged(bench):
    bench.kill_messages(b"1", b"2", b"3")
    assert ask(bench, "purge", topic="t", count=1) == {"purged": 1, "left": 2}
    assert ask(bench, "purge", topic="t") == {"purged": 2, "left": 0}
    assert bench.letters() == []
    assert ask(bench, "purge", topic="t") == {"purged": 0, "left": 0}


def test_letters_without_origin_are_not_purged_by_channel(bench):
    bench.broker.topic("t.dead").channel("dead")
    bench.publish("t.dead", b"1")
    assert ask(bench, "purge", topic="t", channel="c") == {"purged": 0, "left": 1}


# Cancelling


def counts(bench):
    channel = bench.broker.topics["t"].channels.get("c")
    return bench.broker.topics["t"].depth, channel.deferred_count if channel is not None else None


def test_a_deferred_publish_is_cancelled(logs):
    client = logs.consume("t", "c", 5)
    logs.defer("t", b"1", 10 * SECOND)
    logs.defer("t", b"2", 10 * SECOND)
    assert counts(logs) == (0, 2)
    assert ask(logs, "cancel", topic="t", offset=0) == {"cancelled": True}
    assert counts(logs) == (0, 1)
    assert ask(logs, "cancel", topic="t", offset=0) == (404, "NOT_DEFERRED")
    again = logs.crash()
    assert counts(again) == (0, 1)
    again.advance(11 * SECOND)
    assert bodies(again.consume("t", "c", 5)) == [b"2"]
    assert bodies(client) == []
    assert ask(again, "cancel", topic="t", offset=1) == (404, "NOT_DEFERRED")


def test_a_deferred_publish_is_cancelled_by_its_id(logs):
    logs.consume("t", "c", 5)
    logs.defer("t", b"1", 10 * SECOND)
    message_id = f"{logs.broker.logs.find('t').identity.id_number(0):016x}"
    assert ask(logs, "cancel", topic="t", id=message_id) == {"cancelled": True}
    assert counts(logs) == (0, 0)


def test_a_deferred_publish_that_counts_for_the_topic_is_cancelled(logs):
    logs.defer("t", b"1", 10 * SECOND)
    assert counts(logs) == (1, None)
    assert ask(logs, "cancel", topic="t", offset=0) == {"cancelled": True}
    assert counts(logs) == (0, None)
    logs.consume("t", "c", 5)
    assert counts(logs) == (0, 0)
    logs.broker.topics["t"].pause()
    logs.defer("t", b"2", 10 * SECOND)
    assert counts(logs) == (1, 0)
    assert ask(logs, "cancel", topic="t", offset=1) == {"cancelled": True}
    logs.broker.topics["t"].unpause()
    assert counts(logs) == (0, 0)


def test_a_message_that_was_requeued_with_a_delay_is_cancelled(logs):
    client, other = logs.consume("t", "c", 5), logs.consume("t", "d", 5)
    logs.publish("t", b"1", b"2")
    fail_once(logs, client, 10 * SECOND)
    assert logs.counts() == (0, 0, 2)
    assert ask(logs, "cancel", topic="t", offset=0) == (404, "NOT_DEFERRED")
    assert ask(logs, "cancel", topic="t", offset=0, channel="d") == (404, "NOT_DEFERRED")
    assert ask(logs, "cancel", topic="t", offset=0, channel="c") == {"cancelled": True}
    assert logs.counts() == (0, 0, 1)
    again = logs.crash()
    assert again.counts() == (0, 0, 1)
    logs.advance(11 * SECOND)
    assert bodies(client) == [b"2"]
    assert bodies(other) == [b"1", b"2"]


def test_bad_requests_to_cancel(bench):
    bench.publish("t", b"1")
    assert ask(bench, "cancel") == (400, "MISSING_ARG_TOPIC")
    assert ask(bench, "cancel", topic="x", offset=0) == (404, "TOPIC_NOT_FOUND")
    assert ask(bench, "cancel", topic="t", offset=0, channel="x") == (404, "CHANNEL_NOT_FOUND")
    is_log = bench.broker.topics["t"].log_stats() is not None
    expected = (400, "MISSING_ARG_OFFSET") if is_log else (400, "NOT_A_LOG")
    assert ask(bench, "cancel", topic="t") == expected
    if is_log:
        assert ask(bench, "cancel", topic="t", offset="x") == (400, "INVALID_OFFSET")
        assert ask(bench, "cancel", topic="t", id="x") == (400, "INVALID_ID")
        assert ask(bench, "cancel", topic="t", id="0" * 16) == (404, "NOT_DEFERRED")


def test_a_cancel_that_cannot_be_written_is_reported(logs):
    logs.consume("t", "c", 5)
    logs.defer("t", b"1", 10 * SECOND)
    logs.advance(SECOND)
    files.set_hook(Failpoints([Fault("commit.*", "fail", "EIO", 1, 2)], stop))
    try:
        assert ask(logs, "cancel", topic="t", offset=0) == (503, "EXITING")
    finally:
        files.set_hook(None)
