"""Sends the same generated input to Go's nsqd and to nsqx's; the answers must be equal.

Messages and heartbeats are left out, because their time is not defined. Compressed and encrypted streams are left out,
because their bytes may differ.
"""

import contextlib
import json
import socket
import struct

from mutation import Mutator
from targets import COMMANDS, IDENTIFY, target_named

from daemons import Daemon
from rawclient import Frame

ANSWER_TIMEOUT_S = 10.0
HEARTBEAT = b"_heartbeat_"
# nsqx rejects very deeply nested JSON; Go accepts it.
_DEEP = (b"[" * 500, b'{"":' * 300)
# Fields that NSQ after 1.3.0 and nsqx add to the answer to IDENTIFY.
_ADDED = ("topology_region", "topology_zone", "broker_id", "nsqx_version")
_TAKES_OVER = (b"snappy", b"deflate", b"tls_v1")

Answers = list[tuple[int, bytes]]


def conversations(seed: int) -> Mutator:
    """Return a source of inputs, most of which begin with the magic."""
    seeds = [data for data in target_named("session").seeds() if not any(word in data for word in _TAKES_OVER)]
    tokens = [token for token in COMMANDS + IDENTIFY if not any(word in token for word in _TAKES_OVER)]
    return Mutator(seed, seeds, tokens)


def compare(go: Daemon, ours: Daemon, seed: int, count: int) -> list[str]:
    """Return the inputs that the two daemons answer differently, with the answers."""
    found = []
    mutator = conversations(seed)
    for _ in range(count):
        data = mutator.next()
        if any(deep in data for deep in _DEEP):
            continue
        theirs, mine = ask(go, data), ask(ours, data)
        if theirs != mine:
            found.append(f"{data!r}: Go {theirs}, ours {mine}")
    return found


def ask(daemon: Daemon, data: bytes) -> Answers:
    """Send ``data`` and return every answer until the connection is closed."""
    received = bytearray()
    host, _, port = daemon.tcp_address.rpartition(":")
    with socket.create_connection((host, int(port)), ANSWER_TIMEOUT_S) as connection:
        try:
            connection.sendall(data)
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(65536):
                received += piece
        except ConnectionError:  # closed with unread bytes; the answers before are compared
            pass
    return [_comparable(frame) for frame in _frames(bytes(received)) if frame.type != 2 and frame.data != HEARTBEAT]


def _frames(data: bytes) -> list[Frame]:
    frames = []
    while len(data) >= 8:
        size, kind = struct.unpack_from(">ii", data)
        frames.append(Frame(kind, data[8 : 4 + size]))
        data = data[4 + size :]
    return frames


def _comparable(frame: Frame) -> tuple[int, bytes]:
    if frame.type == 0 and frame.data.startswith(b"{"):
        answer = json.loads(frame.data)
        for key in _ADDED:
            answer.pop(key, None)
        return frame.type, json.dumps(answer, sort_keys=True).encode()
    return frame.type, frame.data
