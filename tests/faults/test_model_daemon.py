"""nsqd under random use over several restarts, most of them after a failpoint: no acknowledged message is lost.

NSQX_SEED repeats the run of one seed.
"""

import pytest
from daemon_model import run_daemon_seed
from seeds import IS_GIVEN, NEW_SEED, QUICK_SEED
from stage import Stage

QUICK, MANY = (1, 0) if IS_GIVEN else (2, 40)


@pytest.mark.parametrize("number", range(QUICK))
def test_several_restarts_lose_nothing(stage: Stage, number: int) -> None:
    run_daemon_seed(stage, QUICK_SEED + number)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(QUICK, QUICK + MANY))
def test_many_restarts_lose_nothing(stage: Stage, number: int) -> None:
    run_daemon_seed(stage, NEW_SEED + number)
