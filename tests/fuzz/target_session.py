"""Whole TCP sessions: a real connection, session and broker without a socket, and a session of nsqlookupd.

Any input, in any division into pieces, causes no exception and only valid answers, and the answers are the same.
"""

import contextlib
import io
import json
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mutation import in_pieces

from broker_bench import SECOND, Bench, BenchTimer
from compression import DeflateLayer, SnappyLayer
from nsqx.log import INFO, Log
from nsqx.nsqd.connection import ClientConnection
from nsqx.nsqlookupd.lookupd import Lookupd
from nsqx.nsqlookupd.options import NsqlookupdOptions
from nsqx.nsqlookupd.session import PeerSession
from rawclient import Frame

MESSAGE_FRAME = 2
OPTIONS = {"max_msg_size": 3000, "max_body_size": 9000, "store_rules": ["x*=log"]}


class Wire:
    """The transport of one connection; it keeps the written bytes and calls ``connection_lost`` on close."""

    def __init__(self) -> None:
        self.protocol: Any = None
        self.sent = bytearray()
        self.is_over = False

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1234) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self.is_over

    def write(self, data: bytes) -> None:
        assert not self.is_over, "written after close"
        self.sent += data

    def close(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.protocol.connection_lost(None)

    abort = close


class Loop:
    """An event loop whose clock and callbacks are those of the bench."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def time(self) -> float:
        return self._bench.clock.now_ns() / SECOND

    def call_later(self, delay_s: float, callback: Callable[..., object], *arguments: object) -> BenchTimer:
        clock = self._bench.clock
        return clock.call_at(clock.now_ns() + round(delay_s * SECOND), callback, *arguments)

    def call_soon(self, callback: Callable[..., object], *arguments: object) -> None:
        self._bench.soon.append(lambda: callback(*arguments))


def check_session(data: bytes) -> None:
    """Check a byte stream to nsqd, from the magic on."""
    whole, pieces = _answers([data]), _answers(in_pieces(data))
    if any(_granted_layer(frame) for frame in whole):
        # Of an invalid compressed stream the pieces decide how much is decompressed before the error.
        assert whole[: len(pieces)] == pieces[: len(whole)]
    else:
        assert whole == pieces


def _answers(pieces: list[bytes]) -> list[Frame]:
    """Return every frame except messages, whose time depends on the pieces."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as directory:
        bench = Bench(Path(directory), **OPTIONS)
        wire = Wire()
        connection = ClientConnection(bench.broker, Loop(bench))  # type: ignore[arg-type]
        wire.protocol = connection
        connection.connection_made(wire)
        for piece in pieces:
            if not wire.is_over:
                connection.data_received(piece)
                bench.run_scheduled()
        if not wire.is_over:
            connection.eof_received()
            bench.run_scheduled()
        bench.broker.close_topics()
    return [frame for frame in frames_in(bytes(wire.sent)) if frame.type != MESSAGE_FRAME]


def frames_in(sent: bytes) -> list[Frame]:
    """Return the frames in a daemon's output, also those that are compressed."""
    frames = []
    while sent:
        size, kind = struct.unpack_from(">ii", sent)
        assert 4 <= size <= len(sent) - 4, "an incomplete frame"
        frames.append(Frame(kind, sent[8 : 4 + size]))
        sent = sent[4 + size :]
        granted = _granted_layer(frames[-1])
        if granted is not None:
            return frames + frames_in(granted.decode(sent))
    return frames


def _granted_layer(frame: Frame) -> SnappyLayer | DeflateLayer | None:
    if frame.type == 0 and frame.data.startswith(b"{"):
        with contextlib.suppress(ValueError):
            answer = json.loads(frame.data)
            if answer.get("snappy"):
                return SnappyLayer()
            if answer.get("deflate"):
                return DeflateLayer()
    return None


def check_lookup_session(data: bytes) -> None:
    """Check a byte stream to nsqlookupd, from the magic on."""
    assert _lookup_outcome([data]) == _lookup_outcome(in_pieces(data))


def _lookup_outcome(pieces: list[bytes]) -> tuple[bytes, bool, list[str]]:
    lines = io.StringIO()
    lookupd = Lookupd(NsqlookupdOptions(), Log("", INFO, lines))
    lookupd.introduction = b'{"version":"1.3.0"}'
    session = PeerSession(lookupd, "1.2.3.4:5")
    answers = b""
    for piece in pieces:
        answers += session.receive(piece)
        while session.has_more:
            answers += session.proceed()
    answers += session.receive_end()
    ended = session.ended
    session.close("EOF")
    left = answers
    while left:
        (size,) = struct.unpack_from(">i", left)
        assert 0 <= size <= len(left) - 4, "an incomplete answer"
        left = left[4 + size :]
    assert not lookupd.registry.active_peers(), "the registry still has the peer"
    for line in lines.getvalue().split("\n")[:-1]:
        assert line[:4].isdigit(), f"input began a line of the log: {line!r}"
    return answers, ended, [str(registration) for registration in lookupd.registry.registrations()]
