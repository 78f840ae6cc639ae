"""Scenarios of topic logs: damaged files, kills during checkpoints, power cuts, full disks, and the way to Go's nsqd.

They run on a stage whose store is the log. Other scenarios run on either store.
"""

import os
import random
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

from clocks import FakedClock
from damage import Damage
from datafiles import cut, flip_bit
from deferred import COUNT as DEFERRED_COUNT
from deferred import defer_messages, receive_deferred
from disk_errors import without_descriptors
from disk_full import publish_until_full, recovers, small_disk, try_to_publish
from disk_model import NAMES_ONLY, NOTHING, RandomSurvival
from power_cut import END, Recording
from stage import (
    CHANNEL,
    TOPIC,
    Outcome,
    Stage,
    bodies,
    create_channel,
    kill,
    message_counts,
    publish_until_ended,
    wait_for_depth,
)
from tracing import NEW_NAMES, Tracer, delaying, killing

from daemons import NSQX, Daemon, DaemonFailed, wait_until
from nsqx.queues.log.batch import MAGIC
from nsqx.queues.log.commit_file import commit_paths, read_commit_file
from rawclient import OK, ConnectionEnded, RawClient

COUNT = 200
BATCH = 10
SEGMENTS = "--max-bytes-per-file=4000"  # about 40 messages
SMALL_COMMITS = "--commit-bytes=1048576"
NO_LIMIT = "--min-free-disk=0"
DAMAGED = bodies("stored", COUNT)[94]  # in the middle of a batch
SIZE = 5000


# Damage


def fill(stage: Stage, *, crashed: bool) -> None:
    """Leave a log with ``COUNT`` messages: in segments after a clean stop, or in the commit file after a crash."""
    daemon = stage.nsqd_with_channel(SEGMENTS)
    stage.tracker.publish_many(daemon, TOPIC, bodies("stored", COUNT), BATCH)
    if crashed:
        kill(daemon)
    else:
        daemon.stop()


def damaged(stage: Stage, damage: Damage, *, crashed: bool = False) -> Outcome:
    """Fill, damage, restart and drain; also say whether nsqd reports the damage."""
    fill(stage, crashed=crashed)
    damage(stage.data_path)
    outcome = stage.restart_and_drain(SEGMENTS)
    return replace(outcome, seen={**outcome.seen, "reported": "ERROR: LOG(" in stage.log})


def directory_of(data_path: Path) -> Path:
    return data_path / f"{TOPIC}.topic"


def segments_of(data_path: Path) -> list[Path]:
    return sorted(directory_of(data_path).glob("*.seg"))


def _find(data_path: Path, body: bytes) -> tuple[Path, int]:
    """Return the file and the position of a message: in a segment, or if there is none in a commit file."""
    for path in [*segments_of(data_path), *map(Path, commit_paths(str(data_path)))]:
        position = path.read_bytes().find(body)
        if position >= 0:
            return path, position
    raise AssertionError(f"{body!r} is in no file")


def flip_body(data_path: Path) -> None:
    path, position = _find(data_path, DAMAGED)
    flip_bit(path, position + 3)


def flip_length(data_path: Path) -> None:
    path, position = _find(data_path, DAMAGED)
    flip_bit(path, position - 1, bit=4)


def flip_head(data_path: Path) -> None:
    path, position = _find(data_path, DAMAGED)
    flip_bit(path, path.read_bytes().rfind(MAGIC, 0, position) + 10)


def tear_segment(data_path: Path) -> None:
    path = segments_of(data_path)[-1]
    cut(path, path.stat().st_size - 10)


def add_torn_frame(data_path: Path) -> None:
    """Append the start of a frame, as a crash during a write leaves it."""
    (path,) = (Path(path) for path in commit_paths(str(data_path)) if read_commit_file(path)[0] is not None)
    content = path.read_bytes().rstrip(b"\0")
    last = content.rfind(b"NXF1")
    with path.open("r+b") as file:
        file.seek(len(content) + 1)
        file.write(content[last : last + 100])


def damage_snapshots(data_path: Path) -> None:
    """Damage the positions of the channels in the newest segment: both copies."""
    path = segments_of(data_path)[-1]
    content = path.read_bytes()
    position = 0
    for _ in range(3):  # the identity of the log, and two snapshots
        position = content.find(MAGIC, position) + 4
        flip_bit(path, position + 60)


def remove_identity(data_path: Path) -> None:
    (directory_of(data_path) / "id").unlink()


def remove_segment(data_path: Path) -> None:
    segments_of(data_path)[1].unlink()


def remove_indexes(data_path: Path) -> None:
    for path in directory_of(data_path).glob("*.idx"):
        path.unlink()


def damage_commit_headers(data_path: Path) -> None:
    for path in commit_paths(str(data_path)):
        if read_commit_file(path)[0] is not None:
            flip_bit(Path(path), 9)
            flip_bit(Path(path), 4096 + 9)


def remove_commit_files(data_path: Path) -> None:
    for path in commit_paths(str(data_path)):
        os.unlink(path)


def start_without_metadata(stage: Stage) -> Outcome:
    """Row 11: nsqd.dat is damaged, and then moved away, as the error says."""
    fill(stage, crashed=True)
    path = stage.data_path / "nsqd.dat"
    path.write_bytes(path.read_bytes()[:20])
    try:
        stage.nsqd()
        return Outcome(seen={"starts": True})
    except DaemonFailed as failure:
        text = str(failure).strip().splitlines()[-1]
    path.rename(stage.directory / "moved away")
    daemon = stage.nsqd(SEGMENTS)
    channels = [entry["channel_name"] for entry in daemon.topic_stats(TOPIC)["channels"]]
    stage.drain(daemon)
    return stage.tracker.outcome(**{"channels": channels, "refuses to start": text})


# Kills


def kill_during_checkpoints(stage: Stage, seed: int) -> Outcome:
    """Row 4: publish and consume so much that commit files are full and segments roll, until the kill."""
    rng = random.Random(seed)
    daemon = stage.nsqd_with_channel("--max-bytes-per-file=100000", SMALL_COMMITS)
    consumer = threading.Thread(target=_consume, args=(stage, daemon))
    consumer.start()
    killer = threading.Thread(target=_kill_after, args=(stage, daemon, rng.randrange(100, 700)))
    killer.start()
    with RawClient(daemon.tcp_address) as producer:
        publish_until_ended(stage.tracker, producer, TOPIC, bodies("live", 5000, SIZE))
    for thread in (consumer, killer):
        thread.join()
    kill(daemon)
    return stage.restart_and_drain()


def kill_at_file_change(stage: Stage, number: int) -> Outcome:
    """Row 4: the same, but killed at the start of the ``number``-th call that changes files."""
    daemon = stage.nsqd_with_channel("--max-bytes-per-file=100000", SMALL_COMMITS)
    with Tracer(daemon, *killing(f"openat,pwrite64,pwritev,pwritev2,fdatasync,fsync,{NEW_NAMES}", number)):
        consumer = threading.Thread(target=_consume, args=(stage, daemon))
        consumer.start()
        with RawClient(daemon.tcp_address) as producer:
            publish_until_ended(stage.tracker, producer, TOPIC, bodies("live", 1500, SIZE))
        kill(daemon)
        consumer.join()
    return stage.restart_and_drain()


def _consume(stage: Stage, daemon: Daemon) -> None:
    """Finish some messages of each group, the later ones first, until the daemon ends."""
    try:
        with RawClient(daemon.tcp_address) as client:
            assert client.sub(TOPIC, CHANNEL) == OK
            client.rdy(13)
            while True:
                messages = [client.read_message() for _ in range(10)]
                for message in reversed(messages[1:]):
                    stage.tracker.finished.add(message.body)
                    client.fin(message.id)
                client.req(messages[0].id, 0)
    except (OSError, ConnectionEnded):
        pass


def _kill_after(stage: Stage, daemon: Daemon, acks: int) -> None:
    wait_until(lambda: len(stage.tracker.acked) >= acks or not daemon.running, "enough messages", 60.0)
    daemon.process.kill()


def kill_with_deferred(stage: Stage, where: str) -> Outcome:
    """Row 15: messages are deferred by DPUB or by REQ; kill -9 and a restart."""
    daemon = stage.nsqd_with_channel()
    due_s = defer_messages(stage, daemon.tcp_address, where)
    wait_until(lambda: message_counts(daemon)[2] == DEFERRED_COUNT, "messages are deferred")
    time.sleep(0.1)  # REQ has no answer; it is written at the end of its turn
    kill(daemon)
    return receive_deferred(stage, (), due_s)


def kill_after_sub(stage: Stage) -> Outcome:
    """Row 42: kill -9 right after the answer to SUB on a new channel."""
    daemon = stage.nsqd()
    with RawClient(daemon.tcp_address) as client:
        assert client.sub(TOPIC, CHANNEL) == OK
        kill(daemon)
    daemon = stage.nsqd()
    return Outcome(seen={"channel kept": daemon.channel_stats(TOPIC, CHANNEL) is not None})


# Power cuts


def cut_power(stage: Stage, cut_count: int = 5) -> Outcome:
    """Rows 5, 6 and 35: restart after power cuts at acknowledgements, which keep a part of what was not synced.

    A cut keeps nothing, only file names, or a random part. ``lost`` is the sum over all cuts.
    """
    record = _recording(stage, "fsync")
    record.end()
    rng = random.Random(1)
    lines = record.acknowledgements()
    lost = foreign = 0
    for acked in rng.sample(range(1, len(lines) + 1), cut_count):
        survival = rng.choice((NOTHING, NAMES_ONLY, RandomSurvival(rng)))
        outcome = record.restart_after_cut(lines[acked - 1], acked, survival)
        lost, foreign = lost + outcome.lost, foreign + outcome.foreign
    return Outcome(len(lines), lost, 0, foreign, {"cuts": cut_count})


def cut_power_after_sync_timeout(stage: Stage) -> Outcome:
    """Row 5: the same with --durability=write. The messages before the last --sync-timeout are durable."""
    record = _recording(stage, "write")
    time.sleep(1.0)
    record.end()
    return record.restart_after_cut(END, len(record.messages), NOTHING)


def _recording(stage: Stage, durability: str) -> Recording:
    flags = (SEGMENTS, SMALL_COMMITS, f"--durability={durability}", "--sync-timeout=200ms")
    record = Recording(stage, stage.nsqd_with_channel(*flags))
    record.publish(bodies("powered", 100))
    return record


def trust_after_a_failed_sync(stage: Stage) -> Outcome:
    """Row 13: one fdatasync of the commit file fails and later ones succeed; then the power is cut."""
    daemon = stage.nsqd_with_channel(SMALL_COMMITS)
    record = Recording(stage, daemon, "-e", "inject=fsync,fdatasync:error=EIO:when=5")
    refused = sum(record.publish([body]) == 0 for body in bodies("trusted", 60))
    assert wait_until(lambda: record.publish([b"at the end"]), "publishing works again")
    record.end()
    outcome = record.restart_after_cut(END, len(record.messages), NOTHING)
    return replace(outcome, duplicated=0, seen={"refused": refused})


# Full disks


def publish_until_commit_files_are_full(stage: Stage) -> Outcome:
    """Row 12: a full disk. Publishing goes on in the commit files, is then refused, and recovers by itself."""
    disk = small_disk(stage)
    daemon = stage.nsqd_with_channel(SMALL_COMMITS, NO_LIMIT, "--max-bytes-per-file=100000")
    for body in bodies("before", 300, SIZE):  # both commit files are allocated then
        assert try_to_publish(stage, daemon, body) == OK
    disk.fill()
    before = len(stage.tracker.acked)
    began_s = time.monotonic()
    refusal = publish_until_full(stage, daemon)
    refused_s = time.monotonic() - began_s
    accepted = len(stage.tracker.acked) - before
    answers = []
    slowest_s = 0.0
    for body in bodies("when full", 50, SIZE):
        began_s = time.monotonic()
        answers.append(try_to_publish(stage, daemon, body))
        slowest_s = max(slowest_s, time.monotonic() - began_s)
    ping = daemon.request("GET", "/ping")
    http = daemon.request("POST", f"/pub?topic={TOPIC}", b"h" * SIZE)
    disk.make_room()
    seen = {
        "refused": refusal.data.decode(),
        "accepted into commit files": accepted,
        "accepted while full": answers.count(OK),
        "slowest refusal below 2 s": slowest_s < 2.0 and refused_s < 60.0,
        "ping while full": ping.status,
        "X-Nsq-Reason": http.headers.get("x-nsq-reason", ""),
        "recovers": recovers(stage, daemon),
    }
    stage.drain(daemon)
    seen["ping after"] = daemon.request("GET", "/ping").status
    return stage.tracker.outcome(**seen)


def keep_some_disk_free(stage: Stage) -> Outcome:
    """Row 12: --min-free-disk refuses publishes before the disk is full."""
    disk = small_disk(stage)
    daemon = stage.nsqd_with_channel(SMALL_COMMITS, "--min-free-disk=3000000")
    for body in bodies("before", 20):
        assert try_to_publish(stage, daemon, body) == OK
    disk.fill()
    time.sleep(1.1)  # the free space is measured once a second
    answers = [try_to_publish(stage, daemon, body) for body in bodies("when low", 20)]
    refusal = answers[0].data.decode()
    ping = daemon.request("GET", "/ping").status
    disk.make_room()
    seen = {"accepted while full": answers.count(OK), "refused": refusal, "ping while full": ping}
    seen["recovers"] = recovers(stage, daemon)
    stage.drain(daemon)
    return stage.tracker.outcome(**seen)


# Descriptors


def write_without_descriptors(stage: Stage) -> Outcome:
    """Row 14: no file can be opened. Publishing goes on until the commit files are full, and recovers by itself."""
    daemon = stage.nsqd_with_channel(SMALL_COMMITS, "--max-bytes-per-file=100000")
    with RawClient(daemon.tcp_address) as client:
        for body in bodies("before", 300, SIZE):
            assert stage.tracker.publish(client, TOPIC, body)
        accepted = 0
        with without_descriptors(daemon):
            try:
                for body in bodies("without", 1000, SIZE):
                    if not stage.tracker.publish(client, TOPIC, body):
                        break
                    accepted += 1
            except ConnectionEnded:
                pass
    seen = {"accepted": accepted, "recovers": recovers(stage, daemon)}
    stage.drain(daemon)
    return stage.tracker.outcome(**seen)


def read_without_descriptors(stage: Stage) -> Outcome:
    """Row 14: the segments cannot be opened when a consumer is ready for their messages."""
    fill(stage, crashed=False)
    daemon = stage.nsqd(SEGMENTS, "--msg-timeout=1s")
    with stage.consumer(daemon) as consumer, without_descriptors(daemon):
        consumer.rdy(COUNT)
        daemon.wait_for_log("(?i)too many open files")
    stage.drain(daemon)
    return stage.tracker.outcome()


def descriptors_of_many_topics(stage: Stage, count: int = 300) -> Outcome:
    """Row 14: how many descriptors the logs of many topics need."""
    daemon = stage.nsqd(SMALL_COMMITS)
    with RawClient(daemon.tcp_address) as client:
        for _ in range(3):
            for number in range(count):
                assert client.pub(f"topic{number}", b"x" * 3000) == OK
    used = len(os.listdir(f"/proc/{daemon.pid}/fd"))
    return Outcome(seen={"topics": count, "descriptors": used})


# Clocks


def set_back_over_a_restart(stage: Stage) -> Outcome:
    """Row 41: the clock is set back by a day over a restart with deferred messages."""
    clock = FakedClock(stage.directory)
    clock.move(24)
    limit = "--max-req-timeout=3s"
    ahead = stage.nsqd(limit, env=clock.env)
    create_channel(ahead)
    ids = []
    with RawClient(ahead.tcp_address) as client:
        for body in bodies("deferred", 20):
            assert client.dpub(TOPIC, 1000, body) == OK
            stage.tracker.sent.add(body)
            stage.tracker.acked.add(body)
    ahead.stop()
    daemon = stage.nsqd(limit)
    began_s = time.monotonic()
    with stage.consumer(daemon, ready=50) as consumer:
        for _ in range(20):
            message = consumer.read_message(15.0)
            ids.append(message.id)
            stage.tracker.delivered[message.body] += 1
            consumer.fin(message.id)
    late_s = time.monotonic() - began_s
    return stage.tracker.outcome(**{"ids are unique": len(set(ids)) == 20, "at most 3 s late": late_s < 4.5})


# Slow disks, and directories


def slow_sync(stage: Stage) -> Outcome:
    """Row 37: every sync takes 3 s. Publishers wait for it; consumers, heartbeats and HTTP do not."""
    daemon = stage.nsqd_with_channel("--msg-timeout=2s")
    stage.tracker.publish_many(daemon, TOPIC, bodies("before", 50))
    slowest_s = 0.0
    with Tracer(daemon, *delaying("fsync,fdatasync", 3000)), RawClient(daemon.tcp_address) as publisher:
        publishing = threading.Thread(target=stage.tracker.publish, args=(publisher, TOPIC, b"slow"))
        publishing.start()
        consumer = stage.consumer(daemon, ready=1)
        for _ in range(50):
            began_s = time.monotonic()
            stage.tracker.finish(consumer, 1)
            daemon.request("GET", "/ping")
            slowest_s = max(slowest_s, time.monotonic() - began_s)
        publishing.join()
        consumer.close()
    stage.drain(daemon)
    return stage.tracker.outcome(**{"slowest delivery and /ping below 1 s": slowest_s < 1.0})


def read_only_directory(stage: Stage) -> Outcome:
    """The data directory is read-only at the start: does nsqd say so, and is everything there later?"""
    disk = small_disk(stage)
    daemon = stage.nsqd_with_channel(SMALL_COMMITS, NO_LIMIT)
    stage.tracker.publish_many(daemon, TOPIC, bodies("before", 50))
    kill(daemon)
    disk.remount("ro")
    try:
        stage.nsqd(SMALL_COMMITS, NO_LIMIT)
        text = "starts"
    except DaemonFailed as failure:
        text = str(failure).strip().splitlines()[-1]
    disk.remount("rw")
    outcome = stage.restart_and_drain(SMALL_COMMITS, NO_LIMIT)
    return replace(outcome, seen={**outcome.seen, "refuses to start": text})


# Go's nsqd


def to_go_and_back(stage: Stage) -> Outcome:
    """Row 31: export, Go's nsqd takes some messages and adds some, and nsqx moves its queues into logs."""
    daemon = stage.nsqd_with_channel()
    stage.tracker.publish_many(daemon, TOPIC, bodies("before", COUNT))
    _finish(stage, daemon, 20)
    kill(daemon)
    exported = subprocess.run([*NSQX, "log", "export", str(stage.data_path)], capture_output=True, text=True)
    assert exported.returncode == 0, exported.stderr
    stage.implementation = "go"
    go = stage.nsqd()
    depth = wait_for_depth(go)
    _finish(stage, go, 20)
    stage.tracker.publish_many(go, TOPIC, bodies("by Go", 20))
    go.stop()
    stage.implementation = "nsqx"
    outcome = stage.restart_and_drain()
    return replace(outcome, seen={**outcome.seen, "depth in Go's nsqd": depth})


def _finish(stage: Stage, daemon: Daemon, count: int) -> None:
    """Receive and finish messages; the others are not in flight then."""
    with stage.consumer(daemon, ready=count) as consumer:
        messages = [consumer.read_message() for _ in range(count)]
        consumer.rdy(0)
        for message in messages:
            stage.tracker.finished.add(message.body)
            consumer.fin(message.id)
        assert consumer.cls() is not None
    wait_until(lambda: message_counts(daemon)[1] == 0, "nothing is in flight")
    time.sleep(0.1)  # a FIN is written within 50 ms


# Memory


def large_backlog(stage: Stage) -> Outcome:
    """Row 30: how many of 60 MB of messages are in memory, with --log-memory=4000000."""
    daemon = stage.nsqd("--log-memory=4000000", SMALL_COMMITS)
    with RawClient(daemon.tcp_address) as client:
        for _ in range(60):
            assert client.mpub(TOPIC, [b"x" * 100_000] * 10) == OK
    metrics = daemon.request("GET", "/metrics").body.decode().splitlines()
    (size,) = (line.split()[1] for line in metrics if line.startswith("nsq_log_memory_bytes"))
    return Outcome(seen={"MB in memory": round(int(size) / 1e6)})
