"""Losses of a power cut: no message acknowledged after a sync, and at most the sync window (rows 5 and 6)."""

import random
import time
from concurrent.futures import ThreadPoolExecutor

import power_cut
import pytest
from disk_model import NOTHING, SIZE_ONLY
from log_power_cut import LogLost, LogRecording
from power_cut import END, MOVED, SYNC_EVERY
from seeds import NEW_SEED, QUICK_SEED
from stage import DISK_ONLY, QUEUE, TOPIC, Stage, bodies

from daemons import Daemon
from rawclient import OK, RawClient

pytestmark = pytest.mark.usefixtures("classic_store")

SLOW_SYNC_MS = 10
TIMED = 60


def test_with_sync_every_1_an_ok_follows_the_sync(stage: Stage) -> None:
    """Row 5: with --sync-every=1 the disk has a message, including its file name, before the OK is sent."""
    record = power_cut.sync_always(stage)
    moments = record.moments()
    assert [moment.acked for moment in moments] == list(range(1, 61))
    assert [moment for moment in moments if moment.missing] == []
    assert record.cut_at_random(random.Random(QUICK_SEED), 50) == [], f"NSQX_SEED={QUICK_SEED}"
    for moment in (moments[0], moments[-1]):
        outcome = record.restart_after_cut(moment.line, moment.acked)
        assert (outcome.lost, outcome.foreign) == (0, 0)
        assert "set aside" not in outcome.seen


def test_with_sync_every_1_an_ok_over_http_follows_the_sync(stage: Stage) -> None:
    """Row 5: an OK over HTTP is sent only after the disk has the message."""
    moments = power_cut.sync_always_over_http(stage).moments()
    assert [moment.acked for moment in moments] == list(range(1, 31))
    assert [moment for moment in moments if moment.missing] == []


def test_publishers_share_syncs(stage: Stage) -> None:
    """Row 5: publishers that wait at the same time share a sync, and each message is on disk afterwards."""
    record = power_cut.sync_always_for_many(stage)
    assert 1 <= record.sync_count() <= 50
    outcome = record.restart_after_cut(END, 200)
    assert (outcome.lost, outcome.foreign) == (0, 0)


def test_at_most_sync_every_messages_are_not_durable(stage: Stage) -> None:
    """Row 5: at most --sync-every acknowledged messages are missing on disk at any time."""
    moments = power_cut.sync_by_count(stage).moments()
    assert [moment.acked for moment in moments] == [250, 500, 750, 1000]
    assert [moment for moment in moments if moment.missing > SYNC_EVERY] == []


def test_everything_is_durable_after_sync_timeout(stage: Stage) -> None:
    """Rows 5, 6: after --sync-timeout everything is durable, including the names of new and renamed files."""
    record = power_cut.sync_by_time(stage)
    assert record.missing_at_end() == 0
    files = record.disk(END).after_power_cut().files
    assert {"nsqd.dat", f"{QUEUE}.diskqueue.meta.dat"} <= set(files)
    assert TOPIC.encode() in files["nsqd.dat"]
    # Sidecars have their own checksums and need not be durable.
    empty = [name for name, content in files.items() if not content and not name.endswith(".crc")]
    assert not empty, "a name is durable before its content"
    outcome = record.restart_after_cut(END, 100)
    assert (outcome.lost, outcome.duplicated, outcome.foreign) == (0, 0, 0)
    assert dict(outcome.seen) == {}


def test_zeros_at_the_end_of_a_file_lose_no_synced_message(stage: Stage) -> None:
    """Rows 5, 7: a file that keeps its length but not its bytes loses no synced message."""
    record = power_cut.half_synced(stage)
    outcome = record.restart_after_cut(END, 100, SIZE_ONLY)
    assert (outcome.lost, outcome.duplicated, outcome.foreign) == (0, 0, 0)
    assert "depth after restart" not in outcome.seen


def test_a_power_cut_during_a_move_loses_nothing(stage: Stage) -> None:
    """Row 5: a message that was durable in the topic stays durable while it moves to the channel."""
    record = power_cut.topic_to_channel(stage)
    lines = record.lines()
    assert len(lines) > 10
    assert record.syncs_that_lose() == []
    for line in (lines[0], lines[len(lines) // 2], lines[-1]):
        outcome = record.restart_after_cut(line, MOVED)
        assert (outcome.lost, outcome.foreign) == (0, 0), f"cut after line {line} of the trace"


def test_a_power_cut_during_a_move_and_publishes_loses_nothing(stage: Stage) -> None:
    """Row 34: the same with slow syncs of different duration and with publishers."""
    record = power_cut.topic_to_channel_while_publishing(stage)
    assert len(record.lines()) > 5
    assert record.syncs_that_lose() == []


def test_no_ok_comes_before_the_sync(stage: Stage) -> None:
    """Row 35: with --sync-every=1 no OK comes before one sync has ended, however many publishers there are."""
    daemon = stage.nsqd(DISK_ONLY, "--sync-every=1", env={"NSQX_FAILPOINTS": f"data.sync=delay:{SLOW_SYNC_MS}@1+"})
    daemon.post("/topic/create", topic=TOPIC)
    with ThreadPoolExecutor(8) as pool:
        times_s = [time_s for found in pool.map(publish_and_time, [daemon] * 8) for time_s in found]
    assert len(times_s) == 8 * TIMED
    assert min(times_s) >= SLOW_SYNC_MS / 1000


def publish_and_time(daemon: Daemon) -> list[float]:
    """Publish one by one; return how long each OK took."""
    times_s = []
    with RawClient(daemon.tcp_address) as client:
        for body in bodies("timed", TIMED):
            began_s = time.monotonic()
            assert client.pub(TOPIC, body) == OK
            times_s.append(time.monotonic() - began_s)
    return times_s


@pytest.mark.parametrize("durability", ["fsync", "write"])
def test_a_power_cut_of_topic_logs_loses_nothing_durable(stage: Stage, durability: str) -> None:
    """Row 5: with fsync every acknowledged message is durable, with write those before the last sync."""
    record = LogRecording(stage, durability, random.Random(QUICK_SEED), 60)
    assert record.message_count > 500
    try:
        record.cut(8)
    except LogLost as failure:
        raise AssertionError(f"{failure}, NSQX_SEED={QUICK_SEED}") from failure


def test_nsqd_delivers_everything_after_a_power_cut_of_its_logs(stage: Stage) -> None:
    """Row 5: with fsync all messages are delivered, even if nothing of the unsynced changes survives."""
    LogRecording(stage, "fsync", random.Random(QUICK_SEED), 20).restart(stage, NOTHING)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("durability", ["fsync", "write"])
def test_many_power_cuts_of_topic_logs(stage: Stage, durability: str) -> None:
    """Row 5: the same at many more calls."""
    record = LogRecording(stage, durability, random.Random(NEW_SEED), 300)
    record.cut(500)
    assert record.cut_count > 400
    assert record.removal_count > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_any_part_of_the_unsynced_changes(stage: Stage) -> None:
    """Row 5: with --sync-every=1 no power cut loses an acknowledged message, whatever survives of unsynced changes."""
    record = power_cut.sync_always(stage)
    assert record.cut_at_random(random.Random(NEW_SEED), 2000) == [], f"NSQX_SEED={NEW_SEED}"


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_power_cut_after_every_sync_of_a_move_loses_nothing(stage: Stage) -> None:
    """Row 5: the same after every sync, with restarts."""
    record = power_cut.topic_to_channel(stage)
    lost = {line: record.restart_after_cut(line, MOVED).lost for line in record.lines()}
    assert [line for line, count in lost.items() if count] == []
