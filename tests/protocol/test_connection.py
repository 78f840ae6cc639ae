"""A connection's life: magic, heartbeats, deadlines, and its end."""

import socket

import pytest
from conversation import Line

from broker_bench import MINUTE, SECOND
from nsqx.nsqd.client import OUTPUT_LIMIT
from rawclient import ERROR, OK, RESPONSE, Frame, Message, fin, identify, mpub, nop, pub, rdy, sub

HEARTBEAT = Frame(RESPONSE, b"_heartbeat_")
MAGIC = b"  V2"


# Magic


@pytest.mark.parametrize("pieces", [[b"  V2"], [b" ", b" ", b"V", b"2"], [b"  V", b"2NOP\n"]])
def test_the_magic_in_any_pieces(line, pieces):
    for piece in pieces:
        assert line.say(piece) == []
    assert line.say(pub("t", b"x")) == [OK]


@pytest.mark.parametrize("magic", [b"  V1", b"V2  ", b"GET ", b"  v2", b"\x00\x00\x00\x00"])
def test_any_other_magic(line, magic):
    assert line.say(magic + b"more") == [Frame(ERROR, b"E_BAD_PROTOCOL")]
    assert line.is_lost
    assert line.bench.broker.clients == {}


def test_a_client_that_never_says_its_magic_is_dropped(line):
    line.say(b"  V")
    line.wait(60 * SECOND - 1)
    assert not line.is_lost
    line.wait(1)
    assert line.transport.is_aborted
    assert line.bench.broker.connections == set()


def test_the_end_before_the_magic(line):
    line.say(b"  V")
    assert not line.connection.eof_received()


# Heartbeats


def test_heartbeats_come_every_30_seconds_whatever_the_traffic(line):
    line.say(MAGIC)
    for _ in range(3):
        assert line.wait(20 * SECOND) == []
        line.say(nop())
        assert line.wait(10 * SECOND - 1) == []
        assert line.wait(1) == [HEARTBEAT]
    assert not line.is_lost


@pytest.mark.parametrize("interval_ms", [1000, 15_000, 60_000])
def test_the_interval_that_was_asked_for(line, interval_ms):
    line.say(MAGIC)
    assert line.say(identify(heartbeat_interval=interval_ms)) == [OK]
    for _ in range(3):
        assert line.wait(interval_ms * 1_000_000 - 1) == []
        assert line.wait(1) == [HEARTBEAT]
        line.say(nop())


def test_an_interval_of_0_is_the_default(line):
    line.say(MAGIC)
    line.say(identify(heartbeat_interval=0))
    assert line.wait(30 * SECOND) == [HEARTBEAT]


def test_an_interval_of_minus_1_turns_heartbeats_and_deadlines_off(line):
    line.say(MAGIC)
    assert line.say(identify(heartbeat_interval=-1)) == [OK]
    assert line.wait(60 * MINUTE) == []
    assert not line.is_lost
    assert line.say(pub("t", b"x")) == [OK]
    assert line.say(sub("t", "c")) == [Frame(ERROR, b"E_INVALID cannot SUB with heartbeats disabled")]


def test_a_heartbeat_does_not_break_into_a_frame(line):
    line.say(MAGIC + sub("t", "c") + rdy(10))
    line.bench.publish("t", b"1")
    assert [frame.type for frame in line.wait(30 * SECOND)] == [2, 0]


# Reading


def holding(line, count):
    """Let a client hold so many messages, while more wait; those that it holds."""
    line.say(MAGIC + sub("t", "c") + rdy(count))
    line.bench.publish("t", *[b"x"] * (count + 100))
    return [Message.decode(frame.data) for frame in line.listen()]


def test_a_consumer_that_holds_plenty_and_finishes_one_is_read_again_after_a_moment(line):
    held = holding(line, 2500)
    assert len(line.say(fin(held[0].id))) == 1
    assert not line.transport.is_reading
    assert line.wait(SECOND // 1000) == []
    assert line.transport.is_reading
    assert len(line.say(b"".join(fin(message.id) for message in held[1:6]))) == 5
    assert line.transport.is_reading


def test_a_consumer_that_may_run_out_of_messages_is_read_at_once(line):
    held = holding(line, 2000)
    assert len(line.say(fin(held[0].id))) == 1
    assert line.transport.is_reading


def test_a_consumer_that_is_lost_before_it_is_read_again(line):
    held = holding(line, 2500)
    line.say(fin(held[0].id))
    line.transport.abort()
    line.wait(SECOND)
    assert line.is_lost
    assert not line.transport.is_reading


def test_silence_for_two_intervals_is_the_end(line):
    line.say(MAGIC)
    line.say(identify(heartbeat_interval=2000))
    assert line.wait(4 * SECOND - 1) == [HEARTBEAT]
    assert not line.is_lost
    line.wait(1)
    assert line.transport.is_aborted
    assert (line.bench.broker.clients, line.bench.broker.connections) == ({}, set())


def test_any_command_is_a_sign_of_life(line):
    line.say(MAGIC)
    line.say(identify(heartbeat_interval=2000))
    for command in (nop(), pub("t", b"x"), sub("t", "c"), rdy(1)):
        line.wait(3 * SECOND)
        line.say(command)
        assert not line.is_lost


def test_a_command_that_fails_without_ending_the_connection_is_a_sign_of_life(line):
    line.say(MAGIC)
    line.say(identify(heartbeat_interval=2000) + sub("t", "c"))
    for _ in range(3):
        line.wait(3 * SECOND)
        frames = line.say(fin(b"0123456789abcdef"))
        assert frames[-1:] == [Frame(ERROR, b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight")]
    assert not line.is_lost


def test_half_a_command_is_no_sign_of_life(line):
    line.say(MAGIC)
    line.say(identify(heartbeat_interval=2000))
    line.wait(3 * SECOND)
    line.say(b"NO")
    line.wait(1 * SECOND)
    assert line.is_lost


def test_the_deadline_starts_anew_when_a_command_is_complete(line):
    """With its body, that is: the line alone is half a command."""
    line.say(MAGIC)
    line.say(identify(heartbeat_interval=2000))
    command = pub("t", b"x" * 100)
    line.say(command[:20])
    line.wait(3 * SECOND)
    assert line.say(command[20:])[-1:] == [OK]
    line.wait(4 * SECOND - 1)
    assert not line.is_lost
    line.wait(1)
    assert line.is_lost


# Writing


def block(line, count=10):
    """Let the socket take nothing more, and send so much that this shows."""
    line.say(MAGIC)
    line.say(identify(heartbeat_interval=2000) + sub("t", "c") + rdy(2500))
    line.transport.is_stuck = True
    line.bench.publish("t", *[b"x" * 50_000] * count)


def test_a_socket_that_takes_nothing_for_an_interval_is_the_end(line):
    block(line)
    line.say(nop())
    line.wait(2 * SECOND - 1)
    assert not line.is_lost
    line.wait(1)
    assert line.transport.is_aborted


def test_a_socket_that_takes_more_in_time_is_not(line):
    block(line)
    line.wait(1 * SECOND)
    line.transport.unblock()
    line.listen()
    line.say(nop())
    line.wait(2 * SECOND)
    assert not line.is_lost


def test_what_is_written_to_a_blocked_socket_has_a_limit_and_the_rest_follows(line):
    block(line, 40)
    assert len(line.transport.unsent) <= 2 * OUTPUT_LIMIT
    got = 0
    for _ in range(40):
        line.transport.unblock()
        got += sum(frame.type == 2 for frame in line.listen())
    assert got == 40


# The end


def test_a_client_that_is_gone_is_forgotten(line):
    line.say(MAGIC + sub("t", "c"))
    channel = line.bench.broker.topic("t").channel("c")
    assert len(channel.clients) == 1
    line.connection.connection_lost(ConnectionResetError(104, "Connection reset by peer"))
    assert (channel.clients, line.bench.broker.clients, line.bench.broker.connections) == ({}, {}, set())
    assert line.wait(10 * MINUTE) == []


def test_an_error_is_sent_before_the_close(line):
    line.say(MAGIC)
    assert line.say(b"NONSENSE\nNOP\n") == [Frame(ERROR, b"E_INVALID invalid command NONSENSE")]
    assert line.is_lost
    assert not line.transport.is_aborted


def test_the_end_of_the_clients_side_is_answered_and_then_closed(line):
    line.say(MAGIC)
    line.connection.data_received(pub("t", b"x") + b"PUB t\n\x00\x00\x00\x05abc")
    assert line.connection.eof_received()
    assert line.listen() == [OK, Frame(ERROR, b"E_BAD_MESSAGE PUB failed to read message body")]
    assert line.is_lost


def test_a_close_that_the_socket_does_not_take_is_not_waited_for_for_ever(line):
    line.say(MAGIC)
    line.transport.is_stuck = True
    line.say(b"NONSENSE\n")
    assert not line.is_lost
    line.wait(MINUTE)
    assert line.transport.is_aborted


def test_answers_are_not_sent_before_the_records_are_written(make_bench):
    line = Line(make_bench(mem_queue_size=0))
    line.connection.data_received(MAGIC + pub("t", b"x"))
    assert line.transport.take_frames() == []
    assert line.listen() == [OK]


def test_many_commands_are_answered_by_one_write(bench):
    writes = []
    line = Line(bench)
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
def test_who_is_there(bench, peer, address, host):
    line = Line(bench, peer)
    line.say(MAGIC)
    (client,) = bench.broker.clients.values()
    assert (client.remote_address, client.client_id, client.hostname) == (address, host, host)


def test_tcp_is_asked_to_watch_silent_clients(bench):
    tcp, unix = Line(bench), Line(bench, "")
    assert tcp.transport.socket.options[socket.SOL_SOCKET, socket.SO_KEEPALIVE] == 1
    assert unix.transport.socket.options == {}


def test_a_message_over_the_whole_way(line):
    line.say(MAGIC)
    assert line.say(sub("t", "c") + rdy(1) + pub("t", b"hello")) == [OK, *line_frames(line, b"hello")]


def line_frames(line, body):
    """The OK of a publish and the message, in the order the broker sends them."""
    channel = line.bench.broker.topic("t").channel("c")
    (message,) = channel.in_flight
    frame = Frame(2, message.timestamp.to_bytes(8, "big") + b"\x00\x01" + message.id + body)
    assert Message.decode(frame.data).body == body
    return [frame, OK]
