"""nsqx dlq: lists, shows, redrives or purges the dead letters of a topic on every nsqd that has some.

      nsqx dlq ls [TOPIC]
      nsqx dlq show TOPIC [--channel C] [--offset N | --skip N] [--count K]
      nsqx dlq redrive TOPIC [--channel C] [--offset N...] [--count K]
      nsqx dlq purge TOPIC [--channel C] [--offset N...] [--count K]

TOPIC is the source topic, whose consumers have failed. Exit codes: 0 success; 1 an nsqd failed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson

from nsqx.cli.cluster import CLUSTER_FLAGS, ClusterAccess, take_cluster
from nsqx.cli.command_line import read_words, usage_error
from nsqx.cluster.fan_out import Answers, ask_all
from nsqx.cluster.nsqd import NsqdClient
from nsqx.errors import RequestFailed
from nsqx.flags import BOOL, INT, STRING, STRINGS, Flag
from nsqx.names import invalid_name, is_valid_name
from nsqx.tools.cluster_address import warn
from nsqx.tools.table import print_table
from nsqx.tools.utility import UtilityFailed, write_stdout

PROGRAM = "nsqx dlq"
VERBS = ("ls", "show", "redrive", "purge")
_DEAD_CHANNEL = "dead"
_PAST = {"redrive": "redriven", "purge": "purged"}
# How many letters one request handles, so that it ends within the timeout of the client.
_LETTERS_PER_REQUEST = 10_000
_MAX_SHOWN = 1000
_DEFAULT_SHOWN = 20

FLAGS: tuple[Flag, ...] = (
    *CLUSTER_FLAGS,
    Flag("channel", STRING, "", "only letters of this channel of TOPIC"),
    Flag("offset", STRINGS, [], "only the letter at this offset (may be repeated); show: begin there"),
    Flag("skip", INT, 0, "show: skip this many letters of a classic topic, which have no offsets"),
    Flag("count", INT, 0, f"at most so many letters of each nsqd; default all, show: {_DEFAULT_SHOWN}"),
    Flag("json", BOOL, False, "print JSON, one object per line", config_key="is_json"),
    Flag("yes", BOOL, False, "do not ask for confirmation", config_key="is_confirmed"),
)


@dataclass(slots=True)
class DlqOptions:
    """The options of nsqx dlq."""

    verb: str
    topic: str = ""
    channel: str = ""
    offset: list[str] = field(default_factory=list)
    skip: int = 0
    count: int = 0
    cluster: ClusterAccess = field(default_factory=ClusterAccess)
    is_json: bool = False
    is_confirmed: bool = False


def read_options(argv: Sequence[str]) -> DlqOptions:
    """Return the options from the command line; raises UsageError or UtilityFailed."""
    title = f"{PROGRAM} {'|'.join(VERBS)} TOPIC"
    values, words = read_words(FLAGS, argv, title, most=2, verbs=VERBS)
    verb, topic = [*words, ""][:2]
    if not topic and verb != "ls":
        raise usage_error(title, "TOPIC is missing")
    options = DlqOptions(verb, topic, cluster=take_cluster(values), **values)
    for name, text in (("topic", topic), ("channel", options.channel)):
        if text and not is_valid_name(text):
            raise UtilityFailed(invalid_name(name, text))
    for text in options.offset:
        if not text.isascii() or not text.isdecimal():
            raise UtilityFailed(f'invalid --offset "{text}": use a number, as nsqx dlq show prints it')
    if options.skip < 0:
        raise UtilityFailed(f"invalid --skip {options.skip}: use a number of letters, 0 or more")
    most = _MAX_SHOWN if verb == "show" else sys.maxsize
    if not 0 <= options.count <= most:
        raise UtilityFailed(f"invalid --count {options.count}: use a number from 1 to {most}")
    if verb == "show" and len(options.offset) > 1:
        raise UtilityFailed("show takes one --offset, where it begins")
    if options.skip and (verb != "show" or options.offset):
        raise UtilityFailed("--skip is for show, without --offset")
    return options


async def run(options: DlqOptions, stopping: asyncio.Event) -> int:
    """Run the command and return the exit code; raises UtilityFailed or RequestFailed."""
    nodes = await options.cluster.nsqds()
    if options.verb == "ls" and not options.topic:
        return await _list_all(options, nodes)
    count = (options.count or _DEFAULT_SHOWN) if options.verb == "show" else 1
    offset = options.offset[0] if options.offset and options.verb == "show" else ""
    skip = str(options.skip) if options.skip else ""
    found = _with_letters(
        options, await ask_all(nodes, NsqdClient.dead, options.topic, options.channel, offset, skip, str(count))
    )
    if options.verb == "ls":
        return _print_counts(options, found)
    if options.verb == "show":
        return _show(options, found)
    return await _change(options, found, stopping)


def _with_letters(options: DlqOptions, answers: Answers[Any]) -> Answers[Any]:
    """Return the answers of the nsqds that have a dead-letter topic, and the failures of others."""
    failures = [(daemon, error) for daemon, error in answers.failures if error.status != 404]
    if not answers.found and not failures:
        of = f"{options.topic}, channel {options.channel}" if options.channel else options.topic
        raise UtilityFailed(f"no nsqd has dead letters of topic {of}: nsqx dlq ls lists the topics that have some")
    found = Answers(answers.found, failures).require_one()
    warn(found.plain_problems)
    return found


# Listing


async def _list_all(options: DlqOptions, nodes: Sequence[NsqdClient]) -> int:
    """List the topics with a channel for dead letters."""
    answers = await ask_all(nodes, NsqdClient.stats)
    warn(answers.require_one().plain_problems)
    letters: dict[str, list[int]] = {}
    for topics in answers.values:
        for topic in topics:
            for channel in topic["channels"] or []:
                if channel["channel_name"] == _DEAD_CHANNEL:
                    number = channel["depth"] + channel["in_flight_count"] + channel["deferred_count"]
                    letters.setdefault(topic["topic_name"], []).append(number)
    rows = [(name, str(sum(numbers)), str(len(numbers))) for name, numbers in sorted(letters.items())]
    if options.is_json:
        for name, numbers in sorted(letters.items()):
            _print_json({"dead_letter": name, "letters": sum(numbers), "nsqds": len(numbers)})
    elif rows:
        print_table(("dead-letter topic", "letters", "nsqds"), rows, optional=("nsqds",))
    else:
        write_stdout(b"no topic has dead letters\n")
    return 1 if answers.failures else 0


def _print_counts(options: DlqOptions, answers: Answers[Any]) -> int:
    if options.is_json:
        for address, answer in answers.found:
            _print_json({"nsqd": address, "dead_letter": answer["dead_letter"], "letters": answer["count"]})
    else:
        rows = [(address, answer["dead_letter"], str(answer["count"])) for address, answer in answers.found]
        print_table(("nsqd", "dead-letter topic", "letters"), rows, 2)
    return 1 if answers.failures else 0


# Showing


def _show(options: DlqOptions, answers: Answers[Any]) -> int:
    for address, answer in answers.found:
        for message in answer["messages"]:
            if options.is_json:
                _print_json({"nsqd": address, **message})
            else:
                write_stdout(_letter_text(message, address if len(answers.found) > 1 else ""))
        left_out = answer["count"] - len(answer["messages"])
        if left_out > 0 and not options.is_json and answer["messages"] and not answer["complete"]:
            place = "offset" if "offset" in answer["messages"][-1] else "skip"
            write_stdout(f"{address}: more letters follow: --{place}={answer['next']}\n".encode())
    return 1 if answers.failures else 0


def _letter_text(message: dict[str, Any], address: str) -> bytes:
    """Return a letter as lines: where it comes from, and its body."""
    words = [str(message["offset"])] if "offset" in message else [message["id"]]
    origin = message.get("origin")
    if origin is not None:
        words += [
            _time_text(origin["time"]),
            f"channel={origin['channel']}",
            f"attempts={origin['attempts']}",
            f"reason={origin['reason'].replace(' ', '-')}",
        ]
        if origin["consumer"]:
            words.append(f"consumer={origin['consumer']}")
    else:
        words.append(_time_text(message["timestamp"]))
    if message["state"] != "waiting":
        words.append(message["state"])
    if address:
        words.append(f"nsqd={address}")
    body = message.get("text")
    if body is None:
        body = f"base64:{message['base64']}"
    if message.get("truncated"):
        body += f" ... ({message['size']} bytes)"
    lines = body.splitlines() or [""]
    return "".join([" ".join(words), "\n", *(f"  {line}\n" for line in lines)]).encode()


def _time_text(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# Redriving and purging


async def _change(options: DlqOptions, answers: Answers[Any], stopping: asyncio.Event) -> int:
    if options.offset and len(answers.found) > 1:
        addresses = ", ".join(address for address, _ in answers.found)
        raise UtilityFailed(f"--offset needs one nsqd, but {addresses} have letters: use --nsqd-http-address")
    is_asked = options.verb == "purge" or not (options.offset or options.count)
    if is_asked and not options.is_confirmed and not await _confirm(options, answers, stopping):
        write_stdout(b"nothing was changed\n")
        return 1
    nodes = NsqdClient.at(options.cluster.http, [address for address, _ in answers.found])
    outcome = await ask_all(nodes, _change_node, options)
    past = _PAST[options.verb]
    if options.is_json:
        for address, (number, left) in outcome.found:
            _print_json({"nsqd": address, past: number, "left": left})
    elif outcome.found:
        rows = [(address, str(number), str(left)) for address, (number, left) in outcome.found]
        print_table(("nsqd", past, "left"), rows)
    if not outcome.found:
        outcome.require_all()
    warn(outcome.plain_problems)
    return 1 if outcome.failures or answers.failures else 0


async def _change_node(node: NsqdClient, options: DlqOptions) -> tuple[int, int]:
    """Redrive or purge letters of one nsqd; return how many, and how many are left. Raises RequestFailed."""
    number = left = 0
    while True:
        wanted = min(options.count - number, _LETTERS_PER_REQUEST) if options.count else _LETTERS_PER_REQUEST
        try:
            answer = await node.change_dead(options.verb, options.topic, options.channel, options.offset, wanted)
        except RequestFailed as error:
            if number:
                raise RequestFailed(f"{error.reason}, after {number} letters", status=error.status) from None
            raise
        changed, left = answer[_PAST[options.verb]], answer["left"]
        number += changed
        if changed < wanted or number == options.count:
            return number, left


async def _confirm(options: DlqOptions, answers: Answers[Any], stopping: asyncio.Event) -> bool:
    """Ask on the terminal; raises UtilityFailed if there is none."""
    if not sys.stdin.isatty():
        raise UtilityFailed(f"{options.verb} needs a confirmation: add --yes")
    letters = sum(answer["count"] for _, answer in answers.found)
    selected = "the letters" if options.channel or options.offset or options.count else f"all {letters} letters"
    of = f"{options.topic}, channel {options.channel}," if options.channel else options.topic
    write_stdout(f"{options.verb} {selected} of {of} on {len(answers.found)} nsqd? [y/N] ".encode())
    answer = await _read_line(stopping)
    return answer.strip().lower() in ("y", "yes")


async def _read_line(stopping: asyncio.Event) -> str:
    """Return the next line of the terminal; empty if the command is stopped before."""
    loop = asyncio.get_running_loop()
    typed = asyncio.Event()
    descriptor = sys.stdin.fileno()
    loop.add_reader(descriptor, typed.set)
    waiting = [asyncio.ensure_future(event.wait()) for event in (typed, stopping)]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        loop.remove_reader(descriptor)
        for task in waiting:
            task.cancel()
    return sys.stdin.readline() if typed.is_set() else ""


def _print_json(value: object) -> None:
    write_stdout(orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE))
