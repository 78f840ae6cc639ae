"""A wall clock that is set back holds up nothing (row 23)."""

import clocks
from stage import Stage


def test_set_back(stage: Stage) -> None:
    """Publishing does not wait, ids stay unique and growing, and deadlines go by the clock that cannot be set."""
    assert clocks.set_back(stage).seen == {
        "clock was moved": True,
        "ids are unique": True,
        "ids grow": True,
        "deadlines hold": True,
    }


def test_set_back_over_a_restart(stage: Stage) -> None:
    """Messages on disk with ids from the future, and new ones: each comes once."""
    outcome = clocks.set_back_over_a_restart(stage)
    assert (outcome.lost, outcome.duplicated, outcome.foreign) == (0, 0, 0)
