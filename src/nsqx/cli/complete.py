"""nsqx __complete: prints the completions of a command line, for the scripts of nsqx completion.

    nsqx __complete SHELL PROGRAM WORD...

The last word is the one to complete. Each line of the output is a completion, a tab and a description. A first line
``:files`` or ``:dirs`` asks the shell for the names of files or directories. Topics and channels are asked of the
cluster of the command line, with a short deadline. A failure prints nothing, because it would disturb the prompt.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from nsqx.cli.commands import COMMANDS
from nsqx.errors import NSQError

if TYPE_CHECKING:
    from nsqx.cli.cluster import ClusterAccess
    from nsqx.flags import Flag

FLAGS: tuple[Flag, ...] = ()
_DEADLINE_S = 1.0
_FILES, _DIRECTORIES = ":files", ":dirs"
_TOPIC, _CHANNEL, _SOURCE, _VERB, _CONTEXT = "topic", "channel", "source", "verb", "context"
_TOPIC_CHANNEL = (_TOPIC, _CHANNEL)
# What the arguments of each command are. The last one may be repeated if it is a topic, files or directories.
_ARGUMENTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("sub", "stats", "peek", "seek", "clients"), _TOPIC_CHANNEL),
    **dict.fromkeys(("create", "pause", "unpause", "empty", "delete"), _TOPIC_CHANNEL),
    **dict.fromkeys(("pub", "top", "channels"), (_TOPIC,)),
    "move": (_SOURCE, _TOPIC),
    "config": (_VERB, *_TOPIC_CHANNEL),
    "dlq": (_VERB, _TOPIC),
    "context": (_VERB, _CONTEXT),
    "pipeline": (_VERB, _FILES),
    "log": (_VERB, _DIRECTORIES),
    "doctor": (_DIRECTORIES,),
    "replay": (_DIRECTORIES,),
    "archive": (_TOPIC, _TOPIC, _TOPIC, _TOPIC),
    "bench": (_VERB,),
    "completion": (_VERB,),
}
_LEVELS = ("debug", "info", "warn", "error", "fatal")
_CHOICES = {"store": ("classic", "log"), "durability": ("fsync", "write"), "log-level": _LEVELS}


class Completion(NamedTuple):
    """One completion."""

    text: str
    about: str = ""


def main(argv: Sequence[str] | None = None) -> int:
    """Print the completions; return 0."""
    shell, *words = sys.argv[1:] if argv is None else argv
    try:
        found = completions(words)
    except (NSQError, OSError, TimeoutError):
        return 0
    last = _merged(words)[-1] if words else ""
    # bash completes only what follows the =, because = separates its words.
    is_cut = shell == "bash" and last.startswith("-") and "=" in last
    for each in found:
        text = each.text.partition("=")[2] if is_cut and not each.text.startswith(":") else each.text
        print(f"{text}\t{each.about}" if each.about else text)
    return 0


def completions(words: Sequence[str]) -> list[Completion]:
    """Return the completions of the last word; the first word is the program. Raises NSQError or TimeoutError."""
    words = _merged(words)
    if len(words) < 2:
        return []
    program, *rest = os.path.basename(words[0]), *words[1:]
    if program == "nsqx":
        if len(rest) == 1 or rest[0] == "help":
            names = [Completion(name, command.about) for name, command in COMMANDS.items()]
            own = [Completion("help", "list the commands, or show the help of one"), Completion("version", "show it")]
            return _matching(names + (own if len(rest) == 1 else []), rest[-1]) if len(rest) < 3 else []
        program, *rest = rest
    if program not in COMMANDS:
        return []
    return _of_command(program, rest)


def _merged(words: Sequence[str]) -> list[str]:
    """Return the words of bash, which separates ``--flag=value`` into three."""
    merged: list[str] = []
    for word in words:
        follows_flag = merged and merged[-1].startswith("-")
        if follows_flag and (word == "=" or merged[-1].endswith("=")):
            merged[-1] += word
        else:
            merged.append(word)
    return merged


def _of_command(command: str, words: Sequence[str]) -> list[Completion]:
    flags = {f"--{flag.name}": flag for flag in COMMANDS[command].flags}
    *before, current = words
    name, equals, value = current.partition("=")
    if equals and name in flags:
        found = _matching(_values(command, flags[name], before), value)
        return [each if each.text.startswith(":") else Completion(f"{name}={each.text}", each.about) for each in found]
    if before and before[-1] in flags and not flags[before[-1]].kind.is_switch:
        return _matching(_values(command, flags[before[-1]], before[:-1]), current)
    if current.startswith("-"):
        shown = [
            Completion(name if flag.kind.is_switch else f"{name}=", flag.help.replace("`", "").replace("\n", " "))
            for name, flag in flags.items()
        ]
        return _matching(shown, current)
    arguments = _plain_words(before, flags)
    kinds = _ARGUMENTS.get(command, ())
    kind = kinds[len(arguments)] if len(arguments) < len(kinds) else ""
    if kinds and not kind and kinds[-1] in (_FILES, _DIRECTORIES):
        kind = kinds[-1]
    if kind == _VERB:
        return _matching(map(Completion, COMMANDS[command].verbs), current)
    return _matching(_named(kind, command, before, arguments, current), current)


def _plain_words(words: Sequence[str], flags: dict[str, Flag]) -> list[str]:
    """Return the words that are neither flags nor values of flags."""
    plain: list[str] = []
    is_value = False
    for word in words:
        if is_value:
            is_value = False
        elif word.startswith("-") and len(word) > 1:
            is_value = word in flags and not flags[word].kind.is_switch
        else:
            plain.append(word)
    return plain


def _values(command: str, flag: Flag, before: Sequence[str]) -> Iterable[Completion]:
    """Return the values of a flag."""
    if flag.name in ("topic", "channel", "context"):
        arguments = _plain_words(before, {f"--{each.name}": each for each in COMMANDS[command].flags})
        # dlq has its verb before the topic.
        topics = arguments[1:] if command == "dlq" else arguments
        return _named(flag.name, command, before, topics, "")
    if flag.name in _CHOICES:
        return map(Completion, _CHOICES[flag.name])
    if flag.name == "sort":
        return map(Completion, flag.help.rpartition(": ")[2].split(", "))
    if flag.name == "config" or flag.name.endswith(("-file", "-cert", "-key")):
        return [Completion(_FILES)]
    if flag.name in ("state", "to") or flag.name.endswith(("-dir", "-path")):
        return [Completion(_DIRECTORIES)] if command not in ("seek", "replay") else []
    return []


def _named(
    kind: str, command: str, before: Sequence[str], arguments: Sequence[str], current: str
) -> Iterable[Completion]:
    """Return the names of a kind: topics or channels of the cluster, contexts, files or directories."""
    if kind in (_FILES, _DIRECTORIES):
        return [Completion(kind)]
    if kind == _CONTEXT:
        from nsqx.cli.contexts import ContextFile

        return map(Completion, ContextFile().contexts)
    if kind not in (_TOPIC, _CHANNEL, _SOURCE):
        return []
    topic = ""
    if kind == _CHANNEL:
        topics = [word for word in arguments if word not in COMMANDS[command].verbs]
        topic = topics[0] if topics else ""
    elif kind == _SOURCE and "/" in current:
        topic = current.partition("/")[0]
    names = asyncio.run(_ask(_cluster(command, before), topic))
    if kind == _SOURCE:
        return [Completion(f"{topic}/{name}" if topic else f"{name}/") for name in names]
    return map(Completion, names)


def _cluster(command: str, before: Sequence[str]) -> ClusterAccess:
    """Return the cluster that the flags before name, else that of the environment; raises NSQError."""
    from nsqx.cli.cluster import CLUSTER_FLAGS, take_cluster
    from nsqx.cli.command_line import parse_words
    from nsqx.flags import resolve
    from nsqx.tools.cluster_address import NSQD_TCP_FLAG, http_address

    own = COMMANDS[command].flags
    given = dict(parse_words(own, before, f"nsqx {command}").given)
    tcp = given.pop(NSQD_TCP_FLAG.name, []) if NSQD_TCP_FLAG in own else []
    known = {flag.name for flag in CLUSTER_FLAGS}
    values = resolve(CLUSTER_FLAGS, {name: value for name, value in given.items() if name in known}, {}).values
    values["nsqd_addresses"] = [*values["nsqd_addresses"], *map(http_address, tcp)]
    return take_cluster(values, request_timeout_s=_DEADLINE_S)


async def _ask(cluster: ClusterAccess, topic: str) -> list[str]:
    """Return the topics, or the channels of a topic; raises NSQError or TimeoutError."""
    from nsqx.cluster.fan_out import ask_all
    from nsqx.cluster.lookupd import LookupdClient
    from nsqx.cluster.nsqd import NsqdClient

    async with asyncio.timeout(_DEADLINE_S):
        lookupds = await cluster.lookupds()
        if lookupds and topic:
            names = (await ask_all(lookupds, LookupdClient.channels, topic)).values
        elif lookupds:
            names = (await ask_all(lookupds, LookupdClient.topics)).values
        else:
            answers = await ask_all(await cluster.nsqds(), NsqdClient.stats, topic)
            names = [
                [channel["channel_name"] for entry in entries for channel in entry["channels"] or []]
                if topic
                else [entry["topic_name"] for entry in entries]
                for entries in answers.values
            ]
    return sorted({name for each in names for name in each})


def _matching(found: Iterable[Completion], prefix: str) -> list[Completion]:
    return [each for each in found if each.text.startswith((prefix, ":"))]
