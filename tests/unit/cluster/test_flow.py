"""Rates and drain times from the counters of nsqd."""

import math

from nsqx.cluster.flow import Flow, drain_s, flow_between, pending


def counts(messages: int, depth: int, in_flight: int = 0, deferred: int = 0) -> dict[str, int]:
    return {"message_count": messages, "depth": depth, "in_flight_count": in_flight, "deferred_count": deferred}


def test_unfinished_messages_wait_or_are_in_flight_or_deferred() -> None:
    assert pending(counts(10, 3, 2, 1)) == 6
    assert pending({"message_count": 1, "depth": 4}) == 4


def test_messages_leave_when_they_are_finished_and_not_when_they_are_delivered() -> None:
    assert flow_between(counts(100, 10), counts(140, 30), 2.0) == Flow(20.0, 10.0)
    assert flow_between(counts(100, 10), counts(100, 0, in_flight=10), 1.0) == Flow(0.0, 0.0)


def test_counters_that_began_again_have_no_rate() -> None:
    assert flow_between(counts(100, 10), counts(5, 5), 1.0) is None
    assert flow_between(counts(1, 0), counts(1, 0), 0.0) is None


def test_a_channel_that_was_moved_back_has_no_negative_rate() -> None:
    assert flow_between(counts(100, 0), counts(100, 50), 1.0) == Flow(0.0, 0.0)


def test_a_backlog_drains_by_the_difference_of_the_rates() -> None:
    assert drain_s(100, Flow(10.0, 30.0)) == 5.0
    assert drain_s(100, Flow(10.0, 10.0)) == drain_s(1, Flow(5.0, 0.0)) == math.inf
    assert drain_s(0, Flow(10.0, 0.0)) is None
    assert drain_s(5, None) is None
