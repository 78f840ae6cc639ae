"""The letters in the channel ``dead`` of a dead-letter topic: reading, redriving and purging them.

To redrive a letter is to put it into the channel that failed, as a message that was never delivered, and to finish it
here. If both topics have logs, one frame of the commit file contains both. Otherwise the letter is put there first, and
finished when it is durable there; a crash in between repeats it. Letters that a consumer has in flight are left alone.

Letters are handled in slices, each in one turn of the loop. In between, consumers and other requests may use the
channel, so each slice checks again what it may take.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from nsqx.errors import BrokerExiting, DiskQueueError, NSQError
from nsqx.nsqd.classic_flow import ClassicFlow
from nsqx.nsqd.classic_store import ClassicStore
from nsqx.nsqd.log_cursor import LogCursor
from nsqx.nsqd.log_flow import LogFlow
from nsqx.nsqd.sync_threads import completed
from nsqx.queues.log.blocks import LogBlock
from nsqx.queues.log.reader import FOUND, UNREAD, LogReader
from nsqx.wire.message import new_message

if TYPE_CHECKING:
    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.channel import Channel
    from nsqx.nsqd.dead_letters import LetterOrigin
    from nsqx.nsqd.topic import Topic
    from nsqx.queues.diskqueue import DiskQueue
    from nsqx.queues.log.log import TopicLog
    from nsqx.wire.message import QueuedMessage

# The limits of a slice.
_LETTERS_PER_TURN = 2000
_BYTES_PER_TURN = 1 << 20


class ChannelGone(NSQError):
    """The channel that failed does not exist any more, or is ephemeral and cannot get single messages."""


class ChannelNeeded(NSQError):
    """A letter does not say from which channel it comes, so the request must name the channel."""


class Letter(NamedTuple):
    """A dead letter of a log topic. ``origin`` is None if it is unknown."""

    offset: int
    timestamp: int
    body: bytes
    origin: LetterOrigin | None


class LetterSelection(NamedTuple):
    """Letters of one source topic: of one channel, at these offsets, and at most ``limit``, if these are given."""

    topic: str
    channel: str = ""
    offsets: tuple[int, ...] = ()
    limit: int = 0

    def includes(self, letter: Letter, *, is_origin_needed: bool = False) -> bool:
        """True if a letter is from the topic and the channel. A letter without origin may be from any."""
        origin = letter.origin
        if origin is None:
            return not (self.channel and is_origin_needed)
        return origin["topic"] == self.topic and self.channel in ("", origin["channel"])


class DeadChannel:
    """The channel ``dead`` of one dead-letter topic."""

    def __init__(self, broker: Broker, topic: Topic, channel: Channel) -> None:
        self._broker = broker
        self.topic = topic
        self.channel = channel

    @property
    def count(self) -> int:
        """The number of letters: waiting, in flight and deferred."""
        channel = self.channel
        return channel.depth + channel.in_flight_count + channel.deferred_count

    @property
    def is_log(self) -> bool:
        """True if the letters are in a log, so that they have offsets and origins."""
        return isinstance(self.channel.store, LogCursor)

    def id_number(self, offset: int) -> int:
        """Return the number of the message id of a letter in a log."""
        flow = self.topic.flow
        assert isinstance(flow, LogFlow)
        return flow.log.identity.id_number(offset)

    # Reading

    async def read(self, offsets: Iterable[int]) -> AsyncIterator[list[Letter]]:
        """Yield the letters of a log at some offsets, in slices, each in a turn of its own. Damaged ones are left out.

        Raises DiskQueueError if the log cannot be read.
        """
        flow = self.topic.flow
        assert isinstance(flow, LogFlow)
        reader = LogReader(flow.log, self._broker.logs.blocks)
        letters: list[Letter] = []
        size = 0
        for offset in offsets:
            while (found := reader.find(offset)) == UNREAD:
                if letters:
                    reader.release()
                    yield letters
                    letters, size = [], 0
                await self._read_block(flow.log, offset)
            if found == FOUND:
                body, origin = reader.data[reader.start : reader.end], reader.origin()
                letters.append(Letter(offset, reader.timestamp, body, orjson.loads(origin) if origin else None))
                size += len(body)
            if len(letters) >= _LETTERS_PER_TURN or size >= _BYTES_PER_TURN:
                reader.release()
                yield letters
                letters, size = [], 0
                await self._broker.long_jobs.next_turn()
        if letters:
            yield letters

    async def _read_block(self, log: TopicLog, offset: int) -> None:
        """Read a block with a message that is not in memory. Raises DiskQueueError."""
        blocks = self._broker.logs.blocks
        job = await completed(self._broker.logs.read, log.begin_read(offset, blocks.block_size))
        if log.is_deleted:
            raise BrokerExiting
        if job.error is not None:
            raise DiskQueueError(f"cannot read the log of {log.topic}: {job.error.strerror or job.error}")
        blocks.add(log, LogBlock(offset, max(job.next, offset + 1), job.batches))

    def unfinished_from(self, offset: int) -> Iterable[int]:
        """Return the offsets of the letters from ``offset`` on that a log has now."""
        store = self.channel.store
        assert isinstance(store, LogCursor)
        return store.unfinished_from(offset)

    # Purging

    async def purge(self, selection: LetterSelection) -> int:
        """Finish letters, and return how many, when that is durable. Raises DiskQueueError or BrokerExiting."""
        if self.is_log:
            return await self._take_letters(selection, None)
        store = self.channel.store
        assert isinstance(store, ClassicStore)
        purged = 0
        wanted = selection.limit or self.channel.depth
        while purged < wanted and not selection.channel:
            taken_count = self._broker.turn.run(_finish_waiting, store, min(wanted - purged, _LETTERS_PER_TURN))
            if not taken_count:
                break
            purged += taken_count
            await self._broker.long_jobs.next_turn()
        return purged

    # Redriving

    async def redrive(self, selection: LetterSelection, source: Topic) -> int:
        """Put letters into the channels of ``source`` that failed, and return how many, when that is durable.

        Raise ChannelGone or ChannelNeeded if that is the reason why there was no letter, DiskQueueError or
        BrokerExiting if they cannot be written now.
        """
        if self.is_log:
            return await self._take_letters(selection, source)
        return await self._redrive_classic(selection, source)

    async def _take_letters(self, selection: LetterSelection, source: Topic | None) -> int:
        """Redrive letters of a log to ``source``, or finish them if it is None; return how many."""
        taking = _Taking(self._broker, self.topic, self.channel, selection, source)
        offsets = taking.offsets if selection.offsets else self.unfinished_from(0)
        async for letters in self.read(offsets):
            left = letters
            while left:
                handled = self._broker.turn.run(taking.take, left)
                left = left[handled:]
                if taking.unfinished:
                    await taking.finish()
                if left:
                    await self._broker.long_jobs.next_turn()
            if taking.is_done:
                break
        await durable(self.topic)
        if source is not None:
            await durable(source)
        if not taking.count and taking.failure is not None:
            raise taking.failure
        return taking.count

    async def _redrive_classic(self, selection: LetterSelection, source: Topic) -> int:
        store = self.channel.store
        assert isinstance(store, ClassicStore)
        if not selection.channel:
            if self.channel.depth:
                raise ChannelNeeded
            return 0
        target = _Target(self._broker, source, selection.channel)
        redriven = 0
        wanted = selection.limit or self.channel.depth
        while redriven < wanted:
            taken = self._broker.turn.run(self._move_waiting, store, target, min(wanted - redriven, _LETTERS_PER_TURN))
            if not taken:
                break
            try:
                await target.durable()
            except (DiskQueueError, BrokerExiting):
                self._broker.turn.run(store.put_taken_back, taken)
                raise
            self._broker.turn.run(store.finish_taken, taken)
            redriven += len(taken)
            await self._broker.long_jobs.next_turn()
        return redriven

    def _move_waiting(self, store: ClassicStore, target: _Target, limit: int) -> list[QueuedMessage]:
        """Put some waiting messages of a classic store into the target, and return them."""
        target.refuse_if_full(limit)
        taken = store.take_waiting(limit)
        target.put([message.body for message in taken])
        return taken


def _finish_waiting(store: ClassicStore, limit: int) -> int:
    taken = store.take_waiting(limit)
    store.finish_taken(taken)
    return len(taken)


class _Target:
    """The channel that redriven letters are put into."""

    def __init__(self, broker: Broker, topic: Topic, channel_name: str) -> None:
        """Raise ChannelGone if the channel cannot get letters."""
        self._broker = broker
        self._topic = topic
        found = topic.find_channel(channel_name)
        if found is None or (found.is_ephemeral and isinstance(topic.flow, LogFlow)):
            raise ChannelGone
        self._channel = found

    @property
    def is_gone(self) -> bool:
        """True if the channel was deleted, or has another store now."""
        return self._channel.exiting

    def refuse_if_full(self, count: int) -> None:
        """Raise DiskQueueError if letters cannot be written now, BrokerExiting if the channel is being closed."""
        store = self._channel.store
        if self._channel.exiting:
            raise BrokerExiting
        if isinstance(store, ClassicStore):
            store.refuse_if_full(count)
        else:
            self._broker.logs.refuse_if_full(self._broker.clock.wall_ns())

    def put(self, bodies: list[bytes]) -> None:
        """Put letters into the channel, as messages that were never delivered."""
        store, flow = self._channel.store, self._topic.flow
        now_ns = self._broker.clock.wall_ns()
        if not bodies:
            return
        if isinstance(flow, LogFlow):
            items = b"".join([len(body).to_bytes(4, "big") + body for body in bodies])
            flow.append_moved_to(store, items, len(bodies), now_ns, 0, 0)
            self._channel.arrived(len(bodies))
            return
        assert isinstance(flow, ClassicFlow)
        assert isinstance(store, ClassicStore)
        for body in bodies:
            message = new_message(flow.new_id(now_ns), body, now_ns, 0)
            if store.disk is None:
                store.put_message(message)
            else:
                store.put_moved(message)

    async def durable(self) -> None:
        """Return when everything that was put is durable. Raises DiskQueueError."""
        store = self._channel.store
        if not isinstance(store, ClassicStore):
            await durable(self._topic)
        elif store.disk is not None:
            await _outcome(partial(_register, store.disk))


class _Taking:
    """Letters of a log that are being redriven or purged."""

    def __init__(
        self, broker: Broker, topic: Topic, channel: Channel, selection: LetterSelection, source: Topic | None
    ) -> None:
        self.count = 0
        self.failure: NSQError | None = None  # why a letter was left out
        self.unfinished: list[int] = []  # offsets of letters that are in their targets, but not finished here
        self._broker = broker
        self._topic = topic
        self._channel = channel
        self._selection = selection
        self._source = source
        self._targets: dict[str, _Target] = {}
        if source is not None and selection.channel:
            self._target(selection.channel)

    @property
    def is_atomic(self) -> bool:
        """True if a letter is put into its target and finished here in one frame, or is only finished here."""
        return self._source is None or isinstance(self._source.flow, LogFlow)

    @property
    def is_done(self) -> bool:
        """True if there are as many letters as requested."""
        return 0 < self._selection.limit <= self.count

    @property
    def offsets(self) -> list[int]:
        """The requested offsets that have letters."""
        return [offset for offset in sorted(set(self._selection.offsets)) if self._cursor.is_takable(offset)]

    @property
    def _cursor(self) -> LogCursor:
        if self._channel.exiting:
            raise BrokerExiting
        store = self._channel.store
        assert isinstance(store, LogCursor)
        return store

    def take(self, letters: list[Letter]) -> int:
        """Handle the first letters, and return how many: all, unless that is too much for one turn."""
        cursor = self._cursor
        chosen = self._choose(letters, cursor)
        bodies: dict[_Target, list[bytes]] = {target: [] for _, _, target in chosen if target is not None}
        if self._source is not None:
            self._broker.logs.refuse_if_full(self._broker.clock.wall_ns())
        for target in bodies:
            target.refuse_if_full(len(letters))
        handled = len(letters)
        taken = []
        for index, letter, wanted_target in chosen:
            if not cursor.reach(letter.offset, _LETTERS_PER_TURN):
                handled = index
                break
            if wanted_target is not None:
                bodies[wanted_target].append(letter.body)
            if self.is_atomic:
                cursor.take(letter.offset)
            taken.append(letter.offset)
        for target, of_target in bodies.items():
            target.put(of_target)
        self.count += len(taken)
        if self.is_atomic:
            self._write()
        else:
            self.unfinished = taken
        return handled

    def _choose(self, letters: list[Letter], cursor: LogCursor) -> list[tuple[int, Letter, _Target | None]]:
        """Return the selected letters with their indexes and targets; letters without a target are only finished."""
        chosen: list[tuple[int, Letter, _Target | None]] = []
        most = self._selection.limit - self.count if self._selection.limit else len(letters)
        for index, letter in enumerate(letters):
            if len(chosen) >= most:
                break
            if not cursor.is_takable(letter.offset):
                continue
            if self._source is None:
                if self._selection.includes(letter, is_origin_needed=True):
                    chosen.append((index, letter, None))
            elif self._selection.includes(letter):
                target = self._target_of(letter)
                if target is not None:
                    chosen.append((index, letter, target))
        return chosen

    def _write(self) -> None:
        """Have the changes of this turn written in one frame."""
        flow = self._topic.flow
        assert isinstance(flow, LogFlow)
        flow.write_changes()
        if self._source is not None and isinstance(self._source.flow, LogFlow):
            self._broker.logs.join(flow.log, self._source.flow.log)
        self._broker.logs.write_later(is_synced=True)

    async def finish(self) -> None:
        """Finish the letters whose copies are durable in a target of another store."""
        for target in self._targets.values():
            await target.durable()
        self._broker.turn.run(self._finish)

    def _finish(self) -> None:
        cursor = self._cursor
        for offset in self.unfinished:
            if cursor.is_takable(offset) and cursor.reach(offset, _LETTERS_PER_TURN):
                cursor.take(offset)
        self.unfinished = []
        self._write()

    def _target_of(self, letter: Letter) -> _Target | None:
        """Return the target of a letter; None if it has none, which is noted."""
        name = letter.origin["channel"] if letter.origin is not None else self._selection.channel
        if not name:
            self.failure = self.failure or ChannelNeeded()
            return None
        try:
            return self._target(name)
        except ChannelGone as error:
            self.failure = self.failure or error
            return None

    def _target(self, name: str) -> _Target:
        assert self._source is not None
        found = self._targets.get(name)
        if found is None or found.is_gone:
            found = self._targets[name] = _Target(self._broker, self._source, name)
        return found


async def _outcome(register: Callable[[Callable[[DiskQueueError | None], Any]], bool]) -> None:
    """Wait for a callback that ``register`` arranges; False means that there is nothing to wait for.

    Raises the DiskQueueError that the callback gets.
    """
    outcome: asyncio.Future[DiskQueueError | None] = asyncio.get_running_loop().create_future()
    if register(lambda error: None if outcome.done() else outcome.set_result(error)):
        error = await outcome
        if error is not None:
            raise error


def _register(queue: DiskQueue, done: Callable[[DiskQueueError | None], Any]) -> bool:
    queue.when_durable(done)
    return True


def durable(topic: Topic) -> Awaitable[None]:
    """Wait until everything in the log of a topic is durable. Raises DiskQueueError."""
    return _outcome(topic.when_durable)


def cancel(topic: Topic, offset: int, channel: Channel | None) -> Awaitable[None] | None:
    """Discard a deferred message of a log topic, or one that a channel has requeued with a delay.

    Return what to wait for until that is durable, which raises DiskQueueError; None if the message is not deferred.
    """
    flow = topic.flow
    assert isinstance(flow, LogFlow)
    if channel is None:
        if not flow.cancel(offset):
            return None
    else:
        cursor = channel.store
        assert isinstance(cursor, LogCursor)
        if not cursor.due_ns(offset):
            return None
        cursor.take(offset)
        flow.write_changes()
    return durable(topic)
