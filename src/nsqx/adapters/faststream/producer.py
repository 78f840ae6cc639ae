"""Encodes the messages of a broker and publishes them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import NOT_CONNECTED_YET, FeatureNotSupportedException, IncorrectState
from faststream.message import gen_cor_id

from nsqx.adapters.faststream.envelope import seal
from nsqx.adapters.faststream.parser import NSQParser
from nsqx.adapters.faststream.reply_inbox import ReplyInbox
from nsqx.adapters.faststream.response import NSQPublishCommand
from nsqx.client.options import seconds_of

if TYPE_CHECKING:
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import CustomCallable

    from nsqx.adapters.faststream.connector import Connector
    from nsqx.adapters.faststream.message import ReceivedMessage
    from nsqx.client.options import Duration
    from nsqx.client.producer import Producer


class NSQProducer(ProducerProto[NSQPublishCommand]):
    """Publishes through the producer of ``nsqx``, between ``connect`` and ``disconnect``."""

    def __init__(
        self,
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        *,
        raw: bool = False,
    ) -> None:
        default = NSQParser()
        self._parser = ParserComposition(parser, default.parse_message)
        self._decoder = ParserComposition(decoder, default.decode_message)
        self.codec: CodecProto = DefaultCodec()
        self.is_raw = raw
        self._serializer: SerializerProto | None = None
        self._client: Producer | None = None
        self._inbox: ReplyInbox | None = None

    def connect(
        self,
        client: Producer,
        connector: Connector,
        serializer: SerializerProto | None,
        codec: CodecProto | None,
    ) -> None:
        """Publish through ``client`` from now on."""
        self._client = client
        self._inbox = ReplyInbox(connector, client)
        self._serializer = serializer
        self.codec = codec or DefaultCodec()

    async def disconnect(self) -> None:
        """Forget the client, which is still open, and stop to wait for replies."""
        inbox, self._inbox, self._client = self._inbox, None, None
        if inbox is not None:
            await inbox.close()

    async def publish(self, cmd: NSQPublishCommand) -> None:
        """Publish one message. Raises PublishFailed."""
        body = await self._encoded(cmd, cmd.body)
        await self.send(cmd.destination, [body], delay=cmd.delay, timeout=cmd.timeout)

    async def publish_batch(self, cmd: NSQPublishCommand) -> None:
        """Publish the messages of a batch in one command. Raises PublishFailed."""
        bodies = [await self._encoded(cmd, body) for body in cmd.batch_bodies]
        if bodies:
            await self.send(cmd.destination, bodies, timeout=cmd.timeout)

    async def request(self, cmd: NSQPublishCommand) -> ReceivedMessage:
        """Publish a message and return the reply. Raises TimeoutError."""
        if self._inbox is None:
            raise IncorrectState(NOT_CONNECTED_YET)
        cmd.correlation_id = cmd.correlation_id or gen_cor_id()
        timeout_s = None if cmd.timeout is None else seconds_of("timeout", cmd.timeout)
        return await self._inbox.request(cmd.correlation_id, timeout_s, partial(self._ask, cmd))

    async def _ask(self, cmd: NSQPublishCommand, reply_to: str) -> None:
        cmd.reply_to = reply_to
        body = await self._encoded(cmd, cmd.body)
        await self.send(cmd.destination, [body], delay=cmd.delay)

    async def send(
        self, topic: str, bodies: Sequence[bytes], *, delay: Duration | None = None, timeout: Duration | None = None
    ) -> None:
        """Publish bodies as they are. Raises PublishFailed."""
        if self._client is None:
            raise IncorrectState(NOT_CONNECTED_YET)
        if len(bodies) > 1:
            await self._client.publish_many(topic, bodies, timeout)
        elif delay:
            await self._client.publish_deferred(topic, bodies[0], delay, timeout)
        else:
            await self._client.publish(topic, bodies[0], timeout)

    async def _encoded(self, cmd: NSQPublishCommand, message: Any) -> bytes:
        """Return the body of a message: its payload, in an envelope unless it is raw."""
        payload, content_type = await self.codec.encode(message, self._serializer)
        if self.is_raw if cmd.raw is None else cmd.raw:
            if cmd.reply_to:
                raise FeatureNotSupportedException(
                    f"publish to {cmd.destination}: a raw message has no headers, so it cannot ask for a reply:"
                    " leave out raw=True"
                )
            return payload
        own = {"content-type": content_type, "correlation_id": cmd.correlation_id, "reply_to": cmd.reply_to}
        headers = {name: value for name, value in own.items() if value}
        return seal(payload, headers | cmd.headers)
