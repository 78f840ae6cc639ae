"""A FastStream broker on NSQ: ``NSQBroker("127.0.0.1:4150")``. It needs ``pip install 'nsqx[faststream]'``.

A subscriber consumes a channel of a topic. A message is finished when its handler returns and requeued when the handler
raises; the acknowledgement policy of the subscriber changes that. The middlewares for OpenTelemetry and Prometheus are
in ``opentelemetry`` and ``prometheus``.
"""

try:
    import faststream as _faststream  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError(f"nsqx.adapters.faststream needs {error.name}: pip install 'nsqx[faststream]'") from error

from nsqx.adapters.faststream.annotations import NSQMessage
from nsqx.adapters.faststream.broker import NSQBroker
from nsqx.adapters.faststream.response import NSQResponse
from nsqx.adapters.faststream.router import NSQPublisher, NSQRoute, NSQRouter
from nsqx.adapters.faststream.testing import TestNSQBroker

__all__ = [
    "NSQBroker",
    "NSQMessage",
    "NSQPublisher",
    "NSQResponse",
    "NSQRoute",
    "NSQRouter",
    "TestNSQBroker",
]
