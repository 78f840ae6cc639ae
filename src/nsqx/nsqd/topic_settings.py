"""The settings of a topic: its store, and when a publish to it is answered. Decided by the name of the topic.

For each setting the first of these that has it decides:

1. the first ``[[topic]]`` table of the configuration file whose ``match`` is a glob for the name,
2. for the store, the first ``--store-rule`` whose glob is one for the name,
3. ``--store`` and ``--durability``.

Topics with the suffix ``#ephemeral`` always have the classic store.

A glob is matched against the whole name, and case matters, as in ``fnmatch.fnmatchcase``: ``*`` is any number of
characters, ``?`` is one, ``[12]`` one of these and ``[!12]`` one other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from nsqx.errors import ConfigError
from nsqx.gotext import quote
from nsqx.names import is_ephemeral

if TYPE_CHECKING:
    from nsqx.nsqd.options import NsqdOptions

CLASSIC, LOG = "classic", "log"
STORES = (CLASSIC, LOG)
# A log topic answers a publish when the message is synced to disk, or when it is written to a file.
FSYNC, WRITE = "fsync", "write"
DURABILITIES = (FSYNC, WRITE)

_TABLE_KEYS = ("match", "store", "durability")
# The characters of topic names without a suffix, and those of globs.
_GLOB = re.compile(r"[.a-zA-Z0-9_*?\[\]!-]+", re.ASCII)


class TopicSettings(NamedTuple):
    """The settings of one topic. ``durability`` is for log topics only."""

    store: str
    durability: str


class _Rule(NamedTuple):
    """The settings of the topics that a glob matches; an empty setting is decided elsewhere."""

    glob: str
    store: str
    durability: str = ""


class TopicRules:
    """Answers which settings a topic has."""

    def __init__(self, options: NsqdOptions) -> None:
        """Read the rules; raises ConfigError if one is invalid."""
        self._store = _checked("--store", options.store, STORES)
        self._durability = _checked("--durability", options.durability, DURABILITIES)
        self._store_rules = [_parse_store_rule(text) for text in options.store_rules]
        self._tables = [_read_table(number, table) for number, table in enumerate(options.topic, 1)]

    def settings_of(self, topic_name: str) -> TopicSettings:
        """Return the settings of a topic, by its full name."""
        table = _first_match(self._tables, topic_name)
        rule = _first_match(self._store_rules, topic_name)
        store = CLASSIC if is_ephemeral(topic_name) else table.store or rule.store or self._store
        return TopicSettings(store, table.durability or self._durability)


_NO_RULE = _Rule("", "")


def _first_match(rules: Sequence[_Rule], topic_name: str) -> _Rule:
    return next((rule for rule in rules if fnmatchcase(topic_name, rule.glob)), _NO_RULE)


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
        if not isinstance(value, str):
            raise ConfigError(f"{where}{key} must be a string")
    if "match" not in table:
        raise ConfigError(f'{where}match is required, for example match = "orders*"')
    rule = _Rule(
        _checked_glob("match", str(table["match"]), where),
        _checked("store", str(table["store"]), STORES, where) if "store" in table else "",
        _checked("durability", str(table["durability"]), DURABILITIES, where) if "durability" in table else "",
    )
    if rule.store == CLASSIC and rule.durability:
        raise ConfigError(f"{where}durability needs store log")
    return rule


def _checked(name: str, value: str, choices: Sequence[str], where: str = "") -> str:
    if value not in choices:
        raise ConfigError(f"{where}invalid {name} {quote(value)}: use {' or '.join(choices)}")
    return value


def _checked_glob(name: str, glob: str, where: str) -> str:
    if not _GLOB.fullmatch(glob):
        raise ConfigError(f"{where}invalid {name} {quote(glob)}: use a-z A-Z 0-9 . _ - * ? [ ] !")
    return glob
