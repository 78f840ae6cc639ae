"""An upgrade begins when the answer that announces it has been sent, and not before."""

import errno
import os

import pytest
from conversation import ConnectionClient

from broker_bench import split_frames
from compression import DeflateLayer
from rawclient import ERROR, OK, RESPONSE, Frame, identify, pub

MAGIC = b"  V2"
DEFLATE = identify(feature_negotiation=True, deflate=True)


@pytest.fixture
def line(make_bench) -> ConnectionClient:
    """Return a connection whose publishes are answered after they are written to disk."""
    bench = make_bench(mem_queue_size=0)
    bench.broker.upgrades.deflate = True
    line = ConnectionClient(bench)
    line.send(MAGIC)
    return line


def client_of(line):
    (client,) = line.bench.broker.clients.values()
    return client


def test_an_upgrade_follows_its_announcement(line):
    layer = DeflateLayer()
    line.connection.data_received(DEFLATE)
    sent = bytes(line.transport.sent)
    size = 4 + int.from_bytes(sent[:4], "big")
    (answer,) = split_frames(sent[:size])
    assert (answer.type, b'"deflate":true' in answer.data) == (RESPONSE, True)
    assert split_frames(layer.decode(sent[size:])) == [OK]
    assert client_of(line).deflate


def test_an_announcement_that_waits_for_the_disk_delays_the_upgrade(line):
    layer = DeflateLayer()
    line.connection.data_received(pub("t", b"x") + DEFLATE)
    assert (line.transport.sent, client_of(line).deflate, line.transport.is_reading) == (b"", False, False)
    line.bench.run_scheduled()
    assert client_of(line).deflate
    assert line.transport.is_reading
    line.transport.sent.clear()
    line.connection.data_received(layer.encode(pub("t", b"y")))
    line.bench.run_scheduled()
    assert line.bench.broker.topic("t").message_count == 2


def test_a_failed_publish_before_the_announcement_ends_the_connection_without_an_upgrade(line, monkeypatch):
    def fail(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", fail)
    monkeypatch.setattr(os, "pwritev", fail)
    line.connection.data_received(pub("t", b"x") + DEFLATE)
    client = client_of(line)
    assert line.receive() == [Frame(ERROR, b"E_PUB_FAILED PUB failed No space left on device")]
    assert line.is_lost
    assert not client.deflate
