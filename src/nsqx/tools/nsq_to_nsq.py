"""nsq_to_nsq: publishes the messages of topics to other nsqds, optionally to another topic.

A message is finished after the destination has acknowledged it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from nsqx.client.producer import Producer
from nsqx.errors import InvalidMessage, NotConnected
from nsqx.flags import BOOL, INT, STRING, STRINGS, Flag
from nsqx.names import is_valid_name
from nsqx.tools.hostpool import Choice, make_pool
from nsqx.tools.json_filter import JSONFilter, Verdict
from nsqx.tools.progress import ProgressLine
from nsqx.tools.retry_policy import RetryPolicy
from nsqx.tools.sources import (
    LOOKUPD_FLAG,
    MAX_IN_FLIGHT,
    MAX_IN_FLIGHT_FLAG,
    NSQD_FLAG,
    check_sources,
    client_options,
    client_options_flag,
    make_consumer,
    start_consumer,
    stop_consumers,
)
from nsqx.tools.timer_metrics import RequestTimes
from nsqx.tools.utility import UtilityFailed, explain, log_line, read_flags

if TYPE_CHECKING:
    from nsqx.client.consumer import Consumer
    from nsqx.client.subscription import Message

PROGRAM = "nsq_to_nsq"

FLAGS: tuple[Flag, ...] = (
    Flag("version", BOOL, False, "print version string", in_config=False),
    Flag("channel", STRING, "nsq_to_nsq", "nsq channel"),
    Flag(
        "destination-topic",
        STRING,
        "",
        "use this destination topic for all consumed topics (default is consumed topic name)",
    ),
    MAX_IN_FLIGHT_FLAG,
    Flag(
        "status-every",
        INT,
        250,
        "the # of requests between logging status (per destination), 0 disables",
    ),
    Flag(
        "mode",
        STRING,
        "hostpool",
        "the upstream request mode options: round-robin, hostpool (default), epsilon-greedy",
    ),
    Flag(
        "require-json-field",
        STRING,
        "",
        "for JSON messages: only pass messages that contain this field",
    ),
    Flag(
        "require-json-value",
        STRING,
        "",
        "for JSON messages: only pass messages in which the required field has this value",
    ),
    NSQD_FLAG,
    Flag(
        "destination-nsqd-tcp-address",
        STRINGS,
        [],
        "destination nsqd TCP address (may be given multiple times)",
        config_key="destination_addresses",
    ),
    LOOKUPD_FLAG,
    Flag("topic", STRINGS, [], "nsq topic (may be given multiple times)", config_key="topics"),
    Flag(
        "whitelist-json-field",
        STRINGS,
        [],
        "for JSON messages: pass this field (may be given multiple times)",
        config_key="whitelist_json_fields",
    ),
    client_options_flag("consumer-opt", "nsq.Consumer", "see "),
    client_options_flag("producer-opt", "nsq.Producer", "see "),
)


@dataclass(slots=True)
class NsqToNsqOptions:
    """The options of nsq_to_nsq."""

    topics: list[str]
    destination_addresses: list[str]
    channel: str = "nsq_to_nsq"
    destination_topic: str = ""
    nsqd_tcp_addresses: list[str] = field(default_factory=list)
    lookupd_http_addresses: list[str] = field(default_factory=list)
    max_in_flight: int = MAX_IN_FLIGHT
    status_every: int = 250
    mode: str = "hostpool"
    require_json_field: str = ""
    require_json_value: str = ""
    whitelist_json_fields: list[str] = field(default_factory=list)
    consumer_options: list[str] = field(default_factory=list)
    producer_options: list[str] = field(default_factory=list)


def read_options(argv: Sequence[str]) -> NsqToNsqOptions:
    """Return the options from the command line; raises UsageError, VersionRequested or UtilityFailed."""
    options = NsqToNsqOptions(**read_flags(FLAGS, argv, PROGRAM))
    if not options.topics or not options.channel:
        raise UtilityFailed("--topic and --channel are required")
    if not all(map(is_valid_name, options.topics)):
        raise UtilityFailed("--topic is invalid")
    if options.destination_topic and not is_valid_name(options.destination_topic):
        raise UtilityFailed("--destination-topic is invalid")
    if not is_valid_name(options.channel):
        raise UtilityFailed("--channel is invalid")
    check_sources(options.nsqd_tcp_addresses, options.lookupd_http_addresses)
    if not options.destination_addresses:
        raise UtilityFailed("--destination-nsqd-tcp-address required")
    return options


class Forwarder:
    """Publishes each message to one of the destinations, and finishes or requeues it by the result."""

    def __init__(self, options: NsqToNsqOptions, attempts: RetryPolicy, progress: ProgressLine) -> None:
        """Raises ConfigError."""
        addresses = list(dict.fromkeys(options.destination_addresses))
        producer_options = client_options(PROGRAM, options.producer_options)
        # One attempt per delivery: a failed message is requeued, and the next delivery may use another destination.
        self._producers = {
            address: Producer([address], max_publish_attempts=1, **producer_options) for address in addresses
        }
        self._pool = make_pool(options.mode, options.destination_addresses)
        self._times = RequestTimes(options.status_every, addresses)
        self._filter = JSONFilter(options.require_json_field, options.require_json_value, options.whitelist_json_fields)
        self._attempts = attempts
        self._progress = progress

    def forward(self, topic: str, message: Message) -> None:
        """Filter a message and publish it to ``topic``."""
        verdict, body = self._filter.apply(message.body)
        if verdict is Verdict.PASS:
            self._publish(topic, message, body)
        elif verdict is Verdict.RETRY:
            log_line("ERROR: missing field to check required value")
            self._attempts.refused(message, "the required field is missing")
            message.answer_later()
        elif verdict is Verdict.UNREADABLE:
            log_line(f"ERROR: Unable to decode json: {message.body.decode('utf-8', 'replace')}")

    async def close(self) -> None:
        """Close the connections after all publishes have completed."""
        await asyncio.gather(*(producer.close(0) for producer in self._producers.values()))

    def _publish(self, topic: str, message: Message, body: bytes) -> None:
        choice = self._pool.choose()
        started_s = self._times.start()
        message.answer_later()
        try:
            outcome = self._producers[choice.address].publish(topic, body)
        except InvalidMessage as error:
            self._attempts.refused(message, str(error))
            return
        outcome.add_done_callback(partial(self._published, message, choice, started_s))

    def _published(self, message: Message, choice: Choice, started_s: float, outcome: asyncio.Future[None]) -> None:
        error = asyncio.CancelledError() if outcome.cancelled() else outcome.exception()
        self._times.add(choice.address, started_s)
        self._times.add_whole(started_s)
        if error is None:
            choice.succeeded()
            message.finish()
            self._progress.add(1)
            return
        choice.failed()
        text = explain(error)
        if isinstance(error, NotConnected) or not _is_refusal(text):
            self._attempts.unreachable(message, text)
        else:
            self._attempts.refused(message, text)


def _is_refusal(text: str) -> bool:
    """Return True if the destination rejected the message itself."""
    return ": E_BAD_" in text or ": E_INVALID" in text


async def run(options: NsqToNsqOptions, stopping: asyncio.Event) -> int:
    """Publish until ``stopping`` is set; return the exit code."""
    consumer_options = client_options(PROGRAM, options.consumer_options)
    attempts = RetryPolicy(consumer_options)
    consumer_options["max_in_flight"] = options.max_in_flight
    consumers: list[Consumer] = []
    with ProgressLine("messages published") as progress:
        forwarder = Forwarder(options, attempts, progress)
        try:
            for topic in dict.fromkeys(options.topics):
                handler = partial(forwarder.forward, options.destination_topic or topic)
                sources = options.nsqd_tcp_addresses, options.lookupd_http_addresses
                consumers.append(make_consumer(topic, options.channel, *sources, consumer_options, handler))
            for consumer in consumers:
                await start_consumer(consumer, options.nsqd_tcp_addresses)
            await stopping.wait()
        finally:
            await stop_consumers(consumers)
            await forwarder.close()
    return 0
