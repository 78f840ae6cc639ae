"""One data directory: one daemon at a time, and Go's and nsqx's daemons in any order (rows 25 and 31).

Handovers with backlogs, pauses and deferrals are in tests/interop/test_data_directory.py.
"""

import data_path
import pytest
from stage import Stage

from daemons import require_go

pytestmark = pytest.mark.usefixtures("classic_store")

CHAINS = [("go", "nsqx", "go"), ("nsqx", "go", "nsqx"), ("nsqx", "nsqx", "nsqx")]


def test_a_second_nsqd_on_the_same_directory_refuses_to_start(stage: Stage) -> None:
    """Row 25: the second refuses to start with a reason; the first is not affected; a crash leaves no lock behind."""
    outcome = data_path.two_at_once(stage)
    assert outcome.seen["refuses"]
    assert outcome.seen["first serves"]
    assert "possibly in use by another instance of nsqd" in outcome.seen["refusal"]


@pytest.mark.parametrize("chain", CHAINS, ids="-".join)
def test_go_and_nsqx_can_use_a_directory_in_turn(stage: Stage, chain: tuple[str, ...]) -> None:
    """Row 31: every unfinished message is delivered once, no finished one is delivered, and no error is logged."""
    if "go" in chain:
        require_go()
    outcome = data_path.hand_over(stage, chain)
    assert (outcome.lost, outcome.duplicated, outcome.foreign) == (0, 0, 0)
    assert outcome.seen["errors"] == []


@pytest.mark.parametrize("chain", [("nsqx", "nsqx"), ("nsqx", "go"), ("go", "nsqx")], ids="-".join)
def test_go_and_nsqx_can_use_a_directory_in_turn_with_crashes(stage: Stage, chain: tuple[str, ...]) -> None:
    """Row 31: messages in flight at the kill are there for the next daemon, nsqx's or Go's; duplicates are allowed."""
    if "go" in chain:
        require_go()
    outcome = data_path.hand_over(stage, chain, crash=True)
    assert (outcome.lost, outcome.foreign) == (0, 0)
    assert outcome.seen["errors"] == []
