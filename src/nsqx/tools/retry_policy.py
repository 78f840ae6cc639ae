"""What becomes of a message that could not be delivered.

A destination that cannot be reached is no fault of the message: it goes back to nsqd as often as need be. One that
the destination refuses goes back too, but is given up after ``max_attempts`` (5) as go-nsq does, or it would come for
ever. If ``max_attempts`` is given as a consumer option, the client library gives up whatever the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsqx.client.options import Options
from nsqx.tools.utility import say

if TYPE_CHECKING:
    from nsqx.client.subscription import Message


class RetryPolicy:
    """Counts the attempts of one utility's messages."""

    def __init__(self, consumer_options: dict[str, Any]) -> None:
        """Sets ``max_attempts`` in the options if it is not given."""
        self._max_attempts: int = consumer_options.get("max_attempts", Options.of({}).max_attempts)
        consumer_options.setdefault("max_attempts", 0)

    def unreachable(self, message: Message, reason: str) -> None:
        """Send it back: the destination is not there."""
        say(f"ERROR: {reason}; message {_id_of(message)} is requeued")
        message.requeue()

    def refused(self, message: Message, reason: str) -> None:
        """Send it back, unless that was done often enough: the destination does not want it."""
        if self._max_attempts and message.attempts >= self._max_attempts:
            say(f"ERROR: {reason}; message {_id_of(message)} attempted {message.attempts} times, giving up")
            message.finish()
        else:
            say(f"ERROR: {reason}; message {_id_of(message)} is requeued")
            message.requeue()


def _id_of(message: Message) -> str:
    return message.id.decode("ascii", "replace")
