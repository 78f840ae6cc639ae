"""One turn of the event loop: collects work that is done once, at the end of the turn.

Every event enters through ``run``. Its handler only notes work: a channel may have messages to deliver, a client has
output, records wait to be written. The end of the turn does each once. It delivers messages, joins the records of all
publishers into one write per file, and after that write sends the answers, with one write for each socket. Work that is
noted outside of ``run`` is done in the next iteration of the loop.

A turn without disk writes ends at once. A turn with disk writes ends in the next iteration of the loop, so that the
records from all sockets read in this iteration share one write. The publishes to one topic in one turn form a commit.
If too many operations of the topic's queues are not durable by then (any, with sync-every=1), the commit lasts until a
completed sync covers its records. Only clients that wait for a commit are held back, each until its own commit is
done. Other clients, and commits of other topics, continue.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from nsqx.errors import DiskQueueError
from nsqx.nsqd.busy_poll import BusyPoll

if TYPE_CHECKING:
    from nsqx.nsqd.client import Client
    from nsqx.nsqd.topic import Topic
    from nsqx.queues.backlog import Backlog
    from nsqx.queues.diskqueue import DiskQueue

Result = TypeVar("Result")


class ByteReceiver(Protocol):
    """A connection, or in tests a session."""

    def receive(self, data: bytes) -> None: ...


class Woken(Protocol):
    """A topic or a channel: ``pump`` moves its messages."""

    def pump(self) -> None: ...


class Pump(Woken, Protocol):
    """A topic or a store, whose backlog has a disk queue."""

    backlog: Backlog


class Durability(Protocol):
    """The services that make data durable."""

    def disk_written(self, pump: Pump, error: DiskQueueError | None) -> None:
        """Report that the disk queue of ``pump`` was written, or that writing failed with ``error``."""

    def disk_used(self, queue: DiskQueue) -> None:
        """Report that ``queue`` was read from."""

    def commit(self, queue: DiskQueue, done: Callable[[DiskQueueError | None], object]) -> None:
        """Call ``done`` when a completed sync covers every record of ``queue``, or with the error if one fails."""

    def when_recorded(self, topic: Topic, done: Callable[[None], object]) -> bool:
        """Call ``done`` when the save of nsqd.dat that names the topic and its channels has ended; False if it has."""


class Commit:
    """Answers that wait until their messages are on disk. When ``is_done``, ``failure`` is the error or None."""

    __slots__ = ("callbacks", "clients", "failure", "is_done", "pending_count")

    def __init__(self) -> None:
        self.clients: list[Client] = []
        self.callbacks: list[Callable[[DiskQueueError | None], object]] = []
        self.pending_count = 1
        self.failure: DiskQueueError | None = None
        self.is_done = False


class Turn:
    """The work to do at the end of the turn."""

    __slots__ = (
        "_call_soon",
        "_clients",
        "_commit_at",
        "_commits",
        "_durability",
        "_is_running",
        "_is_scheduled",
        "_pumps",
        "_unsynced",
        "_writers",
        "busy_poll",
        "has_failures",
    )

    def __init__(
        self, call_soon: Callable[[Callable[[], None]], object], durability: Durability, commit_at: int
    ) -> None:
        """Hold answers until a sync if a queue they depend on has at least ``commit_at`` unsynced operations."""
        self.has_failures = False  # set by the broker while a disk queue fails; publishes then check for it
        self.busy_poll = BusyPoll()
        self._call_soon = call_soon
        self._durability = durability
        self._commit_at = commit_at
        self._unsynced: list[DiskQueue] = []
        self._clients: list[Client] = []
        self._pumps: list[Woken] = []
        self._writers: list[Pump] = []
        self._commits: dict[Topic, Commit] = {}
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

    def wake(self, pump: Woken) -> None:
        """Note that ``pump`` may have messages to move. The caller makes sure that it is noted only once."""
        self._pumps.append(pump)
        if not self._is_running:
            self._schedule()

    def write_for(self, pump: Pump) -> None:
        """Note that the disk queue of ``pump`` has records to write."""
        self._writers.append(pump)
        if not self._is_running:
            self._schedule()

    def sync_later(self, queue: DiskQueue) -> None:
        """Note that ``queue`` was read from and must be synced eventually."""
        self._unsynced.append(queue)
        if not self._is_running:
            self._schedule()

    # Answers that wait for the disk

    def hold(self, client: Client, command: str, topic: Topic) -> None:
        """Hold output added to ``client`` from here on: it acknowledges a publish to ``topic`` in this turn."""
        self.busy_poll.note_command()
        if self._writers:
            commit = self._commit_of(topic)
            if client.output.seal(commit, command):
                commit.clients.append(client)

    def when_written(self, callback: Callable[[DiskQueueError | None], object], topic: Topic) -> None:
        """Call back when the publishes to ``topic`` in this turn can be acknowledged, at once if possible.

        The callback gets None, or the error if they failed.
        """
        self.busy_poll.note_command()
        if self._writers:
            self._commit_of(topic).callbacks.append(callback)
        else:
            callback(None)

    def hold_until_recorded(self, client: Client, command: str, topic: Topic) -> None:
        """Hold output added to ``client`` from here on until nsqd.dat names ``topic`` and its current channels."""
        commit = Commit()
        if self._durability.when_recorded(topic, partial(self._confirm, commit)):
            client.output.seal(commit, command)
            commit.clients.append(client)

    def _commit_of(self, topic: Topic) -> Commit:
        commit = self._commits.get(topic)
        if commit is None:
            commit = self._commits[topic] = Commit()
        return commit

    def _begin_commit(self, topic: Topic, commit: Commit, outcomes: dict[DiskQueue, DiskQueueError | None]) -> None:
        """Make ``commit`` wait for those queues of ``topic`` that were written in this turn."""
        written = [queue for queue in topic.disk_queues() if queue in outcomes]
        failure = next((outcomes[queue] for queue in written if outcomes[queue] is not None), None)
        if failure is None and written:
            confirm = partial(self._confirm, commit)
            for queue in written:
                if queue.unsynced_count() >= self._commit_at:
                    commit.pending_count += 1
                    self._durability.commit(queue, confirm)
            if self._durability.when_recorded(topic, confirm):
                commit.pending_count += 1
        self._count_down(commit, failure)

    def _confirm(self, commit: Commit, failure: DiskQueueError | None) -> None:
        """Count one completed or failed operation that ``commit`` waits for."""
        self._count_down(commit, failure)

    def _count_down(self, commit: Commit, failure: DiskQueueError | None) -> None:
        commit.pending_count -= 1
        if commit.failure is None:
            commit.failure = failure
        if commit.pending_count:
            return
        commit.is_done = True
        for client in commit.clients:
            self.send_to(client)
        for callback in commit.callbacks:
            callback(commit.failure)

    # The end of the turn

    def _end(self) -> None:
        """Do the noted work, or schedule it for the next iteration of the loop."""
        self._run_pumps()
        if self._writers:
            self._schedule()
        elif not self._is_scheduled:
            self._finish_turn()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._run_scheduled)

    def _run_pumps(self) -> None:
        while self._pumps:
            pumps, self._pumps = self._pumps, []
            for pump in pumps:
                pump.pump()

    def _run_scheduled(self) -> None:
        self._is_scheduled = False
        self.run(self._write_and_finish)

    def _write_and_finish(self) -> None:
        self._run_pumps()
        writers, self._writers = self._writers, []
        commits, self._commits = self._commits, {}
        outcomes = self._write(writers)
        for topic, commit in commits.items():
            self._begin_commit(topic, commit, outcomes)
        self._finish_turn()
        self._pump_written(writers)

    def _write(self, writers: list[Pump]) -> dict[DiskQueue, DiskQueueError | None]:
        """Write the pending records; return the queues written, with the error of each that failed."""
        outcomes: dict[DiskQueue, DiskQueueError | None] = {}
        for pump in writers:
            disk = pump.backlog.disk
            assert disk is not None
            try:
                disk.write_pending()
            except DiskQueueError as error:
                outcomes[disk] = error
            else:
                outcomes[disk] = None
        for pump in writers:
            disk = pump.backlog.disk
            assert disk is not None
            self._durability.disk_written(pump, outcomes[disk])
        return outcomes

    def _finish_turn(self) -> None:
        self._flush_clients()
        if self._unsynced:
            queues, self._unsynced = self._unsynced, []
            for queue in queues:
                self._durability.disk_used(queue)

    def _pump_written(self, writers: list[Pump]) -> None:
        """Deliver messages that have just been written: they can be read now."""
        for pump in writers:
            pump.pump()

    def _flush_clients(self) -> None:
        clients, self._clients = self._clients, []
        for client in clients:
            if client.flush() and client.channel is not None:
                # The client could not take messages. If the socket took its output, it may be ready again.
                client.channel.add_if_ready(client)
        if self._pumps or self._clients:
            self._schedule()
