"""A daemon that listens on every interface serves IPv4 and IPv6, as Go's daemons do."""

import http.client
import socket

import pytest

from daemons import Daemon, Fleet, has_go
from rawclient import OK, RawClient

IMPLEMENTATIONS = ["nsqx", pytest.param("go", marks=pytest.mark.skipif(not has_go(), reason="run `make interop`"))]
EVERY_INTERFACE = ["0.0.0.0:0", ":0", "[::]:0"]

pytestmark = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")


def get(host: str, port: int, target: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(host, port, timeout=10)
    try:
        connection.request("GET", target)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def check(daemon: Daemon) -> None:
    assert daemon.http_address == f"[::]:{daemon.http_port}"
    for host in ("127.0.0.1", "::1"):
        assert get(host, daemon.http_port, "/ping") == (200, b"OK")


@pytest.mark.parametrize("address", EVERY_INTERFACE)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_nsqd_serves_ipv4_and_ipv6(fleet: Fleet, topic: str, implementation: str, address: str) -> None:
    daemon = fleet.nsqd(implementation, f"--tcp-address={address}", f"--http-address={address}")
    check(daemon)
    assert daemon.tcp_address == f"[::]:{daemon.tcp_port}"
    for channel, host in (("ipv4", "127.0.0.1"), ("ipv6", "[::1]")):
        with RawClient(f"{host}:{daemon.tcp_port}") as client:
            assert client.sub(topic, channel) == OK
            [shown] = daemon.channel_stats(topic, channel)["clients"]
            port = client.local_address.rpartition(":")[2]
            assert shown["remote_address"] == f"{host}:{port}"


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_nsqlookupd_serves_ipv4_and_ipv6(fleet: Fleet, implementation: str) -> None:
    check(fleet.nsqlookupd(implementation, "--tcp-address=0.0.0.0:0", "--http-address=0.0.0.0:0"))


def test_nsqadmin_serves_ipv4_and_ipv6(fleet: Fleet) -> None:
    lookupd = fleet.nsqlookupd("nsqx")
    check(fleet.nsqadmin("nsqx", f"--lookupd-http-address={lookupd.http_address}", "--http-address=0.0.0.0:0"))


def test_nsqadmin_trusts_a_local_proxy_that_connects_by_ipv4(fleet: Fleet) -> None:
    lookupd = fleet.nsqlookupd("nsqx")
    admin = fleet.nsqadmin(
        "nsqx",
        f"--lookupd-http-address={lookupd.http_address}",
        "--http-address=0.0.0.0:0",
        "--admin-user=root",
    )
    headers = {"X-Forwarded-User": "root"}
    for host in ("127.0.0.1", "::1"):
        connection = http.client.HTTPConnection(host, admin.http_port, timeout=10)
        connection.request("POST", "/api/topics", b'{"topic":"t"}', {**headers, "Content-Type": "application/json"})
        assert connection.getresponse().status != 403
        connection.close()
