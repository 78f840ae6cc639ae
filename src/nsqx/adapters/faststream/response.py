"""What a handler returns to set the headers or the delay of its result, and the command that publishes a message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faststream.response import BatchPublishCommand, PublishCommand, PublishType, Response

if TYPE_CHECKING:
    from faststream._internal.basic_types import SendableMessage

    from nsqx.client.options import Duration


class NSQResponse(Response):
    """A result of a handler, with options for its publish."""

    def __init__(
        self,
        body: SendableMessage = None,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        delay: Duration | None = None,
        raw: bool | None = None,
    ) -> None:
        """``delay`` and ``raw`` are those of ``NSQBroker.publish``."""
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.delay = delay
        self.raw = raw

    def as_publish_command(self) -> NSQPublishCommand:
        """Return the command that publishes the result."""
        return NSQPublishCommand(
            self.body,
            headers=self.headers,
            correlation_id=self.correlation_id,
            delay=self.delay,
            raw=self.raw,
            _publish_type=PublishType.PUBLISH,
        )


class NSQPublishCommand(BatchPublishCommand):
    """A publish to a topic, as middlewares see it."""

    def __init__(
        self,
        message: SendableMessage,
        /,
        *messages: SendableMessage,
        _publish_type: PublishType,
        topic: str = "",
        delay: Duration | None = None,
        raw: bool | None = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        timeout: Duration | None = None,
    ) -> None:
        super().__init__(
            message,
            *messages,
            destination=topic,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to,
            _publish_type=_publish_type,
        )
        self.delay = delay
        self.raw = raw
        self.timeout = timeout

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> NSQPublishCommand:
        """Return the command of NSQ for a command of any broker."""
        if isinstance(cmd, NSQPublishCommand):
            return cmd
        body, extra_bodies = cls._parse_bodies(cmd.body, batch=batch)
        return cls(
            body,
            *extra_bodies,
            topic=cmd.destination,
            headers=cmd.headers,
            correlation_id=cmd.correlation_id,
            reply_to=cmd.reply_to,
            _publish_type=cmd.publish_type,
        )

    def __repr__(self) -> str:
        return (
            f"<NSQPublishCommand topic={self.destination!r} body={self.body!r} headers={self.headers!r}"
            f" correlation_id={self.correlation_id!r}>"
        )
