"""A bounded read ends when its backlog has arrived."""

from __future__ import annotations

from messages import add_message

from nsqx.spark.bounded_read import BoundedRead
from nsqx.spark.columns import Columns
from nsqx.units import NS_PER_S

BOUND_NS = 1000 * NS_PER_S
IDLE_S = 0.2


class Read:
    """A bounded read with a clock that moves only with ``pass_time``."""

    def __init__(self, expected=None):
        self.now_ns = BOUND_NS
        self.read = BoundedRead(BOUND_NS, IDLE_S, lambda: self.now_ns)
        self.read.expect(expected)

    def store(self, *ages_s):
        columns = Columns("t", "127.0.0.1:4150")
        for number, age_s in enumerate(ages_s):
            add_message(columns, b"%016x" % number, self.now_ns - int(age_s * NS_PER_S), 1)
        self.read.took(columns)
        self.read.stored()

    def pass_time(self, time_s, **state):
        for _ in range(round(time_s / self.read.tick_s)):
            self.now_ns += int(self.read.tick_s * NS_PER_S)
            self.read.tick(**{"has_pending": False, "is_paused": False, **state})


def test_a_read_is_complete_with_the_expected_number_of_messages():
    read = Read(expected=3)
    read.store(2.0, 1.0)
    assert not read.read.is_complete
    read.store(0.5)
    assert read.read.is_complete


def test_a_read_without_an_expected_number_is_complete_after_idle_time():
    read = Read()
    read.store(2.0, 1.0)
    read.pass_time(IDLE_S)
    assert not read.read.is_complete
    read.pass_time(read.read.tick_s)
    assert read.read.is_complete


def test_no_time_counts_during_a_pause_or_while_unexamined_messages_wait():
    read = Read()
    read.pass_time(10 * IDLE_S, is_paused=True)
    read.pass_time(10 * IDLE_S, has_pending=True)
    assert not read.read.is_complete
    read.pass_time(IDLE_S)
    assert read.read.is_complete


def test_messages_that_arrive_as_they_are_published_do_not_prolong_a_read():
    read = Read()
    read.store(0.0)
    for _ in range(10):
        read.pass_time(read.read.tick_s)
        read.store(0.0)
    assert read.read.is_complete
