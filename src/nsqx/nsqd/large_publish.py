"""Publishing a batch of very many messages in slices, so that it does not hold up the loop.

Each slice waits for its turn in the round-robin, and for the disk to take the slice before it. A failure ends the
publish: as in Go nsqd, the messages before it are published, and the client learns that the publish failed.
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
        """Begin with the slice ``first``, which was cut from ``slices``.

        ``done`` is called when everything is written, or with the error that ended it.
        """
        self._broker = broker
        self._topic = topic
        self._first: bytes | None = first
        self._slices = slices
        self._done = done
        broker.round_robin.join(self)

    def work(self) -> None:
        """Publish the next slice."""
        items = self._slices.next() if self._first is None else self._first
        self._first = None
        try:
            if self._slices.count:
                self._topic.publish(items, self._slices.count)
        except (BrokerExiting, DiskQueueError) as error:
            self._done(error)
        else:
            self._broker.turn.when_written(self._written, self._topic)

    def _written(self, failure: DiskQueueError | None) -> None:
        if failure is not None or self._slices.is_done:
            self._done(failure)
        else:
            self._broker.round_robin.join(self)
