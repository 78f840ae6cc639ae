"""The settings of a topic: its store, when a publish is answered, how long messages are kept, and the attempt limit.

For each setting the first of these that has it decides:

1. for every setting except the store, the value that was set over HTTP,
2. the first ``[[topic]]`` table of the configuration file whose ``match`` is a glob for the name,
3. for the store, the first ``--store-rule`` whose glob is one for the name,
4. the flag.

Topics with the suffix ``#ephemeral`` always have the classic store.

A glob is matched against the whole name, and case matters, as in ``fnmatch.fnmatchcase``: ``*`` is any number of
characters, ``?`` is one, ``[12]`` one of these and ``[!12]`` one other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple

from nsqx.errors import ConfigError
from nsqx.gotext import INT64_MAX, format_duration, parse_duration_ns, quote
from nsqx.names import EPHEMERAL_SUFFIX, is_ephemeral, is_valid_name

if TYPE_CHECKING:
    from nsqx.nsqd.options import NsqdOptions

CLASSIC, LOG = "classic", "log"
STORES = (CLASSIC, LOG)
# A log topic answers a publish when the message is synced to disk, or when it is written to a file.
FSYNC, WRITE = "fsync", "write"
DURABILITIES = (FSYNC, WRITE)
# What happens to a publish to a log that has reached ``max_bytes``.
REFUSE, DROP_OLDEST = "refuse", "drop-oldest"
FULL_POLICIES = (REFUSE, DROP_OLDEST)
# Where a new channel of a log topic begins. AUTO is NSQ's rule: the first channel of a topic gets the messages that
# wait in the topic, other channels get those that are published from now on.
AUTO, BEGINNING, END = "auto", "beginning", "end"
CHANNEL_STARTS = (AUTO, BEGINNING, END)
MAX_ATTEMPTS_LIMIT = 0xFFFF

# The characters of topic names without a suffix, and those of globs.
_GLOB = re.compile(r"[.a-zA-Z0-9_*?\[\]!-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """The settings of one topic. Ages are in nanoseconds; 0 is no limit.

    Log topics have all of them, classic topics only ``max_attempts`` and ``dead_letter``.
    """

    store: str = CLASSIC
    durability: str = FSYNC
    retain_age: int = 0
    retain_bytes: int = 0
    max_age: int = 0
    max_bytes: int = 0
    when_full: str = REFUSE
    message_ttl: int = 0
    max_attempts: int = 0
    dead_letter: str = ""
    """The topic that gets messages at the attempt limit; if empty, they are finished."""
    channel_start: str = AUTO


class _Setting(NamedTuple):
    """How a setting is written: in tables, in JSON and in the text that nsqd saves."""

    read: Callable[[object], Any]
    """Return the value of text or of a number; raises ValueError with what to use."""
    text: Callable[[Any], str] = str
    is_number: bool = False
    is_for_classic: bool = False


def _choice(choices: Sequence[str]) -> _Setting:
    def read(value: object) -> str:
        if value not in choices:
            raise ValueError(f"use {' or '.join(choices)}")
        return str(value)

    return _Setting(read)


def _read_duration(value: object) -> int:
    try:
        duration_ns = parse_duration_ns(value) if isinstance(value, str) else -1
    except ValueError:
        duration_ns = -1
    if duration_ns < 0:
        raise ValueError("use a duration, for example 72h, or 0s for no limit")
    return duration_ns


def _read_number(value: object, most: int) -> int:
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(f"use a number from 0 to {most}")
    return value


def _read_name(value: object) -> str:
    if not isinstance(value, str) or (value and not is_valid_name(value)):
        raise ValueError("use 1-64 of a-z A-Z 0-9 . _ -")
    return value


_DURATION = _Setting(_read_duration, format_duration)
_SIZE = _Setting(lambda value: _read_number(value, INT64_MAX), is_number=True)
_ATTEMPTS = _Setting(lambda value: _read_number(value, MAX_ATTEMPTS_LIMIT), is_number=True, is_for_classic=True)
_NAME = _Setting(_read_name, is_for_classic=True)

# Every setting except the store.
_SETTINGS = {
    "durability": _choice(DURABILITIES),
    "retain_age": _DURATION,
    "retain_bytes": _SIZE,
    "max_age": _DURATION,
    "max_bytes": _SIZE,
    "when_full": _choice(FULL_POLICIES),
    "message_ttl": _DURATION,
    "max_attempts": _ATTEMPTS,
    "dead_letter": _NAME,
    "channel_start": _choice(CHANNEL_STARTS),
}
SETTING_NAMES = tuple(_SETTINGS)
# Those that a channel can have for itself.
CHANNEL_SETTING_NAMES = ("max_attempts", "dead_letter")
_TABLE_KEYS = ("match", "store", *SETTING_NAMES)
# The flags whose names differ from those of the settings.
_FLAGS = {name: f"log_{name}" for name in ("retain_age", "retain_bytes", "max_age", "max_bytes", "when_full")} | {
    "message_ttl": "log_message_ttl"
}


def read_setting(name: str, value: object) -> Any:
    """Return the value of a setting; raises ValueError, which says what to use."""
    return _SETTINGS[name].read(value)


def setting_text(name: str, value: object) -> str:
    """Return the text of a value, which ``read_setting`` accepts."""
    return _SETTINGS[name].text(value)


def settings_document(settings: TopicSettings) -> dict[str, object]:
    """Return the settings that apply to the store of a topic, as in the answer of /topic/config."""
    return {
        name: getattr(settings, name) if setting.is_number else setting.text(getattr(settings, name))
        for name, setting in _SETTINGS.items()
        if settings.store == LOG or setting.is_for_classic
    }


def is_for_classic(name: str) -> bool:
    """True if a setting applies to classic topics too."""
    return _SETTINGS[name].is_for_classic


def contradiction(settings: TopicSettings) -> str:
    """Return why settings do not fit together, or ""."""
    if settings.max_age and settings.retain_age > settings.max_age:
        return "retain_age must not exceed max_age"
    if settings.max_bytes and settings.retain_bytes > settings.max_bytes:
        return "retain_bytes must not exceed max_bytes"
    return ""


class _Rule(NamedTuple):
    """The settings of the topics that a glob matches; a missing setting is decided elsewhere."""

    glob: str
    store: str
    values: Mapping[str, Any] = {}


class TopicRules:
    """Answers which settings a topic has."""

    def __init__(self, options: NsqdOptions) -> None:
        """Read the rules; raises ConfigError if one is invalid."""
        self._store = _checked("--store", options.store, STORES)
        self._suffix = options.dead_letter_suffix
        if self._suffix and (not is_valid_name(self._suffix) or is_ephemeral(self._suffix)):
            raise ConfigError(f"invalid --dead-letter-suffix {quote(self._suffix)}: use a-z A-Z 0-9 . _ -")
        values = {}
        for name in SETTING_NAMES:
            if name != "dead_letter":
                key = _FLAGS.get(name, name)
                values[name] = _read_flag(name, f"--{key.replace('_', '-')}", getattr(options, key))
        self._defaults = TopicSettings(**values)
        _refuse_contradiction("", self._defaults)
        self._store_rules = [_parse_store_rule(text) for text in options.store_rules]
        self._tables = [_read_table(number, table) for number, table in enumerate(options.topic, 1)]
        for number, table in enumerate(self._tables, 1):
            _refuse_contradiction(f"[[topic]] table {number}: ", replace(self._defaults, **table.values))

    def settings_of(self, topic_name: str, changed: Mapping[str, str] | None = None) -> TopicSettings:
        """Return the settings of a topic, by its full name. ``changed`` are texts of settings set over HTTP."""
        table = _first_match(self._tables, topic_name)
        rule = _first_match(self._store_rules, topic_name)
        store = CLASSIC if is_ephemeral(topic_name) else table.store or rule.store or self._store
        values = {"dead_letter": self._dead_letter_of(topic_name), **table.values}
        for name, text in (changed or {}).items():
            values[name] = read_setting(name, text)
        return replace(self._defaults, store=store, **values)

    def is_dead_letter_topic(self, topic_name: str) -> bool:
        """True if the name of a topic is that of a dead-letter topic by the suffix or by a table."""
        name = topic_name.removesuffix(EPHEMERAL_SUFFIX)
        by_suffix = bool(self._suffix) and name.endswith(self._suffix) and name != self._suffix
        return by_suffix or any(table.values.get("dead_letter") == topic_name for table in self._tables)

    def _dead_letter_of(self, topic_name: str) -> str:
        """Return the name of the topic with the suffix, also if it is too long for a topic; "" without a suffix."""
        if not self._suffix:
            return ""
        name = topic_name.removesuffix(EPHEMERAL_SUFFIX)
        return name + self._suffix + topic_name[len(name) :]


_NO_RULE = _Rule("", "")


def _first_match(rules: Sequence[_Rule], topic_name: str) -> _Rule:
    return next((rule for rule in rules if fnmatchcase(topic_name, rule.glob)), _NO_RULE)


def _read_flag(name: str, flag: str, value: object) -> Any:
    if _SETTINGS[name] is _DURATION:
        return value  # parsed and checked as all flags
    return _read(name, flag, value, "")


def _read(name: str, shown: str, value: object, where: str) -> Any:
    try:
        return read_setting(name, value)
    except ValueError as error:
        text = quote(value) if isinstance(value, str) else str(value)
        raise ConfigError(f"{where}invalid {shown} {text}: {error}") from None


def _refuse_contradiction(where: str, settings: TopicSettings) -> None:
    text = contradiction(settings)
    if text:
        raise ConfigError(where + text)


def _parse_store_rule(text: str) -> _Rule:
    """Parse GLOB=STORE."""
    where = f"--store-rule {quote(text)}: "
    glob, equals, store = text.rpartition("=")
    if not equals:
        raise ConfigError(f"{where}use GLOB=STORE, for example orders*=log")
    return _Rule(_checked_glob("glob", glob, where), _checked("store", store, STORES, where))


def _read_table(number: int, table: Mapping[str, object]) -> _Rule:
    """Read a [[topic]] table, the ``number``-th of the configuration file."""
    where = f"[[topic]] table {number}: "
    for key, value in table.items():
        if key not in _TABLE_KEYS:
            raise ConfigError(f"{where}unknown key {quote(key)}: use {', '.join(_TABLE_KEYS)}")
        if key in ("match", "store") and not isinstance(value, str):
            raise ConfigError(f"{where}{key} must be a string")
    if "match" not in table:
        raise ConfigError(f'{where}match is required, for example match = "orders*"')
    glob = _checked_glob("match", str(table["match"]), where)
    store = _checked("store", str(table["store"]), STORES, where) if "store" in table else ""
    values = {name: _read(name, name, table[name], where) for name in SETTING_NAMES if name in table}
    if store == CLASSIC:
        for name in values:
            if not _SETTINGS[name].is_for_classic:
                raise ConfigError(f"{where}{name} needs store log")
    return _Rule(glob, store, values)


def _checked(name: str, value: str, choices: Sequence[str], where: str = "") -> str:
    if value not in choices:
        raise ConfigError(f"{where}invalid {name} {quote(value)}: use {' or '.join(choices)}")
    return value


def _checked_glob(name: str, glob: str, where: str) -> str:
    if not _GLOB.fullmatch(glob):
        raise ConfigError(f"{where}invalid {name} {quote(glob)}: use a-z A-Z 0-9 . _ - * ? [ ] !")
    return glob
