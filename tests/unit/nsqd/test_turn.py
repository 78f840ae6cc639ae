"""One turn: messages are moved and output is sent once, at its end."""

import pytest

from broker_bench import BenchLink
from nsqx.nsqd.client import Client
from nsqx.nsqd.turn import ByteReceiver, Turn
from nsqx.wire import frames
from rawclient import OK


class PumpStandIn:
    """A stand-in for a channel: records that it was pumped, and runs an action."""

    def __init__(self, calls, name="pump", action=lambda: None):
        self.calls = calls
        self.name = name
        self.action = action

    def pump(self):
        self.calls.append(self.name)
        self.action()


class NotingLink(BenchLink):
    def __init__(self, calls):
        super().__init__()
        self.calls = calls

    def write(self, data):
        self.calls.append("send")
        super().write(data)


class TurnBench:
    def __init__(self):
        self.calls = []
        self.soon = []
        self.turn = Turn(self.soon.append)

    def client(self):
        return Client(1, "", "", NotingLink(self.calls), 0)

    def answer(self, client):
        client.output.frames += frames.OK
        self.turn.send_to(client)

    def run_scheduled(self):
        callbacks = self.soon[:]
        self.soon.clear()
        for callback in callbacks:
            callback()


@pytest.fixture
def bench():
    return TurnBench()


def test_a_turn_ends_at_once(bench):
    client = bench.client()
    bench.turn.run(bench.answer, client)
    assert client.link.take_frames() == [OK]
    assert bench.soon == []


def test_received_bytes_are_handled_in_a_turn(bench):
    client = bench.client()

    class Connection(ByteReceiver):
        def receive(self, data):
            bench.answer(client)
            bench.answer(client)
            assert (data, client.link.write_count) == (b"data", 0)

    bench.turn.receive(Connection(), b"data")
    assert client.link.write_count == 1


def test_an_event_within_a_turn_belongs_to_it(bench):
    client = bench.client()

    def handle():
        bench.turn.run(bench.answer, client)
        assert client.link.write_count == 0
        bench.turn.run(bench.answer, client)

    bench.turn.run(handle)
    assert client.link.write_count == 1


def test_run_returns_the_result_of_the_handler(bench):
    assert bench.turn.run(divmod, 7, 2) == (3, 1)


def test_a_handler_that_raises_ends_the_turn(bench):
    client = bench.client()

    def handle():
        bench.answer(client)
        raise KeyError

    with pytest.raises(KeyError):
        bench.turn.run(handle)
    assert client.link.take_frames() == [OK]
    bench.turn.run(bench.answer, client)
    assert client.link.take_frames() == [OK]


@pytest.mark.parametrize("note", ["send_to", "wake", "end_later"])
def test_work_noted_outside_of_a_turn_is_done_in_the_next_iteration_of_the_loop(bench, note):
    """A forgotten ``run`` delays the work a little, but never loses it."""
    client, pump = bench.client(), PumpStandIn(bench.calls)
    client.output.frames += frames.OK
    work = {"send_to": client, "wake": pump, "end_later": lambda: bench.calls.append("late")}
    getattr(bench.turn, note)(work[note])
    assert (bench.calls, len(bench.soon)) == ([], 1)
    bench.run_scheduled()
    assert bench.calls == [{"send_to": "send", "wake": "pump", "end_later": "late"}[note]]
    assert bench.soon == []


def test_the_output_of_a_client_is_sent_with_one_write(bench):
    client = bench.client()
    bench.turn.run(lambda: [bench.answer(client) for _ in range(3)])
    bench.turn.run(lambda: None)
    assert client.link.write_count == 1
    assert client.link.take_frames() == [OK] * 3


def test_pumps_run_before_output_is_sent_and_can_wake_others(bench):
    client = bench.client()
    second = PumpStandIn(bench.calls, "second", lambda: bench.answer(client))
    bench.turn.run(bench.turn.wake, PumpStandIn(bench.calls, "first", lambda: bench.turn.wake(second)))
    assert bench.calls == ["first", "second", "send"]


def test_late_work_is_done_in_the_next_iteration_before_output_is_sent(bench):
    client, late = bench.client(), PumpStandIn(bench.calls, "after")

    def work():
        bench.calls.append("work")
        bench.turn.wake(late)

    def handle():
        bench.turn.end_later(work)
        bench.answer(client)
        bench.turn.wake(PumpStandIn(bench.calls, "before"))

    bench.turn.run(handle)
    bench.turn.run(bench.answer, client)  # joins the turn
    assert (bench.calls, len(bench.soon)) == (["before"], 1)
    bench.run_scheduled()
    assert bench.calls == ["before", "work", "send", "after"]
    assert client.link.take_frames() == [OK, OK]
    assert bench.soon == []


def test_late_work_noted_by_a_pump_is_done_in_the_same_turn(bench):
    client = bench.client()
    pump = PumpStandIn(bench.calls, "pump", lambda: bench.turn.end_later(lambda: bench.answer(client)))
    bench.turn.wake(pump)
    bench.run_scheduled()
    assert bench.calls == ["pump", "send"]
    assert bench.soon == []


def test_late_work_survives_a_pump_that_raises(bench):
    def fail():
        raise KeyError

    bench.turn.end_later(lambda: bench.calls.append("late"))
    bench.turn.wake(PumpStandIn(bench.calls, "pump", fail))
    with pytest.raises(KeyError):
        bench.run_scheduled()
    bench.run_scheduled()
    assert bench.calls == ["pump", "late"]


def test_close_ends_the_connection_after_its_output(bench):
    client = bench.client()
    client.output.frames += frames.OK
    bench.turn.close(client)
    assert not client.link.is_closed
    bench.run_scheduled()
    assert client.link.take_frames() == [OK]
    assert client.link.is_closed
