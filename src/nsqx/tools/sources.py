"""The sources of a utility's messages: flags for addresses and client options, and the consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from nsqx.client.consumer import Consumer
from nsqx.client.http_credentials import http_credentials
from nsqx.client.options import Options as ClientOptions
from nsqx.client.options import read_option_flags
from nsqx.errors import ConfigError, NSQError
from nsqx.flags import INT, STRINGS, Flag, Kind
from nsqx.names import is_valid_name
from nsqx.tools.utility import UtilityFailed, explain, kept_client_log, log_line, user_agent

if TYPE_CHECKING:
    from nsqx.client.dispatcher import Handler
    from nsqx.cluster.credentials import Credentials

MAX_IN_FLIGHT = 200
START_TIMEOUT_S = 30.0


def _add_option(text: str, so_far: list[str]) -> list[str]:
    try:
        read_option_flags([text])
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return [*so_far, text]


CLIENT_OPTIONS = Kind("value", _add_option, STRINGS.read_toml, lambda _: "", "")

NSQD_FLAG = Flag(
    "nsqd-tcp-address",
    STRINGS,
    [],
    "nsqd TCP address (may be given multiple times)",
    config_key="nsqd_tcp_addresses",
)
LOOKUPD_FLAG = Flag(
    "lookupd-http-address",
    STRINGS,
    [],
    "lookupd HTTP address (may be given multiple times)",
    config_key="lookupd_http_addresses",
)
MAX_IN_FLIGHT_FLAG = Flag("max-in-flight", INT, MAX_IN_FLIGHT, "max number of messages to allow in flight")


def client_options_flag(name: str, of_what: str, see: str = "") -> Flag:
    """Return the flag ``consumer-opt`` or ``producer-opt``."""
    where = f"{see}http://godoc.org/github.com/nsqio/go-nsq#Config"
    text = f"option to passthrough to {of_what} (may be given multiple times, {where})"
    return Flag(name, CLIENT_OPTIONS, [], text, config_key=name.replace("-opt", "_options"))


CONSUMER_FLAG = client_options_flag("consumer-opt", "nsq.Consumer")
PRODUCER_FLAG = client_options_flag("producer-opt", "nsq.Producer")


def check_sources(nsqd_addresses: Sequence[str], lookupd_addresses: Sequence[str], kind: str = "tcp") -> None:
    """Raise UtilityFailed unless there are addresses of nsqd or of nsqlookupd, and not of both."""
    if not nsqd_addresses and not lookupd_addresses:
        raise UtilityFailed(f"--nsqd-{kind}-address or --lookupd-http-address required")
    if nsqd_addresses and lookupd_addresses:
        raise UtilityFailed(f"use --nsqd-{kind}-address or --lookupd-http-address not both")


def client_options(program: str, texts: Iterable[str], **fixed: Any) -> dict[str, Any]:
    """Return the client's options from a flag's values; ``fixed`` options override them."""
    return {"user_agent": user_agent(program), **read_option_flags(texts), **fixed}


def client_credentials(texts: Iterable[str]) -> Credentials:
    """Return the credentials for the HTTP APIs of nsqlookupd and nsqd from a flag's values; raises ConfigError."""
    return http_credentials(ClientOptions.of(read_option_flags(texts)))


def make_consumer(
    topic: str,
    channel: str,
    nsqd_addresses: Sequence[str],
    lookupd_addresses: Sequence[str],
    options: dict[str, Any],
    handler: Handler | None = None,
    *,
    kind: type[Consumer] = Consumer,
    **arguments: Any,
) -> Consumer:
    """Return a consumer that is not started; raises UtilityFailed with the text of the Go utilities."""
    for what, name in (("topic", topic), ("channel", channel)):
        if not is_valid_name(name):
            raise UtilityFailed(f"invalid {what} name")
    return kind(
        topic,
        channel,
        handler,
        nsqd_tcp_addresses=nsqd_addresses,
        lookupd_http_addresses=lookupd_addresses,
        # The utilities exit if a given nsqd cannot be reached, as Go's do.
        require_connection=not lookupd_addresses,
        start_timeout=START_TIMEOUT_S,
        **arguments,
        **options,
    )


async def start_consumer(consumer: Consumer, nsqd_addresses: Sequence[str], *, is_quiet: bool = False) -> None:
    """Start consuming; raises UtilityFailed unless every given nsqd can be reached."""
    for address in () if is_quiet else nsqd_addresses:
        log_line(f"INF [{consumer.topic}/{consumer.channel}] ({address}) connecting to nsqd")
    if not nsqd_addresses:
        await consumer.start()
        return
    with kept_client_log() as reasons:
        try:
            await consumer.start()
        except NSQError as error:
            raise UtilityFailed(explain(error)) from error
    missing = [each for each in dict.fromkeys(nsqd_addresses) if each not in consumer.connected_addresses]
    if missing:
        await consumer.stop()
        raise UtilityFailed(explain("; ".join(reasons) or f"cannot connect to nsqd {', '.join(missing)}"))


async def stop_consumers(consumers: Iterable[Consumer]) -> None:
    """Stop consuming, and wait until the messages in flight are finished or requeued."""
    await asyncio.gather(*(consumer.stop() for consumer in consumers))
