"""One turn of the event loop, as the broker sees it: what must happen once, after all that was done in it.

Handling an event only takes notes: this channel may have something to deliver, that client has output, these records
wait to be written. ``end`` then does each once: messages are handed out, records of all publishers are joined into
one write per file, and only after that write the answers go to the sockets, one write for each.

A turn in which nothing goes to disk ends at once. One in which something does ends when the loop comes round, so
that the records of every socket read in this turn share the write. The publishes to one topic in one turn are a
commit. If too much of the topic's queues is not durable by then (anything, with sync-every=1), the commit lasts until a
completed sync covers its records. Only the clients that wait for a commit are held back, each until its own: other
clients, and commits of other topics, go on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from nsqx.errors import DiskQueueError
from nsqx.nsqd.busy_poll import BusyPoll

if TYPE_CHECKING:
    from nsqx.nsqd.client import Client
    from nsqx.nsqd.topic import Topic
    from nsqx.queues.backlog import Backlog
    from nsqx.queues.diskqueue import DiskQueue


class Pump(Protocol):
    """A topic or a channel: something with a backlog that can be moved on."""

    backlog: Backlog

    def pump(self) -> None: ...


class Durability(Protocol):
    """The services that make things durable."""

    def disk_written(self, pump: Pump, error: DiskQueueError | None) -> None:
        """Take note that the disk queue of ``pump`` was written, or that this failed."""

    def disk_used(self, queue: DiskQueue) -> None:
        """Take note that ``queue`` was read from."""

    def commit(self, queue: DiskQueue, done: Callable[[DiskQueueError | None], object]) -> None:
        """Call ``done`` when a completed sync covers every record of ``queue``, or with the error if one fails."""

    def when_recorded(self, topic: Topic, done: Callable[[None], object]) -> bool:
        """Call ``done`` when the save of nsqd.dat that names the topic and its channels is over; False if it is."""


class Commit:
    """Answers that wait until what they acknowledge is on disk. Once ``is_done``, ``failure`` says whether it is."""

    __slots__ = ("callbacks", "clients", "failure", "is_done", "pending_count")

    def __init__(self) -> None:
        self.clients: list[Client] = []
        self.callbacks: list[Callable[[DiskQueueError | None], object]] = []
        self.pending_count = 1
        self.failure: DiskQueueError | None = None
        self.is_done = False


class Turn:
    """Notes of what is to be done at the end of the turn."""

    __slots__ = (
        "_call_soon",
        "_clients",
        "_commit_at",
        "_commits",
        "_durability",
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
        """Answers wait for a sync when a queue they depend on has ``commit_at`` operations that none has confirmed."""
        self.has_failures = False  # set by whoever learns of them; publishing then looks twice
        self.busy_poll = BusyPoll()
        self._call_soon = call_soon
        self._durability = durability
        self._commit_at = commit_at
        self._unsynced: list[DiskQueue] = []
        self._clients: list[Client] = []
        self._pumps: list[Pump] = []
        self._writers: list[Pump] = []
        self._commits: dict[Topic, Commit] = {}
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

    def sync_later(self, queue: DiskQueue) -> None:
        """``queue`` was read from: it is to be synced in time."""
        self._unsynced.append(queue)

    # Answers that wait

    def hold(self, client: Client, command: str, topic: Topic) -> None:
        """What is added to the output of ``client`` from here on acknowledges a publish to ``topic`` of this turn."""
        self.busy_poll.asked()
        if self._writers:
            commit = self._commit_of(topic)
            if client.commit is not commit:
                client.seal(commit, command)
                commit.clients.append(client)

    def when_written(self, callback: Callable[[DiskQueueError | None], object], topic: Topic) -> None:
        """Call back, at once if possible, when what was published to ``topic`` in this turn may be acknowledged.

        The callback gets the error if it may not.
        """
        self.busy_poll.asked()
        if self._writers:
            self._commit_of(topic).callbacks.append(callback)
        else:
            callback(None)

    def hold_until_recorded(self, client: Client, command: str, topic: Topic) -> None:
        """What is added to the output of ``client`` from here on waits until nsqd.dat names ``topic`` as it is now."""
        commit = Commit()
        if self._durability.when_recorded(topic, partial(self._confirm, commit)):
            client.seal(commit, command)
            commit.clients.append(client)

    def _commit_of(self, topic: Topic) -> Commit:
        commit = self._commits.get(topic)
        if commit is None:
            commit = self._commits[topic] = Commit()
        return commit

    def _begin_commit(self, topic: Topic, commit: Commit, outcomes: dict[DiskQueue, DiskQueueError | None]) -> None:
        """Let ``commit`` wait for those queues of ``topic`` that were written in this turn."""
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
        """One of the things that ``commit`` waits for has happened or failed."""
        self._count_down(commit, failure)
        if commit.is_done:
            self._schedule()

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

    def end(self) -> None:
        """The event is handled: do what is noted, or see to it that it will be done when the loop comes round."""
        self._run_pumps()
        if self._writers:
            self._schedule()
        elif not self._is_scheduled:
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
        self._run_pumps()
        writers, self._writers = self._writers, []
        commits, self._commits = self._commits, {}
        outcomes = self._write(writers)
        for topic, commit in commits.items():
            self._begin_commit(topic, commit, outcomes)
        self._finish_turn()
        self._move_on(writers)

    def _write(self, writers: list[Pump]) -> dict[DiskQueue, DiskQueueError | None]:
        """Write what is gathered; the queues written, and the error of each that failed."""
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

    def _move_on(self, writers: list[Pump]) -> None:
        """What has been written can be read, and so delivered."""
        for pump in writers:
            pump.pump()
        self.end()

    def _flush_clients(self) -> None:
        clients, self._clients = self._clients, []
        for client in clients:
            if client.flush() and client.channel is not None:
                # It could not take messages. If the socket took its output, there may be more for it.
                client.channel.add_if_ready(client)
        if self._pumps:
            self._schedule()
