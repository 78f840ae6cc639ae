"""Fairness between connections: slices of input, the round-robin, and the reasons for not reading a socket.

The clock of the round-robin ends a round after every slice, so one turn of the loop is one slice.
"""

import asyncio
import itertools
from types import SimpleNamespace

import pytest
from conversation import ConnectionClient

from broker_bench import SECOND, Bench
from compression import DeflateLayer, SnappyLayer
from nsqx.errors import ProtocolError
from nsqx.net.round_robin import LARGE_CHUNK, ROUND_NS, RoundRobin
from nsqx.nsqd.authorizer import OpenAuthorizer
from nsqx.nsqd.http import PublishAPI
from nsqx.wire.batches import SLICE_COUNT
from rawclient import (
    ERROR,
    OK,
    RESPONSE,
    Frame,
    auth,
    cls,
    dpub,
    fin,
    identify,
    mpub,
    mpub_body,
    nop,
    pub,
    rdy,
    sized,
    sub,
)

MAGIC = b"  V2"
HEARTBEAT = Frame(RESPONSE, b"_heartbeat_")
# More commands than fit into a slice, and the most commands of a slice.
MANY = 5000
MOST = 512
UNKNOWN_ID = b"0123456789abcdef"


@pytest.fixture
def make_fair_bench(tmp_path):
    def make(**options: int) -> Bench:
        # With the classic store and a memory queue, publishes are answered in the turn of the command.
        bench = Bench(tmp_path, store="classic", **options)
        ticks = itertools.count(0, ROUND_NS)
        bench.broker.round_robin = RoundRobin(bench.broker.call_soon, ticks.__next__)
        return bench

    return make


@pytest.fixture
def bench(make_fair_bench) -> Bench:
    return make_fair_bench(mem_queue_size=1_000_000)


def run_one_turn(bench: Bench) -> None:
    """Run one turn of the loop."""
    callbacks, bench.soon[:] = bench.soon[:], []
    for callback in callbacks:
        callback()


def burst(topic: str) -> bytes:
    return b"".join(pub(topic, b"%d" % number) for number in range(MANY))


def published(bench: Bench, topic: str) -> int:
    found = bench.broker.topics.get(topic)
    return 0 if found is None else found.message_count


def test_a_burst_is_executed_in_slices(bench, line):
    line.send(MAGIC)
    bench.broker.topic("t").channel("c")
    line.connection.data_received(burst("t"))
    counts = [published(bench, "t")]
    while counts[-1] < MANY:
        assert not line.transport.is_reading
        run_one_turn(bench)
        counts.append(published(bench, "t"))
    steps = [later - earlier for earlier, later in itertools.pairwise([0, *counts])]
    assert all(0 < step <= MOST for step in steps), steps
    assert line.receive() == [OK] * MANY
    assert line.transport.is_reading


def test_the_order_of_commands_is_kept(bench, line):
    consumer = bench.consume("t", "c", 2 * MANY)
    line.send(MAGIC)
    line.send(burst("t"))
    assert consumer.link.take_bodies() == [b"%d" % number for number in range(MANY)]


def test_input_after_a_burst_is_executed_after_it(bench, line):
    """The input may have been in transit when reading stopped."""
    consumer = bench.consume("t", "c", 2 * MANY)
    line.send(MAGIC)
    line.connection.data_received(burst("t"))
    line.connection.data_received(pub("t", b"last"))
    assert line.receive() == [OK] * (MANY + 1)
    assert consumer.link.take_bodies()[-1] == b"last"


def test_busy_connections_take_turns_and_others_do_not_wait(bench):
    floods = [ConnectionClient(bench) for _ in range(5)]
    polite = ConnectionClient(bench)
    for each in (*floods, polite):
        each.send(MAGIC)
    for number, flood in enumerate(floods):
        flood.connection.data_received(burst(f"t{number}"))
    before = 0
    while any(published(bench, f"t{number}") < MANY for number in range(5)):
        counts = [published(bench, f"t{number}") for number in range(5)]
        assert max(counts) - min(counts) <= MOST, counts
        assert sum(counts) - before <= 5 * MOST
        before = sum(counts)
        polite.connection.data_received(pub("polite", b"x"))
        assert polite.transport.take_frames() == [OK]
        run_one_turn(bench)
    assert [flood.receive() for flood in floods] == [[OK] * MANY] * 5


@pytest.mark.parametrize(
    ("opening", "command", "line_start"),
    [
        (sub("t", "c"), fin(UNKNOWN_ID), "[127.0.0.1:1234] - E_FIN_FAILED"),
        (sub("t", "c") + cls(), rdy(1), "PROTOCOL(V2): [127.0.0.1:1234] ignoring RDY after CLS"),
    ],
)
def test_commands_that_are_logged_count_for_more(bench, line, opening, command, line_start):
    def logged() -> int:
        return sum(text.startswith(line_start) for _, text in bench.log.lines)

    line.send(MAGIC + opening)
    line.connection.data_received(command * 1000)
    assert 0 < logged() <= 32
    before = logged()
    run_one_turn(bench)
    assert before < logged() <= before + 32
    line.receive()
    assert logged() == 1000
    assert line.transport.is_reading


def test_deferred_publishes_are_sliced(bench, line):
    line.send(MAGIC)
    line.connection.data_received(dpub("t", 1000, b"x") * MANY)
    assert 0 < published(bench, "t") <= MOST
    assert line.receive() == [OK] * MANY


@pytest.mark.parametrize(("name", "layer"), [("snappy", SnappyLayer()), ("deflate", DeflateLayer())])
def test_compressed_commands_are_sliced(bench, line, name, layer):
    bench.broker.upgrades.snappy = bench.broker.upgrades.deflate = True
    line.send(MAGIC)
    line.connection.data_received(identify(feature_negotiation=True, **{name: True}))
    line.connection.data_received(layer.encode(pub("t", b"x") * MANY))
    counts = [published(bench, "t")]
    while bench.soon:
        assert not line.transport.is_reading
        run_one_turn(bench)
        counts.append(published(bench, "t"))
    assert counts[-1] == MANY
    assert max(later - earlier for earlier, later in itertools.pairwise([0, *counts])) <= MOST
    assert line.transport.is_reading


def test_commands_after_an_upgrade_are_sliced(bench, line):
    bench.broker.upgrades.deflate = True
    line.send(MAGIC)
    commands = DeflateLayer().encode(pub("t", b"x") * MANY)
    line.connection.data_received(identify(feature_negotiation=True, deflate=True) + commands)
    assert published(bench, "t") <= MOST
    bench.run_scheduled()
    assert published(bench, "t") == MANY
    assert line.transport.is_reading


def test_a_large_chunk_is_not_followed_by_another_in_the_same_turn(bench, line):
    line.send(MAGIC)
    command = pub("t", b"x" * (LARGE_CHUNK + 1000))
    line.connection.data_received(command[:LARGE_CHUNK])
    assert not line.transport.is_reading
    run_one_turn(bench)
    assert line.transport.is_reading
    assert line.send(command[LARGE_CHUNK:]) == [OK]


def test_a_lost_connection_leaves_the_round_robin(bench, line):
    line.send(MAGIC)
    line.connection.data_received(burst("t"))
    line.transport.abort()
    before = published(bench, "t")
    bench.run_scheduled()
    assert published(bench, "t") == before
    assert bench.broker.connections == set()


def test_nothing_after_a_fatal_error_is_executed(bench, line):
    line.send(MAGIC)
    frames = line.send(pub("t", b"x") * 2000 + b"WHAT\n" + pub("t", b"x") * 2000)
    assert frames == [OK] * 2000 + [Frame(ERROR, b"E_INVALID invalid command WHAT")]
    assert published(bench, "t") == 2000
    assert line.is_lost


def test_a_client_that_does_not_read_its_answers_is_paused(bench, line):
    line.send(MAGIC + sub("t", "c"))
    line.transport.is_stuck = True
    while line.transport.is_reading or bench.soon:
        if line.transport.is_reading:
            line.connection.data_received(fin(UNKNOWN_ID) * 12_000)
        run_one_turn(bench)
    refused = len(bench.log.errors())
    assert 12_000 < refused < 24_000
    line.transport.unblock()
    line.receive()
    assert len(bench.log.errors()) == 24_000
    assert line.transport.is_reading


# Very large batches


@pytest.mark.parametrize("mem_queue_size", [1_000_000, 0])
def test_a_batch_of_very_many_messages_is_published_in_slices(make_fair_bench, mem_queue_size):
    bench = make_fair_bench(mem_queue_size=mem_queue_size, sync_every=1_000_000)
    line, polite = ConnectionClient(bench), ConnectionClient(bench)
    line.send(MAGIC)
    polite.send(MAGIC)
    count = 3 * SLICE_COUNT + 1
    line.connection.data_received(mpub("t", [b"x"] * count) + pub("t", b"last"))
    counts = [published(bench, "t")]
    while bench.soon and counts[-1] < count:
        assert not line.transport.is_reading
        assert line.transport.take_frames() == []
        polite.connection.data_received(nop())
        run_one_turn(bench)
        counts.append(published(bench, "t"))
    assert max(later - earlier for earlier, later in itertools.pairwise([0, *counts])) <= SLICE_COUNT + 1
    assert line.receive() == [OK, OK]
    assert published(bench, "t") == count + 1
    assert line.transport.is_reading


@pytest.mark.parametrize("is_binary", [False, True])
async def test_an_http_batch_of_very_many_messages_is_published_in_slices(bench, is_binary):
    count = 3 * SLICE_COUNT + 1
    body = mpub_body([b"x"] * count) if is_binary else b"x\n" * count
    request = SimpleNamespace(body=body, query={"topic": "t", "binary": "true" if is_binary else "false"})
    answer = asyncio.ensure_future(PublishAPI(bench.broker).publish_many(request))
    counts = [0]
    while not answer.done():
        await asyncio.sleep(0)
        run_one_turn(bench)
        counts.append(published(bench, "t"))
    assert max(later - earlier for earlier, later in itertools.pairwise(counts)) <= SLICE_COUNT
    assert counts[-1] == count
    assert (await answer).body == b"OK"


def test_a_topic_can_be_deleted_while_a_batch_is_published(bench, line):
    line.send(MAGIC)
    line.connection.data_received(mpub("t", [b"x"] * (2 * SLICE_COUNT)))
    run_one_turn(bench)
    assert published(bench, "t") == SLICE_COUNT
    bench.broker.delete_topic("t")
    assert line.receive() == [Frame(ERROR, b"E_MPUB_FAILED MPUB failed exiting")]
    assert line.is_lost


def test_a_client_can_disconnect_while_its_batch_is_published(bench, line):
    line.send(MAGIC)
    line.connection.data_received(mpub("t", [b"x"] * (2 * SLICE_COUNT)))
    line.transport.abort()
    bench.run_scheduled()
    assert published(bench, "t") == 2 * SLICE_COUNT


# The disk


def test_a_publisher_is_paused_while_much_is_not_durable(make_fair_bench):
    bench = make_fair_bench(mem_queue_size=0, sync_every=1)
    bench.sync_threads.is_slow = True
    line, polite = ConnectionClient(bench), ConnectionClient(bench)
    line.send(MAGIC)
    polite.send(MAGIC)
    command = pub("t", b"x" * 100_000)
    sent = 0
    while line.transport.is_reading:
        assert line.send(command) == []
        sent += 1
    assert 4 * 1024 * 1024 < sent * len(command) < 5 * 1024 * 1024
    assert polite.send(pub("t#ephemeral", b"x")) == [OK]
    bench.sync_threads.is_slow = False
    bench.sync(*bench.broker.topic("t").disk_queues())
    assert line.receive() == [OK] * sent
    assert line.transport.is_reading


def test_a_compressing_publisher_is_paused_too(make_fair_bench):
    """A few compressed bytes can become very many messages."""
    bench = make_fair_bench(mem_queue_size=0, sync_every=1)
    bench.broker.upgrades.deflate = True
    bench.sync_threads.is_slow = True
    line = ConnectionClient(bench)
    line.send(MAGIC)
    line.connection.data_received(identify(feature_negotiation=True, deflate=True))
    line.connection.data_received(DeflateLayer().encode(pub("t", b"x" * 100_000) * 200))
    bench.run_scheduled()
    assert 0 < published(bench, "t") < 60
    assert not line.transport.is_reading
    bench.sync_threads.is_slow = False
    bench.sync(*bench.broker.topic("t").disk_queues())
    bench.run_scheduled()
    assert published(bench, "t") == 200
    assert line.transport.is_reading


# Answers of the auth server


class SlowAuthorizer(OpenAuthorizer):
    """Answers when the test triggers it."""

    def authenticate(self, client, secret, done):
        self.done = done


@pytest.fixture
def authorizer(bench) -> SlowAuthorizer:
    bench.broker.authorizer = SlowAuthorizer()
    return bench.broker.authorizer


def test_nothing_is_read_during_a_query_to_the_auth_server(bench, line, authorizer):
    line.send(MAGIC)
    line.send(auth(b"secret") + pub("t", b"x") * 10)
    assert not line.transport.is_reading
    assert published(bench, "t") == 0
    authorizer.done(b"{}")
    assert line.receive() == [Frame(RESPONSE, b"{}")] + [OK] * 10
    assert line.transport.is_reading


def test_a_burst_after_auth_is_sliced(bench, line, authorizer):
    line.send(MAGIC)
    line.send(auth(b"secret") + pub("t", b"x") * MANY)
    authorizer.done(b"{}")
    assert 0 < published(bench, "t") <= MOST
    assert not line.transport.is_reading
    assert line.receive() == [Frame(RESPONSE, b"{}")] + [OK] * MANY
    assert line.transport.is_reading


def test_waiting_for_the_auth_server_does_not_count_as_silence(bench, line, authorizer):
    line.send(MAGIC)
    line.send(identify(heartbeat_interval=1000) + auth(b"secret"))
    for _ in range(10):
        assert line.wait(SECOND) == [HEARTBEAT]
    authorizer.done(b"{}")
    assert line.receive() == [Frame(RESPONSE, b"{}")]
    line.wait(2 * SECOND - 1)
    assert not line.is_lost
    line.wait(1)
    assert line.is_lost


def test_a_refused_secret_closes_the_connection(bench, line, authorizer):
    line.send(MAGIC)
    line.send(auth(b"secret") + pub("t", b"x") * 10)
    authorizer.done(ProtocolError("E_AUTH_FAILED", "AUTH failed"))
    assert line.receive() == [Frame(ERROR, b"E_AUTH_FAILED AUTH failed")]
    assert line.is_lost
    assert published(bench, "t") == 0


def test_an_auth_answer_after_the_client_has_disconnected_is_ignored(bench, line, authorizer):
    line.send(MAGIC)
    line.send(auth(b"secret") + pub("t", b"x"))
    line.transport.abort()
    authorizer.done(b"{}")
    bench.run_scheduled()
    assert published(bench, "t") == 0


def test_a_trickle_of_commands_is_never_paused(bench, line):
    line.send(MAGIC)
    for command in (nop(), pub("t", b"x"), b"PUB t\n" + sized(b"12")[:3]):
        line.connection.data_received(command)
        assert line.transport.is_reading
    assert bench.soon == []
