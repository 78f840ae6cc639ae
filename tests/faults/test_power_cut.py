"""What a power cut may cost: nothing that was acknowledged after a sync, and no more than the window (rows 5 and 6)."""

import time
from concurrent.futures import ThreadPoolExecutor

import power_cut
import pytest
from power_cut import END, MOVED, SYNC_EVERY
from stage import DISK_ONLY, QUEUE, TOPIC, Stage, bodies

from daemons import Daemon
from rawclient import OK, RawClient

SLOW_SYNC_MS = 10
TIMED = 60


def test_acknowledged_after_the_sync(stage: Stage) -> None:
    """Row 5: with --sync-every=1 the disk has a message, file names included, before the OK leaves."""
    record = power_cut.sync_always(stage)
    moments = record.moments()
    assert [moment.acked for moment in moments] == list(range(1, 61))
    assert [moment for moment in moments if moment.missing] == []
    for moment in (moments[0], moments[-1]):
        outcome = record.restart_after_cut(moment.line, moment.acked)
        assert (outcome.lost, outcome.foreign) == (0, 0)
        assert "set aside" not in outcome.seen


def test_acknowledged_after_the_sync_over_http(stage: Stage) -> None:
    """Row 5: an answer of HTTP says no more than the disk can keep."""
    moments = power_cut.sync_always_over_http(stage).moments()
    assert [moment.acked for moment in moments] == list(range(1, 31))
    assert [moment for moment in moments if moment.missing] == []


def test_syncs_are_joined(stage: Stage) -> None:
    """Row 5: publishers who wait at the same time share a sync, and each message is on the disk in the end."""
    record = power_cut.sync_always_for_many(stage)
    assert 1 <= record.sync_count() <= 50
    outcome = record.restart_after_cut(END, 200)
    assert (outcome.lost, outcome.foreign) == (0, 0)


def test_window_by_count(stage: Stage) -> None:
    """Row 5: at no moment are more than --sync-every acknowledged messages missing on the disk."""
    moments = power_cut.sync_by_count(stage).moments()
    assert [moment.acked for moment in moments] == [250, 500, 750, 1000]
    assert [moment for moment in moments if moment.missing > SYNC_EVERY] == []


def test_window_by_time(stage: Stage) -> None:
    """Rows 5, 6: when --sync-timeout is over everything is durable, the names of new and renamed files too."""
    record = power_cut.sync_by_time(stage)
    assert record.missing_at_end() == 0
    files = record.disk(END).after_power_cut()
    assert {"nsqd.dat", f"{QUEUE}.diskqueue.meta.dat"} <= set(files)
    assert TOPIC.encode() in files["nsqd.dat"]
    # Checksums vouch for themselves, so nobody waits for theirs to be durable.
    empty = [name for name, content in files.items() if not content and not name.endswith(".crc")]
    assert not empty, "a name is durable before its content"
    outcome = record.restart_after_cut(END, 100)
    assert (outcome.lost, outcome.duplicated, outcome.foreign) == (0, 0, 0)
    assert dict(outcome.seen) == {}


def test_zeros_at_the_end(stage: Stage) -> None:
    """Rows 5, 7: a file whose length is kept and whose bytes are not costs nothing that was synced."""
    record = power_cut.half_synced(stage)
    outcome = record.restart_after_cut(END, 100, with_zeros=True)
    assert (outcome.lost, outcome.duplicated, outcome.foreign) == (0, 0, 0)
    assert "depth after restart" not in outcome.seen


def test_on_the_way_to_a_channel(stage: Stage) -> None:
    """Row 5: a message that was durable in the topic stays so while it moves to the channel."""
    record = power_cut.topic_to_channel(stage)
    lines = record.lines()
    assert len(lines) > 10
    assert record.syncs_that_lose() == []
    for line in (lines[0], lines[len(lines) // 2], lines[-1]):
        outcome = record.restart_after_cut(line, MOVED)
        assert (outcome.lost, outcome.foreign) == (0, 0), f"cut after line {line} of the trace"


def test_on_the_way_to_a_channel_while_publishing(stage: Stage) -> None:
    """Row 34: the same while syncs are slow and uneven, and publishers go on."""
    record = power_cut.topic_to_channel_while_publishing(stage)
    assert len(record.lines()) > 5
    assert record.syncs_that_lose() == []


def test_no_answer_before_the_sync(stage: Stage) -> None:
    """Row 35: with --sync-every=1 no OK comes sooner than one sync takes, however many publishers there are."""
    daemon = stage.nsqd(DISK_ONLY, "--sync-every=1", env={"NSQX_FAILPOINTS": f"data.sync=delay:{SLOW_SYNC_MS}@1+"})
    daemon.post("/topic/create", topic=TOPIC)
    with ThreadPoolExecutor(8) as pool:
        times_s = [time_s for found in pool.map(publish_and_time, [daemon] * 8) for time_s in found]
    assert len(times_s) == 8 * TIMED
    assert min(times_s) >= SLOW_SYNC_MS / 1000


def publish_and_time(daemon: Daemon) -> list[float]:
    """Publish one by one; how long each OK took."""
    times_s = []
    with RawClient(daemon.tcp_address) as client:
        for body in bodies("timed", TIMED):
            began_s = time.monotonic()
            assert client.pub(TOPIC, body) == OK
            times_s.append(time.monotonic() - began_s)
    return times_s


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_anywhere_on_the_way_to_a_channel(stage: Stage) -> None:
    """Row 5: the same after every sync, with restarts."""
    record = power_cut.topic_to_channel(stage)
    lost = {line: record.restart_after_cut(line, MOVED).lost for line in record.lines()}
    assert [line for line, count in lost.items() if count] == []
