"""A full disk loses no acknowledged message, is reported to publishers, and nsqd recovers from it (row 12)."""

import disk_full
import pytest
from stage import QUEUE, Stage

pytestmark = pytest.mark.usefixtures("classic_store")


def test_a_full_disk_refuses_publishes(stage: Stage) -> None:
    """Publishes are refused with the reason while the disk is full and accepted later; no temporary file is left."""
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
def test_requeued_and_timed_out_messages_survive_a_full_disk(stage: Stage, how: str) -> None:
    """Messages in flight are put back although there is no free space."""
    _assert_kept(disk_full.put_back_when_full(stage, how))


def test_due_messages_survive_a_full_disk(stage: Stage) -> None:
    _assert_kept(disk_full.become_due_when_full(stage))


def test_messages_that_cannot_move_to_a_channel_stay_in_the_topic(stage: Stage) -> None:
    """Messages that a topic cannot move to its channel stay in the topic."""
    _assert_kept(disk_full.move_when_full(stage))


def test_an_exit_on_a_full_disk_keeps_messages_in_flight(stage: Stage) -> None:
    """Messages in flight are still on disk. The exit code reports the loss of the refused message."""
    outcome = disk_full.stop_when_full(stage)
    assert (outcome.lost, outcome.foreign) == (0, 0)
    assert outcome.seen["exit"] == 1


def test_an_exit_on_a_full_disk_reports_lost_messages(stage: Stage) -> None:
    outcome = disk_full.stop_with_messages_in_memory(stage, "--shutdown-timeout=200ms", "--shutdown-reserve=0")
    assert outcome.seen == {"exit": 1, "lost by the log": {QUEUE: str(outcome.acked)}}
    assert outcome.lost == outcome.acked


def test_the_exit_waits_for_free_space(stage: Stage) -> None:
    outcome = disk_full.stop_with_messages_in_memory(stage, "--shutdown-reserve=0", makes_room=True)
    assert (outcome.lost, outcome.duplicated) == (0, 0)
    assert outcome.seen == {"exit": 0, "lost by the log": {}}


def test_the_exit_uses_the_reserved_disk_space(stage: Stage) -> None:
    outcome = disk_full.stop_with_messages_in_memory(stage, "--shutdown-timeout=0s", "--shutdown-reserve=262144")
    assert (outcome.lost, outcome.duplicated) == (0, 0)
    assert outcome.seen == {"exit": 0, "lost by the log": {}}


def test_nsqd_dat_is_saved_when_there_is_free_space(stage: Stage) -> None:
    """nsqd.dat is saved when there is free space, without another change."""
    assert disk_full.save_metadata_when_full(stage).seen["nsqd.dat saved when there is room"]


def _assert_kept(outcome: disk_full.Outcome) -> None:
    assert (outcome.lost, outcome.foreign) == (0, 0)
    assert outcome.seen["recovers"]
