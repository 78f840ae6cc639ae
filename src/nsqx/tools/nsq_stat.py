"""nsq_stat: prints the depth and the rates of a channel, summed over all its nsqds, one line per interval."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from nsqx.cluster.credentials import NSQD, NSQLOOKUPD, Credentials
from nsqx.cluster.fan_out import ask_all
from nsqx.cluster.http import HTTPSession
from nsqx.cluster.lookupd import LookupdClient
from nsqx.cluster.node import merge_nodes
from nsqx.cluster.nsqd import NsqdClient
from nsqx.flags import BOOL, DURATION, STRING, STRINGS, Flag, Kind
from nsqx.gotext import quote
from nsqx.tools.http_access import HTTP_ACCESS_FLAGS, take_credentials
from nsqx.tools.sources import LOOKUPD_FLAG, check_sources
from nsqx.tools.totals import total
from nsqx.tools.utility import UtilityFailed, check_positive, read_flags, write_stdout
from nsqx.units import NS_PER_S

PROGRAM = "nsq_stat"

_LINES_PER_HEADER = 25
_COUNT = re.compile(r"[+-]?[0-9]+")
_MAX_COUNT = (1 << 31) - 1


def _read_count(text: str, _so_far: object) -> int:
    if not _COUNT.fullmatch(text):
        raise ValueError(f"strconv.ParseInt: parsing {quote(text)}: invalid syntax")
    if len(text) > 11 or not -_MAX_COUNT - 1 <= int(text) <= _MAX_COUNT:
        raise ValueError(f"strconv.ParseInt: parsing {quote(text)}: value out of range")
    return int(text)


COUNT = Kind("value", _read_count, lambda value, _: _read_count(str(value), None), lambda _: "", "")

FLAGS: tuple[Flag, ...] = (
    Flag("version", BOOL, False, "print version", in_config=False),
    Flag("topic", STRING, "", "NSQ topic"),
    Flag("channel", STRING, "", "NSQ channel"),
    Flag(
        "interval",
        DURATION,
        2 * NS_PER_S,
        "duration of time between polling/printing output",
    ),
    Flag("http-client-connect-timeout", DURATION, 2 * NS_PER_S, "timeout for HTTP connect"),
    Flag("http-client-request-timeout", DURATION, 5 * NS_PER_S, "timeout for HTTP request"),
    Flag("count", COUNT, None, "number of reports"),
    Flag(
        "nsqd-http-address",
        STRINGS,
        [],
        "nsqd HTTP address (may be given multiple times)",
        config_key="nsqd_http_addresses",
    ),
    LOOKUPD_FLAG,
    *HTTP_ACCESS_FLAGS,
)


@dataclass(slots=True)
class NsqStatOptions:
    """The options of nsq_stat; durations in nanoseconds."""

    topic: str
    channel: str
    nsqd_http_addresses: list[str] = field(default_factory=list)
    lookupd_http_addresses: list[str] = field(default_factory=list)
    interval: int = 2 * NS_PER_S
    count: int | None = None
    """How many lines to print; None means no limit."""
    http_client_connect_timeout: int = 2 * NS_PER_S
    http_client_request_timeout: int = 5 * NS_PER_S
    credentials: Credentials = field(default_factory=Credentials)


def read_options(argv: Sequence[str]) -> NsqStatOptions:
    """Return the options from the command line; raises UsageError, VersionRequested or UtilityFailed."""
    values = read_flags(FLAGS, argv, PROGRAM)
    options = NsqStatOptions(credentials=take_credentials(values), **values)
    if not options.topic or not options.channel:
        raise UtilityFailed("--topic and --channel are required")
    check_positive(values, "interval", "http-client-connect-timeout", "http-client-request-timeout")
    if options.count is not None and options.count <= 0:
        raise UtilityFailed("--count should be positive")
    check_sources(options.nsqd_http_addresses, options.lookupd_http_addresses, "http")
    for name, addresses in (("nsqd", options.nsqd_http_addresses), ("lookupd", options.lookupd_http_addresses)):
        if any(address.startswith("http") for address in addresses):
            raise UtilityFailed(f"--{name}-http-address error - address should not contain scheme")
    return options


HEADER = (
    "------rate------+----------------depth----------------+--------------metadata---------------\n"
    "ingress  egress |   total     mem    disk inflt   def |     req     t-o         msgs clients"
)


def report_line(now: Mapping[str, int], before: Mapping[str, int], interval_s: float) -> str:
    """Return one line with the rates since ``before``, the depth and the counts."""
    ingress = now["message_count"] - before["message_count"]
    egress = ingress - (now["depth"] - before["depth"])
    return (
        f"{int(ingress / interval_s):7d} {int(egress / interval_s):7d}"
        f" | {now['depth']:7d} {now['memory_depth']:7d} {now['backend_depth']:7d}"
        f" {now['in_flight_count']:5d} {now['deferred_count']:5d}"
        f" | {now['requeue_count']:7d} {now['timeout_count']:7d} {now['message_count']:12d} {now['client_count']:7d}"
    )


async def run(options: NsqStatOptions, stopping: asyncio.Event) -> int:
    """Print lines until ``count`` is reached or ``stopping`` is set; raises UtilityFailed if a query fails."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, stopping.set)
    http = HTTPSession(
        options.credentials,
        options.http_client_connect_timeout / NS_PER_S,
        options.http_client_request_timeout / NS_PER_S,
    )
    interval_s = options.interval / NS_PER_S
    before: Mapping[str, int] | None = None
    poll = 0
    while not stopping.is_set():
        now = await _poll(http, options)
        if poll % _LINES_PER_HEADER == 0:
            write_stdout(f"{HEADER}\n".encode())
        if before is not None:
            write_stdout(f"{report_line(now, before, interval_s)}\n".encode())
        if poll == options.count:
            break
        before = now
        poll += 1
        try:
            async with asyncio.timeout(interval_s):
                await stopping.wait()
        except TimeoutError:
            pass
    return 0


async def _poll(http: HTTPSession, options: NsqStatOptions) -> dict[str, int]:
    addresses = options.nsqd_http_addresses
    if options.lookupd_http_addresses:
        lookupds = LookupdClient.at(http, options.lookupd_http_addresses)
        found = await ask_all(lookupds, LookupdClient.lookup, options.topic)
        if found.failures:
            raise UtilityFailed(f"ERROR: failed to get topic producers - {found.failure(NSQLOOKUPD)}")
        addresses = [node.http_address for node in merge_nodes(found.values)]
    stats = await ask_all(NsqdClient.at(http, addresses), NsqdClient.stats, options.topic, options.channel)
    if stats.failures:
        step = "nsqd stats" if options.lookupd_http_addresses else "topic producers"
        raise UtilityFailed(f"ERROR: failed to get {step} - {stats.failure(NSQD)}")
    channels = [
        channel
        for topic in chain.from_iterable(stats.values)
        if topic["topic_name"] == options.topic
        for channel in topic["channels"] or []
        if channel["channel_name"] == options.channel
    ]
    if not channels:
        where = f"channel({options.channel}) in stats metadata for topic({options.topic})"
        raise UtilityFailed(f"ERROR: failed to find {where}")
    return total(channels)
