"""The life of a connection: magic, heartbeats, deadlines and close."""

import socket

import pytest
from conversation import ConnectionClient

from broker_bench import MINUTE, SECOND
from nsqx.nsqd.client import OUTPUT_LIMIT
from rawclient import ERROR, OK, RESPONSE, Frame, Message, fin, identify, mpub, nop, pub, rdy, sub

HEARTBEAT = Frame(RESPONSE, b"_heartbeat_")
MAGIC = b"  V2"


# Magic


@pytest.mark.parametrize("pieces", [[b"  V2"], [b" ", b" ", b"V", b"2"], [b"  V", b"2NOP\n"]])
def test_the_magic_is_accepted_in_any_chunks(line, pieces):
    for piece in pieces:
        assert line.send(piece) == []
    assert line.send(pub("t", b"x")) == [OK]


@pytest.mark.parametrize("magic", [b"  V1", b"V2  ", b"GET ", b"  v2", b"\x00\x00\x00\x00"])
def test_any_other_magic_is_refused(line, magic):
    assert line.send(magic + b"more") == [Frame(ERROR, b"E_BAD_PROTOCOL")]
    assert line.is_lost
    assert line.bench.broker.clients == {}


def test_a_client_that_never_sends_the_magic_is_closed(line):
    line.send(b"  V")
    line.wait(60 * SECOND - 1)
    assert not line.is_lost
    line.wait(1)
    assert line.transport.is_aborted
    assert line.bench.broker.connections == set()


def test_an_end_of_input_before_the_magic_closes_the_connection(line):
    line.send(b"  V")
    assert not line.connection.eof_received()


# Heartbeats


def test_heartbeats_are_sent_every_30_seconds_whatever_the_traffic(line):
    line.send(MAGIC)
    for _ in range(3):
        assert line.wait(20 * SECOND) == []
        line.send(nop())
        assert line.wait(10 * SECOND - 1) == []
        assert line.wait(1) == [HEARTBEAT]
    assert not line.is_lost


@pytest.mark.parametrize("interval_ms", [1000, 15_000, 60_000])
def test_the_requested_heartbeat_interval_is_used(line, interval_ms):
    line.send(MAGIC)
    assert line.send(identify(heartbeat_interval=interval_ms)) == [OK]
    for _ in range(3):
        assert line.wait(interval_ms * 1_000_000 - 1) == []
        assert line.wait(1) == [HEARTBEAT]
        line.send(nop())


def test_an_interval_of_0_is_the_default(line):
    line.send(MAGIC)
    line.send(identify(heartbeat_interval=0))
    assert line.wait(30 * SECOND) == [HEARTBEAT]


def test_an_interval_of_minus_1_turns_heartbeats_and_deadlines_off(line):
    line.send(MAGIC)
    assert line.send(identify(heartbeat_interval=-1)) == [OK]
    assert line.wait(60 * MINUTE) == []
    assert not line.is_lost
    assert line.send(pub("t", b"x")) == [OK]
    assert line.send(sub("t", "c")) == [Frame(ERROR, b"E_INVALID cannot SUB with heartbeats disabled")]


def test_a_heartbeat_does_not_split_a_frame(line):
    line.send(MAGIC + sub("t", "c") + rdy(10))
    line.bench.publish("t", b"1")
    assert [frame.type for frame in line.wait(30 * SECOND)] == [2, 0]


# Reading


def client_with_messages(line, count):
    """Deliver so many messages to a client while more wait; return the delivered ones."""
    line.send(MAGIC + sub("t", "c") + rdy(count))
    line.bench.publish("t", *[b"x"] * (count + 100))
    return [Message.decode(frame.data) for frame in line.receive()]


def test_single_fins_of_a_consumer_with_many_messages_are_coalesced(line):
    held = client_with_messages(line, 2500)
    assert len(line.send(fin(held[0].id))) == 1
    assert not line.transport.is_reading
    assert line.wait(SECOND // 1000) == []
    assert line.transport.is_reading
    assert len(line.send(b"".join(fin(message.id) for message in held[1:6]))) == 5
    assert line.transport.is_reading


def test_fins_of_a_consumer_with_few_messages_are_read_at_once(line):
    held = client_with_messages(line, 2000)
    assert len(line.send(fin(held[0].id))) == 1
    assert line.transport.is_reading


def test_a_connection_can_be_lost_during_coalescing(line):
    held = client_with_messages(line, 2500)
    line.send(fin(held[0].id))
    line.transport.abort()
    line.wait(SECOND)
    assert line.is_lost
    assert not line.transport.is_reading


def test_silence_for_two_intervals_closes_the_connection(line):
    line.send(MAGIC)
    line.send(identify(heartbeat_interval=2000))
    assert line.wait(4 * SECOND - 1) == [HEARTBEAT]
    assert not line.is_lost
    line.wait(1)
    assert line.transport.is_aborted
    assert (line.bench.broker.clients, line.bench.broker.connections) == ({}, set())


def test_any_command_is_a_sign_of_life(line):
    line.send(MAGIC)
    line.send(identify(heartbeat_interval=2000))
    for command in (nop(), pub("t", b"x"), sub("t", "c"), rdy(1)):
        line.wait(3 * SECOND)
        line.send(command)
        assert not line.is_lost


def test_a_command_that_fails_without_ending_the_connection_is_a_sign_of_life(line):
    line.send(MAGIC)
    line.send(identify(heartbeat_interval=2000) + sub("t", "c"))
    for _ in range(3):
        line.wait(3 * SECOND)
        frames = line.send(fin(b"0123456789abcdef"))
        assert frames[-1:] == [Frame(ERROR, b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight")]
    assert not line.is_lost


def test_half_a_command_is_not_a_sign_of_life(line):
    line.send(MAGIC)
    line.send(identify(heartbeat_interval=2000))
    line.wait(3 * SECOND)
    line.send(b"NO")
    line.wait(1 * SECOND)
    assert line.is_lost


def test_a_complete_command_restarts_the_deadline(line):
    """The command line alone is only half a command."""
    line.send(MAGIC)
    line.send(identify(heartbeat_interval=2000))
    command = pub("t", b"x" * 100)
    line.send(command[:20])
    line.wait(3 * SECOND)
    assert line.send(command[20:])[-1:] == [OK]
    line.wait(4 * SECOND - 1)
    assert not line.is_lost
    line.wait(1)
    assert line.is_lost


# Writing


def block_socket(line, count=10):
    """Block the socket, and send enough output to notice it."""
    line.send(MAGIC)
    line.send(identify(heartbeat_interval=2000) + sub("t", "c") + rdy(2500))
    line.transport.is_stuck = True
    line.bench.publish("t", *[b"x" * 50_000] * count)


def test_a_socket_that_takes_no_data_for_an_interval_is_closed(line):
    block_socket(line)
    line.send(nop())
    line.wait(2 * SECOND - 1)
    assert not line.is_lost
    line.wait(1)
    assert line.transport.is_aborted


def test_a_socket_that_takes_data_in_time_is_not_closed(line):
    block_socket(line)
    line.wait(1 * SECOND)
    line.transport.unblock()
    line.receive()
    line.send(nop())
    line.wait(2 * SECOND)
    assert not line.is_lost


def test_output_for_a_blocked_socket_is_limited_and_the_rest_is_sent_later(line):
    block_socket(line, 40)
    assert len(line.transport.unsent) <= 2 * OUTPUT_LIMIT
    got = 0
    for _ in range(40):
        line.transport.unblock()
        got += sum(frame.type == 2 for frame in line.receive())
    assert got == 40


# Close


def test_a_lost_client_is_removed(line):
    line.send(MAGIC + sub("t", "c"))
    channel = line.bench.broker.topic("t").channel("c")
    assert len(channel.clients) == 1
    line.connection.connection_lost(ConnectionResetError(104, "Connection reset by peer"))
    assert (channel.clients, line.bench.broker.clients, line.bench.broker.connections) == ({}, {}, set())
    assert line.wait(10 * MINUTE) == []


def test_an_error_is_sent_before_the_close(line):
    line.send(MAGIC)
    assert line.send(b"NONSENSE\nNOP\n") == [Frame(ERROR, b"E_INVALID invalid command NONSENSE")]
    assert line.is_lost
    assert not line.transport.is_aborted


def test_an_end_of_input_is_answered_and_then_closed(line):
    line.send(MAGIC)
    line.connection.data_received(pub("t", b"x") + b"PUB t\n\x00\x00\x00\x05abc")
    assert line.connection.eof_received()
    assert line.receive() == [OK, Frame(ERROR, b"E_BAD_MESSAGE PUB failed to read message body")]
    assert line.is_lost


def test_a_close_waits_a_limited_time_for_a_blocked_socket(line):
    line.send(MAGIC)
    line.transport.is_stuck = True
    line.send(b"NONSENSE\n")
    line.wait(5 * SECOND - 1)
    assert not line.is_lost
    line.wait(1)
    assert line.transport.is_aborted


def test_answers_are_not_sent_before_the_records_are_written(make_bench):
    line = ConnectionClient(make_bench(mem_queue_size=0))
    line.connection.data_received(MAGIC + pub("t", b"x"))
    assert line.transport.take_frames() == []
    assert line.receive() == [OK]


def test_many_commands_are_answered_with_one_write(make_bench):
    writes = []
    line = ConnectionClient(make_bench(store="classic"))
    line.transport.write = lambda data: writes.append(len(data))
    line.connection.data_received(MAGIC + pub("t", b"x") * 10 + mpub("t", [b"y", b"z"]))
    assert writes == [11 * 10]


@pytest.mark.parametrize(
    ("peer", "address", "host"),
    [
        (("127.0.0.1", 1234), "127.0.0.1:1234", "127.0.0.1"),
        (("::1", 1234, 0, 0), "[::1]:1234", "::1"),
        (("::ffff:10.0.0.1", 1234, 0, 0), "10.0.0.1:1234", "10.0.0.1"),
        ("", "@", ""),
        (None, "@", ""),
    ],
)
def test_the_address_of_a_client(bench, peer, address, host):
    line = ConnectionClient(bench, peer)
    line.send(MAGIC)
    (client,) = bench.broker.clients.values()
    assert (client.remote_address, client.client_id, client.hostname) == (address, host, host)


def test_tcp_keepalive_is_enabled(bench):
    tcp, unix = ConnectionClient(bench), ConnectionClient(bench, "")
    assert tcp.transport.socket.options[socket.SOL_SOCKET, socket.SO_KEEPALIVE] == 1
    assert unix.transport.socket.options == {}


def test_a_message_is_published_and_delivered(line):
    line.send(MAGIC)
    subscribed, *others = line.send(sub("t", "c") + rdy(1) + pub("t", b"hello"))
    published, delivery = sorted(others, key=lambda frame: frame.type)
    assert (subscribed, published, delivery.type) == (OK, OK, 2)
    message = Message.decode(delivery.data)
    assert (message.body, message.attempts, message.timestamp_ns) == (b"hello", 1, line.bench.clock.wall_ns())
