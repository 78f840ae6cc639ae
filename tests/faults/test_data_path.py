"""One data directory: only one daemon at a time, and Go's and ours in any order (rows 25 and 31).

Handovers with backlogs, pauses and deferrals are in tests/interop/test_data_directory.py.
"""

import data_path
import pytest
from stage import Stage

from daemons import require_go

CHAINS = [("go", "nsqx", "go"), ("nsqx", "go", "nsqx"), ("nsqx", "nsqx", "nsqx")]


def test_two_at_once(stage: Stage) -> None:
    """Row 25: the second refuses to start and says why; the first does not notice; a crash leaves no lock behind."""
    outcome = data_path.two_at_once(stage)
    assert outcome.seen["refuses"]
    assert outcome.seen["first serves"]
    assert "possibly in use by another instance of nsqd" in outcome.seen["refusal"]


@pytest.mark.parametrize("chain", CHAINS, ids="-".join)
def test_in_turn(stage: Stage, chain: tuple[str, ...]) -> None:
    """Row 31: every message that is not finished comes once, no finished one comes, and nobody complains."""
    if "go" in chain:
        require_go()
    outcome = data_path.hand_over(stage, chain)
    assert (outcome.lost, outcome.duplicated, outcome.foreign) == (0, 0, 0)
    assert outcome.seen["errors"] == []


@pytest.mark.parametrize("chain", [("nsqx", "nsqx"), ("nsqx", "go"), ("go", "nsqx")], ids="-".join)
def test_in_turn_with_crashes(stage: Stage, chain: tuple[str, ...]) -> None:
    """Row 31: what ours had in flight when it was killed is there for the next, be it Go's; duplicates may come."""
    if "go" in chain:
        require_go()
    outcome = data_path.hand_over(stage, chain, crash=True)
    assert (outcome.lost, outcome.foreign) == (0, 0)
    assert outcome.seen["errors"] == []
