"""The history beyond the last polls: coarser points, restarts, gaps, and its file."""

import asyncio
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nsqx.log import INFO, Log
from nsqx.nsqadmin import history_file
from nsqx.nsqadmin.cluster_stats import ClusterStats
from nsqx.nsqadmin.history_file import HistoryFile
from nsqx.nsqadmin.long_history import (
    NSQADMIN_STOPPED,
    HistoryEvent,
    HistoryStretch,
    LongHistory,
    Tier,
    event_documents,
    join,
    tiers_for,
)
from nsqx.nsqadmin.subject import CHANNEL_SERIES, TOPIC_SERIES

DEPTH, RATE = CHANNEL_SERIES.index("depth"), CHANNEL_SERIES.index("rate")
HOUR_S, DAY_S = 3600.0, 86400.0


def channel(name: str, **changes: Any) -> dict[str, Any]:
    fields = ("depth", "backend_depth", "in_flight_count", "deferred_count", "message_count")
    counts = dict.fromkeys((*fields, "requeue_count", "timeout_count", "client_count"), 0)
    return {"channel_name": name, "paused": False, **counts, **changes}


def topic(name: str, *channels: dict[str, Any], **changes: Any) -> dict[str, Any]:
    counts = dict.fromkeys(("depth", "backend_depth", "message_count"), 0)
    return {"topic_name": name, "channels": list(channels), "paused": False, **counts, **changes}


class Day:
    """A history that remembers 10 polls, one every 5 s, and has a point for every 50 s and every 500 s."""

    def __init__(self, tiers: Sequence[tuple[float, float]] = ((36_000.0, 5.0), (360_000.0, 100.0))) -> None:
        self.stats = ClusterStats(100)
        self.history = LongHistory(
            self.stats,
            [Tier.of(*each) for each in tiers],
            500.0,
            topic_series=TOPIC_SERIES,
            channel_series=CHANNEL_SERIES,
        )
        self.now_s = 10_000.0

    async def poll(self, *topics: dict[str, Any], step_s: float = 5.0) -> None:
        self.now_s += step_s
        self.stats.open()
        self.stats.add_node("a:1", list(topics), self.now_s)
        self.stats.close({"a:1"}, self.now_s)
        await self.history.advance()

    async def depths(self, *depths: int) -> None:
        for depth in depths:
            await self.poll(topic("t", channel("c", depth=depth)))

    def span(self, span_s: float, key: tuple[str, str] = ("t", "c")) -> list[tuple[float, float | None]]:
        """Return the times, in seconds since the first poll, and the depths."""
        subject = self.stats.topics.get(key[0])
        found = subject.channels.get(key[1]) if subject is not None and key[1] else subject
        times_s, series = join(self.history.span(found, key, span_s, self.now_s), len(self.history.series_of(key)), 15)
        return list(zip([round(time_s - 10_005, 3) for time_s in times_s], series[DEPTH], strict=True))


def test_the_tiers_of_a_window() -> None:
    assert tiers_for(HOUR_S, HOUR_S, 5) == []
    (day,) = tiers_for(DAY_S, HOUR_S, 5)
    assert (day.step_s, day.clock.capacity) == (120, 721)
    day, weeks = tiers_for(14 * DAY_S, HOUR_S, 5)
    assert (day.step_s, weeks.step_s, weeks.clock.capacity) == (120, 1680, 721)
    (short,) = tiers_for(1.5 * HOUR_S, HOUR_S, 5)
    assert short.step_s == 10, "a point has at least two polls"
    (slow,) = tiers_for(10 * DAY_S, 30 * DAY_S / 4, 900)
    assert slow.step_s * slow.clock.capacity >= 10 * DAY_S


async def test_points_have_the_mean_of_rates_and_the_largest_depth() -> None:
    day = Day([(36_000.0, 5.0)])
    for number in range(23):
        depth = 900 if number == 3 else 1
        await day.poll(topic("t", channel("c", depth=depth, message_count=100 * number), message_count=100 * number))
    tier = day.history.tiers[0]
    assert [tier.clock.time_s(number) - 10_005 for number in tier.clock.range()] == [50, 105]
    track = tier.tracks["t", "c"]
    assert track.series(DEPTH, tier.clock.range()) == [900, 1]
    assert track.series(RATE, tier.clock.range()) == [pytest.approx(20 * 10 / 11, rel=1e-5), 20]


async def test_a_short_span_has_polls_and_a_long_one_has_points() -> None:
    day = Day()
    await day.depths(*range(200))
    assert day.span(60)[-3:] == [(985, 197), (990, 198), (995, 199)]
    long = day.span(5000)
    assert long[:2] == [(50, 10), (105, 21)]
    assert long[-1] == (995, 199), "the points that are not complete come from the polls"
    assert len(long) < 40
    longest = day.span(300_000)
    assert longest[0][0] > 500
    assert len(longest) < 110


async def test_polls_continue_what_the_points_begin() -> None:
    day = Day()
    await day.depths(*range(150))
    times_s = [time_s for time_s, _ in day.span(600)]
    assert times_s == sorted(times_s)
    assert times_s[-1] - times_s[0] > 500, "the first polls are forgotten, so points stand for them"


async def test_a_coarser_tier_is_made_of_points() -> None:
    day = Day()
    await day.depths(*range(300))
    fine, coarse = day.history.tiers
    assert fine.clock.number > 20
    assert 1 <= coarse.clock.number <= 3
    values = coarse.tracks["t", "c"].series(DEPTH, coarse.clock.range())
    assert values == sorted(value for value in values if value is not None)


async def test_a_topic_that_comes_and_goes_has_gaps() -> None:
    day = Day([(36_000.0, 5.0)])
    await day.depths(*[5] * 30)
    for _ in range(30):
        await day.poll()
    await day.depths(*[7] * 30)
    depths = [depth for _, depth in day.span(5000)]
    assert [depth for index, depth in enumerate(depths) if index == 0 or depths[index - 1] != depth] == [5, None, 7]


async def test_a_deleted_topic_is_kept_and_ephemeral_ones_are_not() -> None:
    day = Day()
    for _ in range(30):
        await day.poll(
            topic("t", channel("c", depth=3), channel("x#ephemeral", depth=1)), topic("y#ephemeral", depth=1)
        )
    assert set(day.history.tiers[0].tracks) == {("t", ""), ("t", "c")}
    for _ in range(120):
        await day.poll()
    assert "t" not in day.stats.topics
    assert (50, 3) in day.span(5000)


async def test_old_points_are_forgotten() -> None:
    day = Day([(500.0, 50.0)])
    await day.depths(*[1] * 20)
    for _ in range(200):
        await day.poll(topic("other"))
    assert set(day.history.tiers[0].tracks) == {("other", "")}


async def test_an_idle_topic_takes_nearly_no_memory() -> None:
    day = Day()
    for _ in range(30):
        await day.poll(topic("t", channel("c")))
    assert day.history.size_bytes == 0
    assert day.span(5000)[0] == (50, 0)


async def test_restarts_are_events() -> None:
    day = Day()
    history = day.history
    history.note_start("a:1", 100.0, 200.0)
    history.note_start("a:1", 100.0, 300.0)
    history.note_start("a:1", 350.0, 400.0)
    history.note_start("a:1", 351.0, 400.0)
    history.note_start("b:1", 390.0, 400.0)
    history.note_stop(420.0, 480.0)
    history.note_stop(0.0, 490.0)
    assert event_documents(history.events, {"a:1"}, 0) == [
        {"kind": "nsqd_started", "time_s": 350.0, "until_s": 350.0, "node": "a:1"},
        {"kind": "nsqd_started", "time_s": 351.0, "until_s": 351.0, "node": "a:1"},
        {"kind": "nsqadmin_stopped", "time_s": 420.0, "until_s": 480.0, "node": ""},
    ]
    assert event_documents(history.events, (), 0)[0]["kind"] == "nsqadmin_stopped"
    assert event_documents(history.events, {"a:1"}, 470)[0]["time_s"] == 420
    assert event_documents(history.events, {"a:1"}, 480) == []


def test_a_stop_of_nsqadmin_is_a_gap_between_coarse_points() -> None:
    coarse = HistoryStretch(100.0, [100.0, 200.0, 300.0], [[1, 2, 3]])
    stop = HistoryEvent(NSQADMIN_STOPPED, 210.0, 290.0)
    assert join([coarse], 1, 15.0) == ([100, 200, 300], [[1, 2, 3]])
    assert join([coarse], 1, 15.0, [stop]) == ([100, 200, 200.001, 300], [[1, 2, None, 3]])
    assert join([coarse], 1, 15.0, [stop._replace(until_s=220.0)])[0] == [100, 200, 300], "shorter than a gap"


class Disk:
    """A file of the history and the log of its owner."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "state" / "history.json"
        self.lines = io.StringIO()
        self.file = HistoryFile(str(self.path), Log("", INFO, self.lines))


async def saved(directory: Path, depths: Sequence[int] = range(150)) -> tuple[Disk, Day]:
    disk, day = Disk(directory), Day()
    await day.depths(*depths)
    day.history.note_start("a:1", 9000.0, day.now_s)
    day.history.note_start("a:1", 10_100.0, day.now_s)
    await day.history.advance(is_last=True)
    await disk.file.save(day.history, day.now_s)
    return disk, day


async def test_the_history_continues_after_a_restart(tmp_path: Path) -> None:
    disk, before = await saved(tmp_path)
    after = Day()
    assert await disk.file.load(after.history) == before.now_s
    after.now_s = before.now_s + 300
    after.history.note_stop(before.now_s, after.now_s)
    await after.depths(*[7] * 40)
    depths = after.span(5000)
    assert depths[0] == (50, 10)
    assert (745, 149) in depths, "the points that were not complete at the exit"
    assert [depth for time_s, depth in depths if 745 < time_s < 1045] == [None], "a gap"
    assert depths[-1][1] == 7
    kinds = [each.kind for each in after.history.events]
    assert kinds == ["nsqd_started", "nsqadmin_stopped"]
    assert after.history.started_s == {"a:1": 10_100.0}
    assert disk.lines.getvalue() == ""
    assert after.history.tiers[0].clock.number > before.history.tiers[0].clock.number


async def test_a_tier_of_another_resolution_begins_empty(tmp_path: Path) -> None:
    disk, _ = await saved(tmp_path)
    other = Day([(36_000.0, 5.0), (720_000.0, 100.0)])
    assert await disk.file.load(other.history)
    assert other.history.tiers[0].tracks
    assert not other.history.tiers[1].tracks
    await other.depths(*[1] * 30)
    assert other.history.tiers[1].clock.number < 0, "points from before the restart are not joined into one"
    different = Day([(7200.0, 5.0)])
    assert await disk.file.load(different.history)
    assert not different.history.tiers[0].tracks
    assert len(different.history.events) == 1


async def test_every_damage_is_found_and_the_file_is_set_aside(tmp_path: Path) -> None:
    disk, _ = await saved(tmp_path, range(40))
    good = disk.path.read_bytes()
    places = [*range(40), *range(40, len(good), max(1, len(good) // 60))]
    for place in places:
        disk = Disk(tmp_path)
        disk.path.write_bytes(good[:place] + bytes([good[place] ^ 0x40]) + good[place + 1 :])
        day = Day()
        assert await disk.file.load(day.history) == 0
        assert disk.lines.getvalue().count("\n") == 1, place
        assert "invalid history" in disk.lines.getvalue()
        assert [each.name for each in disk.path.parent.iterdir()] == ["history.json.invalid"]
        assert not day.history.events
        await day.depths(*range(30))
        assert day.span(5000)[0] == (50, 10)
    for size in (0, 5, 16, 30, len(good) // 2, len(good) - 1):
        disk = Disk(tmp_path)
        disk.path.write_bytes(good[:size])
        day = Day()
        assert await disk.file.load(day.history) == 0
        assert "invalid history" in disk.lines.getvalue()


async def test_the_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, day = Disk(tmp_path), Day([(36_000.0, 5.0)])
    for number in range(25):
        await day.poll(*(topic(f"t{each}", depth=number * each) for each in range(500)))
    await disk.file.save(day.history, day.now_s)
    whole = disk.path.stat().st_size
    monkeypatch.setattr(history_file, "MAX_FILE_SIZE", whole // 2)
    for _ in range(2):
        await disk.file.save(day.history, day.now_s)
    assert disk.path.stat().st_size <= whole // 2 + 1000
    assert disk.lines.getvalue().count("the history of some topics is kept in memory only") == 1
    monkeypatch.undo()
    after = Day([(36_000.0, 5.0)])
    assert await disk.file.load(after.history)
    assert 0 < len(after.history.tiers[0].tracks) < 500


async def test_a_file_that_cannot_be_written_is_reported_once(tmp_path: Path) -> None:
    disk, day = await saved(tmp_path)
    disk.path.unlink()
    disk.path.parent.rmdir()
    disk.path.parent.write_text("not a directory")
    for _ in range(2):
        await disk.file.save(day.history, day.now_s)
    assert disk.lines.getvalue().count("cannot write the history") == 1
    assert await disk.file.load(day.history) == 0


async def test_without_a_path_nothing_is_stored(tmp_path: Path) -> None:
    day = Day()
    file = HistoryFile("", Log("", INFO, io.StringIO()))
    await file.save(day.history, 1.0)
    assert await file.load(day.history) == 0


async def test_points_are_added_between_other_work() -> None:
    day = Day([(36_000.0, 5.0)])
    for number in range(11):
        day.now_s += 5
        day.stats.open()
        day.stats.add_node("a:1", [topic(f"t{each}", depth=number) for each in range(1000)], day.now_s)
        day.stats.close({"a:1"}, day.now_s)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(count())
    await day.history.advance()
    other.cancel()
    assert len(day.history.tiers[0].tracks) == 1000
    assert turns >= 10
