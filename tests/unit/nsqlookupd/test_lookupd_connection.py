"""Connections with a fake transport and clock: deadlines, backpressure, closing."""

import asyncio
import io
import itertools

import pytest

from nsqx.log import INFO, Log
from nsqx.net.round_robin import ROUND_NS, RoundRobin
from nsqx.nsqlookupd.connection import BLOCKED_TIMEOUT_S, STRANGER_TIMEOUT_S, LookupdConnection
from nsqx.nsqlookupd.lookupd import Lookupd
from nsqx.nsqlookupd.options import NsqlookupdOptions
from nsqx.nsqlookupd.session import COMMANDS_PER_SLICE
from nsqx.wire.lookup import Announcement, encode_identify

HELLO = b"  V1" + encode_identify(Announcement("host", 4150, 4151, "1.3.0"))
LINGER_S = 5.0
NS_PER_S = 1_000_000_000


class ClockStandIn:
    """A fake event loop that only has timers."""

    def __init__(self):
        self.timers = []

    def call_later(self, delay_s, callback, *arguments):
        timer = TimerStandIn(delay_s, lambda: callback(*arguments))
        self.timers.append(timer)
        return timer

    @property
    def pending(self):
        return [timer.delay_s for timer in self.timers if not timer.cancelled]

    def fire(self):
        (timer,) = [timer for timer in self.timers if not timer.cancelled]
        timer.cancelled = True
        timer.callback()

    def create_future(self):
        return asyncio.get_running_loop().create_future()


class TimerStandIn:
    def __init__(self, delay_s, callback):
        self.delay_s = delay_s
        self.callback = callback
        self.cancelled = False

    def cancel(self):
        self.cancelled = True


class SocketStandIn:
    def setsockopt(self, *_arguments):
        raise OSError("gone")


class TransportStandIn:
    def __init__(self, peername=("127.0.0.1", 5)):
        self.sent = b""
        self.reading = True
        self.closed = False
        self.aborted = False
        self.unsent = 0
        self._extra = {"peername": peername, "socket": SocketStandIn()}

    def get_extra_info(self, name):
        return self._extra[name]

    def write(self, data):
        self.sent += data

    def close(self):
        self.closed = True

    def abort(self):
        self.closed = self.aborted = True

    def is_closing(self):
        return self.closed

    def get_write_buffer_size(self):
        return self.unsent

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True


class ConnectionHarness:
    """A connection with its fakes."""

    def __init__(self, options=None, **transport):
        self.stream = io.StringIO()
        self.clock = ClockStandIn()
        self.lookupd = Lookupd(options or NsqlookupdOptions(inactive_producer_timeout=0), Log("", INFO, self.stream))
        self.lookupd.introduction = b"{}"
        self.transport = TransportStandIn(**transport)
        self.connection = LookupdConnection(self.lookupd, self.clock)
        self.connection.connection_made(self.transport)


@pytest.fixture
async def line():
    return ConnectionHarness()


class TestDeadlines:
    async def test_a_silent_connection_without_identify_is_closed(self, line):
        assert line.clock.pending == [STRANGER_TIMEOUT_S]
        line.connection.data_received(b"  V1")
        assert line.clock.pending == [STRANGER_TIMEOUT_S]
        line.clock.fire()
        assert line.transport.aborted
        assert "client(127.0.0.1:5) - i/o timeout" in line.stream.getvalue()

    async def test_the_identify_timeout_is_at_least_the_producer_timeout(self):
        line = ConnectionHarness(NsqlookupdOptions(inactive_producer_timeout=500 * NS_PER_S))
        assert line.clock.pending == [500.0]

    async def test_a_connection_may_be_silent_after_identify(self, line):
        line.connection.data_received(HELLO)
        assert line.clock.pending == []

    async def test_a_client_that_does_not_read_answers_is_closed(self, line):
        line.connection.data_received(HELLO)
        line.connection.pause_writing()
        assert not line.transport.reading
        assert line.clock.pending == [BLOCKED_TIMEOUT_S]
        line.connection.resume_writing()
        assert line.transport.reading
        assert line.clock.pending == []
        line.connection.pause_writing()
        line.clock.fire()
        assert line.transport.aborted
        assert not line.lookupd.registry.clients.producers

    async def test_writing_may_block_during_a_read(self, line):
        """The transport may call pause_writing during the write of an answer."""
        line.transport.write = lambda data: line.connection.pause_writing()
        line.connection.data_received(HELLO)
        assert line.clock.pending == [BLOCKED_TIMEOUT_S]

    async def test_a_client_that_does_not_read_the_last_answer_is_closed(self, line):
        line.transport.unsent = 10
        line.connection.data_received(b"  V1NOPE\n")
        assert line.transport.sent.endswith(b"E_INVALID invalid command NOPE")
        assert line.transport.closed
        assert line.clock.pending == [LINGER_S]
        line.clock.fire()
        assert line.transport.aborted


class TestTurns:
    """A connection that sends a lot does not block the others."""

    @pytest.fixture
    async def soon(self, line):
        callbacks = []
        ticks = itertools.count(0, ROUND_NS)  # every slice uses up a turn
        line.lookupd.round_robin = RoundRobin(callbacks.append, ticks.__next__)
        return callbacks

    @staticmethod
    def run_scheduled(soon):
        callbacks, soon[:] = soon[:], []
        for callback in callbacks:
            callback()

    async def test_commands_are_processed_in_slices(self, line, soon):
        line.connection.data_received(HELLO)
        line.connection.data_received(b"PING\n" * 1000)
        counts = [0, line.lookupd.counts.pings]
        while soon:
            assert not line.transport.reading
            self.run_scheduled(soon)
            counts.append(line.lookupd.counts.pings)
        assert counts[-1] == 1000
        assert max(later - earlier for earlier, later in itertools.pairwise(counts)) <= COMMANDS_PER_SLICE
        assert line.transport.sent.count(b"OK") == 1000
        assert line.transport.reading

    async def test_no_command_is_processed_while_writing_is_blocked(self, line, soon):
        line.connection.data_received(HELLO)
        line.connection.data_received(b"PING\n" * 1000)
        line.connection.pause_writing()
        before = line.lookupd.counts.pings
        self.run_scheduled(soon)
        assert (line.lookupd.counts.pings, soon) == (before, [])
        line.connection.resume_writing()
        while soon:
            self.run_scheduled(soon)
        assert line.lookupd.counts.pings == 1000
        assert line.transport.reading

    async def test_a_lost_connection_leaves_the_round_robin(self, line, soon):
        line.connection.data_received(HELLO)
        line.connection.data_received(b"PING\n" * 1000)
        line.transport.abort()
        line.connection.connection_lost(None)
        before = line.lookupd.counts.pings
        self.run_scheduled(soon)
        assert line.lookupd.counts.pings == before

    async def test_an_error_in_a_later_slice_closes_the_connection(self, line, soon):
        line.connection.data_received(HELLO)
        line.connection.data_received(b"PING\n" * 100 + b"NOPE\n" + b"PING\n" * 100)
        while soon:
            self.run_scheduled(soon)
        assert line.lookupd.counts.pings == 100
        assert line.transport.closed


class TestEnd:
    async def test_a_client_disconnects(self, line):
        line.connection.data_received(HELLO + b"REGISTER t\n")
        assert line.connection.eof_received() is False
        line.connection.connection_lost(None)
        assert not line.lookupd.registry.clients.producers
        assert not line.lookupd.connections
        assert line.connection.gone.done()
        assert line.clock.pending == []
        assert "client(127.0.0.1:5) - EOF" in line.stream.getvalue()

    async def test_a_connection_is_reset(self, line):
        line.connection.data_received(HELLO)
        line.connection.connection_lost(ConnectionResetError("reset by peer"))
        assert not line.lookupd.registry.clients.producers
        assert "client(127.0.0.1:5) - reset by peer" in line.stream.getvalue()

    async def test_an_incomplete_command_at_the_end_is_an_error(self, line):
        line.connection.data_received(b"  V1IDENTIFY\n")
        line.connection.eof_received()
        assert line.transport.sent.endswith(b"E_BAD_BODY IDENTIFY failed to read body size")

    async def test_shutdown_closes_the_connection(self, line):
        line.connection.data_received(HELLO)
        line.connection.close()
        assert line.transport.closed
        assert not line.lookupd.registry.clients.producers


@pytest.mark.parametrize(
    ("peername", "shown"),
    [
        (("127.0.0.1", 5), "127.0.0.1:5"),
        (("::ffff:10.0.0.1", 5, 0, 0), "10.0.0.1:5"),
        (("::1", 5, 0, 0), "[::1]:5"),
        (("::ffff:0:1", 5, 0, 0), "[::ffff:0:1]:5"),
    ],
)
async def test_the_remote_address_is_logged(peername, shown):
    line = ConnectionHarness(peername=peername)
    assert f"TCP: new client({shown})" in line.stream.getvalue()
