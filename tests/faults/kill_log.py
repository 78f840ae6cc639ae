"""Kills nsqd with topic logs at random moments under load, and checks every message after each kill.

    python tests/faults/kill_log.py [--kills 200] [--durability write] [--directory /dev/shm] [--seed N]

Publishers use every way to publish, consumers finish, requeue and touch messages or let them time out, and an operator
creates, pauses, empties and deletes channels. Small files make nsqd roll, checkpoint and remove segments all the time.
After each kill these rules are checked on the files, message by message:

- Every acknowledged message is unfinished in every channel that is entitled to it and has not sent FIN for it.
- No message is there whose FIN came before an acknowledged publish to its topic, on the same connection.
- Nothing is there that was not published, and nothing is there twice.
- An offset has the same body as in all earlier lives.

Then nsqd is started again, and the counts in /stats must be those of the files. After KILLS_PER_ROUND kills every
channel is drained: it must deliver exactly the messages in the files. The next round begins with an empty directory.
"""

import argparse
import contextlib
import http.client
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from log_contents import LogContents, read_logs
from log_records import NEVER_S, ChannelRecord, Published, Records, Wrong, key_of

from daemons import Daemon, program_command, start_nsqd, wait_until
from rawclient import ERROR, MESSAGE, OK, ConnectionEnded, Message, RawClient, mpub_body, pub

FLAGS = (
    "--store=log",
    "--commit-bytes=1048576",
    "--log-memory=1048576",
    "--max-bytes-per-file=100000",
    "--msg-timeout=300ms",
    "--sync-timeout=200ms",
)
# The topics with the channels that are consumed. The others are created by the operator, some of them late.
TOPICS: dict[str, tuple[str, ...]] = {"orders": ("main", "slow"), "events": ("main", "emptied"), "late": ()}
ENDINGS = (OSError, ConnectionEnded, http.client.HTTPException)
COUNTED = ("depth", "deferred_count", "in_flight_count")
KILLS_PER_ROUND = 25
MIN_ACKNOWLEDGED = 100
# How many FINs a consumer sends before it publishes.
FINS_PER_PUBLISH = 10
DRAIN_TIMEOUT_S = 120.0
COUNTS_TIMEOUT_S = 10.0


class Actor(threading.Thread):
    """Works until nsqd is killed."""

    def __init__(self, records: Records, daemon: Daemon, seed: int, name: str) -> None:
        super().__init__(name=name)
        self.rng = random.Random(seed)
        self.records = records
        self.daemon = daemon
        self._serial = 0

    def run(self) -> None:
        try:
            self.work()
        except ENDINGS:
            pass
        except BaseException as failure:
            self.records.failures.append(failure)

    def work(self) -> None:
        raise NotImplementedError

    def new_bodies(self, count: int) -> list[bytes]:
        bodies = []
        for _ in range(count):
            self._serial += 1
            size = self.rng.choice((40, 100, 1000, 3000))
            bodies.append((b"%s.%d.%d" % (self.name.encode(), self._serial, size)).ljust(size, b"."))
        return bodies


class Publisher(Actor):
    """Publishes with PUB, MPUB and DPUB."""

    def work(self) -> None:
        with RawClient(self.daemon.tcp_address) as client:
            while True:
                topic = self.rng.choice(list(TOPICS))
                kind = self.rng.choice(("pub", "pub", "mpub", "mpub", "dpub", "large"))
                bodies = self.new_bodies({"mpub": self.rng.randint(2, 20), "large": 100}.get(kind, 1))
                if kind == "large" and self.rng.random() < 0.8:
                    continue
                sent = self.records.publish(topic, bodies, is_deferred=kind == "dpub")
                if kind == "pub":
                    answer = client.pub(topic, bodies[0])
                elif kind == "dpub":
                    answer = client.dpub(topic, self.rng.choice((1, 20, 200, 2000)), bodies[0])
                else:
                    answer = client.mpub(topic, bodies)
                if answer != OK:
                    raise Wrong(f"a publish was refused: {answer}")
                self.records.acknowledge(sent)


class HTTPPublisher(Actor):
    """Publishes with /pub, /pub?defer= and /mpub, as lines and binary."""

    def work(self) -> None:
        with contextlib.closing(http.client.HTTPConnection(self.daemon.http_address, timeout=20)) as connection:
            while True:
                topic = self.rng.choice(list(TOPICS))
                kind = self.rng.choice(("pub", "defer", "lines", "binary"))
                bodies = self.new_bodies(1 if kind in ("pub", "defer") else self.rng.randint(2, 20))
                target, body = f"/pub?topic={topic}", bodies[0]
                if kind == "defer":
                    target += f"&defer={self.rng.choice((1, 50, 1000))}"
                elif kind == "lines":
                    target, body = f"/mpub?topic={topic}", b"\n".join(bodies)
                elif kind == "binary":
                    target, body = f"/mpub?topic={topic}&binary=true", mpub_body(bodies)
                sent = self.records.publish(topic, bodies, is_deferred=kind == "defer")
                connection.request("POST", target, body)
                answer = connection.getresponse()
                answer.read()
                if answer.status != 200:
                    raise Wrong(f"{target} was answered with {answer.status}")
                self.records.acknowledge(sent)


class Consumer(Actor):
    """Finishes most messages; requeues, touches or ignores others.

    A FIN has no answer. But it is written with the next publish to its topic, so the OK for that proves the FINs before
    it. A publish to another topic proves nothing: its log can be written while a checkpoint writes this one.
    """

    def __init__(self, records: Records, daemon: Daemon, seed: int, name: str, channel: ChannelRecord) -> None:
        super().__init__(records, daemon, seed, name)
        self._channel = channel
        self._ids: dict[bytes, bytes] = {}  # keys by message id
        self._fins: dict[bytes, None] = {}  # ids, since the last publish
        self._unanswered: deque[tuple[Published, dict[bytes, None]]] = deque()
        self._touched: deque[bytes] = deque()

    def work(self) -> None:
        channel = self._channel
        finish_rate = 0.5 if channel.name == "slow" else 0.85
        channel.asked_s = min(channel.asked_s, time.monotonic())
        with RawClient(self.daemon.tcp_address) as client:
            if client.sub(channel.topic, channel.name) != OK:
                raise Wrong("SUB was refused")
            channel.created_s = min(channel.created_s, time.monotonic())
            client.rdy(self.rng.choice((5, 50)))
            while True:
                frame = client.read_answer()
                if frame.type == MESSAGE:
                    message = Message.decode(frame.data)
                    self._ids[message.id] = self.records.received(channel.topic, message)
                    self._handle(client, message, finish_rate)
                elif frame.type == ERROR:
                    self._note_error(frame.data)
                else:
                    self._note_ok()

    def _handle(self, client: RawClient, message: Message, finish_rate: float) -> None:
        draw = self.rng.random()
        if draw < finish_rate:
            self._finish(client, message.id)
        elif draw < finish_rate + 0.05:
            client.touch(message.id)
            self._touched.append(message.id)
        elif draw < 0.97:
            client.req(message.id, self.rng.choice((0, 0, 30, 500)))
        if len(self._touched) > 3:
            self._finish(client, self._touched.popleft())
        if len(self._fins) >= FINS_PER_PUBLISH:
            topic = self._channel.topic
            (body,) = self.new_bodies(1)
            (sent,) = self.records.publish(topic, [body])
            self._unanswered.append((sent, self._fins))
            self._fins = {}
            client.send(pub(topic, body))

    def _finish(self, client: RawClient, message_id: bytes) -> None:
        self._channel.maybe_finished.add(self._ids[message_id])
        self._fins[message_id] = None
        client.fin(message_id)

    def _note_error(self, text: bytes) -> None:
        """Handle a refused command for a message that has timed out."""
        if not text.startswith((b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED")):
            raise Wrong(f"unexpected error {text!r}")
        message_id = text.split()[2]
        for fins in (*(fins for _, fins in self._unanswered), self._fins):
            fins.pop(message_id, None)

    def _note_ok(self) -> None:
        sent, fins = self._unanswered.popleft()
        self.records.acknowledge([sent])
        self._channel.finished.update(self._ids[message_id] for message_id in fins)
        self.records.counts["finished"] += len(fins)


class Operator(Actor):
    """Pauses, empties, creates and deletes. Publishes after a change, so that an OK proves it."""

    def __init__(self, records: Records, daemon: Daemon, seed: int, name: str, channels: list[ChannelRecord]) -> None:
        super().__init__(records, daemon, seed, name)
        self._channels = channels

    def work(self) -> None:
        for channel in self._channels:
            self.create(channel)
        while True:
            time.sleep(self.rng.uniform(0.0, 0.2))
            self.rng.choice((self._pause, self._pause, self._empty, self._replace))()

    def create(self, channel: ChannelRecord) -> None:
        """Create a channel; the one named "paused" is paused, for ever."""
        channel.asked_s = min(channel.asked_s, time.monotonic())
        self.daemon.post("/channel/create", topic=channel.topic, channel=channel.name)
        channel.created_s = min(channel.created_s, time.monotonic())
        if channel.name == "paused":
            self.daemon.post("/channel/pause", topic=channel.topic, channel=channel.name)

    def _pause(self) -> None:
        self.daemon.post("/topic/pause", topic="events")
        time.sleep(self.rng.uniform(0.0, 0.1))
        self._publish("events")
        self.daemon.post("/topic/unpause", topic="events")
        self.records.counts["pauses"] += 1

    def _empty(self) -> None:
        channel = self.records.channel("events", "emptied")
        is_paused = self.daemon.topic_stats("events")["paused"]
        began_s = time.monotonic()
        channel.maybe_emptied_s = NEVER_S
        self.daemon.post("/channel/empty", topic="events", channel="emptied")
        channel.maybe_emptied_s = time.monotonic()
        self._publish("events")
        if not is_paused:
            channel.emptied_s = began_s
        self.records.counts["empties"] += 1

    def _replace(self) -> None:
        """Create a channel and delete it."""
        self.daemon.post("/channel/create", topic="orders", channel="brief")
        self._publish("orders")
        self.daemon.post("/channel/delete", topic="orders", channel="brief")

    def _publish(self, topic: str) -> None:
        (body,) = self.new_bodies(1)
        (sent,) = self.records.publish(topic, [body])
        self.daemon.post("/pub", body, topic=topic)
        self.records.acknowledge([sent])


def _wrong_counts(daemon: Daemon, logs: Mapping[str, LogContents]) -> str:
    """Return which topic has other counts in /stats than in the files; "" if none."""
    for entry in daemon.stats()["topics"] or []:
        contents = logs[entry["topic_name"]]
        expected = {name: len(contents.unfinished(name)) for name in contents.channels}
        actual = {
            channel["channel_name"]: entry["depth"] + sum(channel[kind] for kind in COUNTED)
            for channel in entry["channels"]
        }
        if not actual:
            expected, actual = {"": len(contents.unfinished(""))}, {"": entry["depth"]}
        if actual != expected:
            return f"{entry['topic_name']}: /stats has {actual}, the files {expected}"
    return ""


class Round:
    """Several lives of nsqd in one directory."""

    def __init__(self, data_path: Path, seed: int, flags: Sequence[str], counts: Counter[str]) -> None:
        self._data_path = data_path
        self._rng = random.Random(seed)
        self._flags = (*FLAGS, *flags)
        self._records = Records(TOPICS, counts)
        self._counts = counts
        self._start_s = 1.0

    def perform(self, kill_count: int) -> None:
        """Kill nsqd ``kill_count`` times, then drain every channel; raises Wrong."""
        for life in range(kill_count):
            if life and self._rng.random() < 0.2:
                self._kill_at_start()
            self._live(life, kill_count)
            self._counts["kills"] += 1
            self._records.check(read_logs(self._data_path))
        self._drain()

    def _start(self) -> Daemon:
        """Start nsqd. Its counts must be those of the files."""
        logs = read_logs(self._data_path)
        began_s = time.monotonic()
        daemon = start_nsqd("nsqx", *self._flags, data_path=self._data_path)
        self._start_s = time.monotonic() - began_s
        # A deferred message can become due between two rows of /stats, and is then missing in one of them.
        deadline_s = time.monotonic() + COUNTS_TIMEOUT_S
        while (wrong := _wrong_counts(daemon, logs)) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        if wrong:
            daemon.kill()
            raise Wrong(wrong)
        return daemon

    def _kill_at_start(self) -> None:
        """Kill nsqd while it starts."""
        before = read_logs(self._data_path)
        command = [*program_command("nsqx", "nsqd"), *self._flags, f"--data-path={self._data_path}"]
        addresses = (f"--{kind}-address=127.0.0.1:0" for kind in ("tcp", "http", "https"))
        with subprocess.Popen([*command, *addresses], stderr=subprocess.DEVNULL) as process:
            time.sleep(self._rng.uniform(0.3, 1.2) * self._start_s)
            process.kill()
        self._counts["kills at start"] += 1
        after = read_logs(self._data_path)
        for topic, contents in before.items():
            for channel in contents.channels:
                if after[topic].unfinished(channel) != contents.unfinished(channel):
                    raise Wrong(f"a kill at the start has changed {topic}:{channel}")

    def _live(self, life: int, kill_count: int) -> None:
        records, rng = self._records, self._rng
        daemon = self._start()

        def seed() -> int:
            return rng.randrange(1 << 40)

        created = [records.channel("orders", "paused")]
        if life >= kill_count // 3:
            created.append(records.channel("orders", "created-late"))
        if life >= kill_count // 2:
            created.append(records.channel("late", "first", is_first=True))
        operator = Operator(records, daemon, seed(), f"{life}o", created)
        if not life:
            for topic, names in TOPICS.items():
                daemon.post("/topic/create", topic=topic)
                for name in names:
                    operator.create(records.channel(topic, name))
        actors: list[Actor] = [Publisher(records, daemon, seed(), f"{life}p{number}") for number in range(3)]
        actors += [HTTPPublisher(records, daemon, seed(), f"{life}h"), operator]
        consumed = [channel for channel in records.channels.values() if channel.name != "paused"]
        consumed.append(ChannelRecord("events", "tail#ephemeral"))
        for number, channel in enumerate(rng.sample(consumed, k=rng.randint(2, len(consumed)))):
            actors.append(Consumer(records, daemon, seed(), f"{life}c{number}", channel))
        for actor in actors:
            actor.start()
        if not life:
            wait_until(lambda: records.failures or self._has_many(), "many messages are acknowledged", 60.0)
        time.sleep(rng.choice((rng.uniform(0, 0.1), rng.uniform(0, 1.5))))
        daemon.kill()
        for actor in actors:
            actor.join()
        if records.failures:
            raise records.failures[0]
        if "damaged" in daemon.log or "Traceback" in daemon.log:
            raise Wrong(f"the log of nsqd:\n{daemon.log}")

    def _has_many(self) -> bool:
        return self._counts["acknowledged"] >= MIN_ACKNOWLEDGED

    def _drain(self) -> None:
        """Receive everything. Each channel must deliver exactly the messages of the files."""
        logs = read_logs(self._data_path)
        daemon = self._start()
        for topic, contents in logs.items():
            daemon.post("/topic/unpause", topic=topic)
            for channel in contents.channels:
                daemon.post("/channel/unpause", topic=topic, channel=channel)
                expected = set(map(key_of, contents.unfinished(channel)))
                found = self._drain_channel(daemon, topic, channel, len(expected))
                if found != expected:
                    lost, excess = sorted(expected - found), sorted(found - expected)
                    raise Wrong(f"{topic}:{channel}: {len(lost)} not delivered {lost[:5]}, not expected {excess[:5]}")
                self._counts["drained"] += len(found)
        if daemon.stop() != 0:
            raise Wrong(f"nsqd did not stop:\n{daemon.log}")

    def _drain_channel(self, daemon: Daemon, topic: str, channel: str, count: int) -> set[bytes]:
        """Finish ``count`` messages; the counts of the channel must then be 0."""
        found: set[bytes] = set()
        with RawClient(daemon.tcp_address) as client:
            client.identify(heartbeat_interval=60_000, msg_timeout=60_000)
            client.sub(topic, channel)
            client.rdy(100)
            deadline_s = time.monotonic() + DRAIN_TIMEOUT_S
            while len(found) < count:
                try:
                    frame = client.read_answer(deadline_s - time.monotonic())
                except ENDINGS as error:
                    raise Wrong(
                        f"{topic}:{channel} has delivered {len(found)} of {count}: {error}\n{daemon.log}"
                    ) from None
                if frame.type == MESSAGE:  # or the error of a message that has timed out
                    message = Message.decode(frame.data)
                    found.add(self._records.received(topic, message))
                    client.fin(message.id)
            try:
                wait_until(lambda: not any(daemon.channel_stats(topic, channel)[kind] for kind in COUNTED), "is empty")
            except AssertionError:
                raise Wrong(f"{topic}:{channel} after the drain: {daemon.channel_stats(topic, channel)}") from None
        return found


def kill_nsqd(kill_count: int, durability: str, parent: str | None, seed: int) -> Counter[str]:
    """Kill nsqd ``kill_count`` times, and return the counts. A failure includes the seed, and keeps the directory."""
    counts: Counter[str] = Counter()
    while counts["kills"] < kill_count:
        directory = Path(tempfile.mkdtemp(prefix="kill-log-", dir=parent))
        round_ = Round(directory, seed + counts["kills"], [f"--durability={durability}"], counts)
        try:
            round_.perform(min(KILLS_PER_ROUND, kill_count - counts["kills"]))
        except Exception as failure:
            raise Wrong(f"{failure}\nNSQX_SEED={seed}, after {dict(counts)}, files in {directory}") from failure
        shutil.rmtree(directory)
        print(f"{dict(counts)}", flush=True)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--durability", choices=["fsync", "write"], default="fsync")
    parser.add_argument(
        "--directory", help="the parent of the data directories, by default the one for temporary files"
    )
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    given = parser.parse_args()
    print(f"{given.kills} kills, {given.durability}, seed {given.seed}", flush=True)
    # SIGTERM must also end the processes that this program has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    began_s = time.monotonic()
    counts = kill_nsqd(given.kills, given.durability, given.directory, given.seed)
    print(f"{counts['kills']} kills, {counts['acknowledged']} messages acknowledged, 0 lost, ", end="")
    print(f"{time.monotonic() - began_s:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
