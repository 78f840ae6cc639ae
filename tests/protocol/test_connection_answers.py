"""Output is written directly to the socket; the transport gets only what the socket does not take."""

import socket

import pytest
from conversation import BenchLoop, BenchTransport

from broker_bench import split_frames
from nsqx.nsqd.connection import ClientConnection
from rawclient import OK, Message, identify, mpub, pub, rdy, sub

WIRE_OK = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"


class SocketTransport(BenchTransport):
    """A transport with a real socket; its far end receives only the output that bypassed the transport."""

    def __init__(self):
        super().__init__()
        self.socket, self.far_end = socket.socketpair()
        self.socket.setblocking(False)
        self.far_end.setblocking(False)

    def received(self):
        data = bytearray()
        while True:
            try:
                data += self.far_end.recv(1 << 20)
            except BlockingIOError:
                return bytes(data)


@pytest.fixture
def bench(make_bench):
    return make_bench(store="classic")  # which answers in the turn of the command


@pytest.fixture
def connect(bench):
    made = []

    def make():
        transport = SocketTransport()
        connection = ClientConnection(bench.broker, BenchLoop(bench.clock))
        transport.protocol = connection
        connection.connection_made(transport)
        connection.data_received(b"  V2")
        made.append(transport)
        return connection, transport

    yield make
    for transport in made:
        transport.socket.close()
        transport.far_end.close()


def test_an_answer_is_written_directly_to_the_socket(connect):
    connection, transport = connect()
    connection.data_received(pub("t", b"1"))
    assert (transport.received(), transport.sent) == (WIRE_OK, b"")


def test_output_waiting_in_the_transport_is_not_overtaken(connect):
    connection, transport = connect()
    transport.is_stuck = True
    transport.write(b"earlier")
    connection.data_received(pub("t", b"1"))
    assert (transport.received(), bytes(transport.unsent)) == (b"", b"earlier" + WIRE_OK)


def test_output_that_the_socket_does_not_take_goes_to_the_transport(connect):
    connection, transport = connect()
    filling = b"."
    try:
        while True:
            transport.socket.send(filling * 4096)
    except BlockingIOError:
        pass
    connection.data_received(pub("t", b"1"))
    assert transport.take_frames() == [OK]


def test_a_long_answer_is_divided_between_socket_and_transport(bench, connect):
    body = b"x" * 200_000
    bench.publish("t", body, body, body)
    connection, transport = connect()
    transport.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    connection.data_received(identify() + sub("t", "c") + rdy(3))
    bench.settle()
    straight = transport.received()
    assert straight
    assert transport.sent
    assert (straight + bytes(transport.sent)).count(body) == 3


def test_messages_are_written_directly_to_the_socket_too(connect):
    consumer, consumer_side = connect()
    consumer.data_received(identify() + sub("t", "c") + rdy(10))
    consumer_side.received()
    producer, _ = connect()
    producer.data_received(mpub("t", [b"1", b"2"]))
    assert [Message.decode(frame.data).body for frame in split_frames(consumer_side.received())] == [b"1", b"2"]
    assert consumer_side.sent == b""


def test_nothing_is_written_after_the_close(connect):
    connection, transport = connect()
    transport.close()
    connection.write(bytearray(b"late"))
    assert (transport.received(), transport.sent) == (b"", b"")


def test_an_error_of_the_socket_is_left_to_the_transport(connect):
    connection, transport = connect()
    transport.far_end.close()
    connection.data_received(pub("t", b"1"))
    assert transport.take_frames() == [OK]
