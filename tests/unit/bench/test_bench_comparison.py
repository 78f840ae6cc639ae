"""Rounds in turn, ratios of medians, and what goes into table, JSON and picture."""

import xml.etree.ElementTree as ElementTree

import pytest

from nsqx.bench.brokers import Target
from nsqx.bench.chart import draw
from nsqx.bench.comparison import Comparison, Row, compare, markdown, table
from nsqx.bench.failure import BenchFailed
from nsqx.bench.figures import MILLISECONDS, PER_SECOND, Figure
from nsqx.bench.loads import Limits
from nsqx.bench.workloads import Workload


class Started:
    """A broker that runs for the length of its block."""

    def __init__(self, target):
        self.target = target

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


class Launcher:
    """Starts nothing; notes who was asked, with which flags."""

    is_nsqd = True

    def __init__(self, name, asked):
        self.name = name
        self._asked = asked

    def launch(self, flags, topics):
        self._asked.append((self.name, flags, topics))
        return Started(Target(self.name))


def row(unit, ours, theirs):
    found = Row("r", unit)
    found.ours, found.theirs = ours, theirs
    return found


def test_the_ratio_is_that_of_medians_and_the_spread_that_of_rounds():
    measured = row(PER_SECOND, [10.0, 30.0, 20.0], [10.0, 10.0, 40.0])
    assert measured.ratio() == 2.0
    assert measured.spread() == (0.5, 3.0)
    assert measured.times_better() == (2.0, 0.5, 3.0)


def test_less_is_better_where_it_is_no_rate():
    measured = row(MILLISECONDS, [1.0, 2.0, 4.0], [8.0, 8.0, 8.0])
    assert measured.ratio() == 0.25
    assert measured.times_better() == (4.0, 2.0, 8.0)


def test_cpu_time_is_compared_where_both_have_it():
    measured = Row("r", PER_SECOND)
    measured.add(Figure("r", 1.0, PER_SECOND, 2.0), is_ours=True)
    assert measured.cpu_ratio() is None
    measured.add(Figure("r", 1.0, PER_SECOND, 8.0), is_ours=False)
    assert measured.cpu_ratio() == 0.25


def test_brokers_take_turns_and_the_order_changes():
    asked, told = [], []
    workload = Workload("w", "", ("--flag",), lambda target, _: [Figure("w", len(target.tcp_address), PER_SECOND)])
    runs = [(workload, workload.run)]
    compared = compare(Launcher("us", asked), Launcher("them", asked), runs, Limits(), 3, "nsqx", told.append)
    assert [name for name, _, _ in asked] == ["us", "them", "them", "us", "us", "them"]
    assert all(flags == ("--flag",) for _, flags, _ in asked)
    assert (compared.rows["w"].ours, compared.rows["w"].theirs) == ([2] * 3, [4] * 3)
    assert len(told) == 6


def test_the_peer_may_have_other_flags():
    asked = []
    figure = Figure("w", 1.0, PER_SECOND)
    workload = Workload("w", "", ("--store=log",), lambda *_: [figure], peer_flags=("--sync-every=1",))
    compare(
        Launcher("us", asked), Launcher("them", asked), [(workload, workload.run)], Limits(), 2, "nsqx", lambda _: None
    )
    assert {(name, flags) for name, flags, _ in asked} == {("us", ("--store=log",)), ("them", ("--sync-every=1",))}


def test_a_workload_that_fails_on_one_broker_is_told_and_left_out():
    def run(target, _):
        if target.tcp_address == "them":
            raise BenchFailed("no")
        return [Figure("w", 1.0, PER_SECOND)]

    workload = Workload("w", "", (), run)
    compared = compare(Launcher("us", []), Launcher("them", []), [(workload, run)], Limits(), 1, "nsqx", lambda _: None)
    assert compared.failures == ["w on them: no"]
    assert compared.rows == {}
    assert table(compared).count("\n") == 0


@pytest.fixture
def comparison():
    compared = Comparison("nsqx", "Go nsqd", 2, "nsqx")
    for ours, theirs in ((300.0, 100.0), (100.0, 100.0)):
        compared.add([Figure("fast <&>", ours, PER_SECOND, 1.0), Figure("late", 1.0, MILLISECONDS)], is_ours=True)
        compared.add([Figure("fast <&>", theirs, PER_SECOND, 2.0), Figure("late", 5.0, MILLISECONDS)], is_ours=False)
    return compared


def test_the_table_has_a_line_for_each_figure(comparison):
    lines = table(comparison).splitlines()
    assert len(lines) == 3
    assert lines[1].split() == ["fast", "<&>", "100", "200", "msg/s", "2.00", "1.00-3.00", "0.50"]
    assert lines[2].split() == ["late", "5.000", "1.000", "ms", "0.20", "0.20-0.20"]


def test_the_same_table_for_a_page(comparison):
    lines = markdown(comparison).splitlines()
    assert lines[0] == "|  | Go nsqd | nsqx | unit | ratio | spread | CPU ratio |"
    assert lines[2] == "| fast <&> | 100 | 200 | msg/s | 2.00 | 1.00-3.00 | 0.50 |"


def test_the_json_has_every_figure(comparison):
    found = comparison.as_json()
    assert (found["brokers"], found["rounds"]) == (["nsqx", "Go nsqd"], 2)
    assert found["figures"][0]["ours"] == [300.0, 100.0]
    assert found["figures"][0]["ratio"] == 2.0


def test_the_picture_is_sound_and_knows_dark_pages(comparison):
    picture = draw(comparison)
    root = ElementTree.fromstring(picture)
    bars = root.findall("{http://www.w3.org/2000/svg}rect")
    assert [bar.get("class") for bar in bars] == ["better", "better"]
    # 5 times as good is further from 1 than 2 times.
    assert float(bars[1].get("width")) > float(bars[0].get("width")) > 0
    # One for the legend, one for the row that has CPU times.
    assert len(root.findall("{http://www.w3.org/2000/svg}path")) == 2
    assert "prefers-color-scheme: dark" in picture


def test_a_picture_of_nothing_is_sound():
    ElementTree.fromstring(draw(Comparison("a", "b", 1, "nsqx")))
