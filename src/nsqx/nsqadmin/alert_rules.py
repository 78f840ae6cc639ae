"""The rules of alerts: what they watch, their defaults, the ``[[alert]]`` tables that change them, and their PromQL.

The defaults here are also those of ``deploy/prometheus/alerts.yml``; a test compares the two. No I/O and no state.

A table of the configuration file names a rule and changes some of its settings, for all subjects or for those that its
globs match. The first matching table decides, as with nsqd's ``[[topic]]`` tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from nsqx.errors import ConfigError
from nsqx.gotext import format_duration, parse_duration_ns, quote
from nsqx.units import NS_PER_S

NO_CONSUMER, NO_CHANNEL, GROWING, OLD, TIMING_OUT = "no_consumer", "no_channel", "growing", "old", "timing_out"
NODE_GONE, DISK_LOW = "node_gone", "disk_low"
CRITICAL, WARNING, INFO = "critical", "warning", "info"
SEVERITIES = (CRITICAL, WARNING, INFO)

MESSAGES, SECONDS, SHARE, NOTHING = "messages", "seconds", "share", ""
# Fewer timeouts per second than this are no trouble, whatever their share.
LEAST_TIMEOUTS_PER_S = 0.01
# The default of the threshold that resolves an alert, as a part of the one that fires it.
_RESOLVE_PART, _RESOLVE_PART_BELOW = 0.8, 1.2
# The history in full resolution covers this time.
MAX_WINDOW_S = 900.0
_MAX_DURATION_S = 366 * 86400.0
_CACHED_SUBJECTS = 200_000


@dataclass(frozen=True, slots=True)
class AlertRule:
    """A condition on topics, channels or nsqds, and how long it must hold."""

    name: str
    title: str
    unit: str
    """The unit of the threshold and of the measured value."""
    threshold: float
    resolve_threshold: float
    """The threshold while the alert fires: a value that swings around ``threshold`` does not fire it repeatedly."""
    for_s: float
    """The condition must hold for this time before the alert fires."""
    keep_s: float
    """The alert is resolved after the condition has not held for this time."""
    severity: str
    window_s: float = 0.0
    """The time over which the condition is measured; 0 if it is the last value."""
    enabled: bool = True

    def is_beyond(self, value: float, threshold: float) -> bool:
        """Return whether a value violates a threshold."""
        return value < threshold if self.name == DISK_LOW else value > threshold

    @property
    def is_about_nodes(self) -> bool:
        return self.name in (NODE_GONE, DISK_LOW)

    def summary(self, subject: str, value: float) -> str:
        """Return one sentence about a subject with this value."""
        return _SUMMARIES[self.name].format(subject=subject, value=value_text(self.unit, value))

    def document(self) -> dict[str, Any]:
        """Return the rule in the form of nsqadmin's API."""
        return {
            "rule": self.name,
            "title": self.title,
            "unit": self.unit,
            "threshold": self.threshold,
            "resolve_threshold": self.resolve_threshold,
            "for_s": self.for_s,
            "keep_firing_for_s": self.keep_s,
            "window_s": self.window_s,
            "severity": self.severity,
            "enabled": self.enabled,
        }


DEFAULT_RULES: Mapping[str, AlertRule] = {
    rule.name: rule
    for rule in (
        AlertRule(NODE_GONE, "nsqd gone", NOTHING, 0, 0, 60, 60, CRITICAL),
        AlertRule(DISK_LOW, "Disk low", SHARE, 0.1, 0.12, 300, 300, CRITICAL),
        AlertRule(OLD, "Old messages", SECONDS, 900, 720, 60, 120, WARNING),
        AlertRule(GROWING, "Growing", MESSAGES, 1000, 800, 300, 300, WARNING, window_s=600),
        AlertRule(NO_CONSUMER, "No consumer", MESSAGES, 0, 0, 600, 60, WARNING),
        AlertRule(TIMING_OUT, "Timing out", SHARE, 0.05, 0.04, 300, 300, WARNING, window_s=600),
        AlertRule(NO_CHANNEL, "No channel", MESSAGES, 0, 0, 3600, 60, INFO),
    )
}

_SUMMARIES = {
    NODE_GONE: "nsqd {subject} does not answer, or no nsqlookupd lists it",
    DISK_LOW: "nsqd {subject} has {value} of its disk free",
    OLD: "the oldest message of {subject} has waited for {value}",
    GROWING: "{subject} has {value}, and the number grows",
    NO_CONSUMER: "{subject} has {value} and no consumer",
    TIMING_OUT: "{value} of the deliveries of {subject} time out",
    NO_CHANNEL: "{subject} has {value} and no channel",
}


def value_text(unit: str, value: float) -> str:
    """Return a value with its unit."""
    if unit == MESSAGES:
        return f"{value:,.0f} waiting message" + ("" if value == 1 else "s")
    if unit == SECONDS:
        return format_duration(round(value) * NS_PER_S)
    return f"{value * 100:.3g} %" if unit == SHARE else ""


# Configuration


@dataclass(frozen=True, slots=True)
class _Table:
    """The changes of one ``[[alert]]`` table."""

    rule: str
    topic: str
    channel: str
    node: str
    changes: Mapping[str, Any]

    def matches(self, topic: str, channel: str, node: str) -> bool:
        return fnmatchcase(topic, self.topic) and fnmatchcase(channel, self.channel) and fnmatchcase(node, self.node)


Rules = Mapping[str, AlertRule]
"""The rules of one subject, by name; disabled ones are left out."""


class AlertRules:
    """Answers which rules apply to a topic, a channel or an nsqd."""

    def __init__(self, tables: Sequence[Mapping[str, Any]] = ()) -> None:
        """Read the ``[[alert]]`` tables; raises ConfigError."""
        self._tables = [_read_table(number, table) for number, table in enumerate(tables, 1)]
        self._cached: dict[tuple[str, str, str], Rules] = {}
        self._shared: dict[tuple[AlertRule, ...], Rules] = {}

    def of(self, topic: str = "", channel: str = "", node: str = "") -> Rules:
        """Return the rules of a subject."""
        key = topic, channel, node
        rules = self._cached.get(key)
        if rules is None:
            if len(self._cached) >= _CACHED_SUBJECTS:
                self._cached.clear()
            rules = self._cached[key] = self._find(*key)
        return rules

    def general(self) -> list[AlertRule]:
        """Return every rule as it applies to a subject that no table with a glob matches."""
        return [_changed(rule, (each for each in self._tables if _is_general(each))) for rule in DEFAULT_RULES.values()]

    def _find(self, topic: str, channel: str, node: str) -> Rules:
        matching = [table for table in self._tables if table.matches(topic, channel, node)]
        rules = tuple(rule for each in DEFAULT_RULES.values() if (rule := _changed(each, matching)).enabled)
        # Most subjects have the same rules: keep one mapping of them.
        return self._shared.setdefault(rules, {rule.name: rule for rule in rules})


def _is_general(table: _Table) -> bool:
    return (table.topic, table.channel, table.node) == ("*", "*", "*")


def _changed(rule: AlertRule, tables: Any) -> AlertRule:
    table = next((each for each in tables if each.rule == rule.name), None)
    return rule if table is None else replace(rule, **table.changes)


def _read_table(number: int, table: Mapping[str, Any]) -> _Table:
    where = f"[[alert]] table {number}: "
    name = table.get("rule")
    if not isinstance(name, str) or name not in DEFAULT_RULES:
        shown = quote(name) if isinstance(name, str) else str(name)
        raise ConfigError(f"{where}invalid rule {shown}: use one of {', '.join(DEFAULT_RULES)}")
    rule = DEFAULT_RULES[name]
    changes: dict[str, Any] = {}
    globs = {"topic": "*", "channel": "*", "node": "*"}
    for key, value in table.items():
        if key == "rule":
            continue
        try:
            if key in globs:
                globs[key] = _read_glob(rule, key, value)
            elif key in _SETTINGS:
                attribute, read = _SETTINGS[key]
                changes[attribute] = read(rule, value)
            else:
                raise ConfigError(f"{where}unknown key {quote(key)}: use rule, {', '.join((*globs, *_SETTINGS))}")
        except ValueError as error:
            shown = quote(value) if isinstance(value, str) else str(value)
            raise ConfigError(f"{where}invalid {key} {shown}: {error}") from None
    if "threshold" in changes and "resolve_threshold" not in changes:
        changes["resolve_threshold"] = _default_resolve_threshold(rule, changes["threshold"])
    changed = replace(rule, **changes)
    if changed.is_beyond(changed.resolve_threshold, changed.threshold):
        side = "smaller" if rule.name == DISK_LOW else "larger"
        raise ConfigError(
            f"{where}resolve_threshold ({value_text(rule.unit, changed.resolve_threshold)}) is {side} than threshold "
            f"({value_text(rule.unit, changed.threshold)})"
        )
    return _Table(name, globs["topic"], globs["channel"], globs["node"], changes)


def _default_resolve_threshold(rule: AlertRule, threshold: float) -> float:
    if rule.name == DISK_LOW:
        return round(min(1.0, threshold * _RESOLVE_PART_BELOW), 6)
    return round(threshold * _RESOLVE_PART, 0 if rule.unit == MESSAGES else 6)


def _read_glob(rule: AlertRule, key: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("use a glob such as orders*")
    if (key == "node") != rule.is_about_nodes:
        raise ValueError(f"the rule {rule.name} is about {'nsqds' if rule.is_about_nodes else 'topics and channels'}")
    if key == "channel" and rule.name == NO_CHANNEL:
        raise ValueError(f"the rule {rule.name} is about topics")
    return value


def _read_threshold(rule: AlertRule, value: object) -> float:
    if rule.unit == NOTHING:
        raise ValueError(f"the rule {rule.name} has no threshold")
    if rule.unit == SECONDS:
        return _read_duration(value)
    if rule.unit == SHARE:
        return _read_share(value)
    if type(value) is not int or value < 0:
        raise ValueError("use a number of messages")
    return float(value)


def _read_share(value: object) -> float:
    share = -1.0
    if isinstance(value, str) and value.endswith("%"):
        try:
            share = float(value[:-1]) / 100
        except ValueError:
            pass
    elif isinstance(value, int | float) and not isinstance(value, bool):
        share = float(value)
    if not 0 <= share <= 1:
        raise ValueError('use a share such as "5%" or 0.05')
    return share


def _read_duration(value: object) -> float:
    try:
        if isinstance(value, str):
            duration_s = parse_duration_ns(value) / NS_PER_S
            if 0 <= duration_s <= _MAX_DURATION_S:
                return duration_s
    except ValueError:
        pass
    raise ValueError('use a duration such as "10m"')


def _read_window(rule: AlertRule, value: object) -> float:
    if not rule.window_s:
        raise ValueError(f"the rule {rule.name} has no window")
    window_s = _read_duration(value)
    if not 0 < window_s <= MAX_WINDOW_S:
        raise ValueError(f"use more than 0s and at most {format_duration(round(MAX_WINDOW_S) * NS_PER_S)}")
    return window_s


def _read_severity(_rule: AlertRule, value: object) -> str:
    if value not in SEVERITIES:
        raise ValueError(f"use one of {', '.join(SEVERITIES)}")
    return str(value)


def _read_enabled(_rule: AlertRule, value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("use true or false")
    return value


_SETTINGS: Mapping[str, tuple[str, Callable[[AlertRule, object], Any]]] = {
    "threshold": ("threshold", _read_threshold),
    "resolve_threshold": ("resolve_threshold", _read_threshold),
    "for": ("for_s", lambda _rule, value: _read_duration(value)),
    "keep_firing_for": ("keep_s", lambda _rule, value: _read_duration(value)),
    "window": ("window_s", _read_window),
    "severity": ("severity", _read_severity),
    "enabled": ("enabled", _read_enabled),
}


# Prometheus


def prometheus_rule(rule: AlertRule) -> dict[str, Any]:
    """Return the alerting rule of Prometheus with the same condition, durations and severity."""
    name, expression, summary, description = _PROMETHEUS[rule.name]
    half = format_prometheus_duration(rule.window_s / 2)
    window = format_prometheus_duration(rule.window_s)
    document: dict[str, Any] = {
        "alert": name,
        "expr": expression.format(
            threshold=f"{rule.threshold:g}", resolve=f"{rule.resolve_threshold:g}", half=half, window=window
        ),
        "for": format_prometheus_duration(rule.for_s),
        "keep_firing_for": format_prometheus_duration(rule.keep_s),
        "labels": {"severity": rule.severity},
        "annotations": {"summary": summary},
    }
    if description:
        document["annotations"]["description"] = description
    return document


def format_prometheus_duration(duration_s: float) -> str:
    """Return a duration of whole seconds as Prometheus writes it."""
    whole = round(duration_s)
    for size, unit in ((3600, "h"), (60, "m")):
        if whole and whole % size == 0:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def _or_fires(labels: str, value: str, name: str) -> str:
    """Return a condition: a value violates the threshold, or the alert fires already."""
    return f'and on ({labels}) ({value} {{threshold}} or ALERTS{{{{alertname="{name}", alertstate="firing"}}}})\n'


_FREE_SHARE = "nsq_disk_free_bytes / nsq_disk_size_bytes"
_OLDEST = "max by (topic, channel) (nsq_channel_oldest_seconds)"
_DEPTH = "sum by (topic, channel) (nsq_channel_depth{0})"
_TIMEOUTS = "sum by (topic, channel) (rate(nsq_channel_timeouts_total[{window}]))"
_MESSAGES = "sum by (topic, channel) (rate(nsq_channel_messages_total[{window}]))"
_TIMEOUT_SHARE = f"{_TIMEOUTS} / ({_MESSAGES} + {_TIMEOUTS})"
# The name, the expression, the summary and the description of each alert.
_PROMETHEUS = {
    NODE_GONE: (
        "NsqdDown",
        'up{{job="nsqd"}} == {threshold}',
        "nsqd {{ $labels.instance }} does not answer",
        "Its waiting messages are unavailable until it runs again. Producers and consumers continue with the other "
        "nsqds.",
    ),
    DISK_LOW: (
        "NsqdDiskLow",
        f"{_FREE_SHARE} < {{resolve}}\n" + _or_fires("job, instance", f"{_FREE_SHARE} <", "NsqdDiskLow"),
        "nsqd {{ $labels.instance }} has {{ $value | humanizePercentage }} of its disk free",
        "Free space, or shorten the retention of logs. nsqd refuses publishes when the disk is full.",
    ),
    OLD: (
        "NsqChannelOldMessages",
        f"{_OLDEST} > {{resolve}}\n" + _or_fires("topic, channel", f"{_OLDEST} >", "NsqChannelOldMessages"),
        "the oldest message of {{ $labels.topic }}/{{ $labels.channel }} has waited {{ $value | humanizeDuration }}",
        "Add consumers to the channel, or look for a message that fails again and again.",
    ),
    GROWING: (
        "NsqChannelFallsBehind",
        f"{_DEPTH.format('')} > {{resolve}}\n"
        + _or_fires("topic, channel", f"{_DEPTH.format('')} >", "NsqChannelFallsBehind")
        + f"and {_DEPTH.format('')} > {_DEPTH.format(' offset {half}')}\n"
        f"and {_DEPTH.format(' offset {half}')} > {_DEPTH.format(' offset {window}')}\n",
        "{{ $labels.topic }}/{{ $labels.channel }} has {{ $value | humanize }} waiting messages, and the number grows",
        "Add consumers to the channel, or raise their max_in_flight.",
    ),
    NO_CONSUMER: (
        "NsqChannelWithoutConsumer",
        "sum by (topic, channel) (nsq_channel_depth) > {threshold}\n"
        "and sum by (topic, channel) (nsq_channel_client_count) == 0\n",
        "{{ $labels.topic }}/{{ $labels.channel }} has {{ $value | humanize }} waiting messages and no consumer",
        "Start the consumers, or delete the channel.",
    ),
    TIMING_OUT: (
        "NsqChannelManyTimeouts",
        f"{_TIMEOUT_SHARE} > {{resolve}}\n"
        + _or_fires("topic, channel", f"{_TIMEOUT_SHARE} >", "NsqChannelManyTimeouts")
        + f"and {_TIMEOUTS} > {LEAST_TIMEOUTS_PER_S:g}\n",
        "{{ $value | humanizePercentage }} of the deliveries of {{ $labels.topic }}/{{ $labels.channel }} time out",
        "Handlers take longer than msg-timeout, or consumers disconnect with messages in flight.",
    ),
    NO_CHANNEL: (
        "NsqTopicWithoutChannel",
        "sum by (topic) (nsq_topic_depth) > {threshold}\nand sum by (topic) (nsq_topic_channel_count) == 0\n",
        "{{ $labels.topic }} has {{ $value | humanize }} waiting messages and no channel",
        "Its backlog grows. Create a channel, or delete the topic.",
    ),
}
