"""Slow peers: bytes that trickle in, handshakes that never end, answers that are not read.

nsqd closes each of them by a deadline, or keeps its memory bounded, while another client is served. Cases that take
minutes (the magic, HTTP bodies, peers that vanish) are in tests/faults.
"""

import contextlib
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from certificates import self_signed
from compression import DeflateLayer, SnappyLayer
from daemons import Daemon, Fleet
from rawclient import HEARTBEAT, MAGIC, OK, RawClient, auth, identify, mpub_body, pub, sub

KIB = 1024
MIB = 1024 * KIB
# Time within which a peer must be closed, on a busy machine.
PATIENCE_S = 30.0
TRICKLE_S = 0.05
HELLO = MAGIC + identify(heartbeat_interval=1000)
OK_FRAME = struct.pack(">ii", 6, 0) + b"OK"
MUCH = 40 * MIB
BATCH = mpub_body([b"x" * 100] * 10)


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory):
    certificate = self_signed(tmp_path_factory.mktemp("tls"), "server")
    fleet = Fleet()
    yield fleet.nsqd("nsqx", f"--tls-cert={certificate.cert}", f"--tls-key={certificate.key}")
    fleet.close()


def connect(address: str, window_size: int = 0) -> socket.socket:
    connection = socket.socket()
    if window_size:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window_size)
    connection.settimeout(10)
    host, _, port = address.rpartition(":")
    connection.connect((host, int(port)))
    return connection


def is_closed(connection: socket.socket) -> bool:
    """True once the other end has closed; discards the received data."""
    connection.setblocking(False)
    try:
        while connection.recv(64 * KIB):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def compressed_trickle() -> bytes:
    """Return a batch inside deflate, with enough compressed bytes to trickle."""
    return DeflateLayer(1).encode(b"MPUB t\n" + struct.pack(">i", 100_000) + bytes(range(256)) * 20)


# The bytes sent at once, and the bytes that follow one by one without completing a command.
TRICKLES = {
    "a command's name": (HELLO, b"A" * 10_000),
    "a command's size": (HELLO + b"MPUB t\n", b"\0"),
    "a batch": (HELLO + b"MPUB t\n" + struct.pack(">i", 1_000_000), BATCH * 10),
    "a message": (HELLO + b"PUB t\n" + struct.pack(">i", 1_000_000), b"x" * 10_000),
    "an IDENTIFY": (HELLO + b"IDENTIFY\n" + struct.pack(">i", 100_000), b"{" * 10_000),
    "a secret": (HELLO + b"AUTH\n" + struct.pack(">i", 100_000), b"x" * 10_000),
    "a TLS handshake": (
        MAGIC + identify(feature_negotiation=True, tls_v1=True, heartbeat_interval=60_000),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 500,
    ),
    "a TLS handshake without heartbeats": (
        MAGIC + identify(feature_negotiation=True, tls_v1=True, heartbeat_interval=-1),
        b"",
    ),
    "a deflated batch": (
        MAGIC + identify(feature_negotiation=True, deflate=True, heartbeat_interval=1000),
        compressed_trickle(),
    ),
}


def test_trickling_peers_are_closed(nsqd: Daemon) -> None:
    """All of them are closed, and another client is served meanwhile."""
    with contextlib.ExitStack() as stack:
        good = stack.enter_context(RawClient(nsqd.tcp_address))
        peers = {}
        for name, (start, _) in TRICKLES.items():
            peers[name] = stack.enter_context(connect(nsqd.tcp_address))
            peers[name].sendall(start)
        sent = dict.fromkeys(peers, 0)
        deadline_s = time.monotonic() + PATIENCE_S
        while peers and time.monotonic() < deadline_s:
            time.sleep(TRICKLE_S)
            assert good.pub("good", b"x") == OK
            for name in [name for name, peer in peers.items() if is_closed(peer)]:
                del peers[name]
            for name, peer in peers.items():
                with contextlib.suppress(OSError):
                    peer.send(TRICKLES[name][1][sent[name] : sent[name] + 1])
                sent[name] += 1
    assert peers == {}
    assert nsqd.topic_stats("t")["message_count"] == 0
    assert "Traceback" not in nsqd.log


def test_a_slow_command_within_the_deadline_is_executed(nsqd: Daemon) -> None:
    """A slow but complete command is executed."""
    command = pub("slow", b"x" * 5)
    with RawClient(nsqd.tcp_address) as client:
        assert client.identify(heartbeat_interval=10_000) == OK
        for number in range(len(command)):
            client.send(command[number : number + 1])
            time.sleep(TRICKLE_S)
        assert client.read_answer() == OK


def test_unread_answers_use_bounded_memory(nsqd: Daemon) -> None:
    """nsqd reads commands only while the client reads answers; later it reads all of them.

    Without heartbeats there is no deadline, as in NSQ: the memory must stay small by itself.
    """
    commands = pub("answers#ephemeral", b"x") * 10_000
    with connect(nsqd.tcp_address, window_size=64 * KIB) as client, RawClient(nsqd.tcp_address) as good:
        client.sendall(MAGIC + identify(heartbeat_interval=-1))
        client.settimeout(2.0)
        sent = send_until_stuck(client, commands)
        assert sent < MUCH
        assert good.pub("good", b"x") == OK

        client.settimeout(20.0)
        expected = sent // len(pub("answers#ephemeral", b"x")) * len(OK_FRAME) + len(OK_FRAME)
        received = 0
        while received < expected:
            piece = client.recv(MIB)
            assert piece
            received += len(piece)
        assert good.pub("good", b"x") == OK


def send_until_stuck(client: socket.socket, commands: bytes) -> int:
    """Return the number of bytes sent before the other end stops reading for a while; stop at a limit."""
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < MUCH:
            sent += client.send(commands[sent % len(commands) :])
    return sent


def test_a_subscriber_that_does_not_read_is_closed(fleet: Fleet, tmp_path: Path) -> None:
    """It is closed, and another subscriber gets its messages."""
    nsqd = fleet.nsqd("nsqx", "--msg-timeout=2s", data_path=tmp_path)
    bodies = [b"%04d" % number + b"x" * 32 * KIB for number in range(200)]
    with RawClient(nsqd.tcp_address) as publisher:
        for start in range(0, len(bodies), 50):
            assert publisher.mpub("t", bodies[start : start + 50]) == OK
    with connect(nsqd.tcp_address, window_size=4 * KIB) as slow, RawClient(nsqd.tcp_address) as good:
        slow.sendall(HELLO + sub("t", "c") + b"RDY 200\n")
        nsqd.wait_for_log(r"failed to (send|read command) - i/o timeout", PATIENCE_S)
        good.identify(heartbeat_interval=60_000)
        assert good.sub("t", "c") == OK
        good.rdy(200)
        found = set()
        while len(found) < len(bodies):
            message = good.read_message()
            good.fin(message.id)
            found.add(message.body)
    assert found == set(bodies)
    assert HEARTBEAT not in found


@pytest.mark.parametrize("upgrade", ["plain", "tls_v1", "snappy", "deflate"])
def test_a_burst_before_a_half_close_is_answered(nsqd: Daemon, topic: str, upgrade: str) -> None:
    """All commands are executed and answered, in slices, although the client has half-closed the connection."""
    count = 5000
    with RawClient(nsqd.tcp_address) as client:
        if upgrade != "plain":
            client.identify(feature_negotiation=True, **{upgrade: True})
            if upgrade == "tls_v1":
                client.start_tls(ssl._create_unverified_context())
            else:
                client.start_compression(SnappyLayer() if upgrade == "snappy" else DeflateLayer())
            assert client.read_answer() == OK
        client.send(pub(topic, b"x") * count)
        if upgrade != "tls_v1":  # Python's TLS sockets have no half close
            client.half_close()
        assert client.read_frames(count) == [OK] * count
    assert nsqd.topic_stats(topic)["message_count"] == count


class SlowAuthServer:
    """Grants everything, but does not answer before ``release`` is set."""

    def __init__(self) -> None:
        self.is_asked = threading.Event()
        self.release = threading.Event()
        owner = self
        everything = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}
        answer = json.dumps({"ttl": 3600, "authorizations": [everything]}).encode()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.is_asked.set()
                owner.release.wait(PATIENCE_S)
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def slow_auth() -> Iterator[SlowAuthServer]:
    server = SlowAuthServer()
    yield server
    server.close()


def test_a_client_is_not_read_while_its_secret_is_checked(slow_auth: SlowAuthServer) -> None:
    """The kernel's buffers fill up and the client has to wait; nsqd buffers nothing for it."""
    count = MUCH // (100 * KIB)
    commands = pub("t", b"x" * 100 * KIB) * count
    fleet = Fleet()
    try:
        flag = f"--auth-http-address={slow_auth.address}"
        nsqd = fleet.nsqd("nsqx", flag, "--http-client-request-timeout=60s")
        before = memory_bytes(nsqd)
        with connect(nsqd.tcp_address) as connection:
            connection.sendall(MAGIC + identify(heartbeat_interval=60_000) + auth(b"secret"))
            assert slow_auth.is_asked.wait(PATIENCE_S)
            connection.settimeout(1.0)
            sent = send_until_stuck(connection, commands)
            connection.settimeout(PATIENCE_S)
            assert sent < MUCH // 2
            assert memory_bytes(nsqd) - before < MUCH // 4
            slow_auth.release.set()
            connection.sendall(commands[sent:])
            answers = b""
            while answers.count(OK_FRAME) < 1 + count:  # one for IDENTIFY and one for each PUB
                piece = connection.recv(64 * KIB)
                assert piece, answers
                answers += piece
        assert nsqd.topic_stats("t")["message_count"] == count
    finally:
        fleet.close()


def memory_bytes(daemon: Daemon) -> int:
    for line in Path(f"/proc/{daemon.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * KIB
    raise AssertionError("no VmRSS")
