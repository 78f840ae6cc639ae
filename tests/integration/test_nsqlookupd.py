"""nsqlookupd as a process and inside another process: limits, shutdown, metrics and flags.

The interop tests compare its responses with those of Go's nsqlookupd.
"""

import asyncio
import http.client
import io
import json
import re
import signal
import socket
import struct
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse_text

from daemons import Fleet, program_command, start_nsqlookupd, wait_until
from nsqx.errors import ConfigError
from nsqx.log import INFO, Log
from nsqx.nsqlookupd.daemon import NsqlookupdDaemon
from nsqx.nsqlookupd.options import NsqlookupdOptions
from rawlookup import NSQD, ConnectionEnded, RawLookupClient, identify


@pytest.fixture(scope="module")
def lookupd():
    """One daemon for all tests that need no flags. Each test has its own topic."""
    with start_nsqlookupd("nsqx") as daemon:
        yield daemon


def connect(daemon, **changes):
    client = RawLookupClient(daemon.tcp_address)
    assert json.loads(client.ask(identify(**changes)))["tcp_port"] == daemon.tcp_port
    return client


def test_a_topic_is_listed_until_its_nsqd_disconnects(lookupd, topic):
    with connect(lookupd, topology_zone="z", topology_region="r") as nsqd:
        assert nsqd.ask(b"REGISTER %b ch\n" % topic.encode()) == b"OK"
        answer = lookupd.request("GET", f"/lookup?topic={topic}").json()
        peer = {**NSQD, "remote_address": nsqd.local_address, "topology_zone": "z", "topology_region": "r"}
        assert answer == {"channels": ["ch"], "producers": [peer]}
        node = {**peer, "tombstones": [False], "topics": [topic]}
        assert node in lookupd.request("GET", "/nodes").json()["producers"]
        assert nsqd.ask(b"PING\n") == b"OK"
        assert nsqd.ask(b"UNREGISTER %b ch\n" % topic.encode()) == b"OK"
        assert lookupd.request("GET", f"/lookup?topic={topic}").json() == answer
        address = nsqd.local_address
    wait_until(
        lambda: lookupd.request("GET", f"/lookup?topic={topic}").json()["producers"] == [],
        "the nsqd is no longer listed",
    )
    assert address not in lookupd.request("GET", "/debug").body.decode()


@pytest.mark.parametrize("size", [0, -1, -(2**31), 2**31 - 1, 1024 * 1024 + 1])
def test_an_invalid_size_closes_only_this_connection(lookupd, size):
    """Go's nsqlookupd crashes on a negative size and allocates any other size."""
    with RawLookupClient(lookupd.tcp_address) as client:
        assert client.ask(b"IDENTIFY\n" + struct.pack(">i", size)).startswith(b"E_BAD_BODY IDENTIFY ")
        assert client.read_to_end() == b""
    assert lookupd.request("GET", "/ping").body == b"OK"


def test_a_line_without_end_closes_the_connection(lookupd):
    with RawLookupClient(lookupd.tcp_address) as client:
        assert client.ask(b"x" * 16384) == b"E_INVALID command line too long > 16384"
        assert client.read_to_end() == b""


def test_fifty_connections_register_the_same_topic(lookupd, topic):
    clients = [connect(lookupd, http_port=number) for number in range(1, 51)]
    for client in clients:
        client.send(b"REGISTER %b\n" % topic.encode())
    assert [client.read_answer() for client in clients] == [b"OK"] * 50
    producers = lookupd.request("GET", f"/lookup?topic={topic}").json()["producers"]
    assert {producer["http_port"] for producer in producers} == set(range(1, 51))
    for client in clients:
        client.close()
    wait_until(
        lambda: not lookupd.request("GET", f"/lookup?topic={topic}").json()["producers"], "all nsqds are disconnected"
    )


def test_an_http_connection_serves_many_requests(lookupd, topic):
    connection = http.client.HTTPConnection(lookupd.http_address, timeout=15)
    for method, target, status in (
        ("POST", f"/topic/create?topic={topic}", 200),
        ("GET", f"/lookup?topic={topic}", 200),
        ("GET", "/nodes", 200),
        ("GET", "/nothing", 404),
        ("GET", "/debug", 200),
    ):
        connection.request(method, target)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == status
    connection.close()


@pytest.mark.parametrize("path", ["", "/cmdline", "/profile", "/heap", "/goroutine"])
def test_profiles_are_not_served(lookupd, path):
    assert lookupd.request("GET", f"/debug/pprof{path}").status == 404


def test_metrics_count_registrations_and_requests(fleet: Fleet):
    daemon = fleet.nsqlookupd("nsqx", "--inactive-producer-timeout=1ns")
    with connect(daemon) as nsqd:
        nsqd.ask(b"REGISTER t ch\n")
        nsqd.ask(b"PING\n")
        daemon.request("GET", "/lookup?topic=t")
        page = daemon.request("GET", "/metrics")
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = {s.name: s.value for family in parse_text(page.body.decode()) for s in family.samples}
    expected = {
        "topics": 1,
        "channels": 1,
        "producers": 1,
        "inactive_producers": 1,
        "connected_peers": 1,
        "connections_total": 1,
        "registrations_total": 3,
        "unregistrations_total": 0,
        "pings_total": 1,
        "lookups_total": 1,
    }
    assert {name: samples[f"nsqlookupd_{name}"] for name in expected} == expected


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_closes_connections_and_listeners(fleet: Fleet, number):
    daemon = fleet.nsqlookupd("nsqx")
    with connect(daemon) as nsqd:
        assert daemon.stop(number) == 0
        with pytest.raises(ConnectionEnded):
            nsqd.ask(b"PING\n")
    assert "UNREGISTER category:client key: subkey:" in daemon.log
    assert f"TCP: closing {daemon.tcp_address}" in daemon.log
    assert f"HTTP: closing {daemon.http_address}" in daemon.log
    assert "Traceback" not in daemon.log


def test_pings_are_logged(fleet: Fleet):
    daemon = fleet.nsqlookupd("nsqx")
    with connect(daemon) as nsqd:
        nsqd.ask(b"PING\n")
    daemon.wait_for_log(r"CLIENT\(127\.0\.0\.1:\d+\): pinged \(last ping [\d.]+(µs|ms|s)\)")


def run(*flags):
    """Run an nsqlookupd until it exits."""
    command = [*program_command("nsqx", "nsqlookupd"), *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=30)


class TestCommand:
    def test_version_is_printed(self):
        ended = run("-version")
        assert (ended.returncode, ended.stderr) == (0, "")
        assert re.fullmatch(
            r"nsqlookupd v1\.3\.0 \(built w/python3\S+\)\nnsqx \S+ \(.+ nsqlookupd v1\.3\.0\)\n", ended.stdout
        )

    def test_an_unknown_flag_prints_the_usage(self):
        ended = run("-x")
        assert ended.returncode == 2
        assert ended.stderr.startswith("flag provided but not defined: -x\nUsage of nsqlookupd:\n")
        assert not ended.stderr.endswith("\n\n")

    def test_an_address_in_use_fails_at_start(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            ended = run(f"-tcp-address={address}", "-http-address=127.0.0.1:0")
        assert ended.returncode == 1
        reason = f"listen ({address}) failed - listen tcp {address}: bind: address already in use"
        assert ended.stderr.endswith(f" FATAL: failed to instantiate nsqlookupd - {reason}\n")

    @pytest.mark.parametrize("host", ["no.host.invalid", "x" * 300, "a..b"])
    def test_an_invalid_host_fails_at_start(self, host):
        ended = run(f"-tcp-address={host}:0", "-http-address=127.0.0.1:0")
        assert ended.returncode == 1
        assert f"FATAL: failed to instantiate nsqlookupd - listen ({host}:0) failed - " in ended.stderr
        assert "Traceback" not in ended.stderr


class TestInProcess:
    """nsqlookupd in one event loop with other daemons, as in `nsqx up`."""

    def options(self, **changes):
        addresses = {"tcp_address": "127.0.0.1:0", "http_address": "127.0.0.1:0", "broadcast_address": "here"}
        return NsqlookupdOptions(**{**addresses, **changes})

    async def test_stop_closes_connections_and_listeners(self):
        log = io.StringIO()
        daemon = NsqlookupdDaemon(self.options(), Log("", INFO, log))
        await daemon.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", daemon.tcp_port)
        writer.write(b"  V1" + identify())
        size = int.from_bytes(await reader.readexactly(4), "big")
        response = json.loads(await reader.readexactly(size))
        assert response["broadcast_address"] == "here"
        assert (response["tcp_port"], response["http_port"]) == (daemon.tcp_port, daemon.http_port)
        await daemon.stop()
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", daemon.tcp_port)
        assert not daemon.lookupd.connections

    async def test_two_daemons_run_in_one_event_loop(self):
        daemons = [NsqlookupdDaemon(self.options(), Log("", INFO, io.StringIO())) for _ in range(2)]
        for daemon in daemons:
            await daemon.start()
        assert len({port for daemon in daemons for port in (daemon.tcp_port, daemon.http_port)}) == 4
        for daemon in daemons:
            await daemon.stop()

    @pytest.mark.parametrize("which", ["tcp_address", "http_address"])
    async def test_an_address_in_use_fails_at_start(self, which):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            daemon = NsqlookupdDaemon(self.options(**{which: address}), Log("", INFO, io.StringIO()))
            text = f"listen ({address}) failed - listen tcp {address}: bind: address already in use"
            with pytest.raises(ConfigError) as failure:
                await daemon.start()
            assert str(failure.value) == text

    async def test_a_client_that_does_not_read_is_no_longer_read_from(self):
        """The output buffer stays below 1 MiB, and the client does not delay the shutdown."""
        daemon = NsqlookupdDaemon(self.options(), Log("", INFO, io.StringIO()))
        await daemon.start()
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            client.connect(("127.0.0.1", daemon.tcp_port))
            client.setblocking(False)
            await send_until_reading_pauses(client, daemon)
            (connection,) = daemon.lookupd.connections
            assert connection._transport.get_write_buffer_size() < 1024 * 1024
            await daemon.stop()
        assert not daemon.lookupd.connections


async def send_until_reading_pauses(client, daemon):
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(client, b"  V1")
    pings = b"PING\n" * 10_000
    for _ in range(1000):
        sending = asyncio.ensure_future(loop.sock_sendall(client, pings))
        while not sending.done():
            await asyncio.sleep(0)
            if not all(connection._transport.is_reading() for connection in daemon.lookupd.connections):
                sending.cancel()
                return
    pytest.fail("the daemon has read 50 MB")
