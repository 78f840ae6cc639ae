"""The same made-up conversations with Go's nsqd and with ours: the answers must be the same.

Messages and heartbeats are left out, whose moment is nobody's promise; so is all behind a compressed or encrypted
stream, where the bytes differ by right.
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
# Where ours is meant to differ: JSON nested beyond reason.
_DEEP = (b"[" * 500, b'{"":' * 300)
# What the answer to IDENTIFY has in NSQ after 1.3.0, and in ours.
_ADDED = ("topology_region", "topology_zone", "broker_id")
_TAKES_OVER = (b"snappy", b"deflate", b"tls_v1")

Answers = list[tuple[int, bytes]]


def conversations(seed: int) -> Mutator:
    """Inputs that begin with the magic, mostly."""
    seeds = [data for data in target_named("session").seeds() if not any(word in data for word in _TAKES_OVER)]
    tokens = [token for token in COMMANDS + IDENTIFY if not any(word in token for word in _TAKES_OVER)]
    return Mutator(seed, seeds, tokens)


def compare(go: Daemon, ours: Daemon, seed: int, count: int) -> list[str]:
    """Inputs that the two answer differently, with the answers."""
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
    """Every answer to ``data`` up to the end of the connection."""
    received = bytearray()
    host, _, port = daemon.tcp_address.rpartition(":")
    with socket.create_connection((host, int(port)), ANSWER_TIMEOUT_S) as connection:
        try:
            connection.sendall(data)
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(65536):
                received += piece
        except ConnectionError:  # closed with bytes unread; what came before counts
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
