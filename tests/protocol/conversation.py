"""Clients without sockets: a real session, and a real connection on a transport and a loop that tests control."""

from collections.abc import Callable
from typing import Any

from broker_bench import SECOND, Bench, BenchClock, BenchLink, BenchTimer, split_frames
from nsqx.nsqd.connection import ClientConnection
from nsqx.nsqd.effects import Authenticate, Close, Effect
from nsqx.nsqd.session import ClientSession
from rawclient import Frame, Message


class SessionClient:
    """A client of a session: sends commands and receives frames."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.link = BenchLink()
        self.client = bench.broker.new_client("127.0.0.1:1234", "127.0.0.1", self.link)
        self.session = ClientSession(bench.broker, self.client)
        self.effects: list[Effect] = []

    @property
    def is_closed(self) -> bool:
        return self.link.is_closed

    def send(self, data: bytes) -> list[Frame]:
        """Send bytes and return the frames of the answer."""
        self.session.receive(data)
        while self.session.has_more:
            self.session.proceed()
        return self.receive()

    def send_eof(self) -> list[Frame]:
        """End the input of the session and return the frames."""
        self.session.receive_end()
        return self.receive()

    def carry_out(self) -> None:
        """Carry out the effects that need no socket, as a connection does."""
        while self.session.effect is not None:
            effect = self.session.take_effect()
            self.effects.append(effect)
            if isinstance(effect, Close):
                self.bench.broker.turn.close(self.client)
            elif isinstance(effect, Authenticate):
                self.bench.broker.authorizer.authenticate(self.client, effect.secret, self.session.resolve)

    def receive(self) -> list[Frame]:
        self.carry_out()
        self.bench.settle()
        return self.link.take_frames()

    def take_message(self) -> Message:
        """Return the only message that was received."""
        (message,) = (Message.decode(frame.data) for frame in self.receive())
        return message

    def disconnect(self) -> None:
        self.session.closed()
        self.bench.settle()


class BenchLoop:
    """The event loop's clock and timers, moved by the bench's clock."""

    def __init__(self, clock: BenchClock) -> None:
        self._clock = clock

    def time(self) -> float:
        return self._clock.now_ns() / SECOND

    def call_later(self, delay_s: float, callback: Callable[..., object], *arguments: object) -> BenchTimer:
        return self._clock.call_at(self._clock.now_ns() + round(delay_s * SECOND), callback, *arguments)


class SocketStandIn:
    """Accepts socket options and does nothing else."""

    def __init__(self) -> None:
        self.options: dict[tuple[int, int], int] = {}

    def setsockopt(self, level: int, option: int, value: int) -> None:
        self.options[level, option] = value


class BenchTransport:
    """A socket that takes all output, or none if ``is_stuck``, and calls its protocol as asyncio does."""

    def __init__(self, peer: Any = ("127.0.0.1", 1234)) -> None:
        self.is_reading = True
        self.peer = peer
        self.socket = SocketStandIn()
        self.protocol: Any = None
        self.sent = bytearray()
        self.unsent = bytearray()
        self.is_stuck = False
        self.is_aborted = False
        self._is_closing = False
        self._is_lost = False
        self._high = 0

    def get_extra_info(self, name: str) -> Any:
        return {"peername": self.peer, "socket": self.socket}.get(name)

    def set_write_buffer_limits(self, high: int) -> None:
        self._high = high

    def get_write_buffer_size(self) -> int:
        return len(self.unsent)

    def is_closing(self) -> bool:
        return self._is_closing

    def write(self, data: bytes) -> None:
        assert not self._is_closing, "written after the close"
        if not self.is_stuck:
            self.sent += data
            return
        was_below = len(self.unsent) <= self._high
        self.unsent += data
        if was_below and len(self.unsent) > self._high:
            self.protocol.pause_writing()

    def unblock(self) -> None:
        was_above = len(self.unsent) > self._high
        self.is_stuck = False
        self.sent += self.unsent
        self.unsent.clear()
        if was_above:
            self.protocol.resume_writing()
        if self._is_closing:
            self._lose()

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def close(self) -> None:
        self._is_closing = True
        if not self.unsent:
            self._lose()

    def abort(self) -> None:
        self.is_aborted = self._is_closing = True
        self._lose()

    def _lose(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            self.protocol.connection_lost(None)

    @property
    def is_lost(self) -> bool:
        return self._is_lost

    def take_frames(self) -> list[Frame]:
        frames = split_frames(bytes(self.sent))
        self.sent.clear()
        return frames


class ConnectionClient:
    """The client's end of a connection."""

    def __init__(self, bench: Bench, peer: Any = ("127.0.0.1", 1234)) -> None:
        self.bench = bench
        self.transport = BenchTransport(peer)
        self.connection = ClientConnection(bench.broker, BenchLoop(bench.clock))
        self.transport.protocol = self.connection
        self.connection.connection_made(self.transport)

    @property
    def is_lost(self) -> bool:
        return self.transport.is_lost

    def send(self, data: bytes) -> list[Frame]:
        self.connection.data_received(data)
        return self.receive()

    def receive(self) -> list[Frame]:
        self.bench.run_scheduled()
        return self.transport.take_frames()

    def wait(self, duration_ns: int) -> list[Frame]:
        """Let time pass; return the frames received meanwhile."""
        self.bench.clock.advance(duration_ns)
        return self.receive()
