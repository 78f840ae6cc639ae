"""Go's nsqd and ours use one data directory in turn. Each reads the files of the other."""

import json
import re
import stat
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from daemons import Daemon, Fleet, wait_until
from rawclient import OK, Message, RawClient

FLAGS = ("--mem-queue-size=10", "--max-bytes-per-file=2000")
DISK_ONLY = ("--mem-queue-size=0", "--max-bytes-per-file=2000", "--sync-every=1")
# Go's nsqd forgets a deferral when it stops; ours keeps it. The delay has to outlast the stop of the daemon.
DEFERRED_MS = 5000
CHAINS = [("go", "nsqx", "go"), ("nsqx", "go", "nsqx"), ("go", "go", "go"), ("nsqx", "nsqx", "nsqx")]


def start_nsqd(fleet: Fleet, implementation: str, *flags: str, data_path: Path) -> Daemon:
    """Start Go's nsqd, or ours with the store whose files Go's nsqd reads."""
    store = ["--store=classic"] if implementation == "nsqx" else []
    return fleet.nsqd(implementation, *store, *flags, data_path=data_path)


def bodies(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix} {number:04} ".encode() + b"." * 30 for number in range(count)]


@dataclass
class Deliveries:
    """The published messages of each topic and the finished messages of each channel, over all daemons."""

    published: dict[str, list[bytes]] = field(default_factory=dict)
    finished: dict[tuple[str, str], Counter[bytes]] = field(default_factory=dict)

    def publish(self, daemon: Daemon, topic: str, messages: list[bytes]) -> None:
        with RawClient(daemon.tcp_address) as client:
            for body in messages:
                assert client.pub(topic, body) == OK
        self.published.setdefault(topic, []).extend(messages)

    def finish(self, client: RawClient, topic: str, channel: str, count: int) -> list[Message]:
        """Receive and finish ``count`` messages on a subscribed connection."""
        messages = []
        for _ in range(count):
            message = client.read_message()
            client.fin(message.id)
            self.finished.setdefault((topic, channel), Counter())[message.body] += 1
            messages.append(message)
        return messages

    def drain(self, daemon: Daemon, topic: str, channel: str) -> list[Message]:
        """Finish all messages that are left in a channel. Return them."""
        with RawClient(daemon.tcp_address) as client:
            assert client.sub(topic, channel) == OK
            client.rdy(50)
            left = len(self.published[topic]) - self.finished.get((topic, channel), Counter()).total()
            messages = self.finish(client, topic, channel, left)
            wait_until(lambda: places(daemon, topic, channel) == (0, 0, 0), f"{topic}/{channel} is empty")
        return messages

    def assert_each_once(self, topic: str, channel: str) -> None:
        assert self.finished[topic, channel] == Counter(self.published[topic])


@pytest.mark.parametrize("chain", CHAINS, ids="-".join)
def test_every_message_is_delivered_once_after_the_daemon_is_replaced(
    chain: tuple[str, str, str], fleet: Fleet, tmp_path: Path
) -> None:
    """Three daemons run one after the other. Backlogs, rolled files and paused flags are kept."""
    deliveries = Deliveries()
    first = start_nsqd(fleet, chain[0], *FLAGS, data_path=tmp_path)
    held = build_backlogs(first, deliveries)
    assert first.stop() == 0
    check_files(tmp_path)
    second = start_nsqd(fleet, chain[1], *FLAGS, data_path=tmp_path)
    check_backlogs_and_drain_one_channel(second, deliveries, held)
    assert second.stop() == 0
    assert read_metadata(tmp_path) == METADATA
    drain_every_channel(start_nsqd(fleet, chain[2], *FLAGS, data_path=tmp_path), deliveries)
    for topic, channel in (("backlog", "late"), ("work", "a"), ("work", "b"), ("held", "c")):
        deliveries.assert_each_once(topic, channel)


METADATA = {
    "backlog": (False, {}),
    "work": (False, {"a": False, "b": True}),
    "held": (True, {"c": False}),
}


def build_backlogs(daemon: Daemon, deliveries: Deliveries) -> set[bytes]:
    """Build the backlogs. Return the ids of the messages that are in flight or deferred at the end."""
    for topic, channel in (("work", "a"), ("work", "b"), ("held", "c")):
        daemon.post("/topic/create", topic=topic)
        daemon.post("/channel/create", topic=topic, channel=channel)
    daemon.post("/channel/pause", topic="work", channel="b")
    daemon.post("/topic/pause", topic="held")
    for topic, count in (("backlog", 200), ("held", 60)):
        deliveries.publish(daemon, topic, bodies(topic, count))
    work = bodies("work", 200)
    for start in range(0, len(work), 10):
        # Publish as many as fit into the memory queue. Go's nsqd has a defect: it sometimes renames a valid file to
        # .bad if it starts a new file of a disk queue while reading the queue.
        deliveries.publish(daemon, "work", work[start : start + 10])
        wait_until(lambda: daemon.topic_stats("work")["depth"] == 0, "the channels have every message")
    daemon.post("/pub", b"forgotten", topic="short#ephemeral")
    daemon.post("/channel/create", topic="work", channel="gone#ephemeral")
    client = RawClient(daemon.tcp_address)
    assert client.sub("work", "a") == OK
    client.rdy(1)
    deliveries.finish(client, "work", "a", 29)
    client.rdy(8)
    held = [client.read_message() for _ in range(8)]
    client.rdy(0)
    for message in held[:3]:
        client.req(message.id, DEFERRED_MS)
    wait_until(lambda: places(daemon, "work", "a") == (163, 5, 3), "five messages are in flight and three are deferred")
    client.close()
    return {message.id for message in held}


def check_backlogs_and_drain_one_channel(daemon: Daemon, deliveries: Deliveries, held: set[bytes]) -> None:
    """Check that everything is still there. Drain one channel and publish more messages."""
    assert daemon.topic_stats("backlog")["depth"] == 200
    assert daemon.topic_stats("held")["depth"] == 60
    assert daemon.topic_stats("held")["paused"] is True
    assert daemon.channel_stats("work", "b")["paused"] is True
    assert [entry["topic_name"] for entry in daemon.stats()["topics"]] == ["backlog", "held", "work"]
    assert places(daemon, "work", "a") == (171, 0, 0)
    assert places(daemon, "work", "b") == (200, 0, 0)
    deliveries.publish(daemon, "work", bodies("more work", 20))
    messages = deliveries.drain(daemon, "work", "a")
    assert {message.id for message in messages if message.attempts == 2} == held
    assert {message.attempts for message in messages} == {1, 2}
    deliveries.publish(daemon, "backlog", bodies("more backlog", 50))
    deliveries.publish(daemon, "held", bodies("more held", 20))


def drain_every_channel(daemon: Daemon, deliveries: Deliveries) -> None:
    """Unpause and drain every channel."""
    daemon.post("/channel/unpause", topic="work", channel="b")
    daemon.post("/topic/unpause", topic="held")
    deliveries.drain(daemon, "work", "b")
    deliveries.drain(daemon, "held", "c")
    deliveries.drain(daemon, "backlog", "late")
    deliveries.drain(daemon, "work", "a")


def check_files(data_path: Path) -> None:
    """Check the files of the first daemon: names, modes, formats, and a record for every message."""
    assert read_metadata(data_path) == METADATA
    assert stat.S_IMODE((data_path / "nsqd.dat").stat().st_mode) == 0o600
    names = {path.name for path in data_path.iterdir()}
    assert not [name for name in names if name.endswith((".tmp", ".bad")) or "ephemeral" in name]
    expected = {"backlog": 200, "held": 60, "work": 0, "work:a": 171, "work:b": 200, "held:c": 0}
    for queue, depth in expected.items():
        files = sorted(data_path.glob(f"{queue}.diskqueue.[0-9]*.dat"))
        assert read_meta(data_path, queue)[0] == depth
        assert len(list(records(data_path, queue))) == depth
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)
        assert all(path.stat().st_size <= 2000 for path in files)
        if depth >= 60:
            assert len(files) > 1, f"{queue} has no rolled files"


@pytest.mark.parametrize("chain", [("go", "nsqx"), ("nsqx", "go"), ("go", "go"), ("nsqx", "nsqx")], ids="-".join)
def test_no_message_is_lost_if_the_daemon_is_killed_and_replaced(
    chain: tuple[str, str], fleet: Fleet, tmp_path: Path
) -> None:
    """The next daemon delivers every message that was on disk. It may deliver a message twice."""
    deliveries = Deliveries()
    first = start_nsqd(fleet, chain[0], *DISK_ONLY, data_path=tmp_path)
    first.post("/topic/create", topic="t")
    first.post("/channel/create", topic="t", channel="ch")
    deliveries.publish(first, "t", bodies("t", 120))
    wait_until(lambda: places(first, "t", "ch") == (120, 0, 0), "the channel has every message")
    first.kill()
    second = start_nsqd(fleet, chain[1], *DISK_ONLY, data_path=tmp_path)
    seen: set[bytes] = set()
    with RawClient(second.tcp_address) as client:
        assert client.sub("t", "ch") == OK
        client.rdy(50)
        while len(seen) < 120:
            message = client.read_message()
            client.fin(message.id)
            seen.add(message.body)
    assert seen == set(deliveries.published["t"])


def test_both_daemons_write_the_same_files_for_the_same_messages(candidate: str, fleet: Fleet, tmp_path: Path) -> None:
    """For a topic without channels, file names, file sizes and the meta file are equal."""
    seen = []
    for number, implementation in enumerate(("go", candidate)):
        data_path = tmp_path / str(number)
        data_path.mkdir()
        daemon = start_nsqd(fleet, implementation, *DISK_ONLY, data_path=data_path)
        Deliveries().publish(daemon, "t", [b"x" * size for size in range(1, 120)] + [b"y" * 3000, b"z"])
        assert daemon.stop() == 0
        sizes = {path.name: path.stat().st_size for path in data_path.glob("t.diskqueue.*.dat")}
        seen.append((sizes, (data_path / "t.diskqueue.meta.dat").read_text()))
    assert seen[1] == seen[0]


def test_second_daemon_on_a_data_directory_is_refused(candidate: str, fleet: Fleet, tmp_path: Path) -> None:
    """Both implementations use the same lock."""
    for owner, intruder in (("go", candidate), (candidate, "go")):
        first = start_nsqd(fleet, owner, data_path=tmp_path)
        with pytest.raises(Exception, match="failed to lock data-path"):
            start_nsqd(fleet, intruder, data_path=tmp_path)
        assert first.stop() == 0


def places(daemon: Daemon, topic: str, channel: str) -> tuple[int, int, int]:
    """Return how many messages of a channel wait, are in flight and are deferred."""
    entry = daemon.channel_stats(topic, channel)
    return entry["depth"], entry["in_flight_count"], entry["deferred_count"]


def read_metadata(data_path: Path) -> dict[str, tuple[bool, dict[str, bool]]]:
    """Read nsqd.dat. Return for each topic whether it is paused, and for each channel of it whether it is paused."""
    metadata = json.loads((data_path / "nsqd.dat").read_text())
    assert list(metadata) == ["topics", "version"]
    assert metadata["version"] == "1.3.0"
    seen = {}
    for topic in metadata["topics"] or []:
        assert set(topic) == {"name", "paused", "channels"}
        channels = {channel["name"]: channel["paused"] for channel in topic["channels"] or []}
        seen[topic["name"]] = (topic["paused"], channels)
    return seen


def read_meta(data_path: Path, queue: str) -> tuple[int, int, int, int, int]:
    """Return depth, read file, read position, write file and write position. An unused queue may have no meta file."""
    path = data_path / f"{queue}.diskqueue.meta.dat"
    text = path.read_text() if path.exists() else "0\n0,0\n0,0\n"
    match = re.fullmatch(r"(\d+)\n(\d+),(\d+)\n(\d+),(\d+)\n", text)
    assert match is not None, text
    depth, read_file, read_position, write_file, write_position = map(int, match.groups())
    return depth, read_file, read_position, write_file, write_position


def records(data_path: Path, queue: str) -> Iterator[Message]:
    """Read the messages of a queue from its files. Each record is an int32 length and a message."""
    _, read_file, read_position, write_file, write_position = read_meta(data_path, queue)
    for number in range(read_file, write_file + 1):
        path = data_path / f"{queue}.diskqueue.{number:06}.dat"
        content = path.read_bytes() if path.exists() else b""
        position = read_position if number == read_file else 0
        end = write_position if number == write_file else len(content)
        while position < end:
            (length,) = struct.unpack_from(">i", content, position)
            yield Message.decode(content[position + 4 : position + 4 + length])
            position += 4 + length
        assert position == end, (path, position, end)
