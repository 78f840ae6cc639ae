"""Publish a very large batch in slices, so that it does not block the event loop.

Each slice waits for its turn in the round-robin, and until the slice before it is written. A failure ends the publish:
as in Go nsqd, the earlier messages stay published, and the client gets an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nsqx.errors import BrokerExiting, DiskQueueError, NSQError

if TYPE_CHECKING:
    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.topic import Topic
    from nsqx.wire.batches import Slices


class LargePublish:
    """A member of the round-robin until all slices are published."""

    __slots__ = ("_broker", "_done", "_first", "_slices", "_topic")

    def __init__(
        self, broker: Broker, topic: Topic, first: bytes, slices: Slices, done: Callable[[NSQError | None], object]
    ) -> None:
        """Start with the slice ``first``, which was taken from ``slices``.

        ``done`` is called when everything is written, or with the error that ended the publish.
        """
        self._broker = broker
        self._topic = topic
        self._first: bytes | None = first
        self._slices = slices
        self._done = done
        broker.round_robin.join(self)

    def work(self) -> None:
        """Publish the next slice."""
        # A batch that has begun before a drain is published wholly.
        publish = self._topic.publish if self._first is not None else self._topic.publish_in_drain
        items = self._slices.next() if self._first is None else self._first
        self._first = None
        try:
            if self._slices.count:
                publish(items, self._slices.count)
        except (BrokerExiting, DiskQueueError) as error:
            self._done(error)
        else:
            self._broker.commits.when_written(self._written, self._topic)

    def _written(self, failure: DiskQueueError | None) -> None:
        if failure is not None or self._slices.is_done:
            self._done(failure)
        else:
            self._broker.round_robin.join(self)
