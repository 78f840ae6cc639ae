"""Scenarios of a full disk that gets free space later (row 12)."""

import re
import signal
import time
from dataclasses import replace

from small_disk import SmallDisk
from stage import CHANNEL, DISK_ONLY, TOPIC, Outcome, Stage, bodies, message_counts

from daemons import Daemon, wait_until
from rawclient import OK, ConnectionEnded, Frame, RawClient, pub

_FLAGS = (DISK_ONLY, "--max-bytes-per-file=100000", "--sync-timeout=100ms")
_LOG_FLAGS = ("--commit-bytes=1048576", "--min-free-disk=0")
SIZE = 5000
HELD = 30
SOON_S = 5.0


def small_disk(stage: Stage) -> SmallDisk:
    """Mount a small disk at the data directory until the end of the test. The log store needs two commit files."""
    return stage.cleanup.enter_context(SmallDisk(stage.data_path, 8192 if stage.store == "log" else 2048))


def flags_of(stage: Stage) -> tuple[str, ...]:
    """Return the flags for a daemon on a small disk."""
    return (*_FLAGS, *_LOG_FLAGS) if stage.store == "log" else _FLAGS


def try_to_publish(stage: Stage, daemon: Daemon, body: bytes) -> Frame:
    """Return the answer to one message on its own connection: nsqd closes a connection after a failed publish."""
    stage.tracker.sent.add(body)
    with RawClient(daemon.tcp_address) as client:
        client.send(pub(TOPIC, body))
        try:
            answer = client.read_answer()
        except ConnectionEnded:
            return Frame(-1, b"connection closed")
    if answer == OK:
        stage.tracker.acked.add(body)
    return answer


def publish_until_full(stage: Stage, daemon: Daemon, prefix: str = "until full") -> Frame:
    """Publish until a publish is refused; return the refusal."""
    for body in bodies(prefix, 2000, SIZE):
        answer = try_to_publish(stage, daemon, body)
        if answer != OK:
            return answer
    raise AssertionError("the disk never gets full")


def publish_when_full(stage: Stage) -> Outcome:
    """Publish until refused, continue for a while, free space, and check that nsqd recovers by itself."""
    disk = small_disk(stage)
    daemon = stage.nsqd_with_channel(*flags_of(stage))
    refusal = publish_until_full(stage, daemon)
    answers = [try_to_publish(stage, daemon, body) for body in bodies("when full", 50, SIZE)]
    ping = daemon.request("GET", "/ping")
    http = daemon.request("POST", f"/pub?topic={TOPIC}", b"h" * SIZE)
    leftovers = len(list(stage.data_path.glob("*.tmp")))
    disk.make_room()
    seen = {
        "refused": refusal.data.decode(),
        "accepted while full": answers.count(OK),
        "ping while full": ping.status,
        "HTTP while full": http.status,
        "temporary files": leftovers,
        "recovers": recovers(stage, daemon),
    }
    seen["ping after"] = daemon.request("GET", "/ping").status
    stage.drain(daemon)
    return stage.tracker.outcome(**seen)


def put_back_when_full(stage: Stage, how: str) -> Outcome:
    """Messages in flight return to the queue while the disk is full: by REQ or by timeout."""
    disk = small_disk(stage)
    daemon = stage.nsqd_with_channel(*flags_of(stage), "--msg-timeout=1500ms")
    for body in bodies("held", 3 * HELD, 200):
        assert try_to_publish(stage, daemon, body) == OK
    consumer = stage.consumer(daemon, ready=HELD)
    held = [consumer.read_message() for _ in range(HELD)]
    disk.fill()
    publish_until_full(stage, daemon)
    consumer.rdy(0)
    if how == "requeued":
        for message in held:
            consumer.req(message.id, 0)
    wait_until(lambda: message_counts(daemon)[1] == 0, "nothing is in flight")
    disk.make_room()
    seen = {"recovers": recovers(stage, daemon)}
    stage.drain(daemon)
    return stage.tracker.outcome(**seen)


def become_due_when_full(stage: Stage) -> Outcome:
    """Deferred messages become due while the disk is full."""
    disk = small_disk(stage)
    daemon = stage.nsqd_with_channel(*flags_of(stage))
    with RawClient(daemon.tcp_address) as client:
        for body in bodies("deferred", HELD, 200):
            assert client.dpub(TOPIC, 1000, body) == OK
            stage.tracker.sent.add(body)
            stage.tracker.acked.add(body)
    disk.fill()
    publish_until_full(stage, daemon)
    if stage.store == "log":
        time.sleep(1.5)  # a message stays deferred as long as it cannot be written again
    else:
        wait_until(lambda: message_counts(daemon)[2] == 0, "nothing is deferred")
    disk.make_room()
    seen = {"recovers": recovers(stage, daemon)}
    stage.drain(daemon)
    return stage.tracker.outcome(**seen)


def move_when_full(stage: Stage) -> Outcome:
    """A topic has filled the disk; then it gets a channel, which needs space for every message."""
    disk = small_disk(stage)
    daemon = stage.nsqd(*flags_of(stage))
    daemon.post("/topic/create", topic=TOPIC)
    publish_until_full(stage, daemon)
    disk.fill()
    daemon.request("POST", f"/channel/create?topic={TOPIC}&channel={CHANNEL}")
    _give_time_to_move(daemon)
    disk.make_room()
    seen = {"recovers": recovers(stage, daemon)}
    stage.drain(daemon)
    return stage.tracker.outcome(**seen)


def stop_when_full(stage: Stage) -> Outcome:
    """SIGTERM on a full disk, with messages in flight that were read from it."""
    disk = small_disk(stage)
    daemon = stage.nsqd_with_channel(*flags_of(stage))
    for body in bodies("held", 3 * HELD, 200):
        assert try_to_publish(stage, daemon, body) == OK
    consumer = stage.consumer(daemon, ready=HELD)
    for _ in range(HELD):
        consumer.read_message()
    disk.fill()
    publish_until_full(stage, daemon)
    code = daemon.stop()
    disk.make_room()
    outcome = stage.restart_and_drain(*flags_of(stage)[1:])
    return replace(outcome, seen={**outcome.seen, "exit": code})


def stop_with_messages_in_memory(stage: Stage, *flags: str, makes_room: bool = False) -> Outcome:
    """SIGTERM on a full disk with acknowledged messages in memory; there is free space at the next start."""
    disk = small_disk(stage)
    daemon = stage.nsqd_with_channel(*flags)
    stage.tracker.publish_many(daemon, TOPIC, bodies("in memory", 3 * HELD, 200))
    disk.fill()
    daemon.process.send_signal(signal.SIGTERM)
    if makes_room:
        daemon.wait_for_log("the disk cannot be written, trying again")
        disk.make_room()
    code = daemon.stop()
    if not makes_room:
        disk.make_room()
    lost = re.findall(r"DISKQUEUE\((\S+)\): (\d+) messages in memory could not be written and are lost", daemon.log)
    outcome = stage.restart_and_drain()
    return replace(outcome, seen={"exit": code, "lost by the log": dict(lost)})


def save_metadata_when_full(stage: Stage) -> Outcome:
    """A channel is created while nsqd.dat cannot be saved; is it saved when there is free space?"""
    disk = small_disk(stage)
    path = stage.data_path / "nsqd.dat"
    daemon = stage.nsqd(*flags_of(stage))
    daemon.post("/topic/create", topic=TOPIC)
    wait_until(lambda: TOPIC in path.read_text(), "nsqd.dat names the topic")
    disk.fill()
    daemon.post("/channel/create", topic=TOPIC, channel=CHANNEL)
    daemon.wait_for_log("(?i)no space left", timeout_s=SOON_S)
    disk.make_room()
    try:
        wait_until(lambda: f'"{CHANNEL}"' in path.read_text(), "nsqd.dat is saved", SOON_S)
    except AssertionError:
        return Outcome(seen={"nsqd.dat saved when there is room": False})
    return Outcome(seen={"nsqd.dat saved when there is room": True})


def recovers(stage: Stage, daemon: Daemon) -> bool:
    """True if publishing works again soon after space was freed."""
    deadline_s = time.monotonic() + SOON_S
    for body in bodies("room again", 100_000):
        if try_to_publish(stage, daemon, body) == OK:
            return True
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return False


def _give_time_to_move(daemon: Daemon) -> None:
    """Wait until the topic has moved what it can: its depth does not change for a while."""
    depth, since_s = -1, 0.0
    while time.monotonic() < since_s + 0.5 or depth < 0:
        now = daemon.topic_stats(TOPIC)["depth"]
        if now != depth:
            depth, since_s = now, time.monotonic()
        time.sleep(0.02)
