"""NSQ in Python: daemons, utilities, and a client library.

The client library is imported from this package:

    from nsqx import Consumer, Producer

Each name is imported on first use, so a daemon does not load the client library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nsqx.client import blocking, telemetry
    from nsqx.client.consumer import Consumer, ConsumerStats
    from nsqx.client.options import Options, read_option_flags
    from nsqx.client.producer import Producer
    from nsqx.client.subscription import Message
    from nsqx.errors import (
        AlreadyAnswered,
        ClientClosed,
        ClientError,
        ConfigError,
        ConnectFailed,
        ConnectionClosed,
        InvalidMessage,
        InvalidName,
        LookupFailed,
        NotConnected,
        NSQError,
        PublishFailed,
        PublishTimedOut,
    )
    from nsqx.version import VERSION as __version__  # noqa: N811

_HOMES = {
    "nsqx.client.consumer": ("Consumer", "ConsumerStats"),
    "nsqx.client.options": ("Options", "read_option_flags"),
    "nsqx.client.producer": ("Producer",),
    "nsqx.client.subscription": ("Message",),
    "nsqx.errors": (
        "AlreadyAnswered",
        "ClientClosed",
        "ClientError",
        "ConfigError",
        "ConnectFailed",
        "ConnectionClosed",
        "InvalidMessage",
        "InvalidName",
        "LookupFailed",
        "NSQError",
        "NotConnected",
        "PublishFailed",
        "PublishTimedOut",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = ("blocking", "telemetry")

__all__ = [
    "AlreadyAnswered",
    "ClientClosed",
    "ClientError",
    "ConfigError",
    "ConnectFailed",
    "ConnectionClosed",
    "Consumer",
    "ConsumerStats",
    "InvalidMessage",
    "InvalidName",
    "LookupFailed",
    "Message",
    "NSQError",
    "NotConnected",
    "Options",
    "Producer",
    "PublishFailed",
    "PublishTimedOut",
    "__version__",
    "blocking",
    "read_option_flags",
    "telemetry",
]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        value = getattr(importlib.import_module(_HOME_OF[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(f"nsqx.client.{name}")
    elif name == "__version__":
        value = importlib.import_module("nsqx.version").VERSION
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
