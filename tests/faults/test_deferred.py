"""Deferred messages are delivered on time and once, even over a restart (row 15)."""

import deferred
import pytest
from stage import DISK_ONLY, Stage

MEMORY: tuple[str, ...] = ()
DISK = (DISK_ONLY,)


@pytest.mark.parametrize(
    ("where", "flags"),
    [
        ("channel", MEMORY),
        ("topic", DISK),
        ("requeued", DISK),
        pytest.param("channel", DISK, marks=pytest.mark.slow),
        pytest.param("topic", MEMORY, marks=pytest.mark.slow),
        pytest.param("requeued", MEMORY, marks=pytest.mark.slow),
    ],
)
def test_deferred_messages_are_delivered_on_time_after_a_restart(
    stage: Stage, where: str, flags: tuple[str, ...]
) -> None:
    """Row 15: deferred by DPUB or by REQ, before or after the message reaches the channel."""
    outcome = deferred.restart_with_deferred(stage, where, flags)
    assert (outcome.lost, outcome.duplicated, outcome.foreign) == (0, 0, 0)
    assert outcome.seen["early"] == f"0 of {deferred.COUNT}"
