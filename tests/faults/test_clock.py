"""A wall clock that is set back delays nothing (row 23)."""

import clocks
from stage import Stage


def test_a_clock_set_back_delays_nothing(stage: Stage) -> None:
    """Publishing does not wait, ids stay unique and increasing, and deadlines use the monotonic clock."""
    assert clocks.set_back(stage).seen == {
        "clock was moved": True,
        "ids are unique": True,
        "ids grow": True,
        "deadlines hold": True,
    }


def test_a_clock_set_back_during_a_restart_loses_no_message(stage: Stage) -> None:
    """Messages on disk with ids from the future, and new messages, are each delivered once."""
    outcome = clocks.set_back_over_a_restart(stage)
    assert (outcome.lost, outcome.duplicated, outcome.foreign) == (0, 0, 0)
