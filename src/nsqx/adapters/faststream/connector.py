"""The clients of a broker: where its nsqds are, and with which options to connect to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from nsqx.client.arguments import as_list
from nsqx.client.consumer import Consumer
from nsqx.client.handshake import open_connection
from nsqx.client.options import Options
from nsqx.client.producer import Producer
from nsqx.errors import NSQError

if TYPE_CHECKING:
    from nsqx.client.options import Duration

_DEFAULT_ADDRESS = "127.0.0.1:4150"
_PING_TIMEOUT_S = 5.0
# A responder may publish its reply to an nsqd that the requester does not know yet.
_REPLY_POLL_S = 1.0
_REPLIES_IN_FLIGHT = 1000


class Connector:
    """Creates producers and consumers. It publishes to the given nsqds, or else to those that nsqlookupd names.

    It consumes from those that nsqlookupd names, or else from the given ones.
    """

    def __init__(
        self,
        nsqd_tcp_addresses: str | Iterable[str],
        lookupd_http_addresses: str | Iterable[str],
        options: Mapping[str, Any],
        *,
        publish_timeout: Duration,
        start_timeout: Duration,
        require_connection: bool,
    ) -> None:
        self._nsqds = as_list(nsqd_tcp_addresses)
        self._lookupds = as_list(lookupd_http_addresses)
        if not self._nsqds and not self._lookupds:
            self._nsqds = [_DEFAULT_ADDRESS]
        self._options = dict(options)
        self._publish_timeout = publish_timeout
        self._start: dict[str, Any] = {"start_timeout": start_timeout, "require_connection": require_connection}
        # Invalid arguments are reported now, not when the broker starts.
        self.producer()

    @property
    def addresses(self) -> list[str]:
        """The addresses for the AsyncAPI document: nsqds, or nsqlookupds with ``http://``."""
        return self._nsqds or [each if "://" in each else f"http://{each}" for each in self._lookupds]

    def producer(self) -> Producer:
        """Return a new producer."""
        lookupds = [] if self._nsqds else self._lookupds
        return Producer(
            self._nsqds,
            lookupd_http_addresses=lookupds,
            publish_timeout=self._publish_timeout,
            **self._start,
            **self._options,
        )

    def attempt_limit(self, options: Mapping[str, Any]) -> int:
        """Return the largest number of deliveries to a subscriber; 0, the default, means no limit."""
        limit: int = {**self._options, **options}.get("max_attempts", 0)
        return limit

    def consumer(
        self,
        topic: str,
        channel: str,
        handler: Callable[[Any], Any] | None,
        *,
        workers: int,
        options: Mapping[str, Any],
        give_up: Callable[[Any], Any] | None,
    ) -> Consumer:
        """Return a new consumer whose handler runs at most ``workers`` times at once.

        ``options`` have priority over those of the broker. Raises ConfigError or InvalidName.
        """
        merged = {**self._options, **options, "max_attempts": self.attempt_limit(options)}
        if "max_in_flight" not in options:
            merged["max_in_flight"] = max(workers, self._options.get("max_in_flight", 1))
        return Consumer(
            topic,
            channel,
            handler,
            nsqd_tcp_addresses=[] if self._lookupds else self._nsqds,
            lookupd_http_addresses=self._lookupds,
            concurrency=workers,
            on_give_up=give_up,
            **self._start,
            **merged,
        )

    def reply_consumer(self, topic: str, channel: str, handler: Callable[[Any], Any], producer: Producer) -> Consumer:
        """Return a new consumer for replies. They arrive where the broker publishes, or at any other nsqd."""
        options: dict[str, Any] = {
            **self._options,
            "max_attempts": 0,
            "max_in_flight": _REPLIES_IN_FLIGHT,
            "lookupd_poll_interval": _REPLY_POLL_S,
        }
        return Consumer(
            topic,
            channel,
            handler,
            nsqd_tcp_addresses=self._nsqds or producer.connected_addresses,
            lookupd_http_addresses=self._lookupds,
            **{**self._start, "require_connection": True},
            **options,
        )

    async def ping(self, producer: Producer, timeout_s: float | None) -> bool:
        """Return True if an nsqd that the broker publishes to completes a handshake in time."""
        options = Options.of(self._options)
        try:
            async with asyncio.timeout(timeout_s or _PING_TIMEOUT_S):
                for address in self._nsqds or producer.connected_addresses:
                    try:
                        connection, _ = await open_connection(address, options)
                    except NSQError:
                        continue
                    connection.close()
                    return True
        except TimeoutError:
            pass
        return False
