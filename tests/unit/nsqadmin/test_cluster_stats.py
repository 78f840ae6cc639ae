"""Sums and rates over nodes, poll by poll."""

from typing import Any

import pytest

from nsqx.nsqadmin import cluster_stats as ledger_module
from nsqx.nsqadmin.cluster_stats import ClusterStats
from nsqx.nsqadmin.inventory import Holding, Holdings


def channel(name: str, **changes: Any) -> dict[str, Any]:
    fields = ("depth", "backend_depth", "in_flight_count", "deferred_count", "message_count")
    counts = dict.fromkeys((*fields, "requeue_count", "timeout_count", "client_count"), 0)
    return {"channel_name": name, "paused": False, **counts, **changes}


def topic(name: str, *channels: dict[str, Any], **changes: Any) -> dict[str, Any]:
    counts = dict.fromkeys(("depth", "backend_depth", "message_count"), 0)
    return {"topic_name": name, "channels": list(channels), "paused": False, **counts, **changes}


class Polls:
    """Cluster statistics that are fed with one poll per second."""

    def __init__(self, capacity: int = 10, trouble_polls: int = 4) -> None:
        self.cluster_stats = ClusterStats(capacity, trouble_polls)
        self.now_s = 1000.0

    def poll(
        self,
        *,
        step_s: float = 1.0,
        failed: tuple[str, ...] = (),
        absent: tuple[Holdings, ...] = (),
        registered: tuple[str, ...] = (),
        **nodes: list[dict[str, Any]] | None,
    ) -> None:
        self.now_s += step_s
        self.cluster_stats.open()
        for address, topics in nodes.items():
            self.cluster_stats.add_node(address, topics or [], self.now_s)
        self.cluster_stats.close({*nodes, *failed}, self.now_s, absent, registered)

    def row(self, name: str) -> dict[str, Any]:
        return self.cluster_stats.topics[name].row

    def channel(self, name: str, channel_name: str) -> dict[str, Any]:
        return self.cluster_stats.topics[name].channels[channel_name].row


@pytest.fixture
def polls() -> Polls:
    return Polls()


def test_sums_over_nodes(polls: Polls) -> None:
    polls.poll(
        a=[topic("t", channel("c", depth=3, client_count=2, in_flight_count=1), depth=1, message_count=10)],
        b=[topic("t", channel("c", depth=4, deferred_count=5, paused=True), depth=2, backend_depth=2, paused=True)],
    )
    row = polls.row("t")
    assert (row["nodes"], row["channels"], row["paused"]) == (2, 1, True)
    assert (row["depth"], row["backend_depth"], row["channels_depth"]) == (3, 2, 7)
    assert (row["in_flight"], row["deferred"], row["clients"], row["message_count"]) == (1, 5, 2, 10)
    each = polls.channel("t", "c")
    assert (each["topic"], each["depth"], each["paused"], each["nodes"]) == ("t", 7, True, 2)
    totals = polls.cluster_stats.totals
    assert (totals["topics"], totals["channels"], totals["depth"], totals["channels_depth"]) == (1, 1, 3, 7)


def test_rates_need_two_polls(polls: Polls) -> None:
    polls.poll(a=[topic("t", channel("c", message_count=50, requeue_count=5), message_count=100)])
    assert polls.row("t")["rate"] == 0
    polls.poll(
        step_s=2.0, a=[topic("t", channel("c", message_count=60, requeue_count=6, timeout_count=4), message_count=130)]
    )
    assert polls.row("t")["rate"] == 15
    assert polls.channel("t", "c")["rate"] == 5
    assert polls.channel("t", "c")["requeued"] == 0.5
    assert polls.row("t")["timed_out"] == 2
    assert polls.cluster_stats.totals["rate"] == 15


def test_what_leaves_the_channels_and_how_long_they_take_to_drain(polls: Polls) -> None:
    for step in range(3):
        fast = channel("fast", depth=900 - 100 * step, in_flight_count=10, message_count=50 * step)
        slow = channel("slow", depth=900 + 50 * step, message_count=50 * step)
        polls.poll(a=[topic("t", fast, slow, message_count=50 * step)])
    row = polls.row("t")
    assert (row["rate"], row["rate_out"], row["drain"], row["drain_s"]) == (50, 150, "growing", None)
    fast, slow = polls.channel("t", "fast"), polls.channel("t", "slow")
    assert (fast["rate"], fast["rate_out"], fast["drain"], fast["drain_s"]) == (50, 150, "draining", 7)
    assert (slow["rate_out"], slow["drain"]) == (0, "growing")
    assert polls.cluster_stats.totals["rate_out"] == 150
    track = polls.cluster_stats.topics["t"].channels["fast"].track
    assert track.series(1, polls.cluster_stats.clock.range()) == [0, 150, 150]


def test_the_oldest_message_of_all_nodes_and_channels(polls: Polls) -> None:
    polls.poll(
        a=[topic("t", channel("c", depth=1, oldest_ms=5_000), channel("d", depth=1, oldest_ms=90_000))],
        b=[topic("t", channel("c", depth=1, oldest_ms=7_000)), topic("go", channel("c", depth=1))],
    )
    assert polls.channel("t", "c")["oldest_at_s"] == polls.now_s - 7
    assert polls.row("t")["oldest_at_s"] == polls.now_s - 90
    assert (polls.row("t")["backlog"], polls.channel("t", "c")["backlog"]) == (True, False)
    assert polls.row("go")["oldest_at_s"] is None


def test_requeues_of_the_last_minute(polls: Polls) -> None:
    found = []
    for step_s, count in ((20, 0), (20, 2), (25, 5), (5, 5), (20, 5), (40, 5), (1, 5)):
        polls.poll(step_s=step_s, a=[topic("t", channel("c", requeue_count=count))])
        found.append(polls.channel("t", "c")["requeued_per_min"])
    assert found == [0, 2, 5, 5, 5, 0, 0]
    assert polls.channel("t", "c")["timed_out_per_min"] == 0


def test_the_latency_is_that_of_the_slowest_node(polls: Polls) -> None:
    def measured(value: int) -> list[dict[str, Any]]:
        latency = {"count": 1, "percentiles": [{"quantile": 0.99, "value": value}, {"quantile": 0.5, "value": 1}]}
        return [topic("t", channel("c", e2e_processing_latency=latency))]

    polls.poll(a=measured(5), b=measured(7))
    assert polls.channel("t", "c")["latency_ns"] == {"0.99": 7, "0.5": 1}


def test_a_new_topic_on_a_known_node_counts_from_zero(polls: Polls) -> None:
    polls.poll(a=[])
    polls.poll(a=[topic("t", channel("c", message_count=7), message_count=8)])
    assert polls.row("t")["rate"] == 8
    assert polls.channel("t", "c")["rate"] == 7


def test_a_joining_node_causes_no_peak(polls: Polls) -> None:
    polls.poll(a=[topic("t", message_count=5)])
    polls.poll(a=[topic("t", message_count=6)], b=[topic("t", message_count=1_000_000)])
    assert polls.row("t")["rate"] == 1
    assert polls.row("t")["message_count"] == 1_000_006


def test_a_leaving_node_causes_no_negative_rate(polls: Polls) -> None:
    polls.poll(a=[topic("t", message_count=5)], b=[topic("t", message_count=900)])
    polls.poll(a=[topic("t", message_count=8)])
    assert polls.row("t")["rate"] == 3


def test_a_rate_after_a_failure_covers_the_time_since_the_last_answer(polls: Polls) -> None:
    polls.poll(a=[topic("t", message_count=10)])
    polls.poll(failed=("a",), b=[])
    polls.poll(a=[topic("t", message_count=30)])
    assert polls.row("t")["rate"] == 10


def test_a_restarted_node_counts_from_zero(polls: Polls) -> None:
    polls.poll(a=[topic("t", channel("c", message_count=90), message_count=100)])
    polls.poll(a=[topic("t", channel("c", message_count=3), message_count=4)])
    assert polls.row("t")["rate"] == 4
    assert polls.channel("t", "c")["rate"] == 3


def test_new_topics_in_between_do_not_shift_counters(polls: Polls) -> None:
    polls.poll(a=[topic("b", channel("x", message_count=20), message_count=10), topic("d", message_count=100)])
    polls.poll(
        a=[
            topic("a", message_count=1),
            topic("b", channel("w", message_count=2), channel("x", message_count=23), message_count=11),
            topic("c", message_count=3),
            topic("d", message_count=104),
        ]
    )
    assert [polls.row(name)["rate"] for name in "abcd"] == [1, 1, 3, 4]
    assert [polls.channel("b", name)["rate"] for name in "wx"] == [2, 3]
    polls.poll(a=[topic("d", message_count=109)])
    assert polls.row("d")["rate"] == 5


def test_only_changed_rows_are_marked(polls: Polls) -> None:
    for _ in range(2):
        polls.poll(
            a=[topic("still", message_count=1), topic("busy", message_count=polls.cluster_stats.clock.number + 5)]
        )
    number = polls.cluster_stats.clock.number
    assert {each.name for each in polls.cluster_stats.present_topics() if each.changed == number} == {"busy"}


def test_topics_disappear_and_return(polls: Polls) -> None:
    polls.poll(a=[topic("t", channel("c"))])
    polls.poll(a=[])
    assert polls.cluster_stats.removed == ["t"]
    assert list(polls.cluster_stats.present_topics()) == []
    polls.poll(a=None)
    assert polls.cluster_stats.removed == []
    polls.poll(a=[topic("t")])
    assert [each.name for each in polls.cluster_stats.present_topics()] == ["t"]
    assert polls.cluster_stats.channel_rows(polls.cluster_stats.topics["t"]) == []
    series = polls.cluster_stats.topics["t"].track.series(1, polls.cluster_stats.clock.range())
    assert series == [0, None, None, 0]


def test_topics_outside_the_history_are_forgotten() -> None:
    polls = Polls(capacity=3)
    polls.poll(a=[topic("t", channel("c")), topic("u", channel("d"))])
    assert polls.cluster_stats.subject_count == 4
    for _ in range(3):
        polls.poll(a=[topic("u")])
    assert list(polls.cluster_stats.topics) == ["u"]
    assert polls.cluster_stats.topics["u"].channels == {}
    assert polls.cluster_stats.subject_count == 1


def test_a_failed_poll_leaves_a_gap_and_keeps_the_last_values(polls: Polls) -> None:
    polls.poll(a=[topic("t", depth=4)])
    polls.cluster_stats.skip(polls.now_s + 1)
    assert [each.name for each in polls.cluster_stats.present_topics()] == ["t"]
    polls.poll(step_s=2.0, a=[topic("t", depth=5)])
    assert polls.cluster_stats.topics["t"].track.series(2, polls.cluster_stats.clock.range()) == [4, None, 5]


def test_readers_see_nothing_of_an_open_poll(polls: Polls) -> None:
    polls.poll(a=[topic("t", depth=4)])
    polls.cluster_stats.open()
    polls.cluster_stats.add_node("a", [topic("t", depth=9), topic("new")], 2000.0)
    assert polls.row("t")["depth"] == 4
    assert [each.name for each in polls.cluster_stats.present_topics()] == ["t"]


@pytest.mark.parametrize(
    "document",
    [[{}], [topic("t", depth="x")], [topic("t", depth=None)]],
)
def test_invalid_stats_are_rejected(polls: Polls, document: Any) -> None:
    polls.cluster_stats.open()
    with pytest.raises(ValueError, match="not nsqd's stats"):
        polls.cluster_stats.add_node("a", document, 1.0)


def test_the_number_of_topics_is_limited(polls: Polls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "MAX_SUBJECTS", 3)
    polls.poll(a=[topic("a", channel("x")), topic("b", channel("y")), topic("c", message_count=5)])
    assert {each.name for each in polls.cluster_stats.present_topics()} == {"a", "b"}
    assert polls.cluster_stats.topics["b"].channels == {}


def test_a_sparkline_is_the_recent_rate() -> None:
    polls = Polls(capacity=100)
    for number in range(90):
        polls.poll(a=[topic("t", message_count=number * 3)])
    assert polls.cluster_stats.sparkline(polls.cluster_stats.topics["t"]) == [3] * 30


def test_the_messages_of_a_node(polls: Polls) -> None:
    polls.poll(
        a=[
            topic(
                "t",
                channel("c", depth=3, in_flight_count=2, deferred_count=1),
                channel("d#ephemeral", depth=9),
                depth=4,
            ),
            topic("u"),
            topic("v#ephemeral", channel("c", depth=5), depth=5),
        ]
    )
    assert polls.cluster_stats.holdings("a") == {"t": Holding(4, {"c": 6}), "u": Holding(0, {})}
    assert polls.cluster_stats.holdings("b") == {}


def test_messages_of_a_lost_node_are_counted_as_stranded(polls: Polls) -> None:
    on_a = [topic("t", channel("c", depth=5, client_count=1))]
    polls.poll(a=on_a, b=[topic("t", channel("c", depth=70), depth=2), topic("only", channel("d", depth=1))])
    lost = polls.cluster_stats.holdings("b")
    polls.poll(a=on_a, absent=(lost,))
    row = polls.row("t")
    assert (row["nodes"], row["missing_nodes"], row["stranded"], row["channels_depth"]) == (1, 1, 72, 5)
    assert polls.channel("t", "c")["stranded"] == 70
    assert polls.row("only")["stranded"] == 1
    assert polls.cluster_stats.totals["stranded"] == 73
    assert polls.cluster_stats.removed == []
    numbers = polls.cluster_stats.clock.range()
    assert polls.cluster_stats.topics["t"].track.series(8, numbers) == [0, 1]
    assert polls.cluster_stats.topics["only"].track.series(1, numbers) == [0, None], "a gap, not a zero"
    polls.poll(a=on_a)
    assert polls.row("t")["missing_nodes"] == 0
    assert polls.cluster_stats.removed == ["only"]


def test_topics_on_missing_nodes_only_are_not_forgotten() -> None:
    polls = Polls(capacity=3)
    for _ in range(8):
        polls.poll(a=[], absent=({"t": Holding(1, {"c": 2})},), registered=("made",))
        assert [each.name for each in polls.cluster_stats.present_topics()] == ["t", "made"]
        assert [each["name"] for each in polls.cluster_stats.channel_rows(polls.cluster_stats.topics["t"])] == ["c"]
    for _ in range(4):
        polls.poll(a=[])
    assert polls.cluster_stats.subject_count == 0


def test_messages_without_a_consumer_are_trouble(polls: Polls) -> None:
    polls.poll(
        a=[
            topic("read", channel("c", depth=5, client_count=1)),
            topic("unread", channel("c", depth=5), channel("empty")),
            topic("no-channel", depth=7),
            topic("nothing"),
        ]
    )
    assert [polls.row(name)["trouble"] for name in ("read", "unread", "no-channel", "nothing")] == [
        [],
        ["no_consumer"],
        ["no_consumer"],
        [],
    ]
    assert polls.channel("unread", "empty")["trouble"] == []
    found = polls.cluster_stats.trouble
    assert (found["count"], found["no_consumer"], found["growing"], found["timing_out"]) == (2, 2, 0, 0)
    assert [(each["topic"], each["channel"]) for each in found["worst"]] == [("no-channel", ""), ("unread", "c")]


def test_a_growing_backlog_is_trouble(polls: Polls) -> None:
    def poll(depth: int) -> list[str]:
        polls.poll(a=[topic("t", channel("c", depth=depth, client_count=1))])
        kinds: list[str] = polls.row("t")["trouble"]
        return kinds

    assert [poll(depth) for depth in (0, 50, 100, 150)] == [[]] * 4, "it has not grown for long enough"
    assert poll(200) == ["growing"]
    assert poll(260) == ["growing"]
    assert poll(90) == []
    for depth in (91, 92, 93, 94, 95):
        assert poll(depth) == [], "growth by a few messages is not trouble"


def test_timeouts_are_trouble_for_a_while(polls: Polls) -> None:
    for timeouts in (0, 3):
        polls.poll(a=[topic("t", channel("c", timeout_count=timeouts, client_count=1))])
    assert polls.row("t")["trouble"] == ["timing_out"]
    for _ in range(4):
        polls.poll(a=[topic("t", channel("c", timeout_count=3, client_count=1))])
        assert polls.row("t")["trouble"] == ["timing_out"]
    polls.poll(a=[topic("t", channel("c", timeout_count=3, client_count=1))])
    assert polls.row("t")["trouble"] == []
