"""Compares TLS, snappy and deflate on this broker and on Go's, in turn. Prints medians, their ratio and the spread.

      python tests/bench/compare_secure.py [--rounds 5] [--messages 200000] [kind ...]

Kinds: plain, tls, snappy, deflate, tls+snappy, tls+deflate. One connection publishes MPUBs of 200 messages of 200
bytes with two windows unanswered at a time. Another connection then consumes the messages with RDY 2500. The client
does little work: it compresses its data before the measurement, and all received frames have the same size. The output
has the messages per second and the broker's CPU time per message, which depends little on the load of the machine.
Results depend on the machine and its load: compare only ratios of one run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import ssl
import statistics
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import cramjam

from certificates import self_signed
from daemons import has_go, start_nsqd
from rawclient import MAGIC, identify, mpub, sub

KINDS = ("plain", "tls", "snappy", "deflate", "tls+snappy", "tls+deflate")
BODY_SIZE = 200
BATCH_SIZE = 200
WINDOW = 10
OK = struct.pack(">ii", 6, 0) + b"OK"
FRAME_SIZE = 4 + 4 + 26 + BODY_SIZE
ID = slice(18, 34)
_RECEIVE_SIZE = 1 << 20
_SNAPPY_IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"


class Codec(Protocol):
    """A compression format: encodes and decodes."""

    def encode(self, data: bytes) -> bytes: ...

    def decode(self, data: bytes) -> bytes: ...


class Plain:
    """No compression."""

    def encode(self, data: bytes) -> bytes:
        return data

    def decode(self, data: bytes) -> bytes:
        return data


class Deflate:
    """Raw DEFLATE."""

    def __init__(self) -> None:
        self._compressor = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._decompressor = zlib.decompressobj(-zlib.MAX_WBITS)

    def encode(self, data: bytes) -> bytes:
        return self._compressor.compress(data) + self._compressor.flush(zlib.Z_SYNC_FLUSH)

    def decode(self, data: bytes) -> bytes:
        return self._decompressor.decompress(data)


class Snappy:
    """The snappy framing format. Decodes only complete chunks."""

    def __init__(self) -> None:
        self._has_sent = False
        self._received = bytearray()

    def encode(self, data: bytes) -> bytes:
        framed = bytes(cramjam.snappy.compress(data))
        start = len(_SNAPPY_IDENTIFIER) if self._has_sent else 0
        self._has_sent = True
        return framed[start:]

    def decode(self, data: bytes) -> bytes:
        received = self._received
        received += data
        end = 0
        while end + 4 <= len(received):
            size = 4 + int.from_bytes(received[end + 1 : end + 4], "little")
            if end + size > len(received):
                break
            end += size
        if not end:
            return b""
        whole = bytes(received[:end])
        del received[:end]
        return bytes(cramjam.snappy.decompress(whole if whole[0] == 0xFF else _SNAPPY_IDENTIFIER + whole))


class SecureConnection:
    """A connection that has negotiated TLS and compression of a kind."""

    def __init__(self, address: str, kind: str, cafile: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), 60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._codec: Codec = Plain()
        self.received = bytearray()
        wanted = {"tls_v1": "tls" in kind, "snappy": "snappy" in kind, "deflate": "deflate" in kind}
        # Go's nsqd delays the last messages by the output buffer timeout. 25 ms is the minimum.
        timers = {"heartbeat_interval": 60_000, "output_buffer_timeout": 25}
        self._socket.sendall(MAGIC + identify(feature_negotiation=True, **timers, **wanted))
        agreed = json.loads(self._frame())
        assert {name: agreed[name] for name in wanted} == wanted
        if wanted["tls_v1"]:
            self._socket = ssl.create_default_context(cafile=cafile).wrap_socket(
                self._socket, server_hostname="localhost"
            )
            assert self._frame() == b"OK"
        if wanted["snappy"] or wanted["deflate"]:
            self._codec = Snappy() if wanted["snappy"] else Deflate()
            self.received = bytearray(self._codec.decode(bytes(self.received)))
            assert self._frame() == b"OK"

    def encode(self, data: bytes) -> bytes:
        """Compress ``data`` for ``send``. The data must be sent in the order in which it was encoded."""
        return self._codec.encode(data)

    def send(self, encoded: bytes) -> None:
        self._socket.sendall(encoded)

    def receive(self) -> None:
        """Receive bytes and append them to ``received``."""
        data = self._socket.recv(_RECEIVE_SIZE)
        if not data:
            raise ConnectionError("the broker has closed the connection")
        self.received += self._codec.decode(data)

    def wait_for(self, size: int) -> None:
        while len(self.received) < size:
            self.receive()

    def close(self) -> None:
        self._socket.close()

    def _frame(self) -> bytes:
        self.wait_for(4)
        size = 4 + int.from_bytes(self.received[:4], "big")
        self.wait_for(size)
        data = bytes(self.received[8:size])
        del self.received[:size]
        return data


def bodies(count: int) -> list[bytes]:
    """Return bodies that compress about as well as log lines."""
    rng = random.Random(7)
    words = [bytes(rng.choices(range(97, 123), k=rng.randint(3, 9))) for _ in range(500)]
    return [b" ".join(rng.choices(words, k=60))[:BODY_SIZE].ljust(BODY_SIZE, b".") for _ in range(count)]


def publish(connection: SecureConnection, batches: list[bytes]) -> float:
    """Publish everything. Return the seconds it took."""
    encoded = [connection.encode(batch) for batch in batches]
    windows = [b"".join(encoded[start : start + WINDOW]) for start in range(0, len(encoded), WINDOW)]
    window_size = len(OK) * WINDOW
    began_s = time.perf_counter()
    for number, window in enumerate(windows):
        connection.send(window)
        if number:
            connection.wait_for(window_size)
            del connection.received[:window_size]
    connection.wait_for(len(OK) * (len(encoded) - WINDOW * (len(windows) - 1)))
    return time.perf_counter() - began_s


def drain(connection: SecureConnection, count: int) -> float:
    """Receive and finish everything. Return the seconds it took."""
    connection.send(connection.encode(sub("bench", "ch")))
    connection.wait_for(len(OK))
    del connection.received[: len(OK)]
    began_s = time.perf_counter()
    connection.send(connection.encode(b"RDY 2500\n"))
    received = connection.received
    while count:
        connection.receive()
        whole = len(received) // FRAME_SIZE
        if not whole:
            continue
        end = whole * FRAME_SIZE
        frames = bytes(received[:end])
        del received[:end]
        ids = [frames[start + ID.start : start + ID.stop] for start in range(0, end, FRAME_SIZE)]
        connection.send(connection.encode(b"FIN " + b"\nFIN ".join(ids) + b"\n"))
        count -= whole
    return time.perf_counter() - began_s


class Rate(NamedTuple):
    """Messages per second, and CPU time of the broker per message."""

    per_second: float
    cpu_us: float


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process, in user mode and in the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_once(implementation: str, kind: str, batches: list[bytes], flags: list[str], cafile: str) -> tuple[Rate, Rate]:
    """Measure publishing and consuming on a new broker."""
    count = len(batches) * BATCH_SIZE
    with start_nsqd(implementation, "--mem-queue-size=10000000", *flags) as nsqd:
        nsqd.post("/topic/create", topic="bench")
        nsqd.post("/channel/create", topic="bench", channel="ch")
        rates = []
        work: list[Callable[[SecureConnection], float]] = [
            lambda connection: publish(connection, batches),
            lambda connection: drain(connection, count),
        ]
        for step in work:
            connection = SecureConnection(nsqd.tcp_address, kind, cafile)
            before_s = cpu_s(nsqd.pid)
            per_second = count / step(connection)
            rates.append(Rate(per_second, (cpu_s(nsqd.pid) - before_s) / count * 1e6))
            connection.close()
        return rates[0], rates[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", choices=[[], *KINDS], default=[])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=200_000)
    arguments = parser.parse_args()
    if not has_go():
        print('the Go programs are missing: run "make interop" (needs Go)', file=sys.stderr)
        return 1
    lines = bodies(BATCH_SIZE * 50)
    batch_count = max(1, arguments.messages // BATCH_SIZE)
    parts = [mpub("bench", lines[start : start + BATCH_SIZE]) for start in range(0, len(lines), BATCH_SIZE)]
    batches = [parts[number % len(parts)] for number in range(batch_count)]
    print(f"{'workload':<18}{'Go nsqd':>12}{'nsqx':>12}{'ratio':>8}{'Go CPU us':>12}{'nsqx':>9}   spread of rates")
    with tempfile.TemporaryDirectory() as directory:
        server = self_signed(Path(directory), "localhost")
        flags = [f"--tls-cert={server.cert}", f"--tls-key={server.key}"]
        for kind in arguments.kinds or KINDS:
            seen: dict[str, list[tuple[Rate, Rate]]] = {"go": [], "nsqx": []}
            for _ in range(arguments.rounds):
                for implementation, rates in seen.items():
                    rates.append(run_once(implementation, kind, batches, flags, server.cert))
            for column, what in enumerate(("mpub", "sub")):
                report(f"{what}-{kind}", *([rates[column] for rates in seen[each]] for each in ("go", "nsqx")))
    return 0


def report(name: str, theirs: list[Rate], ours: list[Rate]) -> None:
    go, own = (statistics.median(rate.per_second for rate in rates) for rates in (theirs, ours))
    go_us, own_us = (statistics.median(rate.cpu_us for rate in rates) for rates in (theirs, ours))
    spread = ", ".join(
        f"{min(rates).per_second:,.0f}-{max(rates).per_second:,.0f}" for rates in (sorted(theirs), sorted(ours))
    )
    print(f"{name:<18}{go:>12,.0f}{own:>12,.0f}{own / go:>8.2f}{go_us:>12.2f}{own_us:>9.2f}   {spread}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
