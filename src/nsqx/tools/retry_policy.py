"""The retry policy for messages that could not be forwarded.

If the destination cannot be reached, the message is requeued without a limit. If the destination rejects the message,
it is requeued too, but given up after ``max_attempts`` (5), as in go-nsq. If ``max_attempts`` is set as a consumer
option, the client library gives up after that many attempts in both cases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsqx.client.options import Options
from nsqx.tools.utility import log_line

if TYPE_CHECKING:
    from nsqx.client.subscription import Message


class RetryPolicy:
    """Requeues or gives up the messages of one utility."""

    def __init__(self, consumer_options: dict[str, Any]) -> None:
        """Set ``max_attempts`` in the options to 0 if it is not given."""
        self._max_attempts: int = consumer_options.get("max_attempts", Options.of({}).max_attempts)
        consumer_options.setdefault("max_attempts", 0)

    def unreachable(self, message: Message, reason: str) -> None:
        """Requeue a message because the destination cannot be reached."""
        log_line(f"ERROR: {reason}; message {_id_of(message)} is requeued")
        message.requeue()

    def refused(self, message: Message, reason: str) -> None:
        """Requeue a message that the destination rejected, or give it up after ``max_attempts``."""
        if self._max_attempts and message.attempts >= self._max_attempts:
            log_line(f"ERROR: {reason}; message {_id_of(message)} attempted {message.attempts} times, giving up")
            message.finish()
        else:
            log_line(f"ERROR: {reason}; message {_id_of(message)} is requeued")
            message.requeue()


def _id_of(message: Message) -> str:
    return message.id.decode("ascii", "replace")
