"""Byte scripts for nsqd's TCP port, and the transcript of playing a script.

A script is a name and a list of steps. A step is bytes to send or a function that takes the player. Two daemons with
the same behaviour give equal transcripts, because values that differ between two runs are replaced: message ids become
``id0``, ``id1``... in order of appearance, timestamps are removed, and consecutive heartbeats count as one. To find out
whether a connection is still open, the player sends a fence: an unknown command that the daemon must answer.
"""

import re
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from compression import DeflateLayer, SnappyLayer
from daemons import Daemon, wait_until
from rawclient import ERROR, HEARTBEAT, MAGIC, MESSAGE, RESPONSE, ConnectionEnded, Frame, Message, RawClient

FENCE = b"FENCE\n"
FENCE_ANSWER = Frame(ERROR, b"E_INVALID invalid command FENCE")
ANSWER_TIMEOUT_S = 20.0
QUIET_S = 0.15

# NSQ versions after 1.3.0 add the topology to the response to IDENTIFY. nsqx adds the broker id.
_ADDED_FIELDS = re.compile(rb',"(?:topology_region|topology_zone|broker_id|nsqx_version)":"[^"]*"')

Event = tuple[Any, ...]
Step = bytes | Callable[["Player"], None]


@dataclass(frozen=True)
class Script:
    """``profile`` names the flags of the daemon. ``ending`` says how each connection ends: fence, eof or closes."""

    name: str
    steps: Sequence[Step]
    profile: str = "default"
    ending: str = "fence"
    magic: bytes = MAGIC


@dataclass
class Transcript:
    """The received frames of each connection, notes of steps, and the state of the script's topic afterwards."""

    connections: dict[str, list[Event]] = field(default_factory=dict)
    notes: list[Event] = field(default_factory=list)
    topic: Event | None = None


class Player:
    """Plays one script against one daemon. The functions below this class create steps."""

    def __init__(self, daemon: Daemon, script: Script, topic: str, *, tls: ssl.SSLContext | None = None) -> None:
        self.daemon = daemon
        self.topic = topic
        self.transcript = Transcript()
        self.tls = tls
        self._script = script
        self._clients: dict[str, RawClient] = {}
        self._current = "a"
        self._ids: list[bytes] = []
        self._ended: set[str] = set()

    def play(self) -> Transcript:
        try:
            self.switch_to("a", self.fill(self._script.magic))
            for step in self._script.steps:
                if isinstance(step, bytes):
                    self.client.send(self.fill(step))
                else:
                    step(self)
            for name in [self._current, *self._clients]:
                self._end(name)
            self.transcript.topic = self._topic_state()
            return self.transcript
        finally:
            for client in self._clients.values():
                client.close()

    @property
    def client(self) -> RawClient:
        return self._clients[self._current]

    def switch_to(self, name: str, magic: bytes = MAGIC) -> None:
        """Use connection ``name`` for the next steps. It is opened when it is first used."""
        self._current = name
        if name not in self._clients:
            self._clients[name] = RawClient(self.daemon.tcp_address, magic=magic)
            self.transcript.connections[name] = []

    def fill(self, data: bytes) -> bytes:
        """Replace <topic>, <topic64>, <id> (of the last message) and <id0> (of the first message) in ``data``."""
        data = data.replace(b"<topic64>", self.topic.encode().ljust(64, b"x"))
        data = data.replace(b"<topic>", self.topic.encode())
        if self._ids:
            data = data.replace(b"<id>", self._ids[-1]).replace(b"<id0>", self._ids[0])
        return data

    def read(self, count: int, *, heartbeats: bool = False) -> None:
        """Note the next ``count`` frames, or fewer if the connection ends or nothing arrives for 20 s."""
        read_one = self.client.read_frame if heartbeats else self.client.read_answer
        for _ in range(count):
            try:
                self._note(read_one(ANSWER_TIMEOUT_S))
            except ConnectionEnded:
                self._note_end("closed")
                return
            except TimeoutError:
                self._note_end("silent")
                return

    def read_quiet(self, quiet_s: float) -> None:
        frames, closed = self.client.read_until_quiet(quiet_s)
        for frame in frames:
            self._note(frame)
        if closed:
            self._note_end("closed")

    def sort_last(self, count: int) -> None:
        """Sort the last ``count`` events. For frames that the daemon may send in any order."""
        events = self._events
        events[-count:] = sorted(events[-count:], key=repr)

    def note(self, event: Event) -> None:
        self.transcript.notes.append(event)

    def close_client(self) -> None:
        self.client.close()
        self._ended.add(self._current)

    @property
    def _events(self) -> list[Event]:
        return self.transcript.connections[self._current]

    def _note(self, frame: Frame) -> None:
        event = self._event(frame)
        heartbeat = frame == (RESPONSE, HEARTBEAT)
        if not (heartbeat and self._events and self._events[-1] == event):
            self._events.append(event)

    def _note_end(self, how: str) -> None:
        self._events.append((how,))
        self._ended.add(self._current)

    def _event(self, frame: Frame) -> Event:
        if frame.type != MESSAGE:
            data = _ADDED_FIELDS.sub(b"", frame.data)
            for number, message_id in enumerate(self._ids):
                data = data.replace(message_id, b"id%d" % number)
            return (
                {RESPONSE: "response", ERROR: "error"}.get(frame.type, frame.type),
                data.replace(*self._topic_label()),
            )
        message = Message.decode(frame.data)
        if message.id not in self._ids:
            assert re.fullmatch(rb"[0-9a-f]{16}", message.id), message
            self._ids.append(message.id)
        return ("message", f"id{self._ids.index(message.id)}", message.attempts, message.body)

    def _topic_label(self) -> tuple[bytes, bytes]:
        return self.topic.encode(), b"<topic>"

    def _end(self, name: str) -> None:
        self._current = name
        if name in self._ended:
            return
        if self._script.ending == "fence":
            self.client.send(FENCE)
        elif self._script.ending == "eof":
            self.client.half_close()
        else:
            assert self._script.ending == "closes", self._script.ending
        try:
            frames = self.client.read_until_closed(ANSWER_TIMEOUT_S)
        except TimeoutError:
            self._note_end("stays open")
            return
        fenced = bool(frames) and frames[-1] == FENCE_ANSWER
        for frame in frames[:-1] if fenced else frames:
            self._note(frame)
        self._note_end("open" if fenced else "closed")

    def _topic_state(self) -> Event | None:
        answer = self.daemon.stats(topic=self.topic, include_mem="false")
        if not answer["topics"]:
            return None
        entry = answer["topics"][0]
        channels = [channel["channel_name"] for channel in entry["channels"]]
        durable = [name for name in channels if not name.endswith("#ephemeral")]
        return (entry["message_count"], entry["message_bytes"], durable)


def expect(count: int) -> Step:
    """Wait for ``count`` frames that are not heartbeats."""
    return lambda player: player.read(count)


def expect_unordered(count: int) -> Step:
    """Wait for ``count`` frames that the daemon may send in any order."""

    def step(player: Player) -> None:
        player.read(count)
        player.sort_last(count)

    return step


def expect_heartbeat(player: Player) -> None:
    """Wait for one frame, which may be a heartbeat."""
    player.read(1, heartbeats=True)


def quiet(seconds: float = QUIET_S) -> Step:
    """Note the frames that arrive until none has arrived for ``seconds``. Shows that a message is not delivered."""
    return lambda player: player.read_quiet(seconds)


def on(name: str) -> Step:
    """Use the connection ``name`` for the next steps."""
    return lambda player: player.switch_to(name)


def half_close(player: Player) -> None:
    player.client.half_close()


def disconnect(player: Player) -> None:
    """Close the current connection."""
    player.close_client()


def one_byte_at_a_time(data: bytes) -> Step:
    """Send ``data`` in writes of one byte."""

    def step(player: Player) -> None:
        filled = player.fill(data)
        for position in range(len(filled)):
            player.client.send(filled[position : position + 1])

    return step


def garbage(player: Player) -> None:
    """Send bytes that are not valid in any compression format, without the connection's compression."""
    player.client.send_unlayered(b"\x07\xff\xff\xff neither snappy nor deflate " * 4)


def deflate(player: Player) -> None:
    player.client.start_compression(DeflateLayer())


def snappy(player: Player) -> None:
    player.client.start_compression(SnappyLayer())


def tls(player: Player) -> None:
    assert player.tls is not None
    player.client.start_tls(player.tls)


def post(target: str) -> Step:
    """Send an HTTP POST and note the status and body of its response."""

    def step(player: Player) -> None:
        response = player.daemon.request("POST", player.fill(target.encode()).decode())
        player.note((target, response.status, response.body))

    return step


def gone(topic: str) -> Step:
    """Wait until ``topic`` no longer exists."""

    def step(player: Player) -> None:
        name = player.fill(topic.encode()).decode()
        wait_until(lambda: player.daemon.topic_stats(name) is None, f"{name} is deleted")
        player.note(("gone", topic))

    return step


def note_channel(player: Player) -> None:
    """Wait until channel "ch" has all published messages. Note how many wait, are in flight and are deferred."""

    def places() -> list[int]:
        entry = player.daemon.channel_stats(player.topic, "ch")
        return [entry[key] for key in ("depth", "in_flight_count", "deferred_count")]

    published = player.daemon.topic_stats(player.topic)["message_count"]
    wait_until(lambda: sum(places()) == published, f"channel of {player.topic} has {published} messages")
    player.note(("depth, in flight, deferred", *places()))


def channel_shows(channel: str = "ch", **numbers: int) -> Step:
    """Wait until /stats shows these counts for the topic's channel."""

    def reached(player: Player) -> bool:
        entry = player.daemon.channel_stats(player.topic, channel)
        return entry is not None and all(entry[key] == value for key, value in numbers.items())

    def step(player: Player) -> None:
        wait_until(lambda: reached(player), f"{channel} has {numbers}")

    return step
