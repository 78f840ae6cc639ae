"""What a backlog does: its age, whether it drains, and how long that takes."""

import pytest

from nsqx.cluster.flow import Flow
from nsqx.nsqadmin.backlog_state import DRAINING, GROWING, STEADY, BacklogState

STEP_S = 5.0


def judged(depth: int, rates: Flow | None, *, oldest_ms: int | None = None, polls: int = 1) -> BacklogState:
    state = BacklogState()
    for number in range(polls):
        state.judge(depth, oldest_ms, rates, STEP_S, 1000.0 + number * STEP_S)
    return state


def test_without_rates_nothing_is_known_of_a_backlog() -> None:
    assert judged(50, None).fields() == {"oldest_at_s": None, "drain": "", "drain_s": None, "backlog": False}


@pytest.mark.parametrize(
    ("depth", "rates", "state", "drain_s"),
    [
        (0, Flow(5, 5), "", None),
        (1000, Flow(10, 30), DRAINING, 50),
        (1000, Flow(30, 10), GROWING, None),
        (1000, Flow(0, 0), STEADY, None),
        (1000, Flow(100, 101), STEADY, None),
        (40, Flow(101, 100), DRAINING, 0.4),  # less than what leaves in a poll: it is on its way
        (1000, Flow(0.01, 0), STEADY, None),
    ],
)
def test_states(depth: int, rates: Flow, state: str, drain_s: float | None) -> None:
    found = judged(depth, rates)
    assert (found.state, found.drain_s) == (state, drain_s)


def test_one_poll_with_another_rate_does_not_change_the_state() -> None:
    state = judged(1000, Flow(10, 30), polls=10)
    state.judge(1000, None, Flow(60, 30), STEP_S, 1050.0)
    assert state.state == DRAINING
    for number in range(10):
        state.judge(1000, None, Flow(60, 30), STEP_S, 1055.0 + number * STEP_S)
    assert state.state == GROWING


def test_a_backlog_is_old_after_a_minute() -> None:
    assert not judged(5, Flow(1, 1), oldest_ms=59_000).is_backlog
    assert judged(5, Flow(1, 1), oldest_ms=61_000).is_backlog
    assert not judged(0, Flow(1, 1), oldest_ms=61_000).is_backlog, "one message in flight is no backlog"


def test_without_an_age_a_backlog_that_does_not_drain_soon_counts() -> None:
    assert judged(1000, Flow(0, 0)).is_backlog
    assert judged(1000, Flow(0, 10)).is_backlog
    assert not judged(1000, Flow(0, 100)).is_backlog


def test_the_time_of_the_same_message_does_not_move() -> None:
    state = BacklogState()
    state.judge(1, 10_000, None, STEP_S, 1000.0)
    assert state.oldest_at_s == 990
    state.judge(1, 14_300, None, STEP_S, 1005.0)  # the answer took longer
    assert state.oldest_at_s == 990
    state.judge(1, 2_000, None, STEP_S, 1010.0)
    assert state.oldest_at_s == 1008
    state.judge(0, 0, None, STEP_S, 1015.0)
    assert state.oldest_at_s is None


def test_a_topic_is_as_its_worst_channel() -> None:
    topic = judged(0, Flow(9, 0))
    topic.join([judged(1000, Flow(10, 30)), judged(2000, Flow(10, 30), oldest_ms=70_000), judged(0, Flow(1, 1))])
    assert topic.fields() == {"oldest_at_s": 930.0, "drain": DRAINING, "drain_s": 100, "backlog": True}
    topic.join([judged(10, Flow(30, 0))])
    assert (topic.state, topic.drain_s) == (GROWING, None)
