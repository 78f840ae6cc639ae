"""Our client library with Go's daemons and ours: options, TLS, compression, auth, lost connections and restarts."""

import asyncio
import random
import ssl
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from authserver import AuthServer

from certificates import Authority, Certificate
from daemons import Daemon, Fleet, free_port
from eventually import until
from nsqx import ConnectFailed, Consumer, Producer, PublishFailed
from nsqx.version import VERSION
from proxy import Proxy

BODIES = [b"%d " % number + b"x" * (number % 500) for number in range(2000)]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server_certificate(authority: Authority) -> Certificate:
    return authority.sign("server")


@pytest.fixture(scope="module")
def client_certificate(authority: Authority) -> Certificate:
    return authority.sign("client")


@pytest.fixture
def auth_server() -> Iterator[AuthServer]:
    server = AuthServer()
    yield server
    server.close()


async def round_trip(daemon: Daemon, topic: str, **options):
    """Publish and consume BODIES with these options. Return the /stats entries of the producer and the consumer."""
    async with Producer(daemon.tcp_address, **options) as producer:
        half = len(BODIES) // 2
        await asyncio.gather(*(producer.publish(topic, body) for body in BODIES[:half]))
        await producer.publish_many(topic, BODIES[half:])
        producer_stats = daemon.stats()["producers"]
    found = []
    async with Consumer(topic, "ch", nsqd_tcp_addresses=daemon.tcp_address, max_in_flight=100, **options) as consumer:
        while len(found) < len(BODIES):
            message = await anext(consumer)
            found.append(message.body)
            message.finish()
        consumer_stats = daemon.channel_stats(topic, "ch")["clients"]
    assert sorted(found) == sorted(BODIES)
    channel = daemon.channel_stats(topic, "ch")
    assert [channel[key] for key in ("depth", "in_flight_count", "requeue_count", "timeout_count")] == [0, 0, 0, 0]
    assert [len(producer_stats), len(consumer_stats)] == [1, 1]
    return producer_stats[0], consumer_stats[0]


async def test_messages_are_published_and_consumed(implementation, fleet: Fleet, topic):
    for client in await round_trip(fleet.nsqd(implementation), topic):
        assert client["user_agent"] == f"nsqx/{VERSION}"
        assert not any(client[name] for name in ("tls", "snappy", "deflate"))


@pytest.mark.parametrize(
    "options",
    [{"snappy": True}, {"deflate": True}, {"deflate": True, "deflate_level": 1}, {"deflate": True, "deflate_level": 9}],
)
@pytest.mark.parametrize("tls", [False, True])
async def test_compression_is_negotiated(
    implementation, fleet: Fleet, topic, options, tls, authority, server_certificate
):
    name = next(iter(options))
    flags, more = [], {}
    if tls:
        flags = [f"--tls-cert={server_certificate.cert}", f"--tls-key={server_certificate.key}"]
        more = {"tls_v1": True, "tls_root_ca_file": authority.cert}
    for client in await round_trip(fleet.nsqd(implementation, *flags), topic, **options, **more):
        assert client[name] is True
        assert client["tls"] is tls


async def test_a_large_message_is_compressed_and_decompressed(implementation, fleet: Fleet, topic):
    daemon = fleet.nsqd(implementation, "--max-msg-size=8000000", "--max-body-size=9000000")
    body = bytes([7]) * 6_000_000
    for options in ({"deflate": True}, {"snappy": True}):
        async with Producer(daemon.tcp_address, **options) as producer:
            await producer.publish(topic, body)
        async with Consumer(topic, "ch", nsqd_tcp_addresses=daemon.tcp_address, **options) as consumer:
            message = await anext(consumer)
            assert message.body == body
            message.finish()


@pytest.mark.parametrize("version", ["tls1.2", "tls1.3"])
async def test_tls_with_a_client_certificate(
    implementation, fleet: Fleet, topic, authority, server_certificate, client_certificate, version
):
    daemon = fleet.nsqd(
        implementation,
        f"--tls-cert={server_certificate.cert}",
        f"--tls-key={server_certificate.key}",
        f"--tls-root-ca-file={authority.cert}",
        "--tls-client-auth-policy=require-verify",
        "--tls-required=tcp-https",
    )
    options = {
        "tls_v1": True,
        "tls_root_ca_file": authority.cert,
        "tls_cert": client_certificate.cert,
        "tls_key": client_certificate.key,
        "tls_min_version": version,
    }
    for client in await round_trip(daemon, topic, **options):
        assert client["tls"] is True


async def test_tls_with_a_given_context(implementation, fleet: Fleet, topic, authority, server_certificate):
    daemon = fleet.nsqd(implementation, f"--tls-cert={server_certificate.cert}", f"--tls-key={server_certificate.key}")
    context = ssl.create_default_context(cafile=authority.cert)
    await round_trip(daemon, topic, tls_v1=True, tls_context=context)


async def test_a_failed_tls_handshake_raises_an_error_with_the_reason(
    implementation, fleet: Fleet, topic, authority, server_certificate
):
    flags = [f"--tls-cert={server_certificate.cert}", f"--tls-key={server_certificate.key}"]
    daemon = fleet.nsqd(
        implementation, *flags, "--tls-client-auth-policy=require-verify", f"--tls-root-ca-file={authority.cert}"
    )
    address = daemon.tcp_address
    for options, text in [
        ({}, r"E_INVALID cannot PUB in current state \(TLS required\)"),
        ({"tls_v1": True}, "the certificate is not trusted"),
        ({"tls_v1": True, "tls_root_ca_file": authority.cert}, "certificate required|bad certificate|closed"),
    ]:
        with pytest.raises((ConnectFailed, PublishFailed), match=text):
            async with Producer(address, max_publish_attempts=1, **options) as producer:
                await producer.publish(topic, b"x")


async def test_tls_without_verification(implementation, fleet: Fleet, topic, server_certificate):
    daemon = fleet.nsqd(implementation, f"--tls-cert={server_certificate.cert}", f"--tls-key={server_certificate.key}")
    await round_trip(daemon, topic, tls_v1=True, tls_insecure_skip_verify=True)


async def test_an_auth_secret_is_required_and_checked(implementation, fleet: Fleet, topic, auth_server):
    daemon = fleet.nsqd(implementation, f"--auth-http-address={auth_server.address}")
    await round_trip(daemon, topic, auth_secret="all")
    with pytest.raises(ConnectFailed, match="nsqd requires authentication: set auth_secret"):
        async with Producer(daemon.tcp_address):
            pass
    with pytest.raises(ConnectFailed, match="E_AUTH_FAILED AUTH failed"):
        async with Producer(daemon.tcp_address, auth_secret="refused"):
            pass
    async with Producer(daemon.tcp_address, auth_secret="subscribe-only") as producer:
        with pytest.raises(PublishFailed, match="after 1 attempt: .*E_UNAUTHORIZED AUTH failed for PUB on"):
            await producer.publish(topic, b"x")
    with pytest.raises(ConnectFailed, match="E_UNAUTHORIZED AUTH failed for SUB on"):
        await Consumer(topic, "ch", nsqd_tcp_addresses=daemon.tcp_address, auth_secret="publish-only").start()


async def test_clients_with_an_auth_secret_work_if_nsqd_requires_none(implementation, fleet: Fleet, topic):
    await round_trip(fleet.nsqd(implementation), topic, auth_secret="unused")


async def test_the_options_are_sent_with_identify(implementation, fleet: Fleet, topic):
    options = {
        "client_id": "someone",
        "hostname": "somewhere",
        "user_agent": "tester/7",
        "sample_rate": 99,
        "heartbeat_interval": "5s",
        "output_buffer_size": 4096,
        "output_buffer_timeout": "50ms",
        "msg_timeout": "90s",
        "topology_region": "region",
        "topology_zone": "zone",
    }
    for client in await round_trip(fleet.nsqd(implementation), topic, **options):
        assert client["client_id"] == "someone"
        assert client["hostname"] == "somewhere"
        assert client["user_agent"] == "tester/7"
        assert client["sample_rate"] == 99


async def test_a_sampling_consumer_receives_a_part_of_the_messages(implementation, fleet: Fleet, topic):
    """nsqd discards the other messages of the channel."""
    daemon = fleet.nsqd(implementation)
    async with Producer(daemon.tcp_address) as producer:
        await producer.publish_many(topic, BODIES)
    found = set()
    options = {"nsqd_tcp_addresses": daemon.tcp_address, "max_in_flight": 100, "sample_rate": 20}
    async with Consumer(topic, "ch", lambda message: found.add(message.body), **options):
        await until(lambda: daemon.channel_stats(topic, "ch")["depth"] == 0, "the channel is empty")
    assert 100 < len(found) < 1000


async def test_heartbeats_keep_idle_clients_connected(implementation, fleet: Fleet, topic):
    daemon = fleet.nsqd(implementation)
    options = {"heartbeat_interval": "1s", "read_timeout": "1500ms"}
    async with (
        Producer(daemon.tcp_address, **options) as producer,
        Consumer(topic, "ch", print, nsqd_tcp_addresses=daemon.tcp_address, **options) as consumer,
    ):
        await asyncio.sleep(4)
        assert producer.connected_addresses == consumer.connected_addresses == [daemon.tcp_address]


async def test_a_timed_out_message_is_delivered_again(implementation, fleet: Fleet, topic):
    daemon = fleet.nsqd(implementation)
    async with Producer(daemon.tcp_address) as producer:
        await producer.publish(topic, b"x")
    options = {"nsqd_tcp_addresses": daemon.tcp_address, "max_in_flight": 2, "msg_timeout": "1s"}
    async with Consumer(topic, "ch", **options) as consumer:
        first = await anext(consumer)
        second = await anext(consumer)
        assert (first.attempts, second.attempts, first.id) == (1, 2, second.id)
        second.finish()
        first.finish()  # nsqd answers E_FIN_FAILED, and the connection stays open
        await until(lambda: daemon.channel_stats(topic, "ch")["in_flight_count"] == 0, "the message is finished")
        assert consumer.connected_addresses


async def test_messages_are_deferred_touched_and_requeued(implementation, fleet: Fleet, topic):
    daemon = fleet.nsqd(implementation)
    async with Producer(daemon.tcp_address) as producer:
        await producer.publish_deferred(topic, b"x", "30ms")
    async with Consumer(topic, "ch", nsqd_tcp_addresses=daemon.tcp_address) as consumer:
        for attempt in range(1, 5):
            message = await anext(consumer)
            assert message.attempts == attempt
            message.touch()
            if attempt < 4:
                message.requeue("10ms", backoff=False)
        message.finish()
    channel = daemon.channel_stats(topic, "ch")
    assert (channel["requeue_count"], channel["timeout_count"], channel["depth"]) == (3, 0, 0)


async def test_no_message_is_lost_while_nsqds_restart(implementation, fleet: Fleet, topic, tmp_path: Path):
    """The producer and the consumer find both nsqds through nsqlookupd."""
    lookupd = fleet.nsqlookupd(implementation)
    ports = [free_port(), free_port()]
    directories = [tmp_path / "first", tmp_path / "second"]

    def start(index: int) -> Daemon:
        directories[index].mkdir(exist_ok=True)
        flags = [f"--tcp-address=127.0.0.1:{ports[index]}", f"--lookupd-tcp-address={lookupd.tcp_address}"]
        return fleet.nsqd(implementation, *flags, "--msg-timeout=2s", data_path=directories[index])

    daemons = [start(0), start(1)]
    await until(lambda: len(lookupd.request("GET", "/nodes").json()["producers"]) == 2, "both are registered")
    found: Counter[bytes] = Counter()
    options = {
        "lookupd_http_addresses": lookupd.http_address,
        "lookupd_poll_interval": "50ms",
        "lookupd_poll_jitter": 0.0,
    }
    bodies = [b"%d" % number for number in range(3000)]
    async with (
        Producer(retry_delay="20ms", max_publish_attempts=500, **options) as producer,
        Consumer(topic, "ch", lambda message: found.update([message.body]), max_in_flight=100, **options),
    ):
        for index in (0, 1):
            part = bodies[index * 1500 : index * 1500 + 1500]
            publishes = [producer.publish(topic, body) for body in part]
            await asyncio.gather(*publishes[:100])
            # In a thread: Go's nsqd waits for a new connection to send its magic, so the clients must keep running.
            await asyncio.to_thread(daemons[index].stop)
            await asyncio.gather(*publishes)
            daemons[index] = start(index)
        await until(lambda: len(found) == len(bodies), "every message has arrived", 40)
    assert set(found) == set(bodies)


@pytest.mark.parametrize("options", [{}, {"snappy": True}, {"deflate": True}], ids=["plain", "snappy", "deflate"])
async def test_no_message_is_lost_while_connections_break(implementation, fleet: Fleet, topic, options):
    """Each of 20,000 messages is delivered at least once."""
    daemon = fleet.nsqd(implementation, "--msg-timeout=1s", "--mem-queue-size=100000")
    bodies = [b"%d" % number for number in range(20_000)]
    counts: Counter[bytes] = Counter()
    rng = random.Random(3)
    # On a slow disk, few of the short connections live until the answer of a durable publish.
    retry = {"retry_delay": "5ms", "max_publish_attempts": 1000, "publish_timeout": "50s"}
    async with Proxy(daemon.tcp_address) as proxy:
        consumer = Consumer(
            topic,
            "ch",
            lambda message: counts.update([message.body]),
            nsqd_tcp_addresses=proxy.address,
            max_in_flight=200,
            lookupd_poll_interval="10ms",
            max_attempts=0,
            **options,
        )
        async with Producer(proxy.address, **retry, **options) as producer, consumer:
            cutting = asyncio.create_task(proxy.keep_cutting(rng, 0.3))
            for start in range(0, len(bodies), 1000):
                await asyncio.gather(*(producer.publish(topic, body) for body in bodies[start : start + 1000]))
            await until(lambda: proxy.connection_count >= 12, "the connections were cut")
            cutting.cancel()
            await until(lambda: len(counts) == len(bodies), "every message has arrived", 40)
    assert set(counts) == set(bodies)
