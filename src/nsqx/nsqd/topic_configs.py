"""The settings of all topics of a broker, and their changes over HTTP.

A change is saved in nsqd.dat, and in the log of a log topic, which is the newer one after a crash. Both have the same
texts: the settings of a topic by their names, and those of a channel with the channel and a slash before the name. A
channel without a setting of its own has that of its topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from nsqx.errors import ConfigError
from nsqx.names import is_valid_name
from nsqx.nsqd.topic_settings import (
    CHANNEL_SETTING_NAMES,
    LOG,
    SETTING_NAMES,
    TopicRules,
    TopicSettings,
    contradiction,
    is_for_classic,
    read_setting,
    setting_text,
)
from nsqx.queues.log.state import Changes

if TYPE_CHECKING:
    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.topic import Topic

_SEPARATOR = "/"
# An empty text in a log, where an empty setting is none.
_EMPTY = '""'
# In the settings of a log, but not one of these. See ``Conversions``.
_STORE_SETTING = "store"


class AttemptLimit(NamedTuple):
    """After ``max_attempts`` deliveries (0 is no limit), a message goes to ``dead_letter``, or is finished if empty."""

    max_attempts: int
    dead_letter: str


class TopicConfigs:
    """The rules of the configuration, and the settings that were set over HTTP."""

    def __init__(self, broker: Broker) -> None:
        """Raise ConfigError if a rule for topics is invalid."""
        self._broker = broker
        self._rules = TopicRules(broker.options)
        self._changed: dict[str, dict[str, str]] = {}  # by topic

    # Reading

    def note_saved(self, topic_name: str, settings: Mapping[str, str]) -> None:
        """Note the settings of a topic that nsqd.dat contains. Those that this version does not know are ignored."""
        known = {name: text for name, text in settings.items() if _is_valid(name, text)}
        if known:
            self._changed[topic_name] = known

    def load(self, topic_name: str) -> TopicSettings:
        """Return the settings of a topic that is being opened."""
        log = self._broker.logs.find(topic_name)
        if log is not None:
            saved = {name: "" if text == _EMPTY else text for name, text in log.state.settings.items()}
            saved.pop(_STORE_SETTING, None)
            if saved or topic_name not in self._changed:
                self._changed.pop(topic_name, None)
                self.note_saved(topic_name, saved)
        return self.settings_of(topic_name)

    def settings_of(self, topic_name: str) -> TopicSettings:
        """Return the settings of a topic."""
        changed = self._changed.get(topic_name, {})
        of_topic = {name: text for name, text in changed.items() if _SEPARATOR not in name}
        settings = self._rules.settings_of(topic_name, of_topic)
        return replace(settings, store=self._broker.conversions.store_of(topic_name))

    def configured_store(self, topic_name: str) -> str:
        """Return the store that the configuration says for a topic."""
        return self._rules.settings_of(topic_name).store

    def changed(self, topic_name: str) -> dict[str, str]:
        """Return the texts of all settings that were set over HTTP, with those of channels."""
        return self._changed.get(topic_name, {})

    def changed_names(self, topic_name: str, channel_name: str = "") -> list[str]:
        """Return the names of the settings of a topic, or of one of its channels, that were set over HTTP."""
        prefix = channel_name + _SEPARATOR if channel_name else ""
        names = CHANNEL_SETTING_NAMES if channel_name else SETTING_NAMES
        return [name for name in names if prefix + name in self._changed.get(topic_name, {})]

    def limit_of(self, topic_name: str, channel_name: str) -> AttemptLimit:
        """Return the attempt limit of a channel. Dead-letter topics have none."""
        settings = self.settings_of(topic_name)
        changed = self._changed.get(topic_name, {})
        own = {
            name: read_setting(name, changed[channel_name + _SEPARATOR + name])
            for name in CHANNEL_SETTING_NAMES
            if channel_name + _SEPARATOR + name in changed
        }
        limit = AttemptLimit(settings.max_attempts, settings.dead_letter)._replace(**own)
        if self.is_dead_letter_topic(topic_name) or (limit.dead_letter and not is_valid_name(limit.dead_letter)):
            return limit._replace(max_attempts=0)
        return limit

    def is_dead_letter_topic(self, topic_name: str) -> bool:
        """True if a topic is the dead-letter topic of another one."""
        if self._rules.is_dead_letter_topic(topic_name):
            return True
        return any(
            text == topic_name and name.rpartition(_SEPARATOR)[2] == "dead_letter"
            for changed in self._changed.values()
            for name, text in changed.items()
        )

    # Changing

    def change(self, topic: Topic, values: Mapping[str, object], channel_name: str = "") -> None:
        """Set some settings of a topic, or of one of its channels; None restores that of the configuration.

        Raise KeyError with the name of an unknown setting, and ConfigError if a value is invalid or does not fit.
        """
        names = CHANNEL_SETTING_NAMES if channel_name else SETTING_NAMES
        prefix = channel_name + _SEPARATOR if channel_name else ""
        changed = dict(self._changed.get(topic.name, {}))
        is_log = topic.settings.store == LOG
        for name, value in values.items():
            if name not in names or not (is_log or is_for_classic(name)):
                raise KeyError(name)
            changed.pop(prefix + name, None)
            if value is not None:
                changed[prefix + name] = _checked_text(name, value)
        self._refuse_unfit(topic.name, changed, prefix)
        self._replace(topic, changed)

    def _refuse_unfit(self, topic_name: str, changed: Mapping[str, str], prefix: str) -> None:
        of_topic = {name: text for name, text in changed.items() if _SEPARATOR not in name}
        settings = self._rules.settings_of(topic_name, of_topic)
        attempts = changed.get(prefix + "max_attempts", str(settings.max_attempts))
        dead_letter = changed.get(prefix + "dead_letter", settings.dead_letter)
        text = contradiction(settings)
        if attempts != "0" and dead_letter == topic_name:
            text = "dead_letter must be another topic"
        elif attempts != "0" and dead_letter and not is_valid_name(dead_letter):
            text = f"{dead_letter} is too long for the name of a topic: set dead_letter"
        if text:
            raise ConfigError(text)

    def _replace(self, topic: Topic, changed: dict[str, str]) -> None:
        before = self._changed.get(topic.name, {})
        if changed:
            self._changed[topic.name] = changed
        else:
            self._changed.pop(topic.name, None)
        log = self._broker.logs.find(topic.name)
        if log is not None and not log.is_deleted and changed != before:
            changes = Changes()
            for name in before.keys() | changed.keys():
                changes.set_setting(name, (changed[name] or _EMPTY) if name in changed else "")
            log.change(changes)
            self._broker.logs.write_later(is_synced=True)
        topic.note_settings(self.settings_of(topic.name))
        self._note_dead_letter_topics(before, changed)
        if changed != before:
            self._broker.save_metadata()

    def _note_dead_letter_topics(self, before: Mapping[str, str], changed: Mapping[str, str]) -> None:
        """Have topics that became dead-letter topics, or are none any more, use their attempt limits."""
        names = {text for texts in (before, changed) for key, text in texts.items() if key.endswith("dead_letter")}
        for name in names:
            topic = self._broker.find_topic(name)
            if topic is not None:
                topic.note_settings(self.settings_of(name))

    def save_in_log(self, topic: Topic) -> None:
        """Add the settings to a log that the topic has now."""
        changes = Changes()
        for name, text in self.changed(topic.name).items():
            changes.set_setting(name, text or _EMPTY)
        log = self._broker.logs.find(topic.name)
        if log is not None and changes:
            log.change(changes)
            self._broker.logs.write_later(is_synced=True)

    def forget_channel(self, topic: Topic, channel_name: str) -> None:
        """Remove the settings of a deleted channel."""
        changed = self._changed.get(topic.name, {})
        kept = {name: text for name, text in changed.items() if not name.startswith(channel_name + _SEPARATOR)}
        if len(kept) < len(changed):
            self._replace(topic, kept)

    def forget_topic(self, topic_name: str) -> None:
        """Remove the settings of a deleted topic."""
        self._changed.pop(topic_name, None)


def _is_valid(name: str, text: str) -> bool:
    channel_name, _, setting = name.rpartition(_SEPARATOR)
    try:
        read_setting(setting, text)
    except (KeyError, ValueError):
        return False
    return not channel_name or setting in CHANNEL_SETTING_NAMES


def _checked_text(name: str, value: object) -> str:
    try:
        return setting_text(name, read_setting(name, value))
    except ValueError as error:
        raise ConfigError(f"invalid {name}: {error}") from None
