"""A failed sync is reported and not trusted later; a temporary lack of descriptors loses nothing (rows 13 and 14)."""

import disk_errors
import pytest
from disk_errors import SYNC_ALWAYS, SYNC_SOON
from stage import Stage

pytestmark = pytest.mark.usefixtures("classic_store")


@pytest.mark.parametrize("flags", [SYNC_ALWAYS, SYNC_SOON], ids=["sync-every=1", "default"])
def test_publishes_are_refused_while_fsync_fails(stage: Stage, flags: tuple[str, ...]) -> None:
    """Row 13: while fsync fails, nsqd is unhealthy and refuses publishes; afterwards it recovers."""
    outcome = disk_errors.publish_while_fsync_fails(stage, flags)
    assert outcome.seen["accepted"] == 0
    assert outcome.seen["ping"] == 500
    assert outcome.seen["refusal"].startswith("E_PUB_FAILED PUB failed")
    assert outcome.seen["recovers"]
    assert outcome.seen["ping after"] == 200
    assert (outcome.lost, outcome.foreign) == (0, 0)
    if flags == SYNC_ALWAYS:
        assert not outcome.seen["first accepted"], "acknowledged without a successful sync"


def test_a_later_fsync_does_not_confirm_data_of_a_failed_one(stage: Stage) -> None:
    """Row 13: no data counts as durable because a later fsync of the same file succeeded."""
    outcome = disk_errors.trust_after_a_failed_fsync(stage)
    assert outcome.seen["refused"] >= 1
    assert (outcome.lost, outcome.foreign) == (0, 0)


def test_a_lack_of_descriptors_delays_reads(stage: Stage) -> None:
    """Row 14: the read is retried, no file is set aside, and nothing is lost."""
    outcome = disk_errors.read_without_descriptors(stage)
    assert (outcome.lost, outcome.foreign) == (0, 0)
    assert dict(outcome.seen) == {}


def test_a_lack_of_descriptors_refuses_publishes(stage: Stage) -> None:
    """Row 14: publishes that cannot be written are refused, and acknowledged ones are kept."""
    outcome = disk_errors.write_without_descriptors(stage)
    assert outcome.seen["accepted"] < 60
    assert outcome.seen["recovers"]
    assert (outcome.lost, outcome.foreign) == (0, 0)
    assert "set aside" not in outcome.seen


def test_a_lack_of_descriptors_delays_new_connections(stage: Stage) -> None:
    """Row 14: existing clients are served, new ones later; the log is not flooded."""
    outcome = disk_errors.connect_without_descriptors(stage)
    assert outcome.seen["served"]
    assert outcome.seen["accepted after"]
    assert outcome.seen["bytes logged"] < 20_000
