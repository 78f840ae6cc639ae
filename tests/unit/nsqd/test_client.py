"""A client's readiness, the answers that wait for a commit, and its output."""

import pytest

from broker_bench import BenchLink
from nsqx.errors import DiskQueueError
from nsqx.nsqd.client import OUTPUT_LIMIT, Client
from nsqx.nsqd.group_commit import Commit
from nsqx.nsqd.protocol_states import ClientState
from nsqx.wire import frames
from rawclient import ERROR, OK, RESPONSE, Frame


@pytest.fixture
def client():
    return Client(7, "127.0.0.1:1234", "127.0.0.1", BenchLink(), 1_700_000_000)


def test_a_new_client_has_the_default_settings(client):
    assert (client.id, client.remote_address, client.state, client.version) == (
        7,
        "127.0.0.1:1234",
        ClientState.INIT,
        "V2",
    )
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
        ({"state": ClientState.INIT}, False),
        ({"state": ClientState.CLOSING}, False),
        ({"writable": False}, False),
    ],
)
def test_is_ready(client, settings, ready):
    client.state = ClientState.SUBSCRIBED
    client.ready_count = 2
    for name, value in settings.items():
        setattr(client, name, value)
    assert client.is_ready() is ready


def test_a_client_with_much_unsent_output_is_not_ready(client):
    client.state, client.ready_count = ClientState.SUBSCRIBED, 1
    client.output.frames += bytes(OUTPUT_LIMIT - 1)
    assert client.is_ready()
    client.output.frames += b"x"
    assert not client.is_ready()


def test_published_counts_by_topic(client):
    client.published("a", 1)
    client.published("b", 2)
    client.published("a", 3)
    assert client.pub_counts == {"a": 4, "b": 2}


def test_flush_writes_once_and_starts_a_new_output(client):
    client.output.frames += b"data"
    client.has_unsent = True
    assert client.flush() is False
    assert (bytes(client.link.data), client.link.write_count) == (b"data", 1)
    assert (client.output.frames, client.has_unsent) == (b"", False)
    assert client.flush() is False
    assert client.link.write_count == 1
    assert not client.link.is_closed


def test_flush_reports_a_full_output(client):
    client.output.frames += bytes(OUTPUT_LIMIT)
    assert client.flush() is True


def test_flush_closes_after_the_last_output(client):
    client.output.frames += b"bye"
    client.is_ending = True
    client.flush()
    assert (bytes(client.link.data), client.link.is_closed) == (b"bye", True)


def end(commit, failure=None):
    commit.is_done, commit.failure = True, failure


def test_sealed_output_waits_for_its_commit_and_earlier_output_does_not(client):
    commit = Commit()
    client.output.frames += frames.HEARTBEAT
    client.output.seal(commit, "PUB")
    client.output.frames += frames.OK
    assert client.flush() is False
    assert client.link.take_frames() == [Frame(RESPONSE, b"_heartbeat_")]
    end(commit)
    assert client.flush() is True  # the client may be ready for messages again
    assert client.link.take_frames() == [OK]
    assert not client.link.is_closed


def test_a_client_that_waits_for_a_commit_gets_heartbeats_and_no_messages(client):
    commit = Commit()
    client.state, client.ready_count = ClientState.SUBSCRIBED, 1
    assert client.is_ready()
    client.output.seal(commit, "PUB")
    client.output.frames += frames.OK
    assert not client.is_ready()
    client.send_heartbeat()
    assert client.link.take_frames() == [Frame(RESPONSE, b"_heartbeat_")]
    end(commit)
    client.flush()
    assert client.is_ready()


def test_an_ending_connection_closes_after_its_answers(client):
    commit = Commit()
    client.output.seal(commit, "PUB")
    client.output.frames += frames.OK
    client.is_ending = True
    client.flush()
    assert not client.link.is_closed
    end(commit)
    client.flush()
    assert client.link.take_frames() == [OK]
    assert client.link.is_closed


def test_a_failed_commit_closes_the_connection_after_the_error(client):
    commit = Commit()
    client.output.seal(commit, "PUB")
    client.output.frames += frames.OK
    end(commit, DiskQueueError("No space left on device"))
    client.flush()
    assert client.link.take_frames() == [Frame(ERROR, b"E_PUB_FAILED PUB failed No space left on device")]
    assert client.link.is_closed
    assert client.is_ending
