"""Annotations for the arguments of handlers: ``async def handle(body: str, message: NSQMessage)``."""

from typing import Annotated

from faststream._internal.context import Context
from faststream.annotations import ContextRepo, Logger
from faststream.params import NoCast

from nsqx.adapters.faststream.broker import NSQBroker as _NSQBroker
from nsqx.adapters.faststream.message import NSQStreamMessage
from nsqx.client.producer import Producer

__all__ = ["Client", "ContextRepo", "Logger", "NSQBroker", "NSQMessage", "NoCast"]

Client = Annotated[Producer, Context("broker._connection")]
NSQBroker = Annotated[_NSQBroker, Context("broker")]
NSQMessage = Annotated[NSQStreamMessage, Context("message")]
