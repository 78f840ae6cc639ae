"""XPUB: publishes with options, for clients that have asked for them with ``"nsqx": true``."""

import json
import os
import struct

import pytest
from conversation import SessionClient

from broker_bench import MS, SECOND, Bench
from nsqx.errors import ProtocolError
from nsqx.wire.log_place import decode_log_place
from rawclient import ERROR, OK, RESPONSE, Frame, identify, mpub_body, pub, sized, sub, xpub


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path, store="log", max_msg_size=1000, max_req_timeout=5 * SECOND)


@pytest.fixture
def talk(bench):
    return negotiated(bench)


def negotiated(bench):
    talk = SessionClient(bench)
    (answer,) = talk.send(identify(feature_negotiation=True, nsqx=True))
    assert json.loads(answer.data)["nsqx"] == {"xpub": True}
    return talk


def response(**fields):
    return [Frame(RESPONSE, json.dumps(fields, separators=(",", ":")).encode())]


def test_sub_is_answered_with_the_log_of_the_topic(bench, talk):
    client = bench.consume("t", "other", 10)
    talk.send(xpub("t", [b"1", b"2", b"3"]))
    (answer,) = talk.send(sub("t", "c"))
    place = decode_log_place(answer.data)
    log = bench.broker.logs.find("t")
    assert (answer.type, place.log) == (RESPONSE, f"{log.identity.log_id:016x}")
    assert [place.offset(message.id) for message in client.link.take_messages()] == [0, 1, 2]


def test_sub_is_answered_with_ok_if_there_is_no_log_or_the_client_did_not_ask(tmp_path, bench):
    assert SessionClient(bench).send(sub("t", "c")) == [OK]
    (tmp_path / "classic").mkdir()
    classic = Bench(tmp_path / "classic", store="classic")
    assert negotiated(classic).send(sub("t", "c")) == [OK]


def test_a_publish_is_answered_with_its_offset(bench, talk):
    assert talk.send(xpub("t", [b"1", b"2"])) == response(offset=0, count=2)
    assert talk.send(xpub("t", [b"3"], producer="p", seq=1)) == response(offset=2, count=1)
    assert bench.consume("t", "c", 10).link.take_bodies() == [b"1", b"2", b"3"]
    assert talk.client.pub_counts == {"t": 3}


def test_a_repeated_publish_is_not_stored(bench, talk):
    first = xpub("t", [b"1", b"2"], producer="p", seq=5)
    assert talk.send(first) == response(offset=0, count=2)
    assert negotiated(bench).send(first) == response(offset=0, count=2, duplicate=True)
    assert talk.send(xpub("t", [b"0"], producer="p", seq=4)) == response(count=1, duplicate=True)
    assert talk.client.pub_counts == {"t": 2}
    assert bench.broker.topic("t").message_count == 2


def test_answers_keep_their_order(talk):
    sent = pub("t", b"1") + xpub("t", [b"2"], producer="p", seq=1) + pub("t", b"3") + xpub("t", [b"4"], sync=True)
    assert talk.send(sent) == [OK, *response(offset=1, count=1), OK, *response(offset=3, count=1)]


def test_a_deferred_publish_is_delivered_when_it_is_due(bench, talk):
    client = bench.consume("t", "c", 10)
    assert talk.send(xpub("t", [b"1", b"2"], defer=100)) == response(offset=0, count=2)
    assert client.link.take_bodies() == []
    bench.advance(100 * MS)
    assert client.link.take_bodies() == [b"1", b"2"]


def test_the_answer_waits_for_the_write(bench, talk):
    talk.send(pub("t", b"0"))
    bench.sync_threads.is_slow = True
    command = xpub("t", [b"x" * 900] * 300, producer="p", seq=1)  # too large to be written in the loop
    other = negotiated(bench)
    assert (talk.send(command), other.send(command)) == ([], [])
    for _ in range(3):
        bench.sync_threads.finish()
        bench.settle()
    assert talk.link.take_frames() == response(offset=1, count=300)
    assert other.link.take_frames() == response(offset=1, count=300, duplicate=True)


def test_with_sync_the_answer_waits_until_the_messages_are_durable(tmp_path):
    bench = Bench(tmp_path, store="log", durability="write")
    talk = negotiated(bench)
    talk.send(xpub("t", [b"0"]))  # the first write is always synced
    talk.send(xpub("t", [b"1"]))
    assert bench.broker.topic("t").log_stats()["stable"] == 1
    assert talk.send(xpub("t", [b"2"], sync=True)) == response(offset=2, count=1)
    assert bench.broker.topic("t").log_stats()["stable"] == 3
    talk.send(xpub("t", [b"3"], producer="p", seq=1))
    assert bench.broker.topic("t").log_stats()["stable"] == 3
    answer = response(offset=3, count=1, duplicate=True)
    assert talk.send(xpub("t", [b"3"], producer="p", seq=1, sync=True)) == answer
    assert bench.broker.topic("t").log_stats()["stable"] == 4


@pytest.mark.parametrize("options", [{}, {"sync": True}, {"producer": "p", "seq": 1}])
def test_a_failed_write_is_answered_with_the_reason(bench, talk, monkeypatch, options):
    def fail(*arguments):
        raise OSError(28, "No space left on device")

    talk.send(pub("t", b"0"))
    monkeypatch.setattr(os, "pwritev", fail)
    failure = [Frame(ERROR, b"E_XPUB_FAILED XPUB failed No space left on device")]
    assert talk.send(xpub("t", [b"1"], **options)) == failure
    assert talk.is_closed
    assert negotiated(bench).send(xpub("t", [b"2"])) == failure
    assert bench.broker.topic("t").log_stats()["refused"]["no_space"] == 2


@pytest.mark.parametrize(
    ("options", "body", "text"),
    [
        (b"[]", mpub_body([b"x"]), "XPUB options are not a JSON object"),
        (b"{", mpub_body([b"x"]), "XPUB failed to decode JSON options"),
        (b'{"ttl":1}', mpub_body([b"x"]), 'XPUB unknown option "ttl", use producer, seq, sync or defer'),
        (b'{"producer":1}', mpub_body([b"x"]), "XPUB option producer is not a string"),
        (b'{"seq":true}', mpub_body([b"x"]), "XPUB option seq is not an integer"),
        (b'{"sync":1}', mpub_body([b"x"]), "XPUB option sync is not true or false"),
        (
            b'{"producer":"a b","seq":1}',
            mpub_body([b"x"]),
            'XPUB producer "a b" is not valid, use 1-64 of a-z A-Z 0-9 . _ -',
        ),
        (b'{"seq":1}', mpub_body([b"x"]), 'XPUB producer "" is not valid, use 1-64 of a-z A-Z 0-9 . _ -'),
        (b'{"producer":"p"}', mpub_body([b"x"]), "XPUB seq 0 out of range 1-4611686018427387903"),
        (b'{"defer":-1}', mpub_body([b"x"]), "XPUB defer -1 out of range 0-5000"),
        (b'{"defer":5001}', mpub_body([b"x"]), "XPUB defer 5001 out of range 0-5000"),
        (b"{}", b"", "XPUB failed to read message count"),
        (b"{}", b"\0\0\0\0", "XPUB invalid message count 0"),
        (b"{}", mpub_body([b""]), "XPUB invalid message(0) body size 0"),
        (b"{}", mpub_body([b"x" * 1001]), "XPUB message too big 1001 > 1000"),
        (b"{}", mpub_body([b"x"])[:-1], "XPUB failed to read message body"),
        (b"{}", mpub_body([b"x"]) + b"yz", "XPUB 2 bytes follow the last message"),
        (b"{}", mpub_body([b"x"] * 20_001), "XPUB 20001 messages, at most 20000 are allowed"),
    ],
)
def test_an_invalid_body_is_refused(bench, talk, options, body, text):
    sent = b"XPUB t\n" + sized(struct.pack(">H", len(options)) + options + body)
    assert talk.send(sent) == [Frame(ERROR, f"E_BAD_BODY {text}".encode())]
    assert talk.is_closed
    assert "t" not in bench.broker.topics


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"XPUB\n", "E_INVALID XPUB insufficient number of parameters"),
        (b"XPUB bad*\n", 'E_BAD_TOPIC XPUB topic name "bad*" is not valid'),
        (b"XPUB t\n\0\0\0\0", "E_BAD_BODY XPUB invalid body size 0"),
        (b"XPUB t\n\x7f\0\0\0", "E_BAD_BODY XPUB body too big 2130706432 > 5242880"),
        (b"XPUB t\n\0\0\0\1x", "E_BAD_BODY XPUB failed to read the size of the options"),
        (b"XPUB t\n\0\0\0\4\0\3{}", "E_BAD_BODY XPUB options of 3 bytes exceed the body"),
    ],
)
def test_an_invalid_command_is_refused(talk, sent, text):
    assert talk.send(sent) == [Frame(ERROR, text.encode())]
    assert talk.is_closed


@pytest.mark.parametrize(("sent", "what"), [(b"XPUB t\n\0", "body size"), (b"XPUB t\n\0\0\0\5x", "body")])
def test_a_truncated_command_is_refused(talk, sent, what):
    assert talk.send(sent) == []
    assert talk.send_eof() == [Frame(ERROR, f"E_BAD_BODY XPUB failed to read {what}".encode())]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"feature_negotiation": True},
        {"feature_negotiation": True, "nsqx": False},
        {"feature_negotiation": True, "nsqx": 1},
        {"feature_negotiation": True, "nsqx": {"xpub": True}},
        {"nsqx": True},  # without negotiation there is no answer that grants it
    ],
)
def test_a_client_that_has_not_negotiated_gets_the_answer_of_go(bench, fields):
    talk = SessionClient(bench)
    (answer,) = talk.send(identify(**fields))
    assert b'"nsqx":' not in answer.data
    assert talk.send(xpub("t", [b"x"])) == [Frame(ERROR, b"E_INVALID invalid command XPUB")]
    assert talk.is_closed


def test_a_classic_topic_takes_only_what_needs_no_log(tmp_path):
    bench = Bench(tmp_path, store="classic")
    assert negotiated(bench).send(xpub("t", [b"1", b"2"])) == response(count=2)
    for options in ({"producer": "p", "seq": 1}, {"sync": True}):
        option = next(iter(options))
        text = f"E_XPUB_FAILED XPUB failed {option} needs a log topic, and t is not a log topic (see --store)"
        assert negotiated(bench).send(xpub("t", [b"1"], **options)) == [Frame(ERROR, text.encode())]
    assert bench.broker.topic("t").message_count == 2


def test_xpub_needs_the_right_of_pub(bench, talk):
    class Authorizer:
        is_enabled = True

        def is_current(self, client):
            return True

        def check(self, client, command, topic_name, channel_name):
            raise ProtocolError("E_UNAUTHORIZED", f"{command} {topic_name} {channel_name!r}")

    bench.broker.authorizer = Authorizer()
    assert talk.send(xpub("t", [b"x"])) == [Frame(ERROR, b"E_UNAUTHORIZED XPUB t ''")]
    assert "t" not in bench.broker.topics


def test_a_subscriber_may_publish_too(talk):
    talk.send(sub("t", "c"))
    assert talk.send(xpub("u", [b"x"])) == response(offset=0, count=1)


def test_an_exiting_nsqd_refuses(bench, talk):
    bench.broker.topic("t")
    bench.broker.close_topics()
    assert talk.send(xpub("t", [b"x"])) == [Frame(ERROR, b"E_XPUB_FAILED XPUB failed exiting")]
