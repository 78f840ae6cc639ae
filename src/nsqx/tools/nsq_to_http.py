"""nsq_to_http: sends each message of a topic as an HTTP request, a POST with the body or a GET with it in the URL.

A message is finished after the endpoint has answered with success.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus

from nsqx.errors import NSQError
from nsqx.flags import BOOL, DURATION, FLOAT, INT, STRING, STRINGS, Flag
from nsqx.tools.hostpool import make_pool
from nsqx.tools.http_sender import HTTPSender, SendFailed, check_url
from nsqx.tools.progress import ProgressLine
from nsqx.tools.retry_policy import RetryPolicy
from nsqx.tools.sources import (
    CONSUMER_FLAG,
    LOOKUPD_FLAG,
    MAX_IN_FLIGHT,
    MAX_IN_FLIGHT_FLAG,
    NSQD_FLAG,
    check_sources,
    client_options,
    make_consumer,
    start_consumer,
)
from nsqx.tools.timer_metrics import RequestTimes
from nsqx.tools.utility import UtilityFailed, check_not_negative, explain, read_flags
from nsqx.units import NS_PER_S
from nsqx.version import NSQ_VERSION

if TYPE_CHECKING:
    from nsqx.client.subscription import Message

PROGRAM = "nsq_to_http"
CONTENT_TYPE = "application/octet-stream"

_USER_AGENT = f"{PROGRAM} v{NSQ_VERSION}"
_POOL_MODES = ("round-robin", "hostpool", "epsilon-greedy")
# The endpoint or a proxy is temporarily unavailable; it has not rejected the message.
_NOT_NOW = (429, 502, 503, 504)

FLAGS: tuple[Flag, ...] = (
    Flag("version", BOOL, False, "print version string", in_config=False),
    Flag("topic", STRING, "", "nsq topic"),
    Flag("channel", STRING, "nsq_to_http", "nsq channel"),
    MAX_IN_FLIGHT_FLAG,
    Flag("n", INT, 100, "number of concurrent publishers", config_key="concurrency"),
    Flag(
        "mode",
        STRING,
        "hostpool",
        "the upstream request mode options: round-robin, hostpool (default), epsilon-greedy",
    ),
    Flag("sample", FLOAT, 1.0, "% of messages to publish (float b/w 0 -> 1)"),
    Flag("http-client-connect-timeout", DURATION, 2 * NS_PER_S, "timeout for HTTP connect"),
    Flag("http-client-request-timeout", DURATION, 20 * NS_PER_S, "timeout for HTTP request"),
    Flag(
        "status-every",
        INT,
        250,
        "the # of requests between logging status (per handler), 0 disables",
    ),
    Flag("content-type", STRING, CONTENT_TYPE, "the Content-Type used for POST requests"),
    Flag(
        "post",
        STRINGS,
        [],
        "HTTP address to make a POST request to.  data will be in the body (may be given multiple times)",
        config_key="post_addresses",
    ),
    Flag(
        "header",
        STRINGS,
        [],
        "Custom header for HTTP requests (may be given multiple times)",
        config_key="headers",
    ),
    Flag(
        "get",
        STRINGS,
        [],
        "HTTP address to make a GET request to. '%s' will be printf replaced with data (may be given multiple times)",
        config_key="get_addresses",
    ),
    NSQD_FLAG,
    LOOKUPD_FLAG,
    CONSUMER_FLAG,
)


@dataclass(slots=True)
class NsqToHttpOptions:
    """The options of nsq_to_http; durations in nanoseconds."""

    topic: str
    channel: str = "nsq_to_http"
    post_addresses: list[str] = field(default_factory=list)
    get_addresses: list[str] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = CONTENT_TYPE
    mode: str = "hostpool"
    """How to select one address for each message; with an unknown mode each message goes to all addresses."""
    sample: float = 1.0
    concurrency: int = 100
    nsqd_tcp_addresses: list[str] = field(default_factory=list)
    lookupd_http_addresses: list[str] = field(default_factory=list)
    consumer_options: list[str] = field(default_factory=list)
    max_in_flight: int = MAX_IN_FLIGHT
    status_every: int = 250
    http_client_connect_timeout: int = 2 * NS_PER_S
    http_client_request_timeout: int = 20 * NS_PER_S


def read_headers(texts: Sequence[str]) -> dict[str, str]:
    """Return headers from ``Name: value`` texts; raises UtilityFailed."""
    headers: dict[str, str] = {}
    for text in texts:
        name, colon, value = text.partition(":")
        name, value = name.strip(), value.strip()
        if not (colon and name and value and name.isascii() and (name + value).isprintable()):
            raise UtilityFailed("--header value format should be 'key=value'")
        headers[name] = value
    return headers


def read_options(argv: Sequence[str]) -> NsqToHttpOptions:
    """Return the options from the command line; raises UsageError, VersionRequested or UtilityFailed."""
    values = read_flags(FLAGS, argv, PROGRAM)
    values["headers"] = read_headers(values["headers"])
    options = NsqToHttpOptions(**values)
    _check(options, values)
    return options


def _check(options: NsqToHttpOptions, values: dict[str, Any]) -> None:
    if not options.topic or not options.channel:
        raise UtilityFailed("--topic and --channel are required")
    if options.content_type != CONTENT_TYPE:
        if not options.post_addresses:
            raise UtilityFailed("--content-type only used with --post")
        if not options.content_type:
            raise UtilityFailed("--content-type requires a value when used")
    check_sources(options.nsqd_tcp_addresses, options.lookupd_http_addresses)
    if not options.get_addresses and not options.post_addresses:
        raise UtilityFailed("--get or --post required")
    if options.get_addresses and options.post_addresses:
        raise UtilityFailed("use --get or --post not both")
    if any(address.count("%s") != 1 for address in options.get_addresses):
        raise UtilityFailed("invalid GET address - must be a printf string")
    if not 0.0 <= options.sample <= 1.0:
        raise UtilityFailed("ERROR: --sample must be between 0.0 and 1.0")
    if options.concurrency < 1:
        raise UtilityFailed("no handlers")
    check_not_negative(values, "http-client-connect-timeout", "http-client-request-timeout")
    for address in options.post_addresses:
        check_url(address)
    for address in options.get_addresses:
        check_url(address.replace("%s", ""))


class EndpointFailed(NSQError):
    """An endpoint did not accept a message; ``was_refusal`` is True if it answered with an error."""

    def __init__(self, text: str, *, was_refusal: bool) -> None:
        super().__init__(text)
        self.was_refusal = was_refusal


class HTTPPublisher:
    """Sends the requests."""

    def __init__(self, options: NsqToHttpOptions, sender: HTTPSender) -> None:
        self._headers = {"User-Agent": _USER_AGENT, **options.headers}
        self._is_post = bool(options.post_addresses)
        if self._is_post:
            self._headers = {"User-Agent": _USER_AGENT, "Content-Type": options.content_type, **options.headers}
        self._sender = sender

    async def publish(self, address: str, body: bytes) -> None:
        """Send one request; raises EndpointFailed."""
        try:
            if self._is_post:
                status = await self._sender.send("POST", address, self._headers, body)
            else:
                status = await self._sender.send("GET", address.replace("%s", quote_plus(body)), self._headers)
        except SendFailed as error:
            raise EndpointFailed(explain(error), was_refusal=False) from error
        if not (200 <= status < 300 if self._is_post else status == 200):
            raise EndpointFailed(f"{address}: got status code {status}", was_refusal=status not in _NOT_NOW)


class Handler:
    """Sends each message to one address or to all, and finishes or requeues it by the result."""

    def __init__(
        self,
        options: NsqToHttpOptions,
        publisher: HTTPPublisher,
        attempts: RetryPolicy,
        progress: ProgressLine,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._addresses = options.post_addresses or options.get_addresses
        self._pool = make_pool(options.mode, self._addresses) if options.mode in _POOL_MODES else None
        self._times = RequestTimes(options.status_every, self._addresses)
        self._sample = options.sample
        self._publisher = publisher
        self._attempts = attempts
        self._progress = progress
        self._chance = chance

    async def handle(self, message: Message) -> None:
        """Send a message, and requeue it or give it up on failure; the caller finishes it otherwise."""
        if self._sample < 1.0 and self._chance() > self._sample:
            return
        started_s = self._times.start()
        try:
            if self._pool is None:
                await self._to_all(message.body)
            else:
                await self._to_one(message.body)
        except EndpointFailed as error:
            if error.was_refusal:
                self._attempts.refused(message, str(error))
            else:
                self._attempts.unreachable(message, str(error))
            return
        self._times.add_whole(started_s)
        self._progress.add(1)

    async def _to_all(self, body: bytes) -> None:
        for address in self._addresses:
            started_s = self._times.start()
            await self._publisher.publish(address, body)
            self._times.add(address, started_s)

    async def _to_one(self, body: bytes) -> None:
        assert self._pool is not None
        choice = self._pool.choose()
        started_s = self._times.start()
        try:
            await self._publisher.publish(choice.address, body)
        except EndpointFailed:
            choice.failed()
            raise
        choice.succeeded()
        self._times.add(choice.address, started_s)


async def run(options: NsqToHttpOptions, stopping: asyncio.Event) -> int:
    """Send until ``stopping`` is set; return the exit code."""
    consumer_options = client_options(PROGRAM, options.consumer_options)
    attempts = RetryPolicy(consumer_options)
    consumer_options["max_in_flight"] = options.max_in_flight
    sender = HTTPSender(options.http_client_connect_timeout / NS_PER_S, options.http_client_request_timeout / NS_PER_S)
    with ProgressLine("messages sent") as progress:
        handler = Handler(options, HTTPPublisher(options, sender), attempts, progress)
        consumer = make_consumer(
            options.topic,
            options.channel,
            options.nsqd_tcp_addresses,
            options.lookupd_http_addresses,
            consumer_options,
            handler.handle,
            concurrency=options.concurrency,
        )
        try:
            await start_consumer(consumer, options.nsqd_tcp_addresses)
            await stopping.wait()
        finally:
            await consumer.stop()
            await sender.close()
    return 0
