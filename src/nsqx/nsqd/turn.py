"""One turn of the event loop, as the broker sees it: what must happen once, after all that was done in it.

Handling an event only takes notes: this channel may have something to deliver, that client has output, these records
wait to be written. ``end`` then does each once: messages are handed out, records of all publishers are joined into
one write per file, and only after that write the answers go to the sockets, one write for each.

A turn in which nothing goes to disk ends at once. One in which something does ends when the loop comes round, so
that the records of every socket read in this turn share the write.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from nsqx.errors import DiskQueueError

if TYPE_CHECKING:
    from nsqx.nsqd.client import Client
    from nsqx.queues.backlog import Backlog
    from nsqx.queues.diskqueue import DiskQueue


class Pump(Protocol):
    """A topic or a channel: something with a backlog that can be moved on."""

    backlog: Backlog

    def pump(self) -> None: ...


class Turn:
    """Notes of what is to be done at the end of the turn."""

    __slots__ = ("_call_soon", "_clients", "_held", "_is_scheduled", "_on_write", "_pumps", "_waiting", "_writers")

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        on_write: Callable[[DiskQueue, DiskQueueError | None], object],
    ) -> None:
        """``on_write`` is told of each disk queue written, and whether that failed."""
        self._call_soon = call_soon
        self._on_write = on_write
        self._clients: list[Client] = []
        self._pumps: list[Pump] = []
        self._writers: list[Pump] = []
        self._held: list[Client] = []
        self._waiting: list[Callable[[DiskQueueError | None], object]] = []
        self._is_scheduled = False

    def send_to(self, client: Client) -> None:
        """``client`` has output to be sent."""
        if not client.has_unsent:
            client.has_unsent = True
            self._clients.append(client)

    def close(self, client: Client) -> None:
        """The connection of ``client`` ends when its output has been sent."""
        client.is_ending = True
        self.send_to(client)

    def wake(self, pump: Pump) -> None:
        """``pump`` may have something to move. The caller sees to it that it is noted once."""
        self._pumps.append(pump)

    def write_for(self, pump: Pump) -> None:
        """The disk queue of ``pump`` has records to be written."""
        self._writers.append(pump)

    def hold(self, client: Client, command: str) -> None:
        """What is added to the output of ``client`` from here on acknowledges a publish of this turn."""
        if self._writers and client.unwritten_from < 0:
            client.unwritten_from = len(client.output)
            client.unwritten_command = command
            self._held.append(client)

    def when_written(self, callback: Callable[[DiskQueueError | None], object]) -> None:
        """Call back, at once if possible, when what was put in this turn is written; with the error if it is not."""
        if self._writers:
            self._waiting.append(callback)
        else:
            callback(None)

    def end(self) -> None:
        """The event is handled: do what is noted, or see to it that it will be done when the loop comes round."""
        self._run_pumps()
        if self._writers:
            self._schedule()
        elif not self._is_scheduled:
            self._flush_clients()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._come_round)

    def _run_pumps(self) -> None:
        while self._pumps:
            pumps, self._pumps = self._pumps, []
            for pump in pumps:
                pump.pump()

    def _come_round(self) -> None:
        self._is_scheduled = False
        self._run_pumps()
        writers = self._write()
        self._flush_clients()
        for pump in writers:
            pump.pump()
        self.end()

    def _write(self) -> list[Pump]:
        writers, self._writers = self._writers, []
        failure: DiskQueueError | None = None
        for pump in writers:
            disk = pump.backlog.disk
            assert disk is not None
            error: DiskQueueError | None = None
            try:
                disk.write_pending()
            except DiskQueueError as caught:
                failure = error = caught
            self._on_write(disk, error)
        held, self._held = self._held, []
        for client in held:
            client.settle(failure)
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback(failure)
        return writers

    def _flush_clients(self) -> None:
        clients, self._clients = self._clients, []
        for client in clients:
            if client.flush() and client.channel is not None:
                # The output was full. If the socket took it, there may be more where it came from.
                client.channel.offer(client)
        if self._pumps:
            self._schedule()
