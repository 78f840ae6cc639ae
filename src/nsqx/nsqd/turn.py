"""One turn of the event loop, as the broker sees it: what must happen once, after all that was done in it.

Handling an event only takes notes: this channel may have something to deliver, that client has output, these records
wait to be written. ``end`` then does each once: messages are handed out, records of all publishers are joined into
one write per file, and only after that write the answers go to the sockets, one write for each.

A turn in which nothing goes to disk ends at once. One in which something does ends when the loop comes round, so
that the records of every socket read in this turn share the write. Where too much is unconfirmed by then (anything,
with sync-every=1) the answers wait for the disk's confirmation too: a commit. What happens meanwhile is the next group
to be written and confirmed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from nsqx.errors import DiskQueueError
from nsqx.nsqd.pace import Pace

if TYPE_CHECKING:
    from nsqx.nsqd.client import Client
    from nsqx.queues.backlog import Backlog
    from nsqx.queues.diskqueue import DiskQueue


class Pump(Protocol):
    """A topic or a channel: something with a backlog that can be moved on."""

    backlog: Backlog

    def pump(self) -> None: ...


@dataclass(slots=True)
class Sealed:
    """Output of a client that waits for a commit; from ``unwritten_from`` on it acknowledges what is committed."""

    client: Client
    output: bytearray
    unwritten_from: int
    command: str


class Turn:
    """Notes of what is to be done at the end of the turn."""

    __slots__ = (
        "_call_soon",
        "_clients",
        "_commit",
        "_commit_at",
        "_held",
        "_is_committing",
        "_is_scheduled",
        "_on_unsynced",
        "_on_write",
        "_pumps",
        "_unsynced",
        "_waiting",
        "_writers",
        "has_failures",
        "pace",
    )

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        on_write: Callable[[Pump, DiskQueueError | None], object],
        on_unsynced: Callable[[DiskQueue], object],
        commit: Callable[[list[DiskQueue], Callable[[DiskQueueError | None], None]], object],
        commit_at: int,
    ) -> None:
        """``on_write`` is told of each disk queue written, and whether that failed; ``on_unsynced`` of each used.

        ``commit`` makes disk queues durable and calls back; answers wait for that when one of the queues written has
        ``commit_at`` operations that no sync has confirmed.
        """
        self.has_failures = False  # set by whoever learns of them; publishing then looks twice
        self.pace = Pace()
        self._call_soon = call_soon
        self._on_write = on_write
        self._unsynced: list[DiskQueue] = []
        self._on_unsynced = on_unsynced
        self._commit = commit
        self._commit_at = commit_at
        self._clients: list[Client] = []
        self._pumps: list[Pump] = []
        self._writers: list[Pump] = []
        self._held: list[Client] = []
        self._waiting: list[Callable[[DiskQueueError | None], object]] = []
        self._is_scheduled = False
        self._is_committing = False

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

    def used(self, queue: DiskQueue) -> None:
        """``queue`` was read from: it is to be synced in time, but not before what was read has been written on."""
        self._unsynced.append(queue)

    def hold(self, client: Client, command: str) -> None:
        """What is added to the output of ``client`` from here on acknowledges a publish of this turn."""
        self.pace.asked()
        if self._writers and client.unwritten_from < 0:
            client.unwritten_from = len(client.output)
            client.unwritten_command = command
            self._held.append(client)

    def when_written(self, callback: Callable[[DiskQueueError | None], object]) -> None:
        """Call back, at once if possible, when what was put in this turn is written; with the error if it is not."""
        self.pace.asked()
        if self._writers:
            self._waiting.append(callback)
        else:
            callback(None)

    def end(self) -> None:
        """The event is handled: do what is noted, or see to it that it will be done when the loop comes round."""
        self._run_pumps()
        if self._writers:
            self._schedule()
        elif not self._is_scheduled and not self._is_committing:
            self._finish_turn()

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
        if self._is_committing:
            return  # it is this turn's turn when the commit is done
        self._run_pumps()
        writers, self._writers = self._writers, []
        failure = self._write(writers)
        if failure is None and self._must_commit(writers):
            self._begin_commit(writers)
            return
        held, self._held = self._held, []
        for client in held:
            client.settle(failure)
        self._tell_waiting(failure)
        self._finish_turn()
        self._move_on(writers)

    def _must_commit(self, writers: list[Pump]) -> bool:
        for pump in writers:
            if pump.backlog.disk is not None and pump.backlog.disk.unsynced_count() >= self._commit_at:
                return True
        return False

    def _write(self, writers: list[Pump]) -> DiskQueueError | None:
        outcomes: list[DiskQueueError | None] = []
        for pump in writers:
            disk = pump.backlog.disk
            assert disk is not None
            try:
                disk.write_pending()
            except DiskQueueError as error:
                outcomes.append(error)
            else:
                outcomes.append(None)
        # Only now: a sync of one queue may save that what another has just written was read from it.
        for pump, outcome in zip(writers, outcomes, strict=True):
            self._on_write(pump, outcome)
        return next((outcome for outcome in outcomes if outcome is not None), None)

    def _tell_waiting(self, failure: DiskQueueError | None) -> None:
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback(failure)

    def _finish_turn(self) -> None:
        self._flush_clients()
        if self._unsynced:
            queues, self._unsynced = self._unsynced, []
            for queue in queues:
                self._on_unsynced(queue)

    def _move_on(self, writers: list[Pump]) -> None:
        """What has been written can be read, and so delivered."""
        for pump in writers:
            pump.pump()
        self.end()

    def _flush_clients(self) -> None:
        clients, self._clients = self._clients, []
        for client in clients:
            if client.flush() and client.channel is not None:
                # The output was full. If the socket took it, there may be more where it came from.
                client.channel.offer(client)
        if self._pumps:
            self._schedule()

    def _begin_commit(self, writers: list[Pump]) -> None:
        """Put all output aside until the disk has confirmed; what comes from now on belongs to the next group."""
        self._is_committing = True
        clients, self._clients = self._clients, []
        self._held = []
        sealed = []
        for client in clients:
            sealed.append(Sealed(client, client.output, client.unwritten_from, client.unwritten_command))
            client.output = bytearray()
            client.unwritten_from = -1
            client.has_unsent = False
        waiting, self._waiting = self._waiting, []
        queues = [pump.backlog.disk for pump in writers if pump.backlog.disk is not None]
        self._commit(queues, partial(self._end_commit, writers, sealed, waiting))

    def _end_commit(
        self,
        writers: list[Pump],
        sealed: list[Sealed],
        waiting: list[Callable[[DiskQueueError | None], object]],
        failure: DiskQueueError | None,
    ) -> None:
        self._is_committing = False
        for entry in sealed:
            self._send_sealed(entry, failure)
        for callback in waiting:
            callback(failure)
        self._move_on(writers)

    def _send_sealed(self, entry: Sealed, failure: DiskQueueError | None) -> None:
        """Send what waited, before anything that was added since."""
        client = entry.client
        added, client.output = client.output, entry.output
        added_from, client.unwritten_from = client.unwritten_from, entry.unwritten_from
        added_command, client.unwritten_command = client.unwritten_command, entry.command
        is_new = client.has_unsent
        client.settle(failure)
        is_ending, client.is_ending = client.is_ending, client.is_ending and not is_new
        client.flush()
        client.is_ending = is_ending
        client.output, client.unwritten_from, client.unwritten_command = added, added_from, added_command
        client.has_unsent = is_new
        if client.channel is not None:
            client.channel.offer(client)
