"""Busy-polling: it polls only while polling pays off."""

import pytest

from nsqx.nsqd.busy_poll import MAX_CREDIT, MISS_COST, POLL_NS, REST_COMMANDS, BusyPoll


class BusyPollBench:
    """A loop whose iterations and time the test controls."""

    def __init__(self):
        self.now_ns = 1_000
        self.soon = []
        self.busy_poll = BusyPoll()
        self.yield_count = 0
        self.busy_poll.start(self.soon.append, lambda: self.now_ns, self.yield_core)

    def yield_core(self):
        self.yield_count += 1

    def run_loop_once(self):
        callbacks = self.soon[:]
        self.soon.clear()
        for callback in callbacks:
            callback()

    def poll(self, *, events=0, after_ns=0):
        """Let time pass, handle commands, and run the loop once."""
        self.now_ns += after_ns
        for _ in range(events):
            self.busy_poll.note_command()
        self.run_loop_once()

    def start_polling(self):
        self.busy_poll.note_command()
        assert self.busy_poll.is_polling

    def stop_polling(self):
        self.start_polling()
        self.poll(after_ns=POLL_NS + 1)
        assert not self.busy_poll.is_polling


@pytest.fixture
def bench():
    return BusyPollBench()


def test_without_start_it_never_polls():
    busy_poll = BusyPoll()
    busy_poll.note_command()
    assert not busy_poll.is_polling


def test_without_commands_it_never_polls(bench):
    bench.run_loop_once()
    assert bench.soon == []
    assert not bench.busy_poll.is_polling


def test_after_a_command_it_polls_and_then_blocks(bench):
    bench.start_polling()
    bench.poll(after_ns=POLL_NS - 1)
    assert bench.busy_poll.is_polling
    assert bench.yield_count == 1  # other processes could run before the next round
    bench.poll(after_ns=2)
    assert not bench.busy_poll.is_polling
    assert bench.soon == []  # so the loop blocks until something comes


def test_after_a_miss_many_commands_come_before_it_polls_again(bench):
    bench.stop_polling()
    for _ in range(REST_COMMANDS):
        bench.poll(events=1, after_ns=POLL_NS * 10)
        assert not bench.busy_poll.is_polling
        assert bench.soon == []
    bench.start_polling()


def test_a_command_in_time_extends_the_poll(bench):
    bench.start_polling()
    for _ in range(100):
        bench.poll(after_ns=POLL_NS // 2)
        bench.poll(events=1, after_ns=POLL_NS // 4)
        assert bench.busy_poll.is_polling


def test_many_hits_allow_for_some_misses(bench):
    bench.start_polling()
    for _ in range(MAX_CREDIT):
        bench.poll(events=1)
    for _ in range(MAX_CREDIT // MISS_COST - 1):
        bench.poll(after_ns=POLL_NS + 1)
        assert not bench.busy_poll.is_polling
        bench.poll(events=1)
        assert bench.busy_poll.is_polling
    bench.poll(after_ns=POLL_NS + 1)
    bench.poll(events=1)
    assert not bench.busy_poll.is_polling


def test_a_command_that_comes_too_late_is_a_miss(bench):
    """This happens when client and broker share a core: the client runs only while the broker does not."""
    bench.start_polling()
    bench.poll(events=1, after_ns=POLL_NS + 1)
    assert not bench.busy_poll.is_polling
    bench.poll(events=1)
    assert not bench.busy_poll.is_polling


def test_a_command_in_time_is_a_hit_even_if_its_handling_takes_long(bench):
    bench.start_polling()
    bench.busy_poll.note_command()
    bench.now_ns += POLL_NS * 10
    bench.poll(events=5)
    assert bench.busy_poll.is_polling


def test_stop_ends_a_running_poll(bench):
    bench.start_polling()
    bench.busy_poll.stop()
    bench.poll()
    assert not bench.busy_poll.is_polling
    bench.poll(events=1)
    assert bench.soon == []
