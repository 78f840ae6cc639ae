"""Every error of the protocol: the commands that a client sends, and the error frame byte for byte."""

import errno
import os
import struct

import pytest
from conversation import SessionClient

from nsqx.errors import ProtocolError
from rawclient import (
    ERROR,
    OK,
    RESPONSE,
    Frame,
    auth,
    cls,
    dpub,
    fin,
    mpub,
    nop,
    pub,
    rdy,
    req,
    sized,
    sub,
    touch,
)

ID = b"0123456789abcdef"
SMALL = {"max_msg_size": 10, "max_body_size": 100, "max_rdy_count": 50, "max_req_timeout": 5_000_000_000}
SUBSCRIBED = [sub("t", "c")]
CLOSING = [sub("t", "c"), cls()]


def size(number):
    return struct.pack(">i", number)


def refused(talk, sent, text):
    """Assert that ``sent`` gets this error and nothing else, and that later input is ignored."""
    assert talk.send(sent + b"NONSENSE\n") == [Frame(ERROR, text.encode("utf-8", "surrogateescape"))]
    assert talk.is_closed
    talk.session.receive(pub("after_the_end", b"x"))
    assert "after_the_end" not in talk.bench.broker.topics


@pytest.fixture
def talk(make_bench):
    return SessionClient(make_bench(**SMALL))


# Errors that leave the connection open


@pytest.mark.parametrize("before", [SUBSCRIBED, CLOSING])
@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (fin(ID), b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight"),
        (b"FIN 0123456789ABCDEF\n", b"E_FIN_FAILED FIN 0123456789ABCDEF failed ID not in flight"),
        (b"FIN 0123456789abcdef extra\n", b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight"),
        (b"FIN \xff23456789abcdef!\n", b"E_FIN_FAILED FIN \xff23456789abcdef! failed ID not in flight"),
        (req(ID, 0), b"E_REQ_FAILED REQ 0123456789abcdef failed ID not in flight"),
        (b"REQ 0123456789abcdef \n", b"E_REQ_FAILED REQ 0123456789abcdef failed ID not in flight"),
        (touch(ID), b"E_TOUCH_FAILED TOUCH 0123456789abcdef failed ID not in flight"),
    ],
)
def test_errors_that_do_not_end_the_connection(talk, before, sent, text):
    for command in before:
        talk.send(command)
    assert talk.send(sent + sent) == [Frame(ERROR, text)] * 2
    assert not talk.is_closed
    assert talk.send(nop() + pub("u", b"x")) == [OK]


def test_messages_of_another_client_cannot_be_answered(make_bench):
    bench = make_bench()
    owner, other = SessionClient(bench), SessionClient(bench)
    owner.send(sub("t", "c") + rdy(1))
    other.send(sub("t", "c"))
    bench.publish("t", b"x")
    message_id = owner.take_message().id.decode()
    for command, name in ((fin, "FIN"), (touch, "TOUCH"), (lambda i: req(i, 0), "REQ")):
        text = f"E_{name}_FAILED {name} {message_id} failed client does not own message"
        assert other.send(command(message_id.encode())) == [Frame(ERROR, text.encode())]
    assert owner.send(fin(message_id.encode())) == []


# Lines


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"\n", "E_INVALID invalid command "),
        (b"\r\n", "E_INVALID invalid command "),
        (b" NOP\n", "E_INVALID invalid command "),
        (b"PING\n", "E_INVALID invalid command PING"),
        (b"nop\n", "E_INVALID invalid command nop"),
        (b"NOP\t\n", "E_INVALID invalid command NOP\t"),
        (b"PUB\r t\n", "E_INVALID invalid command PUB\r"),
        (b"\xff\xfe\n", "E_INVALID invalid command \udcff\udcfe"),
        ("caf\u00e9\n".encode(), "E_INVALID invalid command caf\u00e9"),
        (b"FINISH " + ID + b"\n", "E_INVALID invalid command FINISH"),
        # parameters
        (b"SUB\n", "E_INVALID SUB insufficient number of parameters"),
        (b"SUB t\n", "E_INVALID SUB insufficient number of parameters"),
        (b"PUB\n", "E_INVALID PUB insufficient number of parameters"),
        (b"MPUB\n", "E_INVALID MPUB insufficient number of parameters"),
        (b"DPUB\n", "E_INVALID DPUB insufficient number of parameters"),
        (b"DPUB t\n", "E_INVALID DPUB insufficient number of parameters"),
        (b"AUTH now\n", "E_INVALID AUTH invalid number of parameters"),
        # names
        (b"SUB bad* c\n", 'E_BAD_TOPIC SUB topic name "bad*" is not valid'),
        (b"SUB  c\n", 'E_BAD_TOPIC SUB topic name "" is not valid'),
        (b"SUB t bad*\n", 'E_BAD_CHANNEL SUB channel name "bad*" is not valid'),
        (b"SUB t " + b"c" * 65 + b"\n", f'E_BAD_CHANNEL SUB channel name "{"c" * 65}" is not valid'),
        (b"PUB bad*\n", 'E_BAD_TOPIC PUB topic name "bad*" is not valid'),
        (b"PUB \n", 'E_BAD_TOPIC PUB topic name "" is not valid'),
        (b'PUB "\\\n', 'E_BAD_TOPIC PUB topic name "\\"\\\\" is not valid'),
        (b"PUB \xff\x01\n", 'E_BAD_TOPIC PUB topic name "\\xff\\x01" is not valid'),
        ("PUB \u00e9\n".encode(), 'E_BAD_TOPIC PUB topic name "\u00e9" is not valid'),
        (b"PUB " + b"t" * 65 + b"\n", f'E_BAD_TOPIC PUB topic name "{"t" * 65}" is not valid'),
        (b"MPUB bad*\n", 'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "bad*" is not valid'),
        (b"DPUB bad* 1\n", 'E_BAD_TOPIC DPUB topic name "bad*" is not valid'),
        # numbers
        (b"DPUB t x\n", "E_INVALID DPUB could not parse timeout x"),
        (b"DPUB t -1\n", "E_INVALID DPUB could not parse timeout -1"),
        (b"DPUB t +1\n", "E_INVALID DPUB could not parse timeout +1"),
        (b"DPUB t 5001\n", "E_INVALID DPUB timeout 5001 out of range 0-5000"),
        (b"DPUB t 18446744073709551615\n", None),
        (b"DPUB t 9223372036855\n", "E_INVALID DPUB timeout 9223372036855 out of range 0-5000"),
    ],
)
def test_invalid_lines_are_refused(talk, sent, text):
    if text is None:
        # -1 ms after it has wrapped, which is negative.
        text = "E_INVALID DPUB timeout 18446744073709551615 out of range 0-5000"
    refused(talk, sent, text)


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"RDY x\n", "E_INVALID RDY could not parse count x"),
        (b"RDY -1\n", "E_INVALID RDY could not parse count -1"),
        (b"RDY 1.0\n", "E_INVALID RDY could not parse count 1.0"),
        (b"RDY 51\n", "E_INVALID RDY count 51 out of range 0-50"),
        (b"RDY 18446744073709551615\n", "E_INVALID RDY count -1 out of range 0-50"),
        (b"FIN\n", "E_INVALID FIN insufficient number of params"),
        (b"FIN \n", "E_INVALID invalid message ID"),
        (b"FIN 0123456789abcde\n", "E_INVALID invalid message ID"),
        (b"FIN 0123456789abcdef0\n", "E_INVALID invalid message ID"),
        (b"REQ\n", "E_INVALID REQ insufficient number of params"),
        (b"REQ " + ID + b"\n", "E_INVALID REQ insufficient number of params"),
        (b"REQ short 0\n", "E_INVALID invalid message ID"),
        (b"REQ " + ID + b" x\n", "E_INVALID REQ could not parse timeout x"),
        (b"REQ " + ID + b" -1\n", "E_INVALID REQ could not parse timeout -1"),
        (b"TOUCH\n", "E_INVALID TOUCH insufficient number of params"),
        (b"TOUCH short\n", "E_INVALID invalid message ID"),
    ],
)
def test_invalid_lines_of_a_consumer_are_refused(talk, sent, text):
    talk.send(sub("t", "c"))
    refused(talk, sent, text)


@pytest.mark.parametrize(
    ("sent", "count"),
    [(b"RDY\n", 1), (b"RDY \n", 0), (b"RDY 0\n", 0), (b"RDY 50\n", 50), (b"RDY 007\n", 7), (b"RDY 5 6\n", 5),
     (b"RDY 18446744073709551617\n", 1)],
)  # fmt: skip
def test_valid_ready_counts_are_accepted(talk, sent, count):
    talk.send(sub("t", "c") + rdy(20))
    assert talk.send(sent) == []
    assert talk.client.ready_count == count


def test_a_line_of_the_maximum_length_is_accepted(talk):
    name = "X" * 16383
    refused(talk, name.encode() + b"\n", f"E_INVALID invalid command {name}")


@pytest.mark.parametrize("sent", [b"X" * 16384, b"X" * 16384 + b"\n", b"X" * 50_000 + b"\nNOP\n"])
def test_a_longer_line_closes_the_connection_without_an_answer(talk, sent):
    assert talk.send(sent) == []
    assert talk.is_closed


# Sizes and bodies


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"PUB t\n" + size(0), "E_BAD_MESSAGE PUB invalid message body size 0"),
        (b"PUB t\n" + size(-1), "E_BAD_MESSAGE PUB invalid message body size -1"),
        (b"PUB t\n" + size(11), "E_BAD_MESSAGE PUB message too big 11 > 10"),
        (b"DPUB t 1\n" + size(0), "E_BAD_MESSAGE DPUB invalid message body size 0"),
        (b"DPUB t 1\n" + size(-(2**31)), "E_BAD_MESSAGE DPUB invalid message body size -2147483648"),
        (b"DPUB t 1\n" + size(2**31 - 1), "E_BAD_MESSAGE DPUB message too big 2147483647 > 10"),
        (b"MPUB t\n" + size(0), "E_BAD_BODY MPUB invalid body size 0"),
        (b"MPUB t\n" + size(-1), "E_BAD_BODY MPUB invalid body size -1"),
        (b"MPUB t\n" + size(101), "E_BAD_BODY MPUB body too big 101 > 100"),
        (b"MPUB t\n" + size(20) + size(0), "E_BAD_BODY MPUB invalid message count 0"),
        (b"MPUB t\n" + size(20) + size(-1), "E_BAD_BODY MPUB invalid message count -1"),
        (b"MPUB t\n" + size(20) + size(20), "E_BAD_BODY MPUB invalid message count 20"),
        (b"MPUB t\n" + size(20) + size(2) + size(0), "E_BAD_MESSAGE MPUB invalid message(0) body size 0"),
        (
            b"MPUB t\n" + size(20) + size(2) + sized(b"x") + size(-7),
            "E_BAD_MESSAGE MPUB invalid message(1) body size -7",
        ),
        (b"MPUB t\n" + size(20) + size(2) + sized(b"x") + size(11), "E_BAD_MESSAGE MPUB message too big 11 > 10"),
        (b"IDENTIFY\n" + size(0), "E_BAD_BODY IDENTIFY invalid body size 0"),
        (b"IDENTIFY\n" + size(-1), "E_BAD_BODY IDENTIFY invalid body size -1"),
        (b"IDENTIFY\n" + size(101), "E_BAD_BODY IDENTIFY body too big 101 > 100"),
        (b"AUTH\n" + size(0), "E_BAD_BODY AUTH invalid body size 0"),
        (b"AUTH\n" + size(-1), "E_BAD_BODY AUTH invalid body size -1"),
        (b"AUTH\n" + size(101), "E_BAD_BODY AUTH body too big 101 > 100"),
        (auth(b"secret"), "E_AUTH_DISABLED AUTH disabled"),
    ],
)
def test_invalid_sizes_are_refused(talk, sent, text):
    refused(talk, sent, text)


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"PUB t\n", "E_BAD_MESSAGE PUB failed to read message body size"),
        (b"PUB t\n\x00\x00", "E_BAD_MESSAGE PUB failed to read message body size"),
        (b"PUB t\n" + size(5), "E_BAD_MESSAGE PUB failed to read message body"),
        (b"PUB t\n" + size(5) + b"1234", "E_BAD_MESSAGE PUB failed to read message body"),
        (b"DPUB t 1\n\x00", "E_BAD_MESSAGE DPUB failed to read message body size"),
        (b"DPUB t 1\n" + size(5) + b"1", "E_BAD_MESSAGE DPUB failed to read message body"),
        (b"MPUB t\n", "E_BAD_BODY MPUB failed to read body size"),
        (b"MPUB t\n" + size(50), "E_BAD_BODY MPUB failed to read message count"),
        (b"MPUB t\n" + size(50) + size(2), "E_BAD_MESSAGE MPUB failed to read message(0) body size"),
        (b"MPUB t\n" + size(50) + size(2) + size(5) + b"12", "E_BAD_MESSAGE MPUB failed to read message body"),
        (b"MPUB t\n" + size(50) + size(2) + sized(b"x"), "E_BAD_MESSAGE MPUB failed to read message(1) body size"),
        (b"IDENTIFY\n", "E_BAD_BODY IDENTIFY failed to read body size"),
        (b"IDENTIFY\n" + size(5) + b"{", "E_BAD_BODY IDENTIFY failed to read body"),
        (b"AUTH\n\x00", "E_BAD_BODY AUTH failed to read body size"),
        (b"AUTH\n" + size(5), "E_BAD_BODY AUTH failed to read body"),
    ],
)
def test_truncated_bodies_are_refused(talk, sent, text):
    assert talk.send(sent) == []
    assert talk.send_eof() == [Frame(ERROR, text.encode())]
    assert talk.is_closed


@pytest.mark.parametrize("sent", [b"", nop(), b"PUB t", b"N"])
def test_an_end_of_input_between_commands_is_not_an_error(talk, sent):
    assert talk.send(sent) == []
    assert talk.send_eof() == []
    assert talk.is_closed
    assert talk.send_eof() == []


# Errors of the broker


def test_too_many_consumers_are_refused(make_bench):
    bench = make_bench(max_channel_consumers=1)
    SessionClient(bench).send(sub("t", "c"))
    refused(SessionClient(bench), sub("t", "c"), "E_SUB_FAILED SUB failed consumers for t:c exceeds limit of 1")


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (pub("new", b"x"), "E_PUB_FAILED PUB failed exiting"),
        (dpub("new", 1, b"x"), "E_DPUB_FAILED DPUB failed exiting"),
        (mpub("new", [b"x"]), "E_MPUB_FAILED MPUB failed exiting"),
        (sub("new", "c"), "E_SUB_FAILED SUB failed exiting"),
        (pub("t", b"x"), "E_PUB_FAILED PUB failed exiting"),
        (dpub("t", 1, b"x"), "E_DPUB_FAILED DPUB failed exiting"),
        (mpub("t", [b"x"]), "E_MPUB_FAILED MPUB failed exiting"),
        (sub("t", "new"), "E_SUB_FAILED SUB failed exiting"),
        (sub("t", "c"), "E_SUB_FAILED SUB failed exiting"),
    ],
)
def test_an_exiting_broker_refuses_commands(bench, talk, sent, text):
    talk.bench.broker.topic("t").channel("c")
    talk.bench.broker.close_topics()
    refused(talk, sent, text)


def test_a_batch_for_a_deleted_topic_is_refused(talk):
    batch = mpub("t", [b"x"])
    talk.send(batch[:15])
    talk.bench.broker.delete_topic("t")
    refused(talk, batch[15:], "E_MPUB_FAILED MPUB failed exiting")


@pytest.mark.parametrize(
    ("sent", "name"), [(pub("t", b"x"), "PUB"), (mpub("t", [b"x", b"y"]), "MPUB"), (dpub("t", 9, b"x"), "DPUB")]
)
def test_a_full_disk_refuses_publishes(make_bench, monkeypatch, sent, name):
    talk = SessionClient(make_bench(mem_queue_size=0))

    def fail(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", fail)
    monkeypatch.setattr(os, "pwritev", fail)
    text = f"E_{name}_FAILED {name} failed No space left on device"
    assert talk.send(sent) == [Frame(ERROR, text.encode())]
    assert talk.is_closed


@pytest.mark.parametrize(
    ("sent", "name"),
    [(pub("t", b"x"), "PUB"), (mpub("t", [b"x"]), "MPUB"), (dpub("t", 9, b"x"), "DPUB"), (sub("t", "c"), "SUB")],
)
def test_a_topic_whose_files_cannot_be_opened_is_an_error(make_bench, tmp_path, sent, name):
    talk = SessionClient(make_bench(store="classic"))
    (tmp_path / "t.diskqueue.meta.dat").mkdir()
    (frame,) = talk.send(sent)
    assert frame.type == ERROR
    assert frame.data.startswith(f"E_{name}_FAILED {name} failed ".encode())
    assert talk.is_closed


# AUTH


class AuthorizerStandIn:
    """Refuses everything, and records the checks."""

    is_enabled = True

    def __init__(self):
        self.checks = []

    def authenticate(self, client, secret, done):
        client.authed = True
        done(b'{"identity":"","identity_url":"","permission_count":1}')

    def is_current(self, client):
        return True

    def check(self, client, command, topic_name, channel_name):
        self.checks.append((command, topic_name, channel_name))
        raise ProtocolError("E_AUTH_FIRST", f"AUTH required before {command}")


@pytest.mark.parametrize(
    ("sent", "check"),
    [
        (sub("t", "c"), ("SUB", "t", "c")),
        (pub("t", b"x"), ("PUB", "t", "")),
        (dpub("t", 1, b"x"), ("DPUB", "t", "")),
        (b"MPUB t\n", ("MPUB", "t", "")),  # before the body is read
    ],
)
def test_publishing_and_subscribing_need_authorization(talk, sent, check):
    talk.bench.broker.authorizer = AuthorizerStandIn()
    refused(talk, sent, f"E_AUTH_FIRST AUTH required before {check[0]}")
    assert talk.bench.broker.authorizer.checks == [check]
    assert talk.bench.broker.topics == {}


def test_a_single_publish_is_read_before_it_is_authorized(talk):
    talk.bench.broker.authorizer = AuthorizerStandIn()
    assert talk.send(b"PUB t\n") == []
    refused(talk, size(0), "E_BAD_MESSAGE PUB invalid message body size 0")


def test_a_second_auth_is_refused(talk):
    talk.bench.broker.authorizer = AuthorizerStandIn()
    assert talk.send(auth(b"secret")) == [Frame(RESPONSE, b'{"identity":"","identity_url":"","permission_count":1}')]
    refused(talk, auth(b"secret"), "E_INVALID AUTH already set")
