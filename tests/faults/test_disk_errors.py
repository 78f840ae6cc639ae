"""A disk that cannot confirm is not trusted; descriptors that are missing for a while cost nothing (rows 13 and 14)."""

import disk_errors
import pytest
from disk_errors import SYNC_ALWAYS, SYNC_SOON
from stage import Stage


@pytest.mark.parametrize("flags", [SYNC_ALWAYS, SYNC_SOON], ids=["sync-every=1", "default"])
def test_failing_fsync(stage: Stage, flags: tuple[str, ...]) -> None:
    """Row 13: while fsync fails nsqd is not healthy and refuses publishes; then it is and takes them."""
    outcome = disk_errors.publish_while_fsync_fails(stage, flags)
    assert outcome.seen["accepted"] == 0
    assert outcome.seen["ping"] == 500
    assert outcome.seen["refusal"].startswith("E_PUB_FAILED PUB failed")
    assert outcome.seen["recovers"]
    assert outcome.seen["ping after"] == 200
    assert (outcome.lost, outcome.foreign) == (0, 0)
    if flags == SYNC_ALWAYS:
        assert not outcome.seen["first accepted"], "acknowledged before, or without, its sync"


def test_descriptor_of_a_failed_fsync(stage: Stage) -> None:
    """Row 13: nothing counts as durable because a later fsync of the same file went well."""
    outcome = disk_errors.trust_after_a_failed_fsync(stage)
    assert outcome.seen["refused"] >= 1
    assert (outcome.lost, outcome.foreign) == (0, 0)


def test_reading_without_descriptors(stage: Stage) -> None:
    """Row 14: the read is tried again, no file is set aside, nothing is lost."""
    outcome = disk_errors.read_without_descriptors(stage)
    assert (outcome.lost, outcome.foreign) == (0, 0)
    assert dict(outcome.seen) == {}


def test_writing_without_descriptors(stage: Stage) -> None:
    """Row 14: what cannot be written is refused, and what was acknowledged is there."""
    outcome = disk_errors.write_without_descriptors(stage)
    assert outcome.seen["accepted"] < 60
    assert outcome.seen["recovers"]
    assert (outcome.lost, outcome.foreign) == (0, 0)
    assert "set aside" not in outcome.seen


def test_connecting_without_descriptors(stage: Stage) -> None:
    """Row 14: clients that are there are served, others when there is room; the log does not run over."""
    outcome = disk_errors.connect_without_descriptors(stage)
    assert outcome.seen["served"]
    assert outcome.seen["accepted after"]
    assert outcome.seen["bytes logged"] < 20_000
