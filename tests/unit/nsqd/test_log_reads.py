"""Reads of a log from its segments: shared by the channels, ahead of the deliveries, and limited in memory."""

import pytest

from broker_bench import Bench
from nsqx.queues.log.blocks import LogBlocks
from nsqx.queues.log.log import ReadJob
from nsqx.queues.log.store import LogOptions

COUNT = 400
MAX_SIZE = 40_000
BODIES = [b"%04d" % number * 50 for number in range(COUNT)]


@pytest.fixture
def bench(tmp_path):
    """A broker that keeps almost nothing in memory, with blocks of about 20 messages and a log of 400."""
    Bench(tmp_path, store="log", durability="write").broker.close_topics()
    bench = Bench(tmp_path, store="log", durability="write")
    bench.broker.logs._store.options = LogOptions(commit_size=16384, direct_size=4096, memory_size=0)
    bench.broker.logs.blocks = LogBlocks(MAX_SIZE)
    return bench


def publish_all(bench, *channels):
    for name in channels:
        bench.broker.topic("t").channel(name)
    for start in range(0, COUNT, 10):
        bench.publish("t", *BODIES[start : start + 10])
    bench.advance(1_000_000_000)
    assert bench.broker.logs._store.memory_size < 40_000  # the rest is only in segments


def reads_of(bench):
    """Record the first offset of every read."""
    offsets = []
    run = bench.sync_threads.run

    def record(job, done, *, is_urgent):
        if isinstance(job, ReadJob):
            offsets.append(job.next)
        run(job, done, is_urgent=is_urgent)

    bench.sync_threads.run = record
    return offsets


def take(client):
    """Finish everything that the client has, and return the bodies."""
    messages = client.link.take_messages()
    for message in messages:
        assert client.channel.finish(client, message.id) is None
    return [message.body for message in messages]


def test_channels_that_are_equally_far_behind_share_their_reads(bench):
    names = [f"c{number}" for number in range(10)]
    publish_all(bench, *names)
    offsets = reads_of(bench)
    clients = [bench.consume("t", name, 7) for name in names]
    received = [[] for _ in names]
    for _ in range(COUNT // 7 + 2):
        for client, bodies in zip(clients, received, strict=True):
            bodies += take(client)
        bench.settle()
    assert received == [BODIES] * 10
    assert len(offsets) == len(set(offsets)) <= COUNT / 15


def test_the_next_blocks_are_read_before_they_are_needed(bench):
    publish_all(bench, "c")
    offsets = reads_of(bench)
    client = bench.consume("t", "c", 1)
    assert take(client) == BODIES[:1]
    assert (len(offsets), offsets[0]) == (2, 0)
    bench.settle()
    assert len(offsets) == 3
    while len(offsets) == 3:
        (body,) = take(client)
        bench.settle()
    assert BODIES.index(body) < offsets[1] < offsets[2] < offsets[3]


def test_a_channel_waits_for_a_slow_read_and_gets_its_messages(bench):
    publish_all(bench, "a", "b")
    bench.sync_threads.is_slow = True
    offsets = reads_of(bench)
    clients = [bench.consume("t", name, 5) for name in ("a", "b")]
    assert [take(client) for client in clients] == [[], []]
    assert offsets == [0]
    bench.sync_threads.finish()
    bench.settle()
    assert [take(client) for client in clients] == [BODIES[:5], BODIES[:5]]


def test_many_channels_at_different_places_take_no_more_memory_than_the_blocks_may(bench):
    names = [f"c{number}" for number in range(20)]
    publish_all(bench, *names)
    clients = [bench.consume("t", name, 0) for name in names]
    received = {name: [] for name in names}
    for number, name in enumerate(names):  # each channel is at another place
        bench.set_ready(clients[number], 1 + 20 * number)
        received[name] += take(clients[number])
    for _ in range(COUNT // 25 + 1):
        for client, name in zip(clients, names, strict=True):
            bench.set_ready(client, 25)
            received[name] += take(client)
            assert bench.broker.logs.blocks.size <= MAX_SIZE
    assert all(bodies == BODIES for bodies in received.values())


def test_large_batches_are_not_read_ahead(bench):
    """The next block would replace the one in use."""
    bench.broker.topic("t").channel("c")
    for start in [*range(0, COUNT, 100)] * 3:
        bench.publish("t", *BODIES[start : start + 100])
        bench.advance(1_000_000_000)
    offsets = reads_of(bench)
    client = bench.consume("t", "c", 7)
    received = []
    for _ in range(3 * COUNT // 7 + 2):
        received += take(client)
        bench.settle()
        assert offsets == [*range(0, len(received) + 8, 100)][: len(offsets)]
    assert received == BODIES * 3
    assert len(offsets) > 2
