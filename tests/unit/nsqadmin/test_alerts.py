"""Alerts poll by poll: pending, firing, resolved, unknown."""

from typing import Any

import pytest

from nsqx.nsqadmin.alert_rules import AlertRules
from nsqx.nsqadmin.alerts import MAX_RESOLVED, Alert, AlertBook, AlertKey, NodeDisk
from nsqx.nsqadmin.cluster_stats import ClusterStats
from nsqx.nsqadmin.inventory import Holding, Holdings

STEP_S = 10.0


def channel(name: str, **changes: Any) -> dict[str, Any]:
    fields = ("depth", "backend_depth", "in_flight_count", "deferred_count", "message_count")
    counts = dict.fromkeys((*fields, "requeue_count", "timeout_count", "client_count"), 0)
    return {"channel_name": name, "paused": False, **counts, **changes}


def topic(name: str, *channels: dict[str, Any], **changes: Any) -> dict[str, Any]:
    counts = dict.fromkeys(("depth", "backend_depth", "message_count"), 0)
    return {"topic_name": name, "channels": list(channels), "paused": False, **counts, **changes}


class Watch:
    """An alert book over the polls of one nsqd, one every ten seconds."""

    def __init__(self, *tables: dict[str, Any], capacity: int = 200) -> None:
        self.stats = ClusterStats(capacity)
        self.book = AlertBook(AlertRules(tables))
        self.now_s = 1000.0
        self.changes: list[tuple[str, str]] = []

    def poll(
        self,
        *topics: dict[str, Any],
        times: int = 1,
        missing: tuple[str, ...] = (),
        absent: tuple[Holdings, ...] = (),
        disk: NodeDisk | None = None,
    ) -> list[tuple[str, str]]:
        """Poll some times; return the rules and states that changed, and remember them."""
        changes: list[Alert] = []
        for _ in range(times):
            self.now_s += STEP_S
            self.stats.open()
            self.stats.add_node("a:1", list(topics), self.now_s)
            self.stats.close({"a:1"}, self.now_s, absent)
            gone = [{"address": each, "last_seen_s": 1000.0} for each in missing]
            disks = {} if disk is None else {"a:1": disk}
            changes += self.book.evaluate(self.stats, gone, disks, self.now_s)
        return [(each.rule.name, each.state) for each in changes]

    def fail(self, times: int = 1) -> list[tuple[str, str]]:
        """Polls that no nsqd answers."""
        changes: list[Alert] = []
        for _ in range(times):
            self.now_s += STEP_S
            self.stats.skip(self.now_s)
            changes += self.book.evaluate(self.stats, (), {}, self.now_s, is_measured=False)
        return [(each.rule.name, each.state) for each in changes]

    def states(self) -> dict[str, str]:
        return {each.key.rule: each.state for each in self.book.active.values()}


LEFT = topic("t", channel("c", depth=7))
SERVED = topic("t", channel("c", depth=7, client_count=1))
NO_CONSUMER = {"rule": "no_consumer", "for": "30s", "keep_firing_for": "20s"}


def test_an_alert_is_pending_then_fires_then_is_resolved() -> None:
    watch = Watch(NO_CONSUMER)
    assert watch.poll(LEFT) == []
    assert watch.states() == {"no_consumer": "pending"}
    assert watch.book.counts["pending"] == 1
    assert watch.poll(LEFT, times=2) == []
    assert watch.poll(LEFT) == [("no_consumer", "firing")]
    assert watch.book.counts == {"firing": 1, "pending": 0, "critical": 0, "warning": 1, "info": 0}
    (alert,) = watch.book.sorted_alerts()
    document = alert.document()
    assert (document["topic"], document["channel"], document["node"]) == ("t", "c", "")
    assert (document["value"], document["threshold"], document["since_s"], document["fired_s"]) == (7, 0, 1010, 1040)
    assert document["summary"] == "t/c has 7 waiting messages and no consumer"
    assert watch.poll(SERVED) == [], "it is resolved only after keep_firing_for"
    assert watch.poll(SERVED) == [("no_consumer", "resolved")]
    assert not watch.book.active
    assert [each.resolved_s for each in watch.book.resolved] == [1060]


def test_a_short_interruption_does_not_resolve_an_alert() -> None:
    watch = Watch(NO_CONSUMER)
    watch.poll(LEFT, times=4)
    for _ in range(5):
        assert watch.poll(SERVED) == []
        assert watch.poll(LEFT) == []
    assert watch.states() == {"no_consumer": "firing"}
    assert next(iter(watch.book.active.values())).since_s == 1010


def test_an_interruption_ends_a_pending_alert() -> None:
    watch = Watch(NO_CONSUMER)
    watch.poll(LEFT, times=3)
    watch.poll(SERVED)
    assert watch.states() == {}
    assert watch.poll(LEFT, times=3) == []


def test_a_deleted_topic_resolves_its_alerts() -> None:
    watch = Watch(NO_CONSUMER)
    watch.poll(LEFT, times=4)
    assert watch.poll(times=2) == [("no_consumer", "resolved")]


def test_an_alert_stays_while_nothing_is_measured() -> None:
    watch = Watch(NO_CONSUMER)
    watch.poll(LEFT, times=4)
    assert watch.fail(times=10) == []
    assert watch.poll(SERVED) == []
    assert watch.states() == {"no_consumer": "firing"}
    assert watch.poll(SERVED) == [("no_consumer", "resolved")]


def test_an_alert_stays_while_an_nsqd_with_the_channel_is_missing() -> None:
    watch = Watch(NO_CONSUMER, {"rule": "node_gone", "enabled": False})
    watch.poll(LEFT, times=4)
    gone: Holdings = {"t": Holding(0, {"c": 7})}
    assert watch.poll(SERVED, times=10, missing=("b:1",), absent=(gone,)) == []
    assert watch.poll(SERVED, times=2) == [("no_consumer", "resolved")]


def test_a_topic_without_a_channel() -> None:
    watch = Watch({"rule": "no_channel", "for": "20s"})
    assert watch.poll(topic("t"), times=5) == []
    assert watch.poll(topic("t", depth=3), times=3) == [("no_channel", "firing")]
    assert watch.fail() == []
    assert watch.poll(topic("t", channel("c", depth=3, client_count=1)), times=7) == [("no_channel", "resolved")]


def test_a_growing_backlog() -> None:
    watch = Watch({"rule": "growing", "threshold": 100, "window": "40s", "for": "0s", "keep_firing_for": "0s"})

    def depth(count: int) -> list[tuple[str, str]]:
        return watch.poll(topic("t", channel("c", depth=count, client_count=1)))

    assert depth(500) == [], "a backlog that does not grow"
    assert [depth(500 + step) for step in range(1, 4)] == [[], [], []], "the history is shorter than the window"
    assert depth(504) == [("growing", "firing")]
    assert depth(505) == []
    assert depth(504) == [("growing", "resolved")]


def test_a_growing_backlog_near_the_threshold() -> None:
    watch = Watch({"rule": "growing", "threshold": 100, "window": "20s", "for": "0s", "keep_firing_for": "0s"})
    depths = 70, 90, 101, 95, 98, 99, 79, 80, 81
    changes = [watch.poll(topic("t", channel("c", depth=each, client_count=1))) for each in depths]
    assert changes[2] == [("growing", "firing")]
    assert changes[3] == [("growing", "resolved")], "it does not grow"
    assert changes[4:] == [[]] * 5, "99 messages are below the threshold"


def test_old_messages() -> None:
    watch = Watch({"rule": "old", "threshold": "1m", "for": "10s", "keep_firing_for": "0s"})

    def oldest(ms: int | None) -> list[tuple[str, str]]:
        extra = {} if ms is None else {"oldest_ms": ms}
        return watch.poll(topic("t", channel("c", depth=1, client_count=1, **extra)))

    assert oldest(None) == [] == oldest(60_000)
    assert oldest(60_001) == []
    assert oldest(70_000) == [("old", "firing")]
    assert next(iter(watch.book.active.values())).value == 70
    assert oldest(None) == [], "Go's nsqd does not report the age, so nothing is known"
    assert oldest(0) == [("old", "resolved")]


def test_a_value_that_swings_around_the_threshold_fires_once() -> None:
    watch = Watch({"rule": "old", "threshold": "100s", "for": "10s", "keep_firing_for": "0s"})

    def oldest(*ages_s: int) -> list[list[tuple[str, str]]]:
        states = (channel("c", depth=1, client_count=1, oldest_ms=age_s * 1000) for age_s in ages_s)
        return [watch.poll(topic("t", state)) for state in states]

    assert oldest(90, 101, 99, 101) == [[], [], [], []], "a pending alert ends below the threshold"
    assert oldest(101) == [[("old", "firing")]]
    assert oldest(99, 101, 81, 100) == [[], [], [], []]
    document = next(iter(watch.book.active.values())).document()
    assert (document["value"], document["threshold"], document["resolve_threshold"]) == (100, 100, 80)
    assert oldest(80) == [[("old", "resolved")]]
    assert oldest(99, 81) == [[], []], "it fires again only above the threshold"
    assert not watch.book.active


def test_messages_that_time_out() -> None:
    watch = Watch({"rule": "timing_out", "threshold": "10%", "window": "40s", "for": "0s", "keep_firing_for": "0s"})

    def total(messages: int, timeouts: int) -> list[tuple[str, str]]:
        return watch.poll(topic("t", channel("c", message_count=messages, timeout_count=timeouts, client_count=1)))

    assert [total(100 * n, n) for n in range(1, 8)] == [[]] * 7, "1 of 101 deliveries"
    changes = [total(700 + 100 * n, 7 + 20 * n) for n in range(1, 5)]
    assert [change for each in changes for change in each] == [("timing_out", "firing")]
    assert next(iter(watch.book.active.values())).value == pytest.approx(80 / 480)
    changes = [total(1100 + 100 * n, 87) for n in range(1, 5)]
    assert [change for each in changes for change in each] == [("timing_out", "resolved")]


def test_a_missing_node() -> None:
    watch = Watch({"rule": "node_gone", "for": "20s", "keep_firing_for": "0s"})
    assert watch.poll(missing=("b:1",), times=3) == [("node_gone", "firing")]
    (alert,) = watch.book.active.values()
    assert alert.key == AlertKey("node_gone", node="b:1")
    assert alert.document()["severity"] == "critical"
    assert watch.poll() == [("node_gone", "resolved")]


def test_a_full_disk() -> None:
    watch = Watch({"rule": "disk_low", "for": "0s", "keep_firing_for": "0s"})
    assert watch.poll(disk=NodeDisk(10, 100)) == []
    assert watch.poll(disk=NodeDisk(9, 100)) == [("disk_low", "firing")]
    assert watch.poll(missing=("a:1",)) == [], "the disk of a missing nsqd is unknown"
    assert watch.poll(disk=NodeDisk(11, 100)) == [], "a little more than the threshold"
    assert watch.poll(disk=NodeDisk(12, 100)) == [("disk_low", "resolved")]
    assert watch.poll(disk=NodeDisk(11, 100)) == []
    assert watch.poll(disk=NodeDisk(0, 0)) == []


def test_disabled_rules_and_globs() -> None:
    watch = Watch(
        {"rule": "no_consumer", "topic": "quiet*", "enabled": False},
        {"rule": "no_consumer", "for": "0s"},
    )
    assert watch.poll(LEFT, topic("quiet.1", channel("c", depth=7))) == [("no_consumer", "firing")]


def test_alerts_are_sorted_by_state_severity_and_age() -> None:
    watch = Watch({"rule": "no_consumer", "for": "10s"}, {"rule": "node_gone", "for": "10s"})
    watch.poll(LEFT)
    watch.poll(LEFT, topic("u", channel("d", depth=1)), missing=("b:1",))
    watch.poll(LEFT, topic("u", channel("d", depth=1)), topic("w", channel("e", depth=1)), missing=("b:1",))
    assert [(each.key.subject, each.state) for each in watch.book.sorted_alerts()] == [
        ("b:1", "firing"),
        ("t/c", "firing"),
        ("u/d", "firing"),
        ("w/e", "pending"),
    ]


def test_alerts_survive_a_restart() -> None:
    watch = Watch(NO_CONSUMER)
    watch.poll(LEFT, topic("u", channel("d", depth=7)), times=4)
    watch.poll(LEFT, times=3)
    later = Watch(NO_CONSUMER)
    later.now_s = watch.now_s
    later.book.load(watch.book.dump())
    assert later.states() == {"no_consumer": "firing"}
    assert [each.key.subject for each in later.book.resolved] == ["u/d"]
    assert later.book.counts["firing"] == 1
    assert later.poll(LEFT) == [], "it does not fire again"
    assert later.poll(SERVED, times=2) == [("no_consumer", "resolved")]
    disabled = AlertBook(AlertRules([{"rule": "no_consumer", "enabled": False}]))
    disabled.load(watch.book.dump())
    assert not disabled.active


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"format": 2},
        {"format": 1, "active": [{}], "resolved": []},
        {
            "format": 1,
            "active": [{"rule": "x", "topic": "", "channel": "", "node": "", "state": "firing"}],
            "resolved": [],
        },
    ],
)
def test_a_damaged_document_is_rejected(document: Any) -> None:
    with pytest.raises(ValueError, match="format|unexpected"):
        AlertBook(AlertRules()).load(document)


def test_resolved_alerts_are_bounded() -> None:
    watch = Watch({"rule": "no_consumer", "for": "0s", "keep_firing_for": "0s"})
    for _ in range(3):
        watch.poll(*(topic(f"t{number}", channel("c", depth=1)) for number in range(100)))
        watch.poll()
    assert len(watch.book.resolved) == MAX_RESOLVED
