"""Messages of a classic topic or channel, shown without being consumed: in memory, in flight, deferred and on disk.

The event loop copies what is in memory. A thread reads the files of the disk queue from its read position on. The
messages have no offsets, so a request continues after a number of messages, and consumers may have moved on meanwhile.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from time import sleep
from typing import TYPE_CHECKING, Any, NamedTuple

from nsqx.errors import HTTPError
from nsqx.nsqd.classic_flow import ClassicFlow
from nsqx.nsqd.classic_store import ClassicStore
from nsqx.nsqd.peek import DELAYED, IN_FLIGHT, MAX_SCANNED, WAITING, PeekCollector
from nsqx.nsqd.sync_threads import completed
from nsqx.wire import byteops

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.channel import Channel
    from nsqx.nsqd.classic_store import ClassicContents
    from nsqx.nsqd.peek import PeekRequest
    from nsqx.nsqd.topic import Topic
    from nsqx.wire.message import QueuedMessage

# After so many messages a thread lets the event loop run.
_MESSAGES_PER_TURN = 100


class _Found(NamedTuple):
    """A message, and what is known about it."""

    message: QueuedMessage
    fields: dict[str, Any]


class ClassicPeek:
    """One request for messages of a classic topic, or of one of its channels."""

    def __init__(self, broker: Broker, topic: Topic, channel: Channel | None, request: PeekRequest) -> None:
        store = channel.store if channel is not None else topic.flow
        if not isinstance(store, ClassicFlow | ClassicStore):
            raise HTTPError(404, "TOPIC_NOT_FOUND")  # it was deleted
        self._broker = broker
        self._request = request
        self._is_channel = channel is not None
        self._contents: ClassicContents = store.contents(request.skip + MAX_SCANNED)
        self._id = b"" if request.id_number is None else byteops.id_text(request.id_number)
        self._wall_offset_ns = broker.clock.wall_ns() - broker.clock.now_ns()
        self.collector = PeekCollector(request)
        self.end = store.depth
        if channel is not None:
            self.end += channel.in_flight_count + channel.deferred_count
        self.next = request.skip  # where to continue

    async def run(self) -> None:
        """Collect the messages."""
        await completed(partial(self._broker.commits.threads.run, is_urgent=True), _ClassicLook(self))
        self.next = self._request.skip + self.collector.scanned

    # In a thread

    def look(self) -> None:
        """Look at the messages until the answer is full."""
        for count, found in enumerate(islice(self._wanted(), self._request.skip, None)):
            message = found.message
            if self._id and message.id != self._id:
                if not self.collector.pass_over(message.body):
                    return
            elif not self.collector.add(message.body, self._fields(found)):
                return
            if self.collector.is_full:
                return
            if count % _MESSAGES_PER_TURN == 0:
                sleep(0)

    def _wanted(self) -> Iterator[_Found]:
        """Yield the messages in the wanted states, in an order that stays the same as long as nothing moves."""
        wanted = self._request.state
        contents = self._contents
        if wanted in ("", IN_FLIGHT):
            yield from (_Found(message, {"state": IN_FLIGHT}) for message in contents.in_flight)
        if wanted in ("", DELAYED):
            for message in sorted(contents.deferred, key=lambda one: one.deadline_ns):
                yield _Found(message, {"state": DELAYED, "due": message.deadline_ns + self._wall_offset_ns})
        if wanted in ("", WAITING):
            for message in contents.waiting():
                due_ns = contents.due_ns.get(message.id)
                yield _Found(message, {"state": WAITING} | self._due_field(due_ns))

    def _due_field(self, due_ns: int | None) -> dict[str, Any]:
        return {} if due_ns is None else {"due": due_ns + self._wall_offset_ns}

    def _fields(self, found: _Found) -> dict[str, Any]:
        message = found.message
        fields = {"id": message.id.decode("latin-1"), "timestamp": message.timestamp}
        return fields | ({"attempts": message.attempts} | found.fields if self._is_channel else {})


class _ClassicLook:
    """Looks at messages in a thread."""

    def __init__(self, peek: ClassicPeek) -> None:
        self._peek = peek

    def run(self) -> None:
        """Look."""
        self._peek.look()
