"""Scenarios of clients that never finish, never read, never send, or send invalid commands (rows 17 to 22)."""

import contextlib
import itertools
import resource
import socket
import struct
import time

from remote_machine import RemoteMachine
from stage import CHANNEL, DISK_ONLY, TOPIC, Outcome, Stage, bodies, create_channel

from certificates import self_signed
from daemons import Daemon, wait_until
from rawclient import OK, ConnectionEnded, RawClient, identify, mpub_body, pub, sized, sub

KIB = 1024
BIG = 64 * KIB


def never_finish(stage: Stage, deliveries: int = 6) -> Outcome:
    """Row 17: the same message is delivered again and again, each time with one more attempt."""
    daemon = stage.nsqd("--msg-timeout=100ms")
    create_channel(daemon)
    daemon.post("/pub", b"never finished", topic=TOPIC)
    consumer = stage.consumer(daemon, ready=1)
    messages = [consumer.read_message() for _ in range(deliveries)]
    return Outcome(
        seen={
            "attempts": [message.attempts for message in messages],
            "different messages": len({(message.id, message.body) for message in messages}),
        }
    )


def never_read(stage: Stage) -> Outcome:
    """Row 18: a consumer with RDY 2500 reads none of its messages of 64 KiB, beside a normal consumer."""
    daemon = stage.nsqd_with_channel(DISK_ONLY, "--msg-timeout=2s")
    messages = bodies("big", 600, BIG)
    stage.tracker.publish_many(daemon, TOPIC, messages, batch_size=20)
    slow = _small_window_client(daemon)
    stage.cleanup.callback(slow.close)
    slow.sendall(b"  V2" + identify(heartbeat_interval=1000, client_id="slow") + sub(TOPIC, CHANNEL) + b"RDY 2500\n")
    wait_until(lambda: (_client(daemon, "slow") or {}).get("in_flight_count"), "messages are on their way")
    most = 0
    began_s = time.monotonic()
    while (entry := _client(daemon, "slow")) is not None and time.monotonic() < began_s + 20:
        most = max(most, entry["in_flight_count"])
        time.sleep(0.05)
    closed = _client(daemon, "slow") is None
    stage.drain(daemon)
    return stage.tracker.outcome(**{"closed": closed, "most MiB for it": most * BIG // (KIB * KIB)})


def idle_connections(stage: Stage, count: int) -> Outcome:
    """Row 19: the memory that one more identified connection takes."""
    daemon = stage.nsqd()
    _grow_limit(count + 200)
    _connect_all(stage, daemon, 50)
    before_kib = resident_kib(daemon.pid)
    _connect_all(stage, daemon, count)
    each_kib = (resident_kib(daemon.pid) - before_kib) / count
    return Outcome(seen={"KiB each": round(each_kib, 1)})


def silent_clients(stage: Stage, patience_s: float) -> Outcome:
    """Row 20: connections that send nothing, a part, or a byte now and then; which of them stay open."""
    certificate = self_signed(stage.directory, "server")
    daemon = stage.nsqd(f"--tls-cert={certificate.cert}", f"--tls-key={certificate.key}")
    tcp, http, https = daemon.tcp_address, daemon.http_address, daemon.addresses["HTTPS"]
    post = b"POST /pub?topic=t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999\r\n\r\n"
    # The address, the bytes to send at once, and the bytes to send one by one.
    starts = {
        "TCP, nothing": (tcp, b"", b""),
        "TCP, half a magic": (tcp, b"  ", b""),
        "TCP, no TLS after IDENTIFY": (tcp, b"  V2" + identify(feature_negotiation=True, tls_v1=True), b""),
        "HTTP, nothing": (http, b"", b""),
        "HTTP, half a header": (http, b"GET /ping HTTP/1.1\r\nHost:", b""),
        "HTTP, half a body": (http, post + b"x", b""),
        "HTTP, a header byte by byte": (http, b"GET /ping HTTP/1.1\r\n", b"X-Slow: yes\r\n" * 1000),
        "HTTP, a body byte by byte": (http, post, b"x" * 9999),
        "HTTPS, nothing": (https, b"", b""),
        "HTTPS, half a handshake": (https, b"\x16\x03\x01\x02\x00\x01\x00", b""),
    }
    with contextlib.ExitStack() as stack:
        open_ones = {}
        for name, (address, data, _) in starts.items():
            host, _, port = address.rpartition(":")
            open_ones[name] = stack.enter_context(socket.create_connection((host, int(port)), 10))
            open_ones[name].sendall(data)
        deadline_s = time.monotonic() + patience_s
        for number in itertools.count():
            for name in [name for name, connection in open_ones.items() if _is_closed(connection)]:
                del open_ones[name]
            if not open_ones or time.monotonic() > deadline_s:
                break
            for name, connection in open_ones.items():
                with contextlib.suppress(OSError):
                    connection.send(starts[name][2][number : number + 1])
            time.sleep(0.1)
    return Outcome(seen={"kept open": sorted(open_ones)})


def crowd(stage: Stage, count: int = 100, cap: int = 20) -> Outcome:
    """Row 20: more connections than the limit, if the implementation has one."""
    daemon = stage.nsqd(*([f"--max-connections={cap}"] if stage.implementation == "nsqx" else []))
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawClient(daemon.tcp_address, magic=b"")) for _ in range(count)]
        wait_until(lambda: daemon.log.count("TCP: new client") >= count, "every client has connected")
        with RawClient(daemon.tcp_address) as late:
            late.send(b"NOP\n")
            refused = late.read_until_quiet(0.5)[1]
        is_open = sum(not client.read_until_quiet(0.01)[1] for client in clients)
        clients[0].close()
        served = wait_until(lambda: _publishes(daemon), "a place has become free")
    return Outcome(seen={"open": is_open, "one more is refused": refused, "served when one has left": served})


def vanished(stage: Stage, heartbeat_ms: int = 1000, patience_s: float = 20.0) -> Outcome:
    """Row 21: the machine of a client disappears; is that detected, and does another client get its message?"""
    with RemoteMachine() as machine:
        daemon = stage.nsqd(f"--tcp-address={machine.address}:0", "--msg-timeout=1s")
        daemon.post("/pub", b"x", topic=TOPIC)
        gone = machine.connect(daemon.tcp_address)
        stage.cleanup.callback(gone.close)
        has_heartbeats = heartbeat_ms > 0
        gone.sendall(b"  V2" + identify(heartbeat_interval=heartbeat_ms))
        gone.sendall(sub(TOPIC, CHANNEL) + b"RDY 1\n" if has_heartbeats else pub("other", b"x"))
        received = b""
        while b"x" not in received if has_heartbeats else received.count(b"OK") < 2:
            received += gone.recv(4096)
        machine.vanish()
        began_s = time.monotonic()
        closed = False
        while not closed and time.monotonic() < began_s + patience_s:
            closed = "exiting ioloop" in daemon.log
            time.sleep(0.05)
        seen: dict[str, object] = {"closed": closed, "after s": round(time.monotonic() - began_s)}
        if has_heartbeats:
            with RawClient(daemon.tcp_address) as other:
                other.sub(TOPIC, CHANNEL)
                other.rdy(1)
                seen["delivered to another"] = other.read_message().body == b"x"
    return Outcome(seen=seen)


def silent_after_identify(stage: Stage) -> Outcome:
    """Rows 20, 21: a client that stops in the middle of a command, and one that answers no heartbeat."""
    daemon = stage.nsqd()
    with RawClient(daemon.tcp_address) as halfway, RawClient(daemon.tcp_address) as gone:
        clients = {"half a command": halfway, "no answer to heartbeats": gone}
        for client in clients.values():
            client.identify(heartbeat_interval=1000)
        halfway.send(b"PUB orders\n\x00\x00")
        frames = {name: len(client.read_until_closed(10.0)) for name, client in clients.items()}
    return Outcome(seen={"heartbeats before the end": frames})


def kept_alive(stage: Stage) -> Outcome:
    """Row 21: is TCP keepalive on for a client without heartbeats?"""
    daemon = stage.nsqd()
    with RawClient(daemon.tcp_address) as client:
        client.identify(heartbeat_interval=-1)
        has_timer = wait_until(lambda: _tcp_timer(client, daemon) is not None, "the connection is listed")
        return Outcome(seen={"keepalive": _tcp_timer(client, daemon) == 2 and has_timer})


MALFORMED: dict[str, tuple[bytes, bytes]] = {
    "unknown command": (b"HELO\n", b"E_INVALID invalid command HELO"),
    "binary rubbish": (bytes(range(255, 0, -1)).replace(b"\n", b"") + b"\n", b"E_INVALID"),
    "PUB, size beyond max-msg-size": (b"PUB t\n" + struct.pack(">i", 2**30), b"E_BAD_MESSAGE"),
    "PUB, size below zero": (b"PUB t\n" + struct.pack(">i", -1), b"E_BAD_MESSAGE"),
    "PUB, bad topic": (pub("$bad", b"x"), b"E_BAD_TOPIC"),
    "PUB, no topic": (b"PUB\n" + sized(b"x"), b"E_INVALID"),
    "MPUB, size beyond max-body-size": (b"MPUB t\n" + struct.pack(">i", 2**30), b"E_BAD_BODY"),
    "MPUB, too many messages": (b"MPUB t\n" + sized(struct.pack(">i", 2**30)), b"E_BAD_BODY"),
    "MPUB, a message of no bytes": (b"MPUB t\n" + sized(mpub_body([b"abc", b""])), b"E_BAD_MESSAGE"),
    "MPUB, a message longer than the rest": (b"MPUB t\n" + sized(struct.pack(">ii", 1, 2**30)), b"E_BAD_MESSAGE"),
    "DPUB, no number": (b"DPUB t x\n" + sized(b"x"), b"E_INVALID"),
    "IDENTIFY, no JSON": (b"IDENTIFY\n" + sized(b"{{{"), b"E_BAD_BODY"),
    "FIN before SUB": (b"FIN 0123456789abcdef\n", b"E_INVALID"),
    "SUB, bad channel": (sub("t", "$bad"), b"E_BAD_CHANNEL"),
}


def malformed(daemon: Daemon, name: str) -> bytes:
    """Row 22: return the answer to one malformed command."""
    with RawClient(daemon.tcp_address) as client:
        client.send(MALFORMED[name][0])
        return client.read_answer().data


def announce_much(stage: Stage) -> Outcome:
    """Row 22: 100 clients announce bodies of 5 MiB and send 10 bytes of them."""
    daemon = stage.nsqd()
    with RawClient(daemon.tcp_address) as client:
        assert client.pub("t", b"x") == OK
    before_kib = resident_kib(daemon.pid)
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            client = stack.enter_context(RawClient(daemon.tcp_address))
            client.send(b"MPUB t\n" + struct.pack(">i", 5 * KIB * KIB) + b"\x00" * 10)
        wait_until(lambda: daemon.log.count("desired protocol magic") >= 101, "every client has sent its magic")
        grown_kib = resident_kib(daemon.pid) - before_kib
    return Outcome(seen={"MiB grown": grown_kib // KIB, "traceback": "Traceback" in daemon.log})


def line_without_end(stage: Stage) -> Outcome:
    """Row 22: a command line without an end; how much of it nsqd reads before it refuses."""
    daemon = stage.nsqd()
    with RawClient(daemon.tcp_address) as client:
        for _ in range(1024):
            client.send(b"A" * 16 * KIB)
        try:
            frames = [frame.data.decode() for frame in client.read_until_closed(10.0)]
        except TimeoutError:
            frames = ["still listening"]
    return Outcome(seen={"answers": frames, "traceback": "Traceback" in daemon.log})


def resident_kib(pid: int) -> int:
    """Return the resident memory of a process, in KiB."""
    with open(f"/proc/{pid}/status") as status:
        (line,) = (line for line in status if line.startswith("VmRSS:"))
    return int(line.split()[1])


def _small_window_client(daemon: Daemon) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    host, _, port = daemon.tcp_address.rpartition(":")
    client.connect((host, int(port)))
    return client


def _client(daemon: Daemon, client_id: str) -> dict[str, int] | None:
    clients = daemon.channel_stats(TOPIC, CHANNEL)["clients"] or []
    return next((entry for entry in clients if entry["client_id"] == client_id), None)


def _connect_all(stage: Stage, daemon: Daemon, count: int) -> None:
    for _ in range(count):
        client = RawClient(daemon.tcp_address)
        stage.cleanup.callback(client.close)
        client.identify(heartbeat_interval=60000)


def _grow_limit(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))


def _is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _publishes(daemon: Daemon) -> bool:
    with RawClient(daemon.tcp_address) as client:
        try:
            return client.pub("t", b"x") == OK
        except ConnectionEnded:
            return False


def _tcp_timer(client: RawClient, daemon: Daemon) -> int | None:
    """Return the kind of timer of the daemon's end of a connection: 2 is keepalive."""
    own_port = int(client.local_address.rpartition(":")[2])
    with open("/proc/net/tcp") as table:
        for line in table.readlines()[1:]:
            fields = line.split()
            local, remote = (int(address.split(":")[1], 16) for address in fields[1:3])
            if (local, remote) == (daemon.tcp_port, own_port):
                return int(fields[5].split(":")[0], 16)
    return None
