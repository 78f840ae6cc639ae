"""One turn of the event loop: collects work that is done once, at the end of the turn.

Every event enters through ``run``. Its handler only notes work: a topic or channel may have messages to move, a client
has output. The end of the turn does each once. It pumps the topics and channels, then sends the output of each client
with one write. Work that is noted outside of ``run`` is done in the next iteration of the loop.

A turn usually ends at once. With ``end_later`` it ends in the next iteration of the loop, and the events of all sockets
that are ready in this iteration join it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from nsqx.nsqd.busy_poll import BusyPoll

if TYPE_CHECKING:
    from nsqx.nsqd.client import Client

Result = TypeVar("Result")


class ByteReceiver:
    """A connection, or in tests a session. A base class, because that makes the call of ``receive`` cheap."""

    __slots__ = ()

    def receive(self, data: bytes) -> None:
        """Process bytes from a client."""


class Pump(Protocol):
    """A topic, a channel or a store: ``pump`` moves its messages."""

    def pump(self) -> None: ...


class Turn:
    """The work to do at the end of the turn."""

    __slots__ = ("_call_soon", "_clients", "_is_running", "_is_scheduled", "_late_work", "_pumps", "busy_poll")

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self.busy_poll = BusyPoll()
        self._call_soon = call_soon
        self._clients: list[Client] = []
        self._pumps: list[Pump] = []
        self._late_work: list[Callable[[], object]] = []
        self._is_running = False
        self._is_scheduled = False

    def run(self, handler: Callable[..., Result], *arguments: object) -> Result:
        """Handle an event: call ``handler``, then do the noted work, also if it raises. Return its result.

        Within a turn this only calls ``handler``.
        """
        if self._is_running:
            return handler(*arguments)
        self._is_running = True
        try:
            return handler(*arguments)
        finally:
            self._leave()

    def receive(self, receiver: ByteReceiver, data: bytes) -> None:
        """Handle bytes from a client. The same as ``run`` with its ``receive``, at a lower cost."""
        if self._is_running:
            receiver.receive(data)
            return
        self._is_running = True
        try:
            receiver.receive(data)
        finally:
            self._leave()

    def _leave(self) -> None:
        try:
            self._end()
        finally:
            self._is_running = False

    def send_to(self, client: Client) -> None:
        """Note that ``client`` has output to send."""
        if not client.has_unsent:
            client.has_unsent = True
            self._clients.append(client)
            if not self._is_running:
                self._schedule()

    def close(self, client: Client) -> None:
        """Close the connection of ``client`` after its output has been sent."""
        client.is_ending = True
        self.send_to(client)

    def wake(self, pump: Pump) -> None:
        """Note that ``pump`` may have messages to move. The caller makes sure that it is noted only once."""
        self._pumps.append(pump)
        if not self._is_running:
            self._schedule()

    def end_later(self, work: Callable[[], object]) -> None:
        """End this turn in the next iteration of the loop, and do ``work`` then, before output is sent."""
        self._late_work.append(work)
        if not self._is_running:
            self._schedule()

    # The end of the turn

    def _end(self) -> None:
        """Do the noted work, or schedule it for the next iteration of the loop."""
        self._run_pumps()
        if self._late_work:
            self._schedule()
        elif not self._is_scheduled:
            self._send()
            if self._pumps or self._clients:
                self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._run_scheduled)

    def _run_scheduled(self) -> None:
        self._is_scheduled = False
        if self._is_running:
            self._do_late_work()
            return
        self._is_running = True
        try:
            self._do_late_work()
        finally:
            self._leave()

    def _do_late_work(self) -> None:
        self._run_pumps()
        late_work, self._late_work = self._late_work, []
        for work in late_work:
            work()
        self._send()

    def _run_pumps(self) -> None:
        while self._pumps:
            pumps, self._pumps = self._pumps, []
            for pump in pumps:
                pump.pump()

    def _send(self) -> None:
        clients, self._clients = self._clients, []
        for client in clients:
            if client.flush() and client.channel is not None:
                # The client could not take messages. If the socket took its output, it may be ready again.
                client.channel.add_if_ready(client)
