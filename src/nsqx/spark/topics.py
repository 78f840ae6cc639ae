"""The consumers of a query: which topics they consume, how many messages may be in flight, and how they stop.

nsqd limits the messages in flight on one connection, by default to 2500. A topic may therefore have several consumers,
here called lanes, with one connection each to an nsqd. Messages go into columns instead of handlers, and the intake
gets everything that the connections report. Belongs to the thread of the event loop. Knows nothing of segments nor of
Spark.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from typing import TYPE_CHECKING, Any

from nsqx.client.consumer import Consumer
from nsqx.client.http_credentials import http_credentials
from nsqx.client.options import Options
from nsqx.errors import ConfigError, ConnectFailed, NSQError, RequestFailed
from nsqx.spark.cluster import channel_depth, find_topics
from nsqx.spark.columns import ColumnReceiver
from nsqx.spark.intake import ConnectionLost, FinishFailed, Intake
from nsqx.spark.options import MSG_TIMEOUT_S, SourceOptions
from nsqx.wire.frames import failed_finish_id

if TYPE_CHECKING:
    from nsqx.client.subscription import Subscription

_log = logging.getLogger("nsqx.spark")

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 5.0
# Slow storage needs more messages in flight, so more connections; each one costs nsqd memory and time.
MAX_LANES = 4
MAX_LANES_TO_REMOTE = 8


class TopicConsumer(Consumer):
    """Receives the messages of one topic into columns, over one connection to each nsqd."""

    def __init__(
        self,
        intake: Intake,
        topic: str,
        options: SourceOptions,
        *,
        max_in_flight: int,
        client_options: dict[str, Any],
    ) -> None:
        super().__init__(
            topic,
            options.channel,
            nsqd_tcp_addresses=options.cluster.nsqd_tcp_addresses,
            lookupd_http_addresses=options.cluster.lookupd_http_addresses,
            require_connection=not options.cluster.lookupd_http_addresses,
            start_timeout=START_TIMEOUT_S,
            # No message is given up here, however many attempts it has: the query decides.
            **{**client_options, "max_in_flight": max_in_flight, "max_attempts": 0},
        )
        self._intake = intake
        self.close_wait_count = 0
        # The lowest limit of messages in flight on a connection among all nsqds.
        self.max_ready_count = 0

    def _receiver_of(self, subscription: Subscription) -> ColumnReceiver:
        """Return the receiver of a connection, which fills columns instead of calling handlers."""
        clock = asyncio.get_running_loop().time
        source = ColumnReceiver(self.topic, self._broker_of(subscription), subscription, self._arrived, clock)
        self.max_ready_count = min(self.max_ready_count or 2**62, subscription.max_ready_count)
        self._intake.connected(source)
        return source

    def _arrived(self) -> bool:
        return self._intake.arrived(is_starved=self.is_starved)

    def _broker_of(self, subscription: Subscription) -> str:
        """Return the broker id of the nsqd, or its address if it has none."""
        address = subscription.connection.address
        return self._broker_ids.get(address) or address

    def _on_close_wait(self, subscription: Subscription) -> None:
        """Count the CLOSE_WAIT answers: each proves that nsqd has read everything sent before."""
        self.close_wait_count += 1
        super()._on_close_wait(subscription)

    def _on_lost(self, subscription: Subscription, error: Exception | None) -> None:
        """Report a connection that was lost unexpectedly: its latest FINs may not have reached nsqd."""
        if not subscription.is_closing:
            self._intake.report(ConnectionLost(self.topic, self._broker_of(subscription)))
        super()._on_lost(subscription, error)

    def _on_answer_failed(self, subscription: Subscription, text: str, is_harmless: bool) -> None:
        """Report a FIN that came too late: the message waits in its channel again."""
        message_id = failed_finish_id(text)
        if message_id:
            self._intake.report(FinishFailed(self.topic, self._broker_of(subscription), message_id))
        super()._on_answer_failed(subscription, text, is_harmless)


class Topics:
    """The consumers of a query."""

    def __init__(self, options: SourceOptions, intake: Intake, max_lanes: int) -> None:
        """At most ``max_lanes`` connections are made to an nsqd for a topic."""
        self._options = options
        self._intake = intake
        self._max_lanes = max_lanes
        self._client_options: dict[str, Any] = {"msg_timeout": MSG_TIMEOUT_S, **dict(options.cluster.client_options)}
        self._checked = Options.of(self._client_options)
        self._credentials = http_credentials(self._checked)
        self._consumers: dict[str, list[TopicConsumer]] = {}
        self._is_paused = False

    @property
    def msg_timeout_s(self) -> float:
        """The message timeout requested from nsqd."""
        return self._checked.msg_timeout

    @property
    def names(self) -> list[str]:
        """The topics that are consumed."""
        return list(self._consumers)

    @property
    def is_starved(self) -> bool:
        """True if some nsqd sends nothing more until messages are finished."""
        return any(consumer.is_starved for consumer in self._all())

    def _all(self) -> list[TopicConsumer]:
        return [consumer for lanes in self._consumers.values() for consumer in lanes]

    # Finding topics

    async def find(self) -> list[str]:
        """Return the topics to consume; raises ConfigError if no nsqlookupd answers and they are unknown."""
        options = self._options
        addresses = options.cluster.lookupd_http_addresses
        if not addresses:
            return list(options.topics)
        try:
            found = await find_topics(addresses, self._credentials)
        except RequestFailed as error:
            if options.cluster.nsqd_tcp_addresses and not options.topic_pattern:
                return list(options.topics)
            raise ConfigError(
                f"nsq: no nsqlookupd answers ({error}): check nsq.lookupd, it takes HTTP addresses, usually port 4161"
            ) from None
        if not options.topic_pattern:
            return list(options.topics)
        pattern = re.compile(options.topic_pattern)
        return [topic for topic in found if pattern.fullmatch(topic)]

    async def keep_finding(self) -> None:
        """Subscribe to matching topics that are created later."""
        while True:
            await asyncio.sleep(self._checked.lookupd_poll_interval)
            try:
                topics = await self.find()
            except NSQError as error:
                _log.warning("cannot look for topics: %s", error)
                continue
            for topic in topics:
                if topic not in self._consumers:
                    _log.info("subscribing to the new topic %s", topic)
                    with contextlib.suppress(ConfigError):
                        await self.subscribe(topic)

    async def ask_depth(self, topics: list[str]) -> int | None:
        """Return the number of messages that wait in the channel, or None if unknown."""
        addresses = self._options.cluster.lookupd_http_addresses
        if not addresses:
            return None
        return await channel_depth(addresses, topics, self._options.channel, self._credentials)

    # Consuming

    async def subscribe(self, topic: str) -> None:
        """Consume a topic; raises ConfigError if no nsqd can be reached."""
        lanes = self._consumers.setdefault(topic, [])
        try:
            await self._add_lane(topic, lanes)
            self._share_out()
            allowed = lanes[0].max_ready_count * max(1, len(lanes[0].connected_addresses))
            wanted = self._share()
            while allowed and allowed * len(lanes) < wanted and len(lanes) < self._max_lanes:
                await self._add_lane(topic, lanes)
        except ConnectFailed as error:
            raise ConfigError(
                f"nsq: no nsqd can be reached for topic {topic} ({error}): check nsq.nsqd, it takes TCP addresses,"
                " usually port 4150"
            ) from None
        self._share_out()

    async def _add_lane(self, topic: str, lanes: list[TopicConsumer]) -> None:
        share = max(1, self._share() // (len(lanes) + 1))
        consumer = TopicConsumer(
            self._intake, topic, self._options, max_in_flight=share, client_options=self._client_options
        )
        lanes.append(consumer)
        await consumer.start()

    def _share(self) -> int:
        """Return how many messages of each topic may be in flight."""
        return 0 if self._is_paused else max(1, self._options.max_in_flight // max(1, len(self._consumers)))

    def _share_out(self) -> None:
        share = self._share()
        for lanes in self._consumers.values():
            for number, consumer in enumerate(lanes):
                count = (share + len(lanes) - 1 - number) // len(lanes)
                if consumer.max_in_flight != count:
                    with contextlib.suppress(ConfigError):  # the consumer has not started yet
                        consumer.max_in_flight = count

    def pause(self, is_paused: bool) -> None:
        """Pause or resume consuming."""
        self._is_paused = is_paused
        self._share_out()

    # Stopping

    async def end(self) -> bool:
        """Stop consuming, wait until all received messages are finished, and wait for nsqd's CLOSE_WAIT.

        Returns True if nsqd confirmed every FIN.
        """
        consumers = self._all()
        for consumer in consumers:
            consumer.max_in_flight = 0
        until_s = time.monotonic() + STOP_TIMEOUT_S
        quiet = 0
        while quiet < 3 and time.monotonic() < until_s:
            in_flight = sum(consumer.stats.in_flight for consumer in consumers)
            quiet = 0 if in_flight else quiet + 1
            await asyncio.sleep(0.005)
        outcomes = await asyncio.gather(*map(self._end_consumer, consumers))
        return quiet >= 3 and all(outcomes)

    async def _end_consumer(self, consumer: TopicConsumer) -> bool:
        connections, received = len(consumer.connected_addresses), consumer.stats.received
        await consumer.stop(STOP_TIMEOUT_S)
        return consumer.close_wait_count == connections and consumer.stats.received == received

    async def abandon(self) -> None:
        """Close all connections at once."""
        for consumer in self._all():
            await consumer.stop(0)
