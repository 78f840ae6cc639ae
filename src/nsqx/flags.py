"""Command line flags with the syntax of Go's flag package, and TOML configuration files.

A program declares a table of ``Flag``. This module parses argv, prints the usage text, and chooses the value of each
option: the flag, else the configuration file, else the default. The tables themselves belong to the programs.

``-x`` and ``--x`` are the same flag. A value follows ``=`` or is the next word; a switch takes a value only after
``=``. A list flag can be repeated; of any other flag the last value counts. Flags end at ``--`` or at the first word
that does not start with ``-``.
"""

import os
import re
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple, TextIO

from nsqx import log
from nsqx.errors import ConfigError, NSQError
from nsqx.gotext import (
    INT64_MAX,
    INT64_MIN,
    OUT_OF_RANGE,
    PARSE_ERROR,
    format_duration,
    format_float,
    parse_duration_ns,
    parse_float,
    parse_int,
    quote,
)

EXIT_HELP = 0
EXIT_USAGE = 2


class UsageError(NSQError):
    """The command line is invalid or asks for help. The text ends with the usage."""

    def __init__(self, text: str, exit_code: int, *, is_for_stdout: bool = False) -> None:
        super().__init__(text)
        self.exit_code = exit_code
        self._is_for_stdout = is_for_stdout

    def show(self) -> int:
        """Print the text, and return the exit code."""
        print(self, file=sys.stdout if self._is_for_stdout else sys.stderr, end="")
        return self.exit_code


class VersionRequested(Exception):
    """The command line asks for the version. The program prints it."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How values of one type are parsed and printed. The parsers raise ValueError with a reason."""

    placeholder: str
    """The word after the flag's name in the usage text."""
    read_text: Callable[[str, Any], Any]
    """Parse a value of the command line. The second argument is the value so far, for list flags."""
    read_toml: Callable[[Any, Any], Any]
    """Convert a value of the configuration file. The second argument is the default."""
    show: Callable[[Any], str]
    """Format a default for the usage text."""
    zero: str
    """The formatted default that the usage text leaves out."""
    is_switch: bool = False
    """True if the flag without a value means true."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One row of a program's table of flags."""

    name: str
    kind: Kind
    default: Any
    help: str
    """The help text. A word in back quotes replaces the placeholder of the kind."""
    config_key: str = ""
    """The key in the configuration file. Default: the name with ``_`` instead of ``-``."""
    in_config: bool = True
    """False for flags that are valid only on the command line."""

    @property
    def key(self) -> str:
        """Name of the option in the configuration file and in code."""
        return self.config_key or self.name.replace("-", "_")


class OptionTable:
    """Creates the flags of a daemon. The default of each option is the attribute of ``defaults`` with its key."""

    def __init__(self, defaults: object) -> None:
        self._defaults = defaults

    def option(self, name: str, kind: Kind, help: str, config_key: str = "") -> Flag:  # noqa: A002
        """Return the flag of an option. ``config_key`` is its key in the configuration file, if the name differs."""
        default = getattr(self._defaults, config_key or name.replace("-", "_"))
        return Flag(name, kind, default, help, config_key)


class CommandLine(NamedTuple):
    """A parsed command line: values by flag name, and the words after the flags."""

    given: dict[str, Any]
    words: list[str]


class Settings(NamedTuple):
    """The value of each option by key, and the unknown keys of the configuration file."""

    values: dict[str, Any]
    unknown_keys: list[str]


def parse(flags: Sequence[Flag], argv: Sequence[str], program: str) -> CommandLine:
    """Parse argv without the program name; raises UsageError."""
    by_name = {flag.name: flag for flag in flags}
    given: dict[str, Any] = {}
    words = list(argv)
    while words:
        word = words[0]
        if len(word) < 2 or word[0] != "-":
            break
        del words[0]
        if word == "--":
            break
        try:
            _parse_one(by_name, word, words, given)
        except _HelpRequested:
            raise UsageError(usage(flags, program), EXIT_HELP) from None
        except ValueError as error:
            raise UsageError(f"{error}\n{usage(flags, program)}", EXIT_USAGE) from None
    return CommandLine(given, words)


class _HelpRequested(Exception):
    pass


def _parse_one(by_name: Mapping[str, Flag], word: str, following: list[str], given: dict[str, Any]) -> None:
    """Parse one flag into ``given``. Its value may be the first of the ``following`` words, which is then removed."""
    name, equals, value = word[2 if word.startswith("--") else 1 :].partition("=")
    if not name or name.startswith("-"):
        raise ValueError(f"bad flag syntax: {word}")
    flag = by_name.get(name)
    if flag is None:
        if name in ("h", "help"):
            raise _HelpRequested
        raise ValueError(f"flag provided but not defined: -{name}")
    if not equals:
        if flag.kind.is_switch:
            value = "true"
        elif following:
            value = following.pop(0)
        else:
            raise ValueError(f"flag needs an argument: -{name}")
    try:
        given[name] = flag.kind.read_text(value, given.get(name, flag.default))
    except ValueError as error:
        what = f"boolean value {quote(value)} for" if flag.kind.is_switch else f"value {quote(value)} for flag"
        raise ValueError(f"invalid {what} -{name}: {error}") from None


def usage(flags: Sequence[Flag], program: str) -> str:
    """Return the usage text: all flags sorted by name, with help and default, in the format of Go programs."""
    lines = [f"Usage of {program}:\n"]
    lines.extend(map(_usage_of, sorted(flags, key=lambda flag: flag.name)))
    return "".join(lines)


_BACK_QUOTED = re.compile("`([^`]*)`")


def _usage_of(flag: Flag) -> str:
    named = _BACK_QUOTED.search(flag.help)
    placeholder = named.group(1) if named else flag.kind.placeholder
    head = f"  -{flag.name} {placeholder}".rstrip()
    text = _BACK_QUOTED.sub(r"\1", flag.help, count=1).replace("\n", "\n    \t")
    default = flag.kind.show(flag.default)
    if default != flag.kind.zero:
        text += f" (default {default})"
    separator = "\t" if len(head) <= len("  -x") else "\n    \t"
    return f"{head}{separator}{text}\n"


def load_config(path: str) -> dict[str, Any]:
    """Read a TOML file; raises ConfigError."""
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ConfigError(
            f"failed to load config file {path} - open {path}: {reason[:1].lower()}{reason[1:]}"
        ) from None
    except ValueError as error:  # not TOML, or not UTF-8
        raise ConfigError(f"failed to load config file {path} - toml: {error}") from None


def resolve(flags: Sequence[Flag], given: Mapping[str, Any], config: Mapping[str, Any]) -> Settings:
    """Choose the value of each option: the flag, else the configuration file, else the default."""
    values: dict[str, Any] = {}
    for flag in flags:
        if not flag.in_config:
            continue
        if flag.name in given:
            values[flag.key] = given[flag.name]
        elif flag.key in config:
            values[flag.key] = _read_config_value(flag, config[flag.key])
        else:
            values[flag.key] = copy(flag.default)
    return Settings(values, [key for key in config if key not in values])


def read_options(
    flags: Sequence[Flag],
    argv: Sequence[str],
    program: str,
    stderr: TextIO,
    config_only: Sequence[Flag] = (),
    parse_line: Callable[[Sequence[Flag], Sequence[str], str], CommandLine] = parse,
) -> dict[str, Any]:
    """Read a daemon's options from argv and from the configuration file that ``-config`` names.

    ``config_only`` are options that only the configuration file can set. Unknown keys and words after the flags are
    logged as warnings. The table must have the flags ``version``, ``config``, ``log-prefix`` and ``log-level``.
    """
    given, words = parse_line(flags, argv, program)
    if given.get("version"):
        raise VersionRequested
    config_path = given.get("config", "")
    config = load_config(config_path) if config_path else {}
    values, unknown_keys = resolve((*flags, *config_only), given, config)
    logger = log.Log(values.get("log_prefix", f"[{program}] "), values.get("log_level", log.INFO), stderr)
    for key in unknown_keys:
        logger.warn("config file %s: unknown key %s is ignored", config_path, quote(key))
    if words:
        logger.warn("flags end at %s: this word and the words after it are ignored", quote(words[0]))
    return values


def _read_config_value(flag: Flag, value: Any) -> Any:
    try:
        return flag.kind.read_toml(value, flag.default)
    except ValueError as error:
        text = _toml_text(value)
        shown = text if text.isprintable() else quote(text)
        raise ConfigError(f"failed parsing {flag.key} {shown} - {error}") from None


def _toml_text(value: Any) -> str:
    """Return a TOML scalar as text for a flag."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


_TRUE = frozenset(("1", "t", "T", "true", "TRUE", "True"))
_FALSE = frozenset(("0", "f", "F", "false", "FALSE", "False"))


def _parse_bool(text: str) -> bool:
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(PARSE_ERROR)


def _bool_from_toml(value: Any, _default: bool) -> bool:
    # The integer 1 means true and 0 means false. Go's go-options inverts them.
    try:
        if isinstance(value, (bool, int, str)):
            return _parse_bool(_toml_text(value))
    except ValueError:
        pass
    raise ValueError("must be true or false")


_DECIMAL = re.compile(r"[+-]?[0-9]{1,20}")


def _int_from_toml(value: Any, _default: int) -> int:
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("must be an integer")
    if not INT64_MIN <= value <= INT64_MAX:
        raise ValueError(OUT_OF_RANGE)
    return value


def _float_from_toml(value: Any, _default: float) -> float:
    try:
        if isinstance(value, str):
            return parse_float(value.strip())
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    except (ValueError, OverflowError):
        pass
    raise ValueError("must be a number")


def _string_from_toml(value: Any, _default: str) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a string")
    return value


def _parse_duration(text: str) -> int:
    try:
        return parse_duration_ns(text)
    except ValueError:
        raise ValueError(PARSE_ERROR) from None


def _duration_from_toml(value: Any, _default: int) -> int:
    if isinstance(value, str):
        return parse_duration_ns(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError('must be a duration like "250ms" or an integer of milliseconds')
    if not INT64_MIN <= value * 1_000_000 <= INT64_MAX:
        raise ValueError(OUT_OF_RANGE)
    return value * 1_000_000


def _strings_from_toml(value: Any, _default: list[str]) -> list[str]:
    if isinstance(value, str):
        return [item for item in map(str.strip, value.split(",")) if item]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError("must be a list of strings")
    return value


def _tables_from_toml(value: Any, _default: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError("must be an array of tables: use two brackets, as in [[name]]")
    return value


def _no_text(_text: str, _so_far: Any) -> Any:
    raise ValueError("only the configuration file can set it")


def _add_floats(text: str, so_far: list[float]) -> list[float]:
    values = list(so_far)
    for item in text.split(","):
        try:
            values.append(parse_float(item))
        except ValueError:
            # Go's nsqd exits here with status 1 and without the usage text.
            raise ConfigError(f"Could not parse: {item}") from None
    return sorted(values, reverse=True)


def _floats_from_toml(value: Any, _default: list[float]) -> list[float]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list):
        raise ValueError("must be a list of numbers")
    return [_float_from_toml(item, 0.0) for item in items]


STRING = Kind("string", lambda text, _: text, _string_from_toml, quote, '""')
BOOL = Kind("", lambda text, _: _parse_bool(text), _bool_from_toml, lambda on: str(on).lower(), "false", is_switch=True)
INT = Kind("int", lambda text, _: parse_int(text), _int_from_toml, str, "0")
FLOAT = Kind("float", lambda text, _: parse_float(text), _float_from_toml, format_float, "0")
DURATION = Kind("duration", lambda text, _: _parse_duration(text), _duration_from_toml, format_duration, "0s")
STRINGS = Kind("value", lambda text, so_far: [*so_far, text], _strings_from_toml, ",".join, "")
FLOATS = Kind("value", _add_floats, _floats_from_toml, lambda values: ",".join(f"{value:f}" for value in values), "")
TABLES = Kind("", _no_text, _tables_from_toml, str, "[]")
LOG_LEVEL = Kind(
    "value",
    lambda text, _: log.parse_level(text),
    lambda value, _: log.parse_level(_toml_text(value)),
    log.LEVEL_NAMES.__getitem__,
    "",
)

DAEMON_FLAGS = (
    Flag("version", BOOL, False, "print the version and exit", in_config=False),
    Flag("config", STRING, "", "path of a TOML configuration file", in_config=False),
    Flag("verbose", BOOL, False, "[deprecated] no effect; see -log-level", in_config=False),
)
"""Flags of every daemon that are not valid in a configuration file."""

TLS_NOT_REQUIRED = 0
TLS_REQUIRED_EXCEPT_HTTP = 1
TLS_REQUIRED = 2


def _parse_tls_required(text: str) -> int:
    text = text.lower()
    if text == "tcp-https":
        return TLS_REQUIRED_EXCEPT_HTTP
    if text in _TRUE:
        return TLS_REQUIRED
    if text in _FALSE:
        return TLS_NOT_REQUIRED
    raise ValueError(f"strconv.ParseBool: parsing {quote(text)}: invalid syntax")


# The numbers are those of the TLS wire protocol.
TLS_VERSIONS = {"tls1.0": 0x0301, "tls1.1": 0x0302, "tls1.2": 0x0303, "tls1.3": 0x0304}
_TLS_VERSION_NAMES = {number: name for name, number in TLS_VERSIONS.items()}


def _parse_tls_version(text: str, so_far: int) -> int:
    text = text.lower()
    if not text:
        return so_far
    if text not in TLS_VERSIONS:
        raise ValueError(f"unknown tlsVersionOption {quote(text)}")
    return TLS_VERSIONS[text]


TLS_REQUIREMENT = Kind(
    "",
    lambda text, _: _parse_tls_required(text),
    lambda value, _: _parse_tls_required(_toml_text(value)),
    str,
    str(TLS_NOT_REQUIRED),
    is_switch=True,
)
TLS_VERSION = Kind(
    "value",
    _parse_tls_version,
    lambda value, default: _parse_tls_version(_toml_text(value), default),
    _TLS_VERSION_NAMES.__getitem__,
    "",
)
