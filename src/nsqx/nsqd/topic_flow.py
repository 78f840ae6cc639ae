# ruff: noqa: ARG002  (the flow of a deleted topic ignores the arguments)
"""The interface between a topic and the flow of its messages to the channels.

The flow owns the messages from the publish until every channel has them, with their ids and their files, and it opens
the stores of the channels. The topic owns the channels, the counters, and whether messages may flow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nsqx.nsqd.channel_store import ChannelStore
from nsqx.nsqd.publish_options import NO_OFFSET, PublishOptions, PublishOutcome

if TYPE_CHECKING:
    from nsqx.errors import DiskQueueError
    from nsqx.nsqd.channel import Channel
    from nsqx.nsqd.log_stats import LogStats
    from nsqx.queues.diskqueue import DiskQueue
    from nsqx.queues.log.log import TopicLog
    from nsqx.wire.log_place import LogPlace


class TopicFlow:
    """The messages of a topic on their way to its channels. This class has none: it is the flow of a deleted topic.

    ``publish`` is called for each PUB and each MPUB. Nothing is called for each message of an MPUB.
    """

    __slots__ = ()

    @property
    def depth(self) -> int:
        """Messages that have not reached the channels."""
        return 0

    @property
    def backend_depth(self) -> int:
        """Messages that have not reached the channels and are not in memory."""
        return 0

    def oldest_time_ns(self) -> int:
        """Return when the oldest message was published that has not reached the channels; 0 if none, -1 if unknown."""
        return 0

    def log_stats(self) -> LogStats | None:
        """Return the numbers of the log; None if there is none."""
        return None

    def log_place(self) -> LogPlace | None:
        """Return what clients must know of the log; None if there is none."""
        return None

    def note_settings(self) -> None:
        """Use the settings of the topic, which have changed."""

    # Publishing

    def publish(self, items: bytes, count: int) -> None:
        """Take ``count`` messages in the layout of an MPUB body; raises DiskQueueError if they cannot be kept."""

    def publish_deferred(self, body: bytes, defer_ns: int) -> None:
        """Take a message that each channel defers for ``defer_ns``; raises the errors of ``publish``."""

    def publish_with(self, items: bytes, count: int, options: PublishOptions) -> PublishOutcome:
        """Take messages as ``publish``, with options; raises NotALogTopic if they need a log and there is none."""
        return PublishOutcome(NO_OFFSET, count)

    def admit_part(self, size: int) -> None:
        """Raise NotALogTopic, or DiskQueueError if messages of a transaction with this size cannot be appended now."""

    def append_part(self, items: bytes, sums: bytes, count: int, defer_ns: int) -> None:
        """Append messages of a transaction. The caller writes them in one frame with the rest of the transaction."""

    def put_letter(self, body: bytes) -> DiskQueue | None:
        """Put a dead letter into a disk queue and return the queue; None if there is none. Raises DiskQueueError."""
        return None

    def append_letter(self, item: bytes, origin: bytes, source: TopicLog) -> None:
        """Append a dead letter to the log, in one frame with the pending changes of ``source``.

        Raise DiskQueueError if the log must not grow now. There must be a log.
        """

    def when_committed(self, done: Callable[[DiskQueueError | None], object]) -> bool:
        """Call ``done`` when the changes so far survive a crash, or with the error if they cannot be written.

        Return False, and do not call it, if they are in a log that is written already, or in no log.
        """
        return False

    def when_durable(self, done: Callable[[DiskQueueError | None], object]) -> bool:
        """Call ``done`` when the changes so far survive a power cut too; otherwise as ``when_committed``."""
        return False

    def note_refused(self, count: int, failure: DiskQueueError) -> None:
        """Count publishes that were refused because they could not be committed."""

    # Channels

    def open_store(self, channel: Channel, start: int | None = None) -> ChannelStore:
        """Return the store of a new channel, which gets messages from now on; raises DiskQueueError.

        ``start`` is its first offset, if there is a log.
        """
        return ChannelStore()

    def remove_store(self, store: ChannelStore) -> None:
        """Give no more messages to a store. The caller deletes it."""

    def update(self, is_flowing: bool) -> None:
        """Note whether messages may go to the channels. Called after each change of the channels, too."""

    def finish_moves(self) -> None:
        """Note that nsqd.dat names the topic and its channels, so that their files are found again."""

    # Administration

    def empty(self) -> None:
        """Discard the messages that have not reached the channels."""

    def delete(self) -> None:
        """Discard the messages and remove the files. The flow is not used afterwards."""

    def spill(self) -> None:
        """Queue every message for writing. Nothing is published afterwards."""

    def close(self) -> None:
        """Write every message to disk and release the files; raises DiskQueueError or OSError on failure."""

    def disk_queues(self) -> list[DiskQueue]:
        """Return the disk queues that the flow and its stores write."""
        return []

    def lost_counts(self) -> dict[str, int]:
        """Return how many messages could not be written at the end, by the name of their queue."""
        return {}
