"""From a message of nsqd to a message of FastStream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faststream.message import decode_message

from nsqx.adapters.faststream.envelope import unseal
from nsqx.adapters.faststream.message import NSQStreamMessage, ReceivedMessage

if TYPE_CHECKING:
    from faststream._internal.basic_types import DecodedMessage
    from faststream.message import StreamMessage


class NSQParser:
    """Parses envelopes and plain messages. The id of a plain message is also its correlation id."""

    async def parse_message(self, message: ReceivedMessage) -> NSQStreamMessage:
        """Return the message with its payload as the body."""
        body, headers = unseal(message.body)
        message_id = message.message.id.decode("ascii", "replace")
        return NSQStreamMessage(
            raw_message=message,
            body=body,
            headers=headers,
            reply_to=str(headers.get("reply_to") or ""),
            content_type=headers.get("content-type"),
            message_id=message_id,
            correlation_id=str(headers.get("correlation_id") or message_id),
        )

    async def decode_message(self, message: StreamMessage[Any]) -> DecodedMessage:
        """Decode the payload by its content type. A payload without one is JSON if that is possible, or bytes."""
        return decode_message(message)
