"""Unusual settings that Go's programs accept. Ours accept them too and behave in the same way."""

import subprocess
from pathlib import Path

import pytest

from certificates import Certificate
from daemons import Fleet, wait_until
from nsqx import Consumer, Producer
from utilities import Running, consume, http_endpoint, make_channels, publish, run_utility


@pytest.fixture(scope="module")
def short_key(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """A self-signed certificate with a 1024-bit RSA key."""
    directory = tmp_path_factory.mktemp("short")
    made = Certificate(str(directory / "cert.pem"), str(directory / "key.pem"))
    command = ["openssl", "req", "-x509", "-newkey", "rsa:1024", "-sha256", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    try:
        subprocess.run([*command, "-keyout", made.key, "-out", made.cert], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl missing: install it to make test certificates")
    return made


def test_sync_every_minus_one_disables_syncs_by_count(implementation: str, fleet: Fleet) -> None:
    flags = ("--sync-every=-1", "--mem-queue-size=0", "--sync-timeout=200ms")
    daemon = fleet.nsqd(implementation, *flags)
    bodies = [b"%d" % number for number in range(500)]
    publish(daemon, "t", bodies)
    assert sorted(consume(daemon, "t")) == sorted(bodies)


async def test_nsqd_without_a_tcp_address_listens_on_an_abstract_socket(implementation: str, fleet: Fleet) -> None:
    daemon = fleet.nsqd(implementation, "--tcp-address=")
    assert daemon.tcp_address.startswith("@")
    async with Producer(daemon.tcp_address) as producer:
        await producer.publish("t", b"x")
    assert daemon.topic_stats("t")["message_count"] == 1


def test_nsqlookupd_and_nsqadmin_without_addresses_take_any_port(implementation: str, fleet: Fleet) -> None:
    lookupd = fleet.nsqlookupd(implementation, "--tcp-address=", "--http-address=")
    for address in (lookupd.tcp_address, lookupd.http_address):
        assert address.startswith("[::]:")
    admin = fleet.nsqadmin(implementation, "--http-address=", f"--lookupd-http-address=127.0.0.1:{lookupd.http_port}")
    assert admin.http_address.startswith("[::]:")


def test_proxy_graphite_without_a_url_answers_502(implementation: str, fleet: Fleet) -> None:
    admin = fleet.nsqadmin(implementation, "--proxy-graphite", "--lookupd-http-address=127.0.0.1:1")
    assert admin.request("GET", "/ping").status == 200
    assert admin.request("GET", "/render?target=x").status == 502


@pytest.mark.parametrize("policy", ["", "require", "require-verify"])
async def test_rsa_keys_of_1024_bits_are_accepted(
    implementation: str, fleet: Fleet, short_key: Certificate, policy: str
) -> None:
    flags = [f"--tls-cert={short_key.cert}", f"--tls-key={short_key.key}", f"--tls-root-ca-file={short_key.cert}"]
    daemon = fleet.nsqd(implementation, *flags, f"--tls-client-auth-policy={policy}")
    client = {"tls_v1": True, "tls_root_ca_file": short_key.cert, "tls_cert": short_key.cert, "tls_key": short_key.key}
    async with Producer(daemon.tcp_address, **client) as producer:
        await producer.publish("t", b"x")


def test_a_timeout_of_zero_means_no_timeout(implementation: str, fleet: Fleet, tmp_path: Path) -> None:
    daemon = fleet.nsqd("nsqx")
    publish(daemon, "t", [b"hello"])
    with http_endpoint() as endpoint:
        flags = ["--topic=t", "--channel=c", f"--post={endpoint.address}", "--http-client-request-timeout=0s"]
        flags += ["--http-client-connect-timeout=0s", f"--nsqd-tcp-address={daemon.tcp_address}"]
        with Running(implementation, "nsq_to_http", *flags, log=tmp_path / "log"):
            wait_until(lambda: [each.body for each in endpoint.requests] == [b"hello"], "the endpoint has the message")


@pytest.mark.parametrize(
    "option",
    [
        "local_addr,127.0.0.9:0",
        "skip_lookupd_authorization",
        "skip_lookupd_authorization,false",
        "heartbeat_interval,0s",
        "max_attempts,70000",
    ],
)
def test_unusual_consumer_options_are_accepted(implementation: str, fleet: Fleet, tmp_path: Path, option: str) -> None:
    daemon = fleet.nsqd("nsqx")
    make_channels(daemon, "t", "c")
    publish(daemon, "t", [b"hello"])
    flags = ["--topic=t", "--channel=c", f"--consumer-opt={option}", f"--nsqd-tcp-address={daemon.tcp_address}"]
    with Running(implementation, "nsq_tail", *flags, log=tmp_path / "log") as utility:
        utility.wait_for_log("hello\n")
        [client] = daemon.channel_stats("t", "c")["clients"]
        if option.startswith("local_addr"):
            assert client["remote_address"].startswith("127.0.0.9:")


def test_to_nsq_stops_at_a_line_that_nsqd_refuses(implementation: str, fleet: Fleet) -> None:
    daemon = fleet.nsqd("nsqx", "--max-msg-size=5")
    lines = b"good\nalso\nmuch too big\nlast\nmore\n"
    ended = run_utility(implementation, "to_nsq", "--topic=t", f"--nsqd-tcp-address={daemon.tcp_address}", stdin=lines)
    assert ended.code == 1
    assert "E_BAD_MESSAGE PUB message too big 12 > 5" in ended.lines[-1]
    assert sorted(consume(daemon, "t")) == [b"also", b"good"]


def test_to_nsq_stops_at_a_refused_line_with_many_lines_left(implementation: str, fleet: Fleet) -> None:
    daemon = fleet.nsqd("nsqx", "--max-msg-size=5")
    lines = b"good\n" * 1000 + b"much too big\n" + b"last\n" * 100_000
    ended = run_utility(implementation, "to_nsq", "--topic=t", f"--nsqd-tcp-address={daemon.tcp_address}", stdin=lines)
    assert ended.code == 1
    assert daemon.topic_stats("t")["message_count"] == 1000


async def test_a_heartbeat_interval_of_zero_is_accepted(implementation: str, fleet: Fleet) -> None:
    daemon = fleet.nsqd(implementation)
    options = {"heartbeat_interval": 0, "nsqd_tcp_addresses": daemon.tcp_address}
    async with Consumer("t", "c", **options) as consumer:
        assert consumer.connected_addresses == [daemon.tcp_address]
