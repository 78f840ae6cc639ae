"""Sessions as transcripts: bytes in, answers out, with the effects on the registry and the log."""

import asyncio
import io
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqx.log import INFO, Log
from nsqx.nsqlookupd.lookupd import Lookupd
from nsqx.nsqlookupd.options import NsqlookupdOptions
from nsqx.nsqlookupd.session import LINES_PER_SLICE, PeerSession
from nsqx.wire.lookup import MAX_IDENTIFY_SIZE, Announcement, encode_identify

MAGIC = b"  V1"
IDENTIFY = encode_identify(Announcement("host", 4150, 4151, "1.3.0", "name"))
INTRODUCTION = b'{"version":"1.3.0"}'


class SessionHarness:
    """A lookupd with one session, and their log."""

    def __init__(self):
        self.stream = io.StringIO()
        self.lookupd = Lookupd(NsqlookupdOptions(), Log("", INFO, self.stream))
        self.lookupd.introduction = INTRODUCTION
        self.session = PeerSession(self.lookupd, "1.2.3.4:5")

    def ask(self, data):
        answers = self.session.receive(data)
        while self.session.has_more:
            answers += self.session.proceed()
        return answers_in(answers)

    @property
    def log(self):
        """The lines of the log without their time."""
        return [line.split(" ", 2)[2] for line in self.stream.getvalue().splitlines()]


def answers_in(data):
    found = []
    while data:
        (size,) = struct.unpack(">i", data[:4])
        found.append(data[4 : 4 + size])
        data = data[4 + size :]
    return found


@pytest.fixture
def harness():
    return SessionHarness()


@pytest.fixture
def nsqd():
    """A harness whose client has sent IDENTIFY."""
    harness = SessionHarness()
    assert harness.ask(MAGIC + IDENTIFY) == [INTRODUCTION]
    return harness


class TestBeginning:
    def test_a_wrong_magic_is_an_error(self, harness):
        assert harness.ask(b"  V2PING\n") == [b"E_BAD_PROTOCOL"]
        assert harness.session.ended
        harness.session.close("EOF")
        assert harness.log[1:] == [
            "INFO: CLIENT(1.2.3.4:5): desired protocol magic '  V2'",
            "ERROR: client(1.2.3.4:5) bad protocol magic '  V2'",
        ]

    def test_a_connection_may_end_before_the_magic(self, harness):
        assert harness.ask(b"  V") == []
        assert harness.session.receive_end() == b""
        harness.session.close("EOF")
        assert harness.log[1:] == ["INFO: failed to read protocol version - EOF"]

    def test_ping_is_allowed_before_identify(self, harness):
        assert harness.ask(MAGIC + b"PING\n") == [b"OK"]

    @pytest.mark.parametrize("command", [b"REGISTER t", b"REGISTER", b"UNREGISTER t"])
    def test_other_commands_need_identify(self, harness, command):
        assert harness.ask(MAGIC + command + b"\nPING\n") == [b"E_INVALID client must IDENTIFY"]
        assert harness.session.ended


class TestIdentify:
    def test_identify_registers_the_peer(self, nsqd):
        (peer,) = nsqd.lookupd.registry.clients.producers
        assert (peer.id, peer.node) == ("1.2.3.4:5", "host:4151")
        assert json.loads(peer.described)["remote_address"] == "1.2.3.4:5"
        assert nsqd.log[-2:] == [
            "INFO: CLIENT(1.2.3.4:5): IDENTIFY Address:host TCP:4150 HTTP:4151 Version:1.3.0",
            "INFO: DB: client(1.2.3.4:5) REGISTER category:client key: subkey:",
        ]

    def test_a_second_identify_is_an_error(self, nsqd):
        assert nsqd.ask(b"IDENTIFY\n") == [b"E_INVALID cannot IDENTIFY again"]
        assert not nsqd.lookupd.registry.clients.producers

    @pytest.mark.parametrize(
        ("size", "text"),
        [
            (0, b"E_BAD_BODY IDENTIFY invalid body size 0"),
            (-1, b"E_BAD_BODY IDENTIFY invalid body size -1"),
            (MAX_IDENTIFY_SIZE + 1, b"E_BAD_BODY IDENTIFY body too big 1048577 > 1048576"),
            (2**31 - 1, b"E_BAD_BODY IDENTIFY body too big 2147483647 > 1048576"),
        ],
    )
    def test_an_invalid_identify_size_is_an_error(self, harness, size, text):
        assert harness.ask(MAGIC + b"IDENTIFY\n" + struct.pack(">i", size)) == [text]

    def test_the_largest_identify_is_accepted(self, harness):
        start = IDENTIFY[13:-1] + b',"x":"'
        body = start + b"y" * (MAX_IDENTIFY_SIZE - len(start) - 2) + b'"}'
        assert harness.ask(MAGIC + b"IDENTIFY\n" + struct.pack(">i", MAX_IDENTIFY_SIZE) + body) == [INTRODUCTION]

    @pytest.mark.parametrize(
        ("body", "text"),
        [
            (b"x", b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
            (b'{"version":5}', b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
            (b"{}", b"E_BAD_BODY IDENTIFY missing fields"),
            (b"null", b"E_BAD_BODY IDENTIFY missing fields"),
        ],
    )
    def test_an_invalid_identify_body_is_an_error(self, harness, body, text):
        assert harness.ask(MAGIC + b"IDENTIFY\n" + struct.pack(">i", len(body)) + body) == [text]

    @pytest.mark.parametrize(
        ("cut_off", "text"),
        [
            (b"IDENTIFY\n", b"E_BAD_BODY IDENTIFY failed to read body size"),
            (b"IDENTIFY\n\0\0\0", b"E_BAD_BODY IDENTIFY failed to read body size"),
            (b"IDENTIFY\n\0\0\0\5", b"E_BAD_BODY IDENTIFY failed to read body"),
            (b"IDENTIFY\n\0\0\0\5{}", b"E_BAD_BODY IDENTIFY failed to read body"),
        ],
    )
    def test_an_incomplete_identify_is_an_error(self, harness, cut_off, text):
        assert harness.ask(MAGIC + cut_off) == []
        assert answers_in(harness.session.receive_end()) == [text]
        assert harness.session.ended


class TestRegistering:
    def test_a_topic_and_a_channel_are_registered(self, nsqd):
        assert nsqd.ask(b"REGISTER t\nREGISTER t ch\nREGISTER t ch\n") == [b"OK"] * 3
        registry = nsqd.lookupd.registry
        assert [topic.key for topic in registry.topics()] == ["t"]
        assert [channel.subkey for channel in registry.channels("t")] == ["ch"]
        assert nsqd.log[-2:] == [
            "INFO: DB: client(1.2.3.4:5) REGISTER category:topic key:t subkey:",
            "INFO: DB: client(1.2.3.4:5) REGISTER category:channel key:t subkey:ch",
        ]

    def test_a_topic_and_a_channel_are_unregistered(self, nsqd):
        assert nsqd.ask(b"REGISTER t ch\nUNREGISTER t ch\nUNREGISTER t\nUNREGISTER t\n") == [b"OK"] * 4
        assert nsqd.log[-2:] == [
            "INFO: DB: client(1.2.3.4:5) UNREGISTER category:channel key:t subkey:ch",
            "INFO: DB: client(1.2.3.4:5) UNREGISTER category:topic key:t subkey:",
        ]

    def test_unregistering_a_topic_before_its_channels_logs_a_warning(self, nsqd):
        nsqd.ask(b"REGISTER t ch\nUNREGISTER t\n")
        assert nsqd.log[-2] == "WARNING: client(1.2.3.4:5) unexpected UNREGISTER category:channel key:t subkey:ch"

    @pytest.mark.parametrize(
        ("line", "text"),
        [
            (b"REGISTER", b"E_INVALID REGISTER insufficient number of params"),
            (b"UNREGISTER", b"E_INVALID UNREGISTER insufficient number of params"),
            (b"REGISTER /", b"E_BAD_TOPIC REGISTER topic name '/' is not valid"),
            (b"REGISTER  t", b"E_BAD_TOPIC REGISTER topic name '' is not valid"),
            (b"UNREGISTER \xff", b"E_BAD_TOPIC UNREGISTER topic name '\xff' is not valid"),
            (b"REGISTER t *", b"E_BAD_CHANNEL REGISTER channel name '*' is not valid"),
            (b"NOPE t", b"E_INVALID invalid command NOPE"),
            (b"", b"E_INVALID invalid command "),
            (b"x" * 20000, b"E_INVALID command line too long > 16384"),
        ],
        ids=lambda value: repr(value[:20]),
    )
    def test_errors_end_the_session(self, nsqd, line, text):
        assert nsqd.ask(b"REGISTER t ch\n" + line + b"\nPING\n") == [b"OK", text]
        assert nsqd.session.ended
        assert nsqd.ask(b"PING\n") == []
        registry = nsqd.lookupd.registry
        assert not any(one.producers for one in registry.registrations())
        assert registry.channel_count == 1

    def test_registrations_are_counted(self, nsqd):
        nsqd.ask(b"REGISTER t ch\nREGISTER t ch\nUNREGISTER t ch\nPING\n")
        nsqd.session.close("EOF")
        counts = nsqd.lookupd.counts
        assert (counts.registrations, counts.unregistrations, counts.pings) == (3, 3, 1)


class TestEnd:
    def test_the_end_of_a_session_is_logged(self, nsqd):
        nsqd.ask(b"REGISTER t\n")
        before = len(nsqd.log)
        nsqd.session.close("EOF")
        nsqd.session.close("EOF")
        assert nsqd.log[before:] == [
            "INFO: PROTOCOL(V1): [1.2.3.4:5] exiting ioloop",
            "INFO: DB: client(1.2.3.4:5) UNREGISTER category:topic key:t subkey:",
            "INFO: DB: client(1.2.3.4:5) UNREGISTER category:client key: subkey:",
            "INFO: client(1.2.3.4:5) - EOF",
        ]

    def test_a_client_cannot_forge_log_lines(self, harness):
        forged = Announcement("host\n[x] INFO: forged", 1, 2, "v\x1b[2J", "h")
        harness.ask(MAGIC + encode_identify(forged))
        harness.ask(b"NOPE\rFATAL: forged\x1b[2J\n")
        assert not any(character in "\n".join(harness.log) for character in "\r\x1b")
        assert not any(line.startswith("forged") for line in harness.log)
        assert len(harness.log) == 8


SCRIPT = MAGIC + IDENTIFY + b"REGISTER t ch\r\n PING \nUNREGISTER t\nREGISTER u\nNOPE\nPING\n"


@given(st.lists(st.integers(0, len(SCRIPT))))
def test_any_split_of_the_input_gives_the_same_answers(cuts):
    harness = SessionHarness()
    places = sorted({*cuts, 0, len(SCRIPT)})
    seen = []
    for start, end in zip(places, places[1:], strict=False):
        seen += harness.ask(SCRIPT[start:end])
    assert seen == [INTRODUCTION, b"OK", b"OK", b"OK", b"OK", b"E_INVALID invalid command NOPE"]
    assert [topic.key for topic in harness.lookupd.registry.topics()] == ["t", "u"]


@given(st.binary(max_size=300))
def test_no_input_breaks_a_session(data):
    harness = SessionHarness()
    harness.session.receive(MAGIC + data)
    harness.session.receive_end()
    harness.session.close("EOF")
    assert not harness.lookupd.registry.clients.producers


async def test_registrations_of_a_disconnected_peer_are_logged_in_parts(nsqd):
    """A peer can have thousands of registrations, and other connections must not wait for the log."""
    nsqd.ask(b"".join(b"REGISTER t%d\n" % number for number in range(500)))

    def logged():
        return sum("UNREGISTER category:topic" in line for line in nsqd.log)

    nsqd.session.close("EOF")
    assert logged() <= LINES_PER_SLICE
    async with asyncio.timeout(30):
        while logged() < 500:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert nsqd.lookupd.registry.clients.producers == {}
