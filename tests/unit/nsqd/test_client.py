"""A client's readiness, its held answers and its output."""

import pytest

from broker_bench import BenchLink, split_frames
from nsqx.errors import DiskQueueError
from nsqx.nsqd.client import CLOSING, CONNECTED, DISCONNECTED, INIT, OUTPUT_LIMIT, SUBSCRIBED, Client
from nsqx.wire import frames
from rawclient import ERROR, OK, RESPONSE, Frame


@pytest.fixture
def client():
    return Client(7, "127.0.0.1:1234", "127.0.0.1", BenchLink(), 1_700_000_000)


def test_states_are_numbered_as_in_stats():
    assert (INIT, DISCONNECTED, CONNECTED, SUBSCRIBED, CLOSING) == (0, 1, 2, 3, 4)


def test_a_new_client(client):
    assert (client.id, client.remote_address, client.state, client.version) == (7, "127.0.0.1:1234", INIT, "V2")
    assert (client.client_id, client.hostname, client.user_agent) == ("127.0.0.1", "127.0.0.1", "")
    assert client.output_buffer_size == 16384
    assert not client.is_ready()


@pytest.mark.parametrize(
    ("settings", "ready"),
    [
        ({}, True),
        ({"in_flight_count": 1}, True),
        ({"in_flight_count": 2}, False),
        ({"in_flight_count": 3}, False),
        ({"ready_count": 0}, False),
        ({"state": INIT}, False),
        ({"state": CLOSING}, False),
        ({"writable": False}, False),
        ({"output": bytearray(OUTPUT_LIMIT - 1)}, True),
        ({"output": bytearray(OUTPUT_LIMIT)}, False),
    ],
)
def test_is_ready(client, settings, ready):
    client.state = SUBSCRIBED
    client.ready_count = 2
    for name, value in settings.items():
        setattr(client, name, value)
    assert client.is_ready() is ready


def test_published_counts_by_topic(client):
    client.published("a", 1)
    client.published("b", 2)
    client.published("a", 3)
    assert client.pub_counts == {"a": 4, "b": 2}


def test_flush_writes_once_and_starts_a_new_output(client):
    client.output += b"data"
    client.has_unsent = True
    assert client.flush() is False
    assert (bytes(client.link.data), client.link.write_count) == (b"data", 1)
    assert (client.output, client.has_unsent) == (b"", False)
    assert client.flush() is False
    assert client.link.write_count == 1
    assert not client.link.is_closed


def test_flush_tells_of_a_full_output(client):
    client.output += bytes(OUTPUT_LIMIT)
    assert client.flush() is True


def test_flush_closes_after_the_last_output(client):
    client.output += b"bye"
    client.is_ending = True
    client.flush()
    assert (bytes(client.link.data), client.link.is_closed) == (b"bye", True)


def test_settle_lets_held_answers_stand(client):
    client.output += frames.OK
    client.unwritten_from = 0
    client.unwritten_command = "PUB"
    client.settle(None)
    client.settle(DiskQueueError("too late"))
    assert (split_frames(bytes(client.output)), client.is_ending) == ([OK], False)


@pytest.mark.parametrize("command", ["PUB", "MPUB", "DPUB"])
def test_settle_puts_the_error_in_place_of_held_answers(client, command):
    client.output += frames.HEARTBEAT
    client.unwritten_from = len(client.output)
    client.unwritten_command = command
    client.output += frames.OK + frames.OK
    client.settle(DiskQueueError("No space left on device"))
    assert split_frames(bytes(client.output)) == [
        Frame(RESPONSE, b"_heartbeat_"),
        Frame(ERROR, f"E_{command}_FAILED {command} failed No space left on device".encode()),
    ]
    assert client.is_ending
