"""A full disk costs nothing that was acknowledged, is told to whoever publishes, and is got over (row 12)."""

import disk_full
import pytest
from stage import QUEUE, Stage


def test_publishing(stage: Stage) -> None:
    """Publishes are refused with the reason while the disk is full, nothing lies around, and then they are not."""
    outcome = disk_full.publish_when_full(stage)
    assert (outcome.lost, outcome.duplicated, outcome.foreign) == (0, 0, 0)
    assert outcome.seen["refused"].startswith("E_PUB_FAILED PUB failed")
    assert "no space left on device" in outcome.seen["refused"].lower()
    assert outcome.seen["accepted while full"] == 0
    assert (outcome.seen["ping while full"], outcome.seen["HTTP while full"]) == (500, 503)
    assert outcome.seen["temporary files"] == 0
    assert outcome.seen["recovers"]
    assert outcome.seen["ping after"] == 200


@pytest.mark.parametrize("how", ["requeued", "timed out"])
def test_messages_that_come_back(stage: Stage, how: str) -> None:
    """What was in flight is put back although there is no room for it."""
    _assert_kept(disk_full.put_back_when_full(stage, how))


def test_deferred_messages_that_become_due(stage: Stage) -> None:
    _assert_kept(disk_full.become_due_when_full(stage))


def test_messages_on_the_way_to_a_channel(stage: Stage) -> None:
    """What a topic cannot give to its channel stays in the topic."""
    _assert_kept(disk_full.move_when_full(stage))


def test_exit(stage: Stage) -> None:
    """Messages in flight are still where they were read from. The exit code tells that a refused message is lost."""
    outcome = disk_full.stop_when_full(stage)
    assert (outcome.lost, outcome.foreign) == (0, 0)
    assert outcome.seen["exit"] == 1


def test_exit_with_messages_in_memory_tells_how_many_are_lost(stage: Stage) -> None:
    outcome = disk_full.stop_with_messages_in_memory(stage, "--shutdown-timeout=200ms", "--shutdown-reserve=0")
    assert outcome.seen == {"exit": 1, "lost by the log": {QUEUE: str(outcome.acked)}}
    assert outcome.lost == outcome.acked


def test_exit_waits_for_room(stage: Stage) -> None:
    outcome = disk_full.stop_with_messages_in_memory(stage, "--shutdown-reserve=0", makes_room=True)
    assert (outcome.lost, outcome.duplicated) == (0, 0)
    assert outcome.seen == {"exit": 0, "lost by the log": {}}


def test_exit_uses_the_disk_space_reserved_for_it(stage: Stage) -> None:
    outcome = disk_full.stop_with_messages_in_memory(stage, "--shutdown-timeout=0s", "--shutdown-reserve=262144")
    assert (outcome.lost, outcome.duplicated) == (0, 0)
    assert outcome.seen == {"exit": 0, "lost by the log": {}}


def test_metadata(stage: Stage) -> None:
    """nsqd.dat is saved when there is room, without another change to wait for."""
    assert disk_full.save_metadata_when_full(stage).seen["nsqd.dat saved when there is room"]


def _assert_kept(outcome: disk_full.Outcome) -> None:
    assert (outcome.lost, outcome.foreign) == (0, 0)
    assert outcome.seen["recovers"]
