"""nsqx peek: shows messages of a topic, or the unfinished messages of a channel, without consuming them.

      nsqx peek TOPIC [CHANNEL] [--offset=N | --time=TIME | --id=ID | --last=N | --skip=N] [--contains=TEXT]

Every nsqd that has the topic is asked. Offsets are those of one nsqd.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from nsqx.cli.cluster import CLUSTER_FLAGS, ClusterAccess, take_cluster
from nsqx.cli.command_line import read_words
from nsqx.errors import RequestFailed
from nsqx.flags import BOOL, INT, STRING, Flag
from nsqx.tools.cluster_address import warn
from nsqx.tools.message_text import body_line, time_text
from nsqx.tools.nsqd_refusals import CHANNEL_NOT_FOUND, TOPIC_NOT_FOUND, refusal_text
from nsqx.tools.utility import UtilityFailed, log_line, write_stdout

if TYPE_CHECKING:
    from nsqx.cluster.nsqd import NsqdClient

PROGRAM = "nsqx peek"
_DEFAULT_COUNT = 20
# How many messages a request may ask for.
_MAX_COUNT = 1000
# A search may read 64 MiB.
_REQUEST_TIMEOUT_S = 60.0
_STATES = ("waiting", "in_flight", "deferred")

FLAGS: tuple[Flag, ...] = (
    *CLUSTER_FLAGS,
    Flag("offset", INT, -1, "show the messages from this offset on"),
    Flag("time", STRING, "", "show the messages from this `time` on: 2026-11-18T06:00:00Z, or -1h (ago)"),
    Flag("id", STRING, "", "show the message with this `id`"),
    Flag("last", INT, 0, "show the last messages, at most this many"),
    Flag("skip", INT, 0, "classic topics: leave out this many messages"),
    Flag("count", INT, _DEFAULT_COUNT, "show at most this many messages of each nsqd"),
    Flag("n", INT, 0, "the same as --count"),
    Flag("contains", STRING, "", "show only messages whose `text` contains this, in upper or lower case"),
    Flag("state", STRING, "", "show only messages in this `state` of the channel: waiting, in_flight or deferred"),
    Flag("max-bytes", INT, 1024 * 1024, "cut bodies that are larger"),
    Flag("json", BOOL, False, "print a JSON object per message, one per line"),
)


@dataclass(slots=True)
class PeekOptions:
    """The options of nsqx peek."""

    topic: str
    channel: str = ""
    cluster: ClusterAccess = field(default_factory=ClusterAccess)
    offset: int = -1
    time: str = ""
    id: str = ""
    last: int = 0
    skip: int = 0
    count: int = _DEFAULT_COUNT
    contains: str = ""
    state: str = ""
    max_bytes: int = 1024 * 1024
    json: bool = False


def read_options(argv: Sequence[str]) -> PeekOptions:
    """Return the options from the command line; raises UsageError or UtilityFailed."""
    values, words = read_words(FLAGS, argv, f"{PROGRAM} TOPIC [CHANNEL]", least=1, most=2)
    places = {"offset": -1, "time": "", "id": "", "last": 0, "skip": 0}
    given = [f"--{name}" for name, default in places.items() if values[name] != default]
    if len(given) > 1:
        raise UtilityFailed(f"{' and '.join(given)} exclude each other: give one of them")
    if values["state"] not in ("", *_STATES):
        raise UtilityFailed(f"invalid --state={values['state']}: use {', '.join(_STATES)}")
    if values["state"] in _STATES[:2] and len(words) < 2:
        raise UtilityFailed(f"--state={values['state']} needs a channel: {PROGRAM} TOPIC CHANNEL")
    values["count"] = values.pop("n") or values["count"]
    for name in ("count", "max_bytes"):
        if values[name] < 1:
            raise UtilityFailed(f"--{name.replace('_', '-')} must be positive")
    for name in ("last", "skip"):
        if values[name] < 0:
            raise UtilityFailed(f"--{name} must not be negative")
    if values["last"] and values["count"] == _DEFAULT_COUNT:
        values["count"] = values["last"]
    topic, channel = [*words, ""][:2]
    return PeekOptions(topic, channel, cluster=take_cluster(values, request_timeout_s=_REQUEST_TIMEOUT_S), **values)


async def run(options: PeekOptions, _stopping: asyncio.Event) -> int:
    """Print the messages and return the exit code; raises UtilityFailed or RequestFailed."""
    nsqds = await options.cluster.nsqds()
    missing: list[str] = []
    problems: list[str] = []
    for nsqd in nsqds:
        try:
            await _show(nsqd, options, has_title=len(nsqds) > 1)
        except RequestFailed as failure:
            is_missing = failure.code in (TOPIC_NOT_FOUND, CHANNEL_NOT_FOUND)
            (missing if is_missing else problems).append(f"{nsqd}: {refusal_text(failure)}")
    if len(missing) == len(nsqds):
        raise await options.cluster.nothing_has(options.topic, options.channel)
    warn(problems)
    return 1 if problems else 0


async def _show(nsqd: NsqdClient, options: PeekOptions, *, has_title: bool) -> None:
    """Print the messages of one nsqd; raises RequestFailed."""
    answer: dict[str, Any] = {}
    shown = 0
    async for answer in _answers(nsqd, options):
        if has_title and not options.json and not shown and answer["messages"]:
            write_stdout(f"nsqd {nsqd.address}\n".encode())
        for message in answer["messages"]:
            write_stdout(_json_line(nsqd, message) if options.json else _text_lines(message))
        shown += len(answer["messages"])
    if shown >= options.count and answer["next"] < answer["end"] and not options.id:
        place = "offset" if answer["store"] == "log" else "skip"
        log_line(f"nsqd {nsqd.address} has more messages: continue with --{place}={answer['next']}")


async def _answers(nsqd: NsqdClient, options: PeekOptions) -> AsyncIterator[dict[str, Any]]:
    """Yield the answers that contain the wanted messages. A search may need several requests."""
    place = _place(options)
    left = options.count
    while left > 0:
        wanted = min(left, _MAX_COUNT)
        limits = {"count": str(wanted), "max_bytes": str(options.max_bytes)}
        filters = {"contains": options.contains, "state": options.state}
        answer = await nsqd.peek(options.topic, options.channel, **place, **limits, **filters)
        yield answer
        count = len(answer["messages"])
        left -= count
        if options.id or (answer["complete"] and count < wanted):
            return
        place = {"offset" if answer["store"] == "log" else "skip": str(answer["next"])}


def _place(options: PeekOptions) -> dict[str, str]:
    if options.offset >= 0:
        return {"offset": str(options.offset)}
    numbers = {"last": options.last, "skip": options.skip}
    return {"time": options.time, "id": options.id, **{name: str(value) for name, value in numbers.items() if value}}


def _json_line(nsqd: NsqdClient, message: dict[str, Any]) -> bytes:
    return orjson.dumps({"nsqd": nsqd.address, **message}, option=orjson.OPT_APPEND_NEWLINE)


def _text_lines(message: dict[str, Any]) -> bytes:
    """Return a line about a message, and its body in the next one."""
    words = [str(message["offset"])] if "offset" in message else []
    words += [message["id"], time_text(message["timestamp"])]
    if "state" in message:
        words.append(message["state"].replace("_", " "))
    if message.get("attempts"):
        words.append(f"attempts={message['attempts']}")
    if "due" in message:
        words.append(f"due={time_text(message['due'])}")
    origin = message.get("origin")
    if origin is not None:
        words.append(f"from={origin.get('topic', '')}/{origin.get('channel', '')} reason={origin.get('reason', '')!r}")
    body = message["text"].encode() if "text" in message else base64.b64decode(message["base64"])
    cut = f" [cut, {message['size']} bytes]" if message.get("truncated") else ""
    return f"{' '.join(words)}\n  {body_line(body)}{cut}\n".encode()
