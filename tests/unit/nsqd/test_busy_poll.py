"""Staying awake only while it pays."""

import pytest

from nsqx.nsqd.busy_poll import MAX_CREDIT, MISS_COST, POLL_NS, REST_COMMANDS, BusyPoll


class PaceBench:
    """A loop whose rounds and whose time are made by the test."""

    def __init__(self):
        self.now_ns = 1_000
        self.soon = []
        self.busy_poll = BusyPoll()
        self.yield_count = 0
        self.busy_poll.start(self.soon.append, lambda: self.now_ns, self.yield_core)

    def yield_core(self):
        self.yield_count += 1

    def come_round(self):
        callbacks = self.soon[:]
        self.soon.clear()
        for callback in callbacks:
            callback()

    def look(self, *, events=0, after_ns=0):
        """Time passes, events are handled, and the loop comes round."""
        self.now_ns += after_ns
        for _ in range(events):
            self.busy_poll.note_command()
        self.come_round()

    def wake_up(self):
        self.busy_poll.note_command()
        assert self.busy_poll.is_polling

    def go_to_sleep(self):
        self.wake_up()
        self.look(after_ns=POLL_NS + 1)
        assert not self.busy_poll.is_polling


@pytest.fixture
def bench():
    return PaceBench()


def test_a_pace_that_was_not_started_never_looks_again():
    busy_poll = BusyPoll()
    busy_poll.note_command()
    assert not busy_poll.is_polling


def test_nothing_happens_on_a_broker_without_events(bench):
    bench.come_round()
    assert bench.soon == []
    assert not bench.busy_poll.is_polling


def test_after_an_event_it_looks_for_more_and_then_sleeps(bench):
    bench.wake_up()
    bench.look(after_ns=POLL_NS - 1)
    assert bench.busy_poll.is_polling
    assert bench.yield_count == 1  # others had their chance before the next look
    bench.look(after_ns=2)
    assert not bench.busy_poll.is_polling
    assert bench.soon == []  # so the loop sleeps until something comes


def test_asleep_many_events_come_before_the_next_attempt(bench):
    bench.go_to_sleep()
    for _ in range(REST_COMMANDS):
        bench.look(events=1, after_ns=POLL_NS * 10)
        assert not bench.busy_poll.is_polling
        assert bench.soon == []
    bench.wake_up()


def test_what_comes_in_time_prolongs_the_moment(bench):
    bench.wake_up()
    for _ in range(100):
        bench.look(after_ns=POLL_NS // 2)
        bench.look(events=1, after_ns=POLL_NS // 4)
        assert bench.busy_poll.is_polling


def test_some_misses_are_forgiven_after_many_hits(bench):
    bench.wake_up()
    for _ in range(MAX_CREDIT):
        bench.look(events=1)
    for _ in range(MAX_CREDIT // MISS_COST - 1):
        bench.look(after_ns=POLL_NS + 1)
        assert not bench.busy_poll.is_polling
        bench.look(events=1)
        assert bench.busy_poll.is_polling
    bench.look(after_ns=POLL_NS + 1)
    bench.look(events=1)
    assert not bench.busy_poll.is_polling


def test_an_event_that_comes_too_late_is_a_miss(bench):
    """As when client and broker share a core, and the client runs only once the broker has been put aside."""
    bench.wake_up()
    bench.look(events=1, after_ns=POLL_NS + 1)
    assert not bench.busy_poll.is_polling
    bench.look(events=1)
    assert not bench.busy_poll.is_polling


def test_a_long_round_that_began_in_time_is_no_miss(bench):
    bench.wake_up()
    bench.busy_poll.note_command()
    bench.now_ns += POLL_NS * 10
    bench.look(events=5)
    assert bench.busy_poll.is_polling


def test_a_pace_stopped_while_awake_goes_to_sleep(bench):
    bench.wake_up()
    bench.busy_poll.stop()
    bench.look()
    assert not bench.busy_poll.is_polling
    bench.look(events=1)
    assert bench.soon == []
