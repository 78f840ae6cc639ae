"""Deferred messages and messages in flight, against models of plain sorted lists."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nsqx.queues.deadlines import NEVER_NS, Deferred, InFlight
from nsqx.wire.message import new_message

TIMES = st.integers(0, 50)
TIMEOUTS = st.sampled_from([10, 20, 35])
MAX_TIMEOUT = 40
MANY = 1_000_000


def make_message(number):
    return new_message(b"%016x" % number, b"body", 0, 0)


class DeferredMachine(RuleBasedStateMachine):
    """The model: a list of (due time, order of arrival, message) that is sorted when read."""

    def __init__(self):
        super().__init__()
        self.deferred = Deferred()
        self.model = []
        self.serial = 0

    @rule(due=TIMES)
    def push(self, due):
        self.serial += 1
        message = make_message(self.serial)
        self.deferred.push(message, due)
        assert message.deadline_ns == due
        self.model.append((due, self.serial, message))

    @rule(now=TIMES)
    def pop_due(self, now):
        due = sorted(entry for entry in self.model if entry[0] <= now)
        self.model = [entry for entry in self.model if entry[0] > now]
        assert self.deferred.pop_due(now, MANY) == [message for _, _, message in due]

    @rule()
    def clear(self):
        assert self.deferred.clear() == [message for _, _, message in sorted(self.model)]
        self.model.clear()

    @invariant()
    def agrees(self):
        assert len(self.deferred) == len(self.model)
        assert self.deferred.next_deadline() == min((due for due, _, _ in self.model), default=NEVER_NS)


class InFlightMachine(RuleBasedStateMachine):
    """The model: a dict of id to (message, timeout, delivered, deadline). Time only moves forward."""

    def __init__(self):
        super().__init__()
        self.in_flight = InFlight()
        self.model = {}
        self.now = 1000

    def some_id(self, data):
        return data.draw(st.sampled_from(sorted(self.model)))

    @rule(step=st.integers(0, 15))
    def let_time_pass(self, step):
        self.now += step

    @rule(number=st.integers(0, 12), timeout=TIMEOUTS)
    def add(self, number, timeout):
        message = make_message(number)
        added = self.in_flight.add(message, self.now, timeout)
        assert added == (message.id not in self.model)
        if added:
            self.model[message.id] = (message, timeout, self.now, self.now + timeout)

    @rule(number=st.integers(0, 12), timeout=TIMEOUTS)
    def find(self, number, timeout):
        message_id = b"%016x" % number
        expected = self.model[message_id][0] if message_id in self.model else None
        assert self.in_flight.find(message_id, timeout) is expected

    @precondition(lambda self: self.model)
    @rule(data=st.data(), timeout=TIMEOUTS, client_id=st.integers(1, 2))
    def take(self, data, timeout, client_id):
        message_id = self.some_id(data)
        message, own_timeout, _, _ = self.model[message_id]
        message.client_id = 1
        taken = self.in_flight.take(message_id, timeout, client_id)
        assert taken in (message, None)
        if client_id != 1:
            assert taken is None
        elif timeout == own_timeout and message_id not in self.capped():
            assert taken is message
        if taken is not None:
            del self.model[message_id]

    def capped(self):
        return [key for key, (_, timeout, delivered, end) in self.model.items() if end == delivered + MAX_TIMEOUT]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data):
        message, timeout, _, _ = self.model.pop(self.some_id(data))
        self.in_flight.remove(message, timeout)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def touch(self, data):
        message_id = self.some_id(data)
        message, timeout, delivered, _ = self.model[message_id]
        self.in_flight.touch(message, self.now, timeout, MAX_TIMEOUT)
        deadline = min(self.now + timeout, delivered + MAX_TIMEOUT)
        self.model[message_id] = (message, timeout, delivered, deadline)

    @rule()
    def pop_due(self):
        due = {message_id for message_id, entry in self.model.items() if entry[3] <= self.now}
        popped = self.in_flight.pop_due(self.now, MANY)
        assert len(popped) == len(due)
        assert {message.id for message in popped} == due
        for message_id in due:
            del self.model[message_id]

    @rule()
    def clear(self):
        assert {message.id for message in self.in_flight.clear()} == set(self.model)
        self.model.clear()

    @invariant()
    def agrees(self):
        assert len(self.in_flight) == len(self.model)
        assert {message.id for message in self.in_flight} == set(self.model)
        assert self.in_flight.next_deadline() == min((entry[3] for entry in self.model.values()), default=NEVER_NS)
        for message, _, delivered, deadline in self.model.values():
            assert (message.delivered_ns, message.deadline_ns) == (delivered, deadline)


MACHINE_SETTINGS = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestDeferred = DeferredMachine.TestCase
TestDeferred.settings = MACHINE_SETTINGS
TestInFlight = InFlightMachine.TestCase
TestInFlight.settings = MACHINE_SETTINGS


def test_messages_of_one_timeout_time_out_in_the_order_of_delivery():
    in_flight = InFlight()
    messages = [make_message(number) for number in (5, 3, 9)]
    for now, message in enumerate(messages):
        assert in_flight.add(message, now, 10)
    assert in_flight.pop_due(11, MANY) == messages[:2]
    assert in_flight.pop_due(12, MANY) == messages[2:]


def test_a_touched_message_times_out_after_those_delivered_since():
    in_flight = InFlight()
    first, second = make_message(1), make_message(2)
    in_flight.add(first, 0, 10)
    in_flight.add(second, 1, 10)
    in_flight.touch(first, 5, 10, 1000)
    assert in_flight.next_deadline() == 11
    assert in_flight.pop_due(14, MANY) == [second]
    assert in_flight.pop_due(15, MANY) == [first]


@pytest.mark.parametrize("touches", [1, 3])
def test_a_message_capped_by_max_msg_timeout_times_out_once_at_the_cap(touches):
    in_flight = InFlight()
    message = make_message(1)
    in_flight.add(message, 0, 10)
    for _ in range(touches):
        in_flight.touch(message, 8, 10, 15)
    assert in_flight.next_deadline() == 15
    assert in_flight.pop_due(14, MANY) == []
    assert in_flight.pop_due(15, MANY) == [message]
    assert in_flight.pop_due(1000, MANY) == []
    assert len(in_flight) == 0


def test_only_the_client_that_has_a_message_can_take_it():
    in_flight = InFlight()
    message = make_message(1)
    message.client_id = 7
    in_flight.add(message, 0, 10)
    assert in_flight.take(message.id, 10, 8) is None
    assert in_flight.take(b"%016x" % 2, 10, 7) is None
    assert in_flight.take(message.id, 20, 7) is None  # it is in another group, where ``find`` finds it
    assert in_flight.find(message.id, 20) is message
    assert in_flight.take(message.id, 10, 7) is message
    assert len(in_flight) == 0


def test_a_capped_message_can_be_delivered_again():
    in_flight = InFlight()
    message = make_message(1)
    in_flight.add(message, 0, 10)
    in_flight.touch(message, 8, 10, 15)
    in_flight.remove(message, 10)
    assert in_flight.next_deadline() == NEVER_NS
    assert in_flight.add(message, 9, 20)
    assert in_flight.next_deadline() == 29
    assert in_flight.pop_due(28, MANY) == []
    assert in_flight.pop_due(29, MANY) == [message]


def test_pop_due_returns_at_most_limit_messages():
    deferred, in_flight = Deferred(), InFlight()
    for number in range(5):
        deferred.push(make_message(number), number)
        in_flight.add(make_message(number), 0, 10 + number % 2)
    assert [len(deferred.pop_due(100, 2)) for _ in range(4)] == [2, 2, 1, 0]
    assert [len(in_flight.pop_due(100, 2)) for _ in range(4)] == [2, 2, 1, 0]


def test_all_deferred_messages_are_returned_and_stay():
    deferred = Deferred()
    for number in (3, 1, 2):
        deferred.push(make_message(number), number)
    assert {message.id for message in deferred.messages()} == {make_message(number).id for number in (1, 2, 3)}
    assert len(deferred) == 3
