"""The rules of alerts: defaults, tables of the configuration file, and the same rules for Prometheus."""

from pathlib import Path
from typing import Any

import pytest

from nsqx.errors import ConfigError
from nsqx.nsqadmin.alert_rules import (
    DEFAULT_RULES,
    DISK_LOW,
    GROWING,
    NO_CHANNEL,
    NO_CONSUMER,
    NODE_GONE,
    OLD,
    TIMING_OUT,
    AlertRule,
    AlertRules,
    format_prometheus_duration,
    prometheus_rule,
)

ALERTS = Path(__file__).resolve().parents[3] / "deploy" / "prometheus" / "alerts.yml"


def prometheus_alerts() -> dict[str, dict[str, Any]]:
    """Return the rules in deploy/ by name."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install 'nsqx[docs]'")
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


@pytest.mark.parametrize("name", DEFAULT_RULES)
def test_prometheus_has_the_same_rule(name: str) -> None:
    ours = prometheus_rule(DEFAULT_RULES[name])
    assert prometheus_alerts()[ours["alert"]] == ours


def test_every_rule_of_prometheus_that_keeps_firing_is_one_of_ours() -> None:
    ours = {prometheus_rule(rule)["alert"] for rule in DEFAULT_RULES.values()}
    assert {name for name, rule in prometheus_alerts().items() if "keep_firing_for" in rule} == ours


@pytest.mark.parametrize(("duration_s", "text"), [(0, "0s"), (30, "30s"), (90, "90s"), (600, "10m"), (7200, "2h")])
def test_durations_of_prometheus(duration_s: float, text: str) -> None:
    assert format_prometheus_duration(duration_s) == text


def test_the_defaults_apply_without_tables() -> None:
    rules = AlertRules()
    assert rules.of("t", "c") == DEFAULT_RULES
    assert rules.of("t", "c") is rules.of("u", "d"), "subjects with the same rules share one mapping"
    assert rules.general() == list(DEFAULT_RULES.values())


def test_a_table_changes_a_rule_for_all_subjects() -> None:
    table = {
        "rule": "growing",
        "threshold": 50,
        "for": "1m",
        "keep_firing_for": "2m",
        "window": "5m",
        "severity": "critical",
    }
    rule = AlertRules([table]).of("t", "c")[GROWING]
    assert (rule.threshold, rule.for_s, rule.keep_s, rule.window_s, rule.severity) == (50, 60, 120, 300, "critical")


@pytest.mark.parametrize(
    ("table", "resolves_at"),
    [
        ({"rule": "old", "threshold": "10m"}, 480),
        ({"rule": "old", "threshold": "10m", "resolve_threshold": "1m"}, 60),
        ({"rule": "old", "resolve_threshold": "15m"}, 900),
        ({"rule": "growing", "threshold": 99}, 79),
        ({"rule": "timing_out", "threshold": "10%"}, 0.08),
        ({"rule": "disk_low", "threshold": "20%"}, 0.24),
        ({"rule": "disk_low", "threshold": "90%"}, 1),
        ({"rule": "disk_low", "resolve_threshold": "50%"}, 0.5),
        ({"rule": "no_consumer", "threshold": 100}, 80),
    ],
)
def test_the_second_threshold_is_given_or_derived(table: dict[str, Any], resolves_at: float) -> None:
    rules = AlertRules([table]).general()
    assert [rule.resolve_threshold for rule in rules if rule.name == table["rule"]] == [resolves_at]


@pytest.mark.parametrize("rule", DEFAULT_RULES.values(), ids=lambda rule: rule.name)
def test_the_second_thresholds_of_the_defaults_are_the_derived_ones(rule: AlertRule) -> None:
    if rule.unit:
        value = int(rule.threshold) if rule.unit == "messages" else rule.threshold
        table = {"rule": rule.name, "threshold": f"{value}s" if rule.unit == "seconds" else value}
        assert rule in AlertRules([table]).general()


def test_the_first_table_that_matches_decides() -> None:
    rules = AlertRules(
        [
            {"rule": "old", "topic": "orders*", "channel": "audit", "enabled": False},
            {"rule": "old", "topic": "orders*", "threshold": "1h"},
            {"rule": "old", "threshold": "30s"},
        ]
    )
    assert OLD not in rules.of("orders.new", "audit")
    assert rules.of("orders.new", "billing")[OLD].threshold == 3600
    assert rules.of("clicks", "billing")[OLD].threshold == 30
    assert [rule.threshold for rule in rules.general() if rule.name == OLD] == [30]
    assert rules.of("orders.new", "billing")[NO_CONSUMER] == DEFAULT_RULES[NO_CONSUMER]


def test_nodes_have_their_own_globs() -> None:
    rules = AlertRules([{"rule": "disk_low", "node": "10.0.*", "threshold": "25%"}])
    assert rules.of(node="10.0.0.1:4151")[DISK_LOW].threshold == 0.25
    assert rules.of(node="10.1.0.1:4151")[DISK_LOW].threshold == 0.1


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({}, "invalid rule None: use one of node_gone, disk_low"),
        ({"rule": "slow"}, 'invalid rule "slow": use one of'),
        ({"rule": "old", "treshold": 3}, 'unknown key "treshold": use rule, topic, channel, node, threshold'),
        ({"rule": "old", "threshold": "soon"}, 'invalid threshold "soon": use a duration such as "10m"'),
        ({"rule": "old", "for": -1}, 'invalid for -1: use a duration such as "10m"'),
        ({"rule": "old", "for": "-1s"}, "use a duration"),
        ({"rule": "growing", "threshold": -1}, "invalid threshold -1: use a number of messages"),
        ({"rule": "growing", "threshold": True}, "use a number of messages"),
        ({"rule": "growing", "window": "1h"}, 'invalid window "1h": use more than 0s and at most 15m0s'),
        ({"rule": "old", "window": "5m"}, "the rule old has no window"),
        ({"rule": "timing_out", "threshold": "7 percent"}, 'use a share such as "5%" or 0.05'),
        ({"rule": "timing_out", "threshold": 1.5}, "use a share"),
        ({"rule": "timing_out", "threshold": "nan%"}, "use a share"),
        ({"rule": "old", "resolve_threshold": "20m"}, "resolve_threshold (20m0s) is larger than threshold (15m0s)"),
        ({"rule": "disk_low", "resolve_threshold": 0.05}, "resolve_threshold (5 %) is smaller than threshold (10 %)"),
        ({"rule": "growing", "resolve_threshold": "9"}, 'invalid resolve_threshold "9": use a number of messages'),
        ({"rule": "node_gone", "resolve_threshold": 1}, "the rule node_gone has no threshold"),
        ({"rule": "node_gone", "threshold": 1}, "the rule node_gone has no threshold"),
        ({"rule": "node_gone", "topic": "t"}, "the rule node_gone is about nsqds"),
        ({"rule": "old", "node": "a"}, "the rule old is about topics and channels"),
        ({"rule": "no_channel", "channel": "c"}, "the rule no_channel is about topics"),
        ({"rule": "old", "topic": 3}, "use a glob"),
        ({"rule": "old", "severity": "bad"}, 'invalid severity "bad": use one of critical, warning, info'),
        ({"rule": "old", "enabled": "no"}, "use true or false"),
    ],
)
def test_a_bad_table_is_one_clear_line(table: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as failure:
        AlertRules([{"rule": "old"}, table])
    assert str(failure.value).startswith("[[alert]] table 2: ")
    assert text in str(failure.value)
    assert "\n" not in str(failure.value)


def test_summaries_name_the_subject_and_the_value() -> None:
    def summary(name: str, subject: str, value: float) -> str:
        return DEFAULT_RULES[name].summary(subject, value)

    assert summary(NO_CONSUMER, "t/c", 1) == "t/c has 1 waiting message and no consumer"
    assert summary(NO_CHANNEL, "t", 2) == "t has 2 waiting messages and no channel"
    assert summary(GROWING, "t/c", 12345) == "t/c has 12,345 waiting messages, and the number grows"
    assert summary(OLD, "t/c", 5400) == "the oldest message of t/c has waited for 1h30m0s"
    assert summary(TIMING_OUT, "t/c", 0.0625) == "6.25 % of the deliveries of t/c time out"
    assert summary(DISK_LOW, "a:4151", 0.05) == "nsqd a:4151 has 5 % of its disk free"
    assert summary(NODE_GONE, "a:4151", 61) == "nsqd a:4151 does not answer, or no nsqlookupd lists it"
