"""The window of a channel agrees with a simple model of it, and keeps memory bounded."""

import random

import pytest

from nsqx.queues.log.window import DONE, MAX_SLOTS, NEVER_NS, NOT_IN_FLIGHT, NOT_OWNER, Window

TIMEOUT_NS = 60
MAX_TIMEOUT_NS = 150


def deliver_new(window, count, client_id=1, now_ns=0):
    for _ in range(count):
        window.deliver(window.next, client_id, now_ns, TIMEOUT_NS, window.next + 1000)


def test_finished_offsets_are_collected_as_runs():
    window = Window(10)
    deliver_new(window, 8)
    for offset in (10, 11, 12, 15, 16, 13):
        assert window.finish(offset, 1) == DONE
    assert window.has_changes()
    assert window.take_changes() == ([(10, 14), (15, 17)], {})
    assert not window.has_changes()
    assert window.floor() == 14
    assert window.in_flight_count == 2
    assert window.timestamp == 1013


def test_a_message_is_finished_only_by_the_client_that_has_it():
    window = Window(0)
    deliver_new(window, 1, client_id=7)
    assert window.finish(0, 8) == NOT_OWNER
    assert window.requeue(0, 8, 0) == NOT_OWNER
    assert window.touch(0, 8, 0, TIMEOUT_NS, MAX_TIMEOUT_NS) == NOT_OWNER
    assert window.finish(0, 7) == DONE
    assert window.finish(0, 7) == NOT_IN_FLIGHT
    assert window.requeue(1, 7, 0) == NOT_IN_FLIGHT
    assert window.touch(-1, 7, 0, TIMEOUT_NS, MAX_TIMEOUT_NS) == NOT_IN_FLIGHT


def test_requeued_and_new_messages_take_turns():
    window = Window(0)
    deliver_new(window, 3)
    for offset in range(3):
        window.requeue(offset, 1, 0)
    order = []
    while (offset := window.choose(6)) >= 0:
        order.append(offset)
        window.deliver(offset, 1, 0, TIMEOUT_NS, 0)
    assert order == [0, 3, 1, 4, 2, 5]


def test_attempts_count_deliveries_and_survive_a_restart():
    window = Window(0)
    deliver_new(window, 1)
    window.requeue(0, 1, 0)
    assert window.deliver(window.choose(1), 1, 0, TIMEOUT_NS, 0) == 2
    window.requeue(0, 1, 500)
    assert window.take_changes() == ([], {0: (2, 500)})
    assert window.unfinished() == [(0, 2, 500)]
    later = Window(1, [(0, 2, 500)])
    assert later.choose(1) == -1
    assert later.next_deadline() == 500
    assert later.release_due(500, 10) == 1
    assert later.deliver(later.choose(1), 1, 500, TIMEOUT_NS, 0) == 3


def test_a_touch_does_not_exceed_the_limit():
    window = Window(0)
    deliver_new(window, 1)
    window.touch(0, 1, 50, TIMEOUT_NS, MAX_TIMEOUT_NS)
    assert window.expire(109, 10) == []
    window.touch(0, 1, 109, TIMEOUT_NS, MAX_TIMEOUT_NS)
    assert window.expire(149, 10) == []
    assert window.next_deadline() == 150
    assert window.expire(150, 10) == [1]
    assert window.choose(1) == 0


def test_a_client_that_keeps_one_message_does_not_let_the_ring_grow_beyond_its_limit():
    window = Window(0)
    deliver_new(window, 1, client_id=5)
    for offset in range(1, MAX_SLOTS + 100):
        window.deliver(offset, 1, 1, TIMEOUT_NS, 0)
        window.finish(offset, 1)
    assert window.floor() == 0
    assert window.touch(0, 5, 10, TIMEOUT_NS, MAX_TIMEOUT_NS) == DONE
    assert window.expire(70, 10) == [5]
    assert window.deliver(window.choose(window.next), 6, 80, TIMEOUT_NS, 0) == 2
    assert window.finish(0, 5) == NOT_OWNER
    assert window.finish(0, 6) == DONE
    assert window.floor() == window.next == MAX_SLOTS + 100


def test_a_message_that_fails_its_last_attempt_is_set_aside():
    window = Window(0)
    deliver_new(window, 3, client_id=7)
    assert window.requeue(0, 7, 0, 2) == DONE
    assert window.requeue(1, 7, 900, 1) == DONE
    assert window.take_failed() == [(1, 1, 7)]
    assert window.take_failed() == []
    assert window.expire(TIMEOUT_NS, 10, 1) == [7]
    assert window.take_failed() == [(2, 1, 7)]
    assert (window.again_count, window.deferred_count, window.aside_count) == (1, 0, 2)
    assert window.take_changes() == ([], {0: (1, 0)})
    assert window.unfinished() == [(0, 1, 0), (1, 0, 0), (2, 0, 0)]
    assert window.deliver(window.choose(3), 7, 0, TIMEOUT_NS, 0) == 2
    assert window.choose(3) == -1
    assert window.take_out(1)
    assert window.take_out(2)
    assert window.take_changes() == ([(1, 3)], {})


def test_a_waiting_message_is_taken_out_of_order():
    window = Window(0)
    deliver_new(window, 4)
    for offset, due_ns in ((0, 0), (1, 0), (2, 500), (3, 600)):
        window.requeue(offset, 1, due_ns)
    window.take_changes()
    assert window.take_out(0)
    assert window.take_out(2)
    assert not window.take_out(2)
    assert not window.take_out(9)
    assert window.take_changes() == ([(0, 1), (2, 3)], {})
    assert window.choose(4) == 1
    assert window.take_out(1)
    assert window.choose(4) == -1
    assert window.release_due(500, 10) == 0
    assert window.release_due(600, 10) == 1
    assert window.deliver(window.choose(4), 1, 600, TIMEOUT_NS, 0) == 2


class Model:
    """A channel as plain dicts."""

    def __init__(self, next_offset):
        self.next = next_offset
        self.in_flight = {}  # offset: client, delivered, deadline, attempts
        self.again = []
        self.due = {}
        self.aside = set()
        self.attempts = {}
        self.persisted_next = next_offset
        self.persisted_holes = {}

    def unfinished(self):
        found = [(offset, self.attempts[offset], 0) for offset in (*self.in_flight, *self.again)]
        found += [(offset, self.attempts[offset], due_ns) for offset, due_ns in self.due.items()]
        found += [(offset, self.attempts[offset] - 1, 0) for offset in self.aside]
        return sorted(found)

    def apply(self, runs, requeued):
        """Apply changes to the persisted state: a next offset, and unfinished offsets below it."""
        for offset, (attempts, due_ns) in requeued.items():
            self._reach(offset + 1)
            self.persisted_holes[offset] = (attempts, due_ns)
        for start, end in runs:
            self._reach(end)
            for offset in range(start, end):
                self.persisted_holes.pop(offset, None)

    def drop(self, offsets):
        """Forget messages; the caller has recorded that."""
        for offset in offsets:
            self.in_flight.pop(offset, None)
            self.due.pop(offset, None)
            self.aside.discard(offset)
            self.attempts.pop(offset, None)
            self.persisted_holes.pop(offset, None)
        self.again = [offset for offset in self.again if offset not in offsets]

    def _reach(self, end):
        for offset in range(self.persisted_next, end):
            self.persisted_holes[offset] = (0, 0)
        self.persisted_next = max(self.persisted_next, end)


def step(rng, window, model, now_ns):
    """Do one random operation on both; return the time."""
    kind = rng.randrange(15)
    client_id = rng.randint(1, 3)
    if kind < 4:
        end = model.next + rng.randrange(3)
        offset = window.choose(end)
        if offset < 0:
            assert not model.again
            assert end == model.next
            return now_ns
        assert offset == (model.again[0] if offset != model.next else model.next)
        if rng.random() < 0.1:
            window.discard(offset)
        else:
            model.attempts[offset] = model.attempts.get(offset, 0) + 1
            assert window.deliver(offset, client_id, now_ns, TIMEOUT_NS, offset) == model.attempts[offset]
            model.in_flight[offset] = [client_id, now_ns, now_ns + TIMEOUT_NS]
        if offset == model.next:
            model.next += 1
        else:
            model.again.remove(offset)
    elif kind < 9 and model.in_flight:
        offset = rng.choice(list(model.in_flight))
        owner, delivered_ns, _ = model.in_flight[offset]
        expected = DONE if owner == client_id else NOT_OWNER
        if kind < 7:
            assert window.finish(offset, client_id) == expected
            if expected == DONE:
                assert window.timestamp == offset
                del model.in_flight[offset]
        elif kind == 7:
            due_ns = now_ns + rng.randrange(100) if rng.random() < 0.5 else 0
            max_attempts = rng.choice((0, 0, 3))
            assert window.requeue(offset, client_id, due_ns, max_attempts) == expected
            if expected == DONE:
                del model.in_flight[offset]
                if 0 < max_attempts <= model.attempts[offset]:
                    model.aside.add(offset)
                    assert window.take_failed() == [(offset, model.attempts[offset], client_id)]
                elif due_ns:
                    model.due[offset] = due_ns
                else:
                    model.again.append(offset)
        else:
            assert window.touch(offset, client_id, now_ns, TIMEOUT_NS, MAX_TIMEOUT_NS) == expected
            if expected == DONE:
                model.in_flight[offset][2] = min(now_ns + TIMEOUT_NS, delivered_ns + MAX_TIMEOUT_NS)
    elif kind == 9:
        now_ns += rng.randrange(40)
        earliest_ns = min([*(entry[2] for entry in model.in_flight.values()), *model.due.values(), NEVER_NS])
        assert window.next_deadline() <= earliest_ns
        late = [offset for offset, entry in model.in_flight.items() if entry[2] <= now_ns]
        assert sorted(window.expire(now_ns, 1000)) == sorted(model.in_flight.pop(offset)[0] for offset in late)
        due = sorted((due_ns, offset) for offset, due_ns in model.due.items() if due_ns <= now_ns)
        assert window.release_due(now_ns, 1000) == len(due)
        for _, offset in due:
            del model.due[offset]
        # The order of messages that timed out together is not defined.
        model.again += [*late, *(offset for _, offset in due)]
        again = []
        while window.again_count:
            again.append(window.choose(window.next))
            window.deliver(again[-1], 1, now_ns, TIMEOUT_NS, again[-1])
        assert sorted(again) == sorted(model.again)
        for offset in model.again:
            model.attempts[offset] += 1
            model.in_flight[offset] = [1, now_ns, now_ns + TIMEOUT_NS]
        model.again = []
    elif kind == 10 and rng.random() < 0.05:
        model.next += rng.choice([1, 5, 70, 100_000])
        window.skip_to(model.next)
    elif kind == 11:
        model.apply(*window.take_changes())
    elif kind == 12:
        offset = rng.choice([*model.again, *model.due, *model.aside, *model.in_flight, model.next, 0])
        is_waiting = offset in model.again or offset in model.due or offset in model.aside
        assert window.is_waiting(offset) == is_waiting
        assert window.due_ns(offset) == model.due.get(offset, 0)
        assert window.is_in_flight(offset) == (offset in model.in_flight)
        assert window.is_aside(offset) == (offset in model.aside)
        assert window.take_out(offset) == is_waiting
        model.due.pop(offset, None)
        model.aside.discard(offset)
        model.again = [other for other in model.again if other != offset]
    elif kind == 13 and rng.random() < 0.1:
        trim(window, model, model.next + rng.randint(-40, 3))
    elif kind == 14 and rng.random() < 0.1:
        end = model.next - rng.randrange(20)
        waiting = {offset: (model.attempts[offset], 0) for offset in model.again if offset < end}
        waiting |= {offset: (model.attempts[offset], due_ns) for offset, due_ns in model.due.items() if offset < end}
        assert sorted(window.waiting_below(end)) == sorted(waiting)
        assert window.waiting_among(range(end)) == waiting
        assert window.oldest_in_flight() == min([*model.in_flight, model.next])
        model.apply(*window.take_changes())
        window.forget(waiting)
        model.drop(waiting)
    return now_ns


def trim(window, model, first):
    """Drop everything below an offset in both."""
    dropped = {offset for offset, _, _ in model.unfinished() if offset < first}
    in_flight = sorted(model.in_flight[offset][0] for offset in dropped if offset in model.in_flight)
    assert window.count_below(first) == len(dropped)
    assert sorted(window.trim(first)) == in_flight
    model.drop(dropped)
    model.next = max(model.next, first)
    model.persisted_next = max(model.persisted_next, first)
    model.persisted_holes = {offset: hole for offset, hole in model.persisted_holes.items() if offset >= first}


@pytest.mark.parametrize("seed", range(12))
def test_random_operations_agree_with_the_model(seed):
    rng = random.Random(seed)
    start = rng.randrange(1000)
    window, model = Window(start), Model(start)
    now_ns = 1
    for _ in range(2000):
        now_ns = step(rng, window, model, now_ns)
        assert window.next == model.next
        assert window.in_flight_count == len(model.in_flight)
        assert window.again_count == len(model.again)
        assert window.deferred_count == len(model.due)
        assert window.aside_count == len(model.aside)
    assert window.unfinished() == model.unfinished()
    assert window.floor() == min([entry[0] for entry in model.unfinished()] + [model.next])
    check_persisted_state(window, model)
    window.seek(3)
    assert (window.next, window.floor(), window.unfinished(), window.has_changes()) == (3, 3, [], False)


def check_persisted_state(window, model):
    """Every finished message is finished in the persisted state, and no unfinished one is."""
    model.apply(*window.take_changes())
    holes = set(model.persisted_holes)
    for offset, attempts, due_ns in model.unfinished():
        if offset in holes:
            saved_attempts, saved_due_ns = model.persisted_holes[offset]
            assert saved_attempts <= attempts
            assert saved_due_ns == due_ns or offset in model.in_flight or offset in model.aside
        else:
            assert offset >= model.persisted_next
            assert attempts == (0 if offset in model.aside else 1)  # a first delivery is not recorded
    assert holes <= {entry[0] for entry in model.unfinished()}


def test_a_copy_stays_as_it_is():
    window = Window(10)
    deliver_new(window, 5)
    window.finish(10, 1)
    window.requeue(11, 1, 0)
    window.requeue(12, 1, 99)
    copy = window.copy()
    expected = [(11, 1, 0), (12, 1, 99), (13, 1, 0), (14, 1, 0)]
    assert copy.unfinished() == window.unfinished() == expected
    assert [offset for offset in range(9, 16) if copy.is_in_flight(offset)] == [13, 14]
    deliver_new(window, 100)
    for offset in (13, 14):
        window.finish(offset, 1)
    window.seek(0)
    assert copy.unfinished() == expected
    assert [offset for offset in range(9, 16) if copy.is_in_flight(offset)] == [13, 14]


def test_a_copy_has_messages_without_a_slot():
    window = Window(0)
    deliver_new(window, 1)
    window.skip_to(MAX_SLOTS * 3)
    copy = window.copy()
    assert copy.is_in_flight(0)
    window.finish(0, 1)
    assert (copy.unfinished(), window.unfinished()) == ([(0, 1, 0)], [])
