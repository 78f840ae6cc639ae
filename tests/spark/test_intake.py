"""The intake holds what has arrived until it is stored, and limits its size."""

from __future__ import annotations

import asyncio

from connected_receiver import NODE, ConnectedReceiver, message

from nsqx.spark.intake import Connected, ConnectionLost, Intake

LONG_S = 60.0


def connect(intake, *, is_starved=False):
    connected = ConnectedReceiver(lambda: intake.arrived(is_starved=is_starved))
    intake.connected(connected.receiver)
    return connected


async def test_messages_are_taken_after_the_events_before_them():
    intake = Intake(2**20)
    first = connect(intake)
    first.connection.data_received(message(1, b"a"))
    second = connect(intake)
    second.connection.data_received(message(2, b"b"))
    intake.report(ConnectionLost("t", "another"))
    assert await intake.wait()
    arrivals = intake.take()
    assert arrivals.events == [
        Connected("t", NODE, frozenset()),
        Connected("t", NODE, frozenset({NODE})),
        ConnectionLost("t", "another"),
    ]
    assert [source for source, _ in arrivals.messages] == [first.receiver, second.receiver]
    # A second connection to the same nsqd may deliver messages that wait here.
    assert [columns.is_suspect for _, columns in arrivals.messages] == [True, False]


async def test_finish_sends_a_fin_for_every_taken_message():
    intake = Intake(2**20)
    connected = connect(intake)
    connected.connection.data_received(message(1, b"a") + message(2, b"b"))
    intake.take()
    connected.connection.data_received(message(3, b"c"))
    intake.finish()
    assert connected.transport.written == b"FIN %016x\nFIN %016x\n" % (1, 2)
    assert intake.pending_count == 1


async def test_a_connection_is_held_until_there_is_room():
    intake = Intake(10)
    connected = connect(intake)
    connected.connection.data_received(message(1, b"123456"))
    assert connected.transport.is_reading
    intake.take()
    connected.connection.data_received(message(2, b"7890"))
    assert not connected.transport.is_reading
    intake.finish()
    assert connected.transport.is_reading


async def test_gathering_ends_when_nsqd_waits_for_fins():
    intake = Intake(2**20)
    starved = connect(intake, is_starved=True)
    gathering = asyncio.create_task(intake.gather(LONG_S))
    await asyncio.sleep(0)
    starved.connection.data_received(message(1, b"a"))
    async with asyncio.timeout(LONG_S / 2):
        await gathering


async def test_a_closed_intake_is_emptied_first():
    intake = Intake(2**20)
    connected = connect(intake)
    connected.connection.data_received(message(1, b"a"))
    intake.close()
    assert await intake.wait()
    intake.take()
    intake.finish()
    assert not await intake.wait()


async def test_messages_of_a_lost_connection_are_not_taken():
    intake = Intake(2**20)
    connected = connect(intake)
    connected.connection.data_received(message(1, b"a"))
    connected.connection.connection_lost(None)
    assert intake.pending_count == 0
    assert intake.take().messages == []
