"""Alerts: which of the rules hold, since when, and what has changed. No I/O; the time is an argument.

An alert is pending while its condition holds for less than the rule's time, then it fires. It is resolved when the
condition has not held for ``keep_firing_for``. While it fires, the condition is examined with ``resolve_threshold``.
A number that is unknown, because an nsqd is missing or does not report it, changes nothing: an alert does not end
because of a missing measurement.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from nsqx.nsqadmin import alert_rules
from nsqx.nsqadmin.alert_rules import DEFAULT_RULES, SEVERITIES, AlertRule, AlertRules

if TYPE_CHECKING:
    from nsqx.nsqadmin.cluster_stats import ClusterStats
    from nsqx.nsqadmin.subject import Subject

PENDING, FIRING, RESOLVED = "pending", "firing", "resolved"
MAX_ALERTS = 10_000
MAX_RESOLVED = 200
_FORMAT = 1


class AlertKey(NamedTuple):
    """A rule and its subject; the parts that do not apply are empty."""

    rule: str
    topic: str = ""
    channel: str = ""
    node: str = ""

    @property
    def subject(self) -> str:
        return self.node or (f"{self.topic}/{self.channel}" if self.channel else self.topic)


@dataclass(slots=True)
class Alert:
    """A condition that holds, or has held until a short time ago."""

    key: AlertKey
    rule: AlertRule
    state: str
    since_s: float
    """The time at which the condition began to hold."""
    fired_s: float
    """The time at which the alert fired; 0 before."""
    seen_s: float
    """The last time at which the condition held."""
    value: float
    resolved_s: float = 0.0

    def document(self) -> dict[str, Any]:
        """Return the alert in the form of nsqadmin's API."""
        key, rule = self.key, self.rule
        return {
            "rule": key.rule,
            "title": rule.title,
            "severity": rule.severity,
            "state": self.state,
            "topic": key.topic,
            "channel": key.channel,
            "node": key.node,
            "unit": rule.unit,
            "value": round(self.value, 4),
            "threshold": rule.threshold,
            "resolve_threshold": rule.resolve_threshold,
            "since_s": round(self.since_s, 3),
            "fired_s": round(self.fired_s, 3) or None,
            "resolved_s": round(self.resolved_s, 3) or None,
            "summary": rule.summary(key.subject, self.value),
        }


@dataclass(frozen=True, slots=True)
class NodeDisk:
    """The disk of one nsqd."""

    free_bytes: int
    size_bytes: int


class AlertBook:
    """All alerts of one cluster."""

    def __init__(self, rules: AlertRules) -> None:
        self.rules = rules
        self.active: dict[AlertKey, Alert] = {}
        self.resolved: deque[Alert] = deque(maxlen=MAX_RESOLVED)
        """The latest resolved alerts, oldest first."""
        self.counts: dict[str, int] = _count(())

    def evaluate(
        self,
        stats: ClusterStats,
        missing: Iterable[Mapping[str, Any]],
        disks: Mapping[str, NodeDisk],
        now_s: float,
        *,
        is_measured: bool = True,
    ) -> list[Alert]:
        """Examine the last poll; return the alerts that began to fire or were resolved.

        ``missing`` are the missing nsqds in the form of nsqadmin's API. ``is_measured`` is false if no nsqd answered.
        """
        found = _Findings(self.active)
        gone = {str(each["address"]): each.get("last_seen_s") for each in missing}
        for address, last_seen_s in gone.items():
            rule = self.rules.of(node=address).get(alert_rules.NODE_GONE)
            if rule is not None:
                found.holds(AlertKey(rule.name, node=address), rule, now_s - (last_seen_s or now_s))
        self._examine_disks(found, disks, gone)
        if is_measured:
            for topic in stats.present_topics():
                self._examine_topic(found, stats, topic)
        else:
            found.unknown.update(key for key in self.active if key.topic)
        changed = self._advance(found, now_s)
        self.counts = _count(self.active.values())
        return changed

    def _examine_disks(self, found: _Findings, disks: Mapping[str, NodeDisk], gone: Mapping[str, Any]) -> None:
        for address, disk in disks.items():
            rule = self.rules.of(node=address).get(alert_rules.DISK_LOW)
            if rule is not None and disk.size_bytes > 0:
                found.examine(AlertKey(rule.name, node=address), rule, disk.free_bytes / disk.size_bytes)
        for key in self.active:
            if key.rule == alert_rules.DISK_LOW and key.node in gone:
                found.unknown.add(key)

    def _examine_topic(self, found: _Findings, stats: ClusterStats, topic: Subject) -> None:
        poll = stats.clock.number
        channels = [channel for channel in topic.channels.values() if channel.poll == poll]
        if not channels:
            rule = self.rules.of(topic.name).get(alert_rules.NO_CHANNEL)
            if rule is not None:
                found.examine(AlertKey(rule.name, topic.name), rule, topic.depth, topic)
        for channel in channels:
            rules = self.rules.of(topic.name, channel.name)
            for name, measure in _MEASURES.items():
                rule = rules.get(name)
                if rule is None:
                    continue
                value = measure(stats, channel, rule)
                key = AlertKey(name, topic.name, channel.name)
                if value is UNKNOWN:
                    if key in self.active:
                        found.unknown.add(key)
                else:
                    found.examine(key, rule, value, channel)

    def _advance(self, found: _Findings, now_s: float) -> list[Alert]:
        changed: list[Alert] = []
        for key, (rule, value) in found.held.items():
            alert = self.active.get(key)
            if alert is None:
                if len(self.active) >= MAX_ALERTS:
                    continue
                alert = self.active[key] = Alert(key, rule, PENDING, now_s, 0.0, now_s, value)
            alert.rule, alert.value, alert.seen_s = rule, value, now_s
            if alert.state == PENDING and now_s - alert.since_s >= rule.for_s:
                alert.state, alert.fired_s = FIRING, now_s
                changed.append(alert)
        for key in [key for key in self.active if key not in found.held]:
            alert = self.active[key]
            if key in found.unknown:
                if alert.state == FIRING:
                    alert.seen_s = now_s
                continue
            if alert.state == PENDING:
                del self.active[key]
            elif now_s - alert.seen_s >= alert.rule.keep_s:
                del self.active[key]
                alert.state, alert.resolved_s = RESOLVED, now_s
                self.resolved.append(alert)
                changed.append(alert)
        return changed

    # Reading

    def sorted_alerts(self) -> list[Alert]:
        """Return the active alerts: firing ones first, then by severity, then the longest first."""
        return sorted(
            self.active.values(),
            key=lambda each: (each.state != FIRING, SEVERITIES.index(each.rule.severity), each.since_s, each.key),
        )

    # Storage

    def dump(self) -> dict[str, Any]:
        """Return the alerts for ``load``."""
        return {
            "format": _FORMAT,
            "active": [_stored(each) for each in self.active.values()],
            "resolved": [_stored(each) for each in self.resolved],
        }

    def load(self, document: Any) -> None:
        """Continue with stored alerts; raises ValueError. Alerts of rules that are disabled now are left out."""
        try:
            if document["format"] != _FORMAT:
                raise ValueError(f"format {document['format']}")
            active = [self._restored(each) for each in document["active"][:MAX_ALERTS]]
            resolved = [self._restored(each) for each in document["resolved"][-MAX_RESOLVED:]]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"unexpected content: {error!r}") from None
        self.active = {each.key: each for each in active if each is not None and each.state != RESOLVED}
        self.resolved.extend(each for each in resolved if each is not None)
        self.counts = _count(self.active.values())

    def _restored(self, document: Mapping[str, Any]) -> Alert | None:
        key = AlertKey(*(str(document[name]) for name in AlertKey._fields))
        if key.rule not in DEFAULT_RULES or document["state"] not in (PENDING, FIRING, RESOLVED):
            raise ValueError(f"unexpected alert {key.rule} {document['state']}")
        rule = self.rules.of(key.topic, key.channel, key.node).get(key.rule)
        times = (float(document[name]) for name in ("since_s", "fired_s", "seen_s", "value", "resolved_s"))
        return None if rule is None else Alert(key, rule, document["state"], *times)


class _Findings:
    """The conditions that hold at one poll, and those that are not known."""

    __slots__ = ("_active", "held", "unknown")

    def __init__(self, active: Mapping[AlertKey, Alert]) -> None:
        self._active = active
        self.held: dict[AlertKey, tuple[AlertRule, float]] = {}
        self.unknown: set[AlertKey] = set()

    def holds(self, key: AlertKey, rule: AlertRule, value: float) -> None:
        self.held[key] = rule, value

    def examine(self, key: AlertKey, rule: AlertRule, value: float | None, subject: Subject | None = None) -> None:
        """Note a condition that holds if ``value`` violates the threshold that applies now."""
        if (
            value is not None
            and rule.is_beyond(value, rule.resolve_threshold)
            and (rule.is_beyond(value, rule.threshold) or self._fires(key))
        ):
            self.held[key] = rule, value
        elif subject is not None and subject.missing_nodes:
            # The sums lack the numbers of the missing nsqds.
            self.unknown.add(key)

    def _fires(self, key: AlertKey) -> bool:
        alert = self._active.get(key)
        return alert is not None and alert.state == FIRING


UNKNOWN = -1.0


def _no_consumer(_stats: ClusterStats, channel: Subject, _rule: AlertRule) -> float | None:
    return channel.depth if channel.depth and not channel.clients else None


def _old(_stats: ClusterStats, channel: Subject, _rule: AlertRule) -> float | None:
    return UNKNOWN if channel.oldest_ms is None else channel.oldest_ms / 1000


def _growing(stats: ClusterStats, channel: Subject, rule: AlertRule) -> float | None:
    """Return the depth if it has grown in both halves of the window."""
    if channel.depth <= rule.resolve_threshold:
        return None
    middle = stats.value_before(channel, "depth", rule.window_s / 2)
    start = stats.value_before(channel, "depth", rule.window_s)
    if middle is None or start is None:
        return UNKNOWN
    return channel.depth if start < middle < channel.depth else None


def _timing_out(stats: ClusterStats, channel: Subject, rule: AlertRule) -> float | None:
    """Return the share of timeouts among new messages and timeouts."""
    if not channel.timeout_count:
        return None
    timed_out = stats.mean_since(channel, "timed_out", rule.window_s)
    if timed_out is None:
        return UNKNOWN
    if timed_out <= alert_rules.LEAST_TIMEOUTS_PER_S:
        return None
    return timed_out / (timed_out + (stats.mean_since(channel, "rate", rule.window_s) or 0.0))


_MEASURES = {
    alert_rules.NO_CONSUMER: _no_consumer,
    alert_rules.OLD: _old,
    alert_rules.GROWING: _growing,
    alert_rules.TIMING_OUT: _timing_out,
}


def _count(alerts: Iterable[Alert]) -> dict[str, int]:
    """Return the number of firing alerts by severity, their sum, and the number of pending ones."""
    counts = dict.fromkeys((FIRING, PENDING, *SEVERITIES), 0)
    for each in alerts:
        counts[each.state] += 1
        if each.state == FIRING:
            counts[each.rule.severity] += 1
    return counts


def _stored(alert: Alert) -> dict[str, Any]:
    return {
        **alert.key._asdict(),
        "state": alert.state,
        "since_s": alert.since_s,
        "fired_s": alert.fired_s,
        "seen_s": alert.seen_s,
        "value": alert.value,
        "resolved_s": alert.resolved_s,
    }
