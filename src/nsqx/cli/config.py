"""nsqx config: shows or changes the settings of a topic or of a channel, on every nsqd that has it.

      nsqx config show TOPIC [CHANNEL]
      nsqx config set TOPIC [CHANNEL] NAME=VALUE...
      nsqx config unset TOPIC [CHANNEL] NAME...

Exit codes: 0 success; 1 an nsqd has refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from nsqx.cli.cluster import CLUSTER_FLAGS, ClusterAccess, take_cluster
from nsqx.cli.command_line import read_words, usage_error
from nsqx.cli.did_you_mean import did_you_mean
from nsqx.cli.json_lines import JSON_FLAG, print_json
from nsqx.cluster.fan_out import Answers, ask_all
from nsqx.names import invalid_name, is_valid_name
from nsqx.tools.cluster_address import warn
from nsqx.tools.nsqd_refusals import CHANNEL_NOT_FOUND, TOPIC_NOT_FOUND, refusal_text
from nsqx.tools.table import print_table
from nsqx.tools.utility import UtilityFailed

if TYPE_CHECKING:
    from nsqx.cluster.nsqd import NsqdClient
    from nsqx.errors import RequestFailed
    from nsqx.flags import Flag

PROGRAM = "nsqx config"
VERBS = ("show", "set", "unset")
_VALUES = {
    "durability": "fsync or write",
    "retain_age": "a duration such as 72h, 0s for no limit",
    "retain_bytes": "a number of bytes, 0 for no limit",
    "max_age": "a duration such as 72h, 0s for no limit",
    "max_bytes": "a number of bytes, 0 for no limit",
    "when_full": "refuse or drop-oldest",
    "message_ttl": "a duration such as 72h, 0s for no limit",
    "max_attempts": "a number from 0 to 65535, 0 for no limit",
    "dead_letter": "another topic, or nothing",
    "channel_start": "auto, beginning or end",
}
_CHANNEL_NAMES = ("max_attempts", "dead_letter")

FLAGS: tuple[Flag, ...] = (JSON_FLAG, *CLUSTER_FLAGS)


@dataclass(slots=True)
class ConfigOptions:
    """The options of nsqx config."""

    verb: str
    topic: str
    channel: str = ""
    changes: dict[str, str | None] = field(default_factory=dict)
    """The new values by name; None restores that of the configuration."""
    cluster: ClusterAccess = field(default_factory=ClusterAccess)
    is_json: bool = False


def read_options(argv: Sequence[str]) -> ConfigOptions:
    """Return the options from the command line; raises UsageError, UtilityFailed or ConfigError."""
    title = f"{PROGRAM} {'|'.join(VERBS)} TOPIC [CHANNEL] [NAME=VALUE...]"
    values, words = read_words(FLAGS, argv, title, verbs=VERBS)
    verb, *rest = words
    if not rest:
        raise usage_error(title, "TOPIC is missing")
    names = rest[:2] if verb == "show" else _leading_names(verb, rest)
    for what, name in zip(("topic", "channel"), names, strict=False):
        if not is_valid_name(name):
            raise UtilityFailed(invalid_name(what, name))
    topic, channel = [*names, ""][:2]
    settings = rest[len(names) :]
    if verb == "show" and settings:
        raise usage_error(title, f'unexpected argument "{settings[0]}"')
    if verb != "show" and not settings:
        raise usage_error(title, "NAME=VALUE is missing" if verb == "set" else "NAME is missing")
    changes = dict(_change(verb, text, channel) for text in settings)
    return ConfigOptions(verb, topic, channel, changes, take_cluster(values), **values)


def _leading_names(verb: str, words: Sequence[str]) -> list[str]:
    """Return the topic and the channel before the settings."""
    if verb == "set":
        return [*words[:1], *(word for word in words[1:2] if "=" not in word)]
    return [*words[:1], *(word for word in words[1:2] if word not in _VALUES and len(words) > 2)]


def _change(verb: str, text: str, channel: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    name = name.replace("-", "_")
    known = _CHANNEL_NAMES if channel else tuple(_VALUES)
    if name not in known:
        of = "a channel has" if channel else "the settings are"
        hint = did_you_mean(name, known) or f": {of} {', '.join(known)}"
        raise UtilityFailed(f'unknown setting "{name}"{hint}')
    if verb == "unset":
        return name, None
    if not equals:
        raise UtilityFailed(f"{name} needs a value: {name}=VALUE, {_VALUES[name]}")
    return name, value


async def run(options: ConfigOptions, _stopping: asyncio.Event) -> int:
    """Show or change the settings and return the exit code; raises UtilityFailed or RequestFailed."""
    nsqds = await options.cluster.nsqds()
    answers = await ask_all(nsqds, _ask, options)
    gone = (TOPIC_NOT_FOUND, CHANNEL_NOT_FOUND)
    failures = [(nsqd, error) for nsqd, error in answers.failures if error.code not in gone]
    problems = [f"{nsqd}: {_refusal(error, options)}" for nsqd, error in failures]
    if not answers.found and not problems:
        raise await options.cluster.nothing_has(options.topic, options.channel)
    if not answers.found:
        raise UtilityFailed("; ".join(problems))
    _print(answers, options)
    warn(problems)
    return 1 if problems else 0


async def _ask(nsqd: NsqdClient, options: ConfigOptions) -> dict[str, Any]:
    path = "/channel/config" if options.channel else "/topic/config"
    query = {"topic": options.topic, **({"channel": options.channel} if options.channel else {})}
    if options.verb == "show":
        return await nsqd.ask_object("GET", path, query)
    return await nsqd.ask_object("PUT", path, query, orjson.dumps(options.changes))


def _refusal(failure: RequestFailed, options: ConfigOptions) -> str:
    given = ", ".join(f"{name}={value}" for name, value in options.changes.items() if value is not None)
    wanted = "; ".join(f"{name} is {_VALUES[name]}" for name in options.changes)
    if failure.code == "INVALID_VALUE":
        return f"invalid {given}: {wanted}, and the settings must fit together"
    if failure.code == "INVALID_OPTION":
        return f"the topic has the classic store, which has only the settings {' and '.join(_CHANNEL_NAMES)}"
    return refusal_text(failure)


def _print(answers: Answers[dict[str, Any]], options: ConfigOptions) -> None:
    if options.is_json:
        for address, answer in answers.found:
            print_json({"nsqd": address, **answer})
        return
    rows = []
    for address, answer in answers.found:
        for name, value in answer["settings"].items():
            origin = "set" if name in answer["changed"] else "of the topic" if options.channel else "configuration"
            rows.append((address, name, str(value) or '""', origin))
    print_table(("nsqd", "setting", "value", "from"), rows, text_columns=4, optional=("from",))
