"""The command line of the nsqx commands: one syntax of flags, errors that name the mistake, and help texts.

A flag is ``--name``; its value follows after ``=`` or as the next word. Flags may stand anywhere before ``--``. The
programs of NSQ that are also installed under their own names keep the syntax of Go (``nsqx.flags.parse``).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any, NoReturn

from nsqx.cli.did_you_mean import did_you_mean
from nsqx.flags import (
    BOOL,
    DURATION,
    EXIT_HELP,
    EXIT_USAGE,
    FLOAT,
    INT,
    LOG_LEVEL,
    STRINGS,
    CommandLine,
    Flag,
    UsageError,
    resolve,
)
from nsqx.gotext import OUT_OF_RANGE

_NO_VERBS: Sequence[str] = ()
_WANTED = {
    INT.placeholder: "use a whole number",
    FLOAT.placeholder: "use a number",
    DURATION.placeholder: "use a duration such as 30s, 5m or 1h30m",
    BOOL.placeholder: "use true or false",
}
_LEVELS = "use debug, info, warn, error or fatal"
# The flags that commands for a cluster share. The help lists them last.
CLUSTER_FLAG_NAMES = frozenset(
    (
        *("context", "nsqd-http-address", "nsqd-tcp-address", "lookupd-http-address"),
        *("nsqd-http-token-file", "lookupd-http-token-file", "http-client-tls-root-ca-file", "http-client-tls-cert"),
        *("http-client-tls-key", "http-client-tls-insecure-skip-verify", "consumer-opt", "producer-opt"),
    )
)
_HELP_COLUMN = 30
_BACK_QUOTED = re.compile("`([^`]*)`")


def read_words(
    flags: Sequence[Flag],
    argv: Sequence[str],
    title: str,
    *,
    least: int = 0,
    most: int | None = None,
    verbs: Sequence[str] = _NO_VERBS,
) -> tuple[dict[str, Any], list[str]]:
    """Return the options by key, and the arguments; raises UsageError.

    ``title`` is the command with its arguments, such as ``nsqx seek TOPIC CHANNEL``. With ``verbs`` the first argument
    must be one of them.
    """
    given, words = parse_words(flags, argv, title)
    if verbs:
        _check_verb(title, words, verbs)
    _check_count(title, words, least, most)
    return resolve(flags, given, {}).values, words


def parse_words(flags: Sequence[Flag], argv: Sequence[str], title: str) -> CommandLine:
    """Return the flags that are given, and the arguments; raises UsageError."""
    line = _Line(flags, title)
    split = argv.index("--") if "--" in argv else len(argv)
    rest, words = list(argv[:split]), []
    given: dict[str, Any] = {}
    while rest:
        word = rest.pop(0)
        if len(word) > 1 and word[0] == "-":
            line.read_flag(word, rest, given)
        else:
            words.append(word)
    return CommandLine(given, [*words, *argv[split + 1 :]])


def program_of(title: str) -> str:
    """Return the name of the command in a title: ``nsqx seek``."""
    return " ".join(title.split()[:2])


def usage_error(title: str, mistake: str) -> UsageError:
    """Return the error about a wrong command line: the mistake, the arguments of the command, and where to read on."""
    program = program_of(title)
    return UsageError(f"{program}: {mistake}\nusage: {title} [FLAGS]\n{program} --help lists the flags\n", EXIT_USAGE)


class _Line:
    """Reads one command line."""

    def __init__(self, flags: Sequence[Flag], title: str) -> None:
        self._flags = flags
        self._by_name = {flag.name: flag for flag in flags}
        self._title = title

    def fail(self, mistake: str) -> NoReturn:
        raise usage_error(self._title, mistake)

    def read_flag(self, word: str, following: list[str], given: dict[str, Any]) -> None:
        """Read a flag into ``given``; its value may be the first of the ``following`` words, which is then removed."""
        name, equals, value = word[2 if word.startswith("--") else 1 :].partition("=")
        flag = self._by_name.get(name)
        if flag is None:
            if name in ("h", "help"):
                raise UsageError(help_text(self._flags, self._title), EXIT_HELP, is_for_stdout=True)
            names = [shown_name(each) for each in self._flags]
            similar = did_you_mean(f"--{name}", names) if len(name) > 1 else ""
            self.fail(f"unknown flag {word.partition('=')[0]}{similar}")
        shown = shown_name(flag)
        if not equals:
            if flag.kind.is_switch:
                value = "true"
            elif following and not following[0].startswith("--"):
                value = following.pop(0)
            else:
                self.fail(f"{shown} needs a value: {shown}={_placeholder(flag)}")
        so_far = given.get(name, flag.default) if flag.kind is not STRINGS else given.get(name, [])
        try:
            given[name] = flag.kind.read_text(value, so_far)
        except ValueError as error:
            wanted = _LEVELS if flag.kind is LOG_LEVEL else _WANTED.get(flag.kind.placeholder, str(error))
            self.fail(f'invalid {shown} "{value}": {str(error) if str(error) == OUT_OF_RANGE else wanted}')


def _check_verb(title: str, words: Sequence[str], verbs: Sequence[str]) -> None:
    known = f"use {', '.join(verbs[:-1])} or {verbs[-1]}"
    if not words:
        raise usage_error(title, f"a command is missing: {known}")
    if words[0] not in verbs:
        raise usage_error(title, f'unknown command "{words[0]}"{did_you_mean(words[0], verbs)} ({known})')


def _check_count(title: str, words: Sequence[str], least: int, most: int | None) -> None:
    if len(words) < least:
        names = [part.strip("[].").replace("[/", "/") for part in title.split()[2:]]
        raise usage_error(title, f"{names[len(words)] if len(words) < len(names) else 'an argument'} is missing")
    if most is not None and len(words) > most:
        raise usage_error(title, f'unexpected argument "{words[most]}"')


def shown_name(flag: Flag) -> str:
    """Return a flag as it is written: ``--json``, or ``-n`` with one letter."""
    return f"--{flag.name}" if len(flag.name) > 1 else f"-{flag.name}"


def _placeholder(flag: Flag) -> str:
    named = _BACK_QUOTED.search(flag.help)
    return (named.group(1) if named else flag.kind.placeholder).upper().replace(" ", "-")


def help_text(flags: Sequence[Flag], title: str) -> str:
    """Return what a command does, its arguments, examples and flags."""
    # Imported here, because only help texts need them.
    from nsqx.cli.commands import COMMANDS
    from nsqx.cli.examples import EXAMPLES

    program = program_of(title)
    command = COMMANDS.get(program.removeprefix("nsqx "))
    lines = [f"{program}: {command.about}" if command else program, "", f"usage: {title} [FLAGS]"]
    examples: Mapping[str, str] = EXAMPLES.get(program.removeprefix("nsqx "), {})
    if examples:
        width = max(map(len, examples))
        lines += ["", "Examples:", *(f"  {each.ljust(width)}  # {about}" for each, about in examples.items())]
    columns = max(60, min(shutil.get_terminal_size().columns, 120))
    own = [flag for flag in flags if flag.name not in CLUSTER_FLAG_NAMES]
    shared = [flag for flag in flags if flag.name in CLUSTER_FLAG_NAMES]
    for heading, group in (("Flags:", own), ("Flags for the cluster and its access:", shared)):
        if group:
            lines += ["", heading]
            for flag in group:
                lines += _flag_lines(flag, columns)
    return "".join(f"{line}\n" for line in lines)


def _flag_lines(flag: Flag, columns: int) -> list[str]:
    value = "" if flag.kind.is_switch else f"={_placeholder(flag)}"
    head = f"  {shown_name(flag)}{value}"
    text = _BACK_QUOTED.sub(r"\1", flag.help).replace("\n", " ")
    default = flag.kind.show(flag.default)
    if default != flag.kind.zero:
        text += f" (default {default})"
    wrapped = wrap(text, columns - _HELP_COLUMN, break_on_hyphens=False)
    indent = " " * _HELP_COLUMN
    if len(head) > _HELP_COLUMN - 2:
        return [head, *(indent + line for line in wrapped)]
    return [head.ljust(_HELP_COLUMN) + wrapped[0], *(indent + line for line in wrapped[1:])]
