"""What nsqx top shows."""

from typing import Any

import pytest

from nsqx.cli.durations import age_text
from nsqx.cli.readings import Reading
from nsqx.cli.top_view import TopView


def channel(name: str, depth: int, messages: int, clients: int = 0) -> dict[str, Any]:
    counts = {"in_flight_count": 0, "deferred_count": 0, "requeue_count": 0, "timeout_count": 0, "backend_depth": 0}
    return {"channel_name": name, "depth": depth, "message_count": messages, "client_count": clients, **counts}


def reading(at_s: float, *channels: dict[str, Any]) -> Reading:
    messages = max((each["message_count"] for each in channels), default=0)
    topic = {"topic_name": "t", "depth": 0, "message_count": messages, "channels": list(channels)}
    return Reading(at_s, [("n:1", {"topics": [topic]})])


def lines(view: TopView, most: int = 0) -> list[list[str]]:
    return [line.split() for line in view.text(most).splitlines()]


def test_rates_and_drain_times_come_from_two_readings() -> None:
    view = TopView()
    view.note(reading(0, channel("grows", 100, 1000, 1), channel("shrinks", 200, 1000, 1), channel("idle", 5, 50, 1)))
    assert {tuple(row[-7:-3]) for row in lines(view)[2:]} == {(depth, "-", "-", "-") for depth in ("100", "200", "5")}
    view.note(reading(2, channel("grows", 300, 1300, 1), channel("shrinks", 100, 1010, 1), channel("idle", 5, 50, 1)))
    found = {row[1]: row for row in lines(view)[2:]}
    assert found["grows"][3:7] == ["300", "150", "50", "growing"]
    assert found["shrinks"][3:7] == ["100", "5", "55", "2s"]
    assert found["idle"][3:7] == ["5", "0", "0", "stuck"]
    documents = {row.sums.channel: row.document for row in view.rows}
    assert documents["grows"]["drain_s"] is None
    assert documents["shrinks"]["drain_s"] == pytest.approx(2.0)


def test_keys_sort_and_end() -> None:
    view = TopView()
    view.note(reading(0, channel("a", 1, 10, 5), channel("b", 2, 20, 1), channel("c", 3, 5)))

    def order() -> str:
        return "".join(row.sums.channel for row in view.sorted_rows())

    assert order() == "cba"
    view.press("n")
    assert order() == "abc"
    view.press("r")
    assert order() == "cba"
    view.press("c")
    assert order() == "abc"
    view.press("x")
    assert not view.is_ended
    view.press("q")
    assert view.is_ended


def test_the_screen_has_at_most_the_lines_of_the_terminal() -> None:
    view = TopView("name")
    view.note(reading(0, *(channel(f"c{number:03}", 1, 1) for number in range(100))))
    for most in (8, 24, 50):
        shown = view.text(most).splitlines()
        assert len(shown) <= most
        assert shown[-1].startswith("q quit")
        assert "more" in shown[-2]
    assert len(view.text(0).splitlines()) == 102


def test_a_counter_that_began_again_has_no_rate() -> None:
    view = TopView()
    view.note(reading(0, channel("a", 1, 10)))
    view.note(reading(1, channel("a", 1, 2)))
    assert lines(view)[2][-6:-3] == ["-", "-", "-"]


def test_a_cluster_without_topics_has_a_line() -> None:
    view = TopView()
    view.note(Reading(0, [("n:1", {"topics": None})], ["nsqd m:1: no answer in time"]))
    assert view.text(24).splitlines()[:3] == [
        "1 nsqd  0 topics  0 channels  waiting 0",
        "nsqd m:1: no answer in time",
        "no topics",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59.9, "59s"),
        (60, "1m"),
        (200, "3m20s"),
        (7200, "2h"),
        (7500, "2h5m"),
        (90000, "1d1h"),
        (-5, "0s"),
        (float("inf"), "never"),
    ],
)
def test_durations_have_two_units(seconds: float, text: str) -> None:
    assert age_text(seconds) == text
