# ruff: noqa: ARG002  (the store of a deleted channel ignores the arguments)
"""The interface between a channel and the store of its messages.

The store owns the messages of one channel: those that wait, those in flight and the deferred ones, with their deadlines
and their files. The channel owns the consumers, the timer and the counters. Neither sees inside the other.

The channel calls the store through ``ChannelStore``. The store reports to the channel:

- ``channel.arrived(count)``: messages were published to the channel. Called for each batch.
- ``channel.delivered(client)``: a message was appended to the output of ``client`` and is in flight now.
- ``channel.finished(client, timestamp)``, ``channel.requeued(client)``, ``channel.timed_out(client_id)``: a message is
  no longer in flight. The client may be ready again when the call returns.
- ``channel.wake()``: messages may be waiting, so ``hand_out`` is to be called at the end of the turn.
- ``channel.arm(deadline_ns)``: ``expire`` is to be called at this time or earlier.

Times are monotonic nanoseconds. A message's timestamp is in wall-clock nanoseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nsqx.queues.deadlines import NEVER_NS
from nsqx.wire import byteops

if TYPE_CHECKING:
    from nsqx.nsqd.client import Client
    from nsqx.nsqd.log_stats import CursorStats
    from nsqx.nsqd.ready_clients import ReadyClients
    from nsqx.queues.diskqueue import DiskQueue

# Why FIN, REQ or TOUCH is refused.
NOT_IN_FLIGHT = "ID not in flight"
NOT_OWNER = "client does not own message"
EXITING = "exiting"


class SeekResult(NamedTuple):
    """What a new position does to a channel. Depths are numbers of waiting messages."""

    from_offset: int
    to_offset: int
    depth_before: int
    depth: int
    in_flight_count: int  # messages in flight, which are forgotten
    forgotten_count: int  # requeued and deferred messages, which are forgotten


class ChannelStore:
    """The messages of one channel. This class has none: it is the store of a deleted channel.

    ``finish``, ``requeue`` and ``touch`` are called for each command, ``hand_out`` once for many messages. Nothing is
    called for each delivered message.
    """

    __slots__ = ()

    # Counts

    @property
    def depth(self) -> int:
        """Waiting messages, without those in flight or deferred."""
        return 0

    @property
    def backend_depth(self) -> int:
        """Waiting messages that are not in memory."""
        return 0

    @property
    def in_flight_count(self) -> int:
        """Messages in flight."""
        return 0

    @property
    def deferred_count(self) -> int:
        """Deferred messages."""
        return 0

    def oldest_time_ns(self) -> int:
        """Return the approximate time of publishing of the oldest message that waits or is in flight.

        0 if there is none, -1 if it is unknown. Cheap: reads no message.
        """
        return 0

    def cursor_stats(self) -> CursorStats | None:
        """Return the position in the log; None if the topic has no log."""
        return None

    # Delivery

    def has_messages(self) -> bool:
        """True if ``hand_out`` may deliver a message now. Called when a client becomes ready."""
        return False

    def hand_out(self, ready: ReadyClients, now_ns: int) -> int:
        """Deliver waiting messages, each to ``ready.next()``, until there are no more of either.

        Return the earliest deadline of the delivered messages, or NEVER_NS. If messages wait that cannot be read now,
        the deadline is the time to try again.
        """
        return NEVER_NS

    def expire(self, now_ns: int) -> None:
        """Return timed-out and due messages to the waiting ones, a bounded number in each call."""

    def next_deadline(self) -> int:
        """Return the time of the next timeout or due time, or NEVER_NS. It is in the past if ``expire`` left some.

        It may be earlier: ``expire`` then finds nothing.
        """
        return NEVER_NS

    # Commands of clients for messages in flight

    def finish(self, client: Client, message_id: bytes) -> str | None:
        """Finish a message; returns None, or the reason for a refusal."""
        return NOT_IN_FLIGHT

    def finish_number(self, client: Client, id_number: int) -> bool:
        """Finish the message whose id has this number; if False is returned, ``finish`` returns the reason."""
        return self.finish(client, byteops.id_text(id_number)) is None

    def requeue(self, client: Client, message_id: bytes, delay_ns: int) -> str | None:
        """Deliver a message again, now or after a delay; returns None, or the reason for a refusal."""
        return NOT_IN_FLIGHT

    def touch(self, client: Client, message_id: bytes, max_timeout_ns: int) -> str | None:
        """Restart the timeout of a message, up to ``max_timeout_ns`` after its delivery.

        Return None, or the reason for a refusal.
        """
        return NOT_IN_FLIGHT

    # Administration

    def note_pause(self) -> None:
        """Note that the channel was paused or unpaused."""

    def empty(self) -> None:
        """Discard all messages: waiting, in flight and deferred. Nothing is reported to the channel."""

    def seek(self, offset: int, *, is_dry_run: bool = False) -> SeekResult:
        """Continue at an offset of the log, and return what that does; a dry run changes nothing.

        Nothing is reported to the channel. Only the stores of log topics have offsets.
        """
        return SeekResult(offset, offset, 0, 0, 0, 0)

    def delete(self) -> None:
        """Discard all messages and remove the files. The store is not used afterwards."""

    def spill(self) -> None:
        """Queue every message for writing. The channel hands out nothing afterwards."""

    def close(self) -> None:
        """Write every message to disk and release the files; raises DiskQueueError or OSError on failure."""

    def disk_queues(self) -> list[DiskQueue]:
        """Return the disk queues that the store writes."""
        return []
