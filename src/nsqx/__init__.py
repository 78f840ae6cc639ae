"""NSQ in Python: daemons, utilities, and a client library.

The client library is imported from this package:

    from nsqx import Consumer, Producer

Each name is imported on first use, so a daemon does not load the client library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nsqx import blocking, codecs, middlewares, telemetry
    from nsqx.client.app import App
    from nsqx.client.consumer import Consumer, ConsumerStats
    from nsqx.client.health import ClientHealth
    from nsqx.client.log_follower import LogMessage
    from nsqx.client.options import Options, read_option_flags
    from nsqx.client.producer import Producer
    from nsqx.client.reader import Reader
    from nsqx.client.routing import Delivery, MessageRouter
    from nsqx.client.subscription import Message
    from nsqx.client.topic_publisher import TopicPublisher
    from nsqx.errors import (
        AlreadyAnswered,
        ClientClosed,
        ClientError,
        ConfigError,
        ConnectFailed,
        ConnectionClosed,
        ConnectRefused,
        GiveUp,
        InvalidBody,
        InvalidMessage,
        InvalidName,
        LookupFailed,
        NotConnected,
        NSQError,
        PublishFailed,
        PublishTimedOut,
        ReadFailed,
    )
    from nsqx.version import VERSION as __version__  # noqa: N811

_HOMES = {
    "nsqx.client.app": ("App",),
    "nsqx.client.consumer": ("Consumer", "ConsumerStats"),
    "nsqx.client.health": ("ClientHealth",),
    "nsqx.client.options": ("Options", "read_option_flags"),
    "nsqx.client.producer": ("Producer",),
    "nsqx.client.log_follower": ("LogMessage",),
    "nsqx.client.reader": ("Reader",),
    "nsqx.client.routing": ("Delivery", "MessageRouter"),
    "nsqx.client.topic_publisher": ("TopicPublisher",),
    "nsqx.client.subscription": ("Message",),
    "nsqx.errors": (
        "AlreadyAnswered",
        "ClientClosed",
        "ClientError",
        "ConfigError",
        "ConnectFailed",
        "ConnectRefused",
        "ConnectionClosed",
        "GiveUp",
        "InvalidBody",
        "InvalidMessage",
        "InvalidName",
        "LookupFailed",
        "NSQError",
        "NotConnected",
        "PublishFailed",
        "PublishTimedOut",
        "ReadFailed",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = ("blocking", "codecs", "middlewares", "telemetry")

__all__ = [
    "AlreadyAnswered",
    "App",
    "ClientClosed",
    "ClientError",
    "ClientHealth",
    "ConfigError",
    "ConnectFailed",
    "ConnectRefused",
    "ConnectionClosed",
    "Consumer",
    "ConsumerStats",
    "Delivery",
    "GiveUp",
    "InvalidBody",
    "InvalidMessage",
    "InvalidName",
    "LogMessage",
    "LookupFailed",
    "Message",
    "MessageRouter",
    "NSQError",
    "NotConnected",
    "Options",
    "Producer",
    "PublishFailed",
    "PublishTimedOut",
    "ReadFailed",
    "Reader",
    "TopicPublisher",
    "__version__",
    "blocking",
    "codecs",
    "middlewares",
    "read_option_flags",
    "telemetry",
]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        value = getattr(importlib.import_module(_HOME_OF[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(f"nsqx.{name}")
    elif name == "__version__":
        value = importlib.import_module("nsqx.version").VERSION
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    dunders = [name for name in globals() if name.startswith("__")]
    return sorted({*dunders, *__all__})
