"""Scenarios of a daemon that is killed, or stopped, with messages in all states (rows 1 to 4 and 16)."""

import random
import signal
import threading
import time

from stage import (
    CHANNEL,
    DISK_ONLY,
    QUEUE,
    SMALL_FILES,
    TOPIC,
    Outcome,
    Stage,
    bodies,
    create_channel,
    kill,
    message_counts,
    publish_until_ended,
    wait_for_depth,
    wait_for_save,
)
from tracing import NEW_NAMES, Tracer, delaying, killing

from daemons import Daemon, wait_until
from rawclient import OK, ConnectionEnded, RawClient, pub, rdy, sub

IN_FLIGHT = 500


def kill_with_memory_queue(stage: Stage) -> Outcome:
    """Row 1: default flags, so all messages are in memory."""
    daemon = stage.nsqd_with_channel()
    stage.tracker.publish_many(daemon, TOPIC, bodies("memory", 5000))
    kill(daemon)
    return stage.restart_and_drain()


def kill_with_overflow(stage: Stage, memory: int, count: int) -> Outcome:
    """Row 1: the last ``count - memory`` messages do not fit into memory and are on disk."""
    daemon = stage.nsqd(f"--mem-queue-size={memory}")
    daemon.post("/topic/create", topic=TOPIC)
    stage.tracker.publish_many(daemon, TOPIC, bodies("overflow", count), batch_size=7)
    assert daemon.topic_stats(TOPIC)["depth"] == count
    kill(daemon)
    return stage.restart_and_drain()


def kill_with_disk_queue(stage: Stage) -> Outcome:
    """Row 2: everything is on disk; some messages are finished."""
    daemon = stage.nsqd_with_channel(DISK_ONLY)
    stage.tracker.publish_many(daemon, TOPIC, bodies("disk", 5000))
    wait_for_depth(daemon)
    consumer = stage.consumer(daemon, ready=100)
    stage.tracker.finish(consumer, 1250)
    kill(daemon)
    return stage.restart_and_drain()


def kill_with_messages_in_flight(stage: Stage, *flags: str, delay_ms: int = 600_000) -> Outcome:
    """Row 3: 500 messages are in flight and 50 deferred by REQ; 100 later ones are finished."""
    daemon = stage.nsqd_with_channel(DISK_ONLY, *flags)
    stage.tracker.publish_many(daemon, TOPIC, bodies("held", 1500))
    wait_for_depth(daemon)
    consumer = stage.consumer(daemon, ready=IN_FLIGHT + 50)
    held = [consumer.read_message() for _ in range(IN_FLIGHT + 50)]
    for message in held[-50:]:
        consumer.req(message.id, delay_ms)
    consumer.rdy(IN_FLIGHT + 10)
    stage.tracker.finish(consumer, 100)
    consumer.rdy(1)
    wait_until(lambda: daemon.channel_stats(TOPIC, CHANNEL)["deferred_count"] == 50, "messages are deferred")
    wait_for_save(stage.data_path / f"{QUEUE}.diskqueue.meta.dat", time.time_ns())
    kill(daemon)
    return stage.restart_and_drain()


def kill_at_random(stage: Stage, seed: int) -> Outcome:
    """Row 4: publish, move to the channel and consume, with a new file every few messages, until the kill."""
    rng = random.Random(seed)
    tracker = stage.tracker
    daemon = stage.nsqd(DISK_ONLY, SMALL_FILES, f"--sync-every={rng.choice((1, 10, 2500))}", "--sync-timeout=20ms")
    with RawClient(daemon.tcp_address) as producer:
        for body in bodies("topic", 80):
            assert tracker.publish(producer, TOPIC, body)
        create_channel(daemon)
        stage.wait_for_metadata()
        workers = [threading.Thread(target=_consume, args=(stage, daemon, rng.randrange(1, 40)))]
        limit = rng.randrange(20, 400)
        workers.append(threading.Thread(target=_kill_after, args=(stage, daemon, 80 + limit)))
        for worker in workers:
            worker.start()
        publish_until_ended(tracker, producer, TOPIC, bodies("live", 5000))
        for worker in workers:
            worker.join()
    kill(daemon)
    return stage.restart_and_drain(SMALL_FILES)


def kill_at_file_change(stage: Stage, number: int, calls: str = f"pwrite64,ftruncate,fsync,{NEW_NAMES}") -> Outcome:
    """Row 4: as above, but killed at the start of the ``number``-th call that changes files."""
    tracker = stage.tracker
    daemon = stage.nsqd(DISK_ONLY, SMALL_FILES, "--sync-every=10", "--sync-timeout=20ms")
    with RawClient(daemon.tcp_address) as producer:
        for body in bodies("topic", 80):
            assert tracker.publish(producer, TOPIC, body)
        with Tracer(daemon, *killing(calls, number)):
            consumer = threading.Thread(target=_consume, args=(stage, daemon, 10))
            consumer.start()
            publish_until_ended(tracker, producer, TOPIC, bodies("live", 2000))
            if daemon.running:
                kill(daemon)
            consumer.join()
    kill(daemon)
    return stage.restart_and_drain(SMALL_FILES)


def kill_before_channel_write(stage: Stage) -> Outcome:
    """Row 4: messages move from the topic to a new channel with a slow disk: killed before the channel has written.

    A message that is published in the same turn makes the topic save its positions meanwhile.
    """
    daemon = stage.nsqd(DISK_ONLY, "--sync-every=10", "--sync-timeout=20ms")
    stage.tracker.publish_many(daemon, TOPIC, bodies("topic", 80))
    path = stage.data_path / f"{QUEUE}.diskqueue.000000.dat"
    with Tracer(daemon, *delaying("write,pwrite64", 1500, path)), RawClient(daemon.tcp_address) as client:
        stage.tracker.sent.add(b"in the same turn")
        began_ns = time.time_ns()
        client.send(pub(TOPIC, b"in the same turn") + sub(TOPIC, CHANNEL) + rdy(1))
        wait_until(path.exists, "the channel is about to write")
        wait_for_save(stage.data_path / f"{TOPIC}.diskqueue.meta.dat", began_ns)
        kill(daemon)
    return stage.restart_and_drain()


def stop_with_messages_everywhere(stage: Stage) -> Outcome:
    """Row 16: SIGTERM with messages in memory, in flight, deferred, and a client that reads nothing."""
    daemon = stage.nsqd_with_channel("--mem-queue-size=300")
    consumer = stage.consumer(daemon, ready=70)
    stage.tracker.publish_many(daemon, TOPIC, bodies("kept", 600))
    for message in [consumer.read_message() for _ in range(70)][:20]:
        consumer.req(message.id, 300)
    stuck = RawClient(daemon.tcp_address)
    stage.cleanup.callback(stuck.close)
    assert stuck.sub("big", CHANNEL) == OK
    for _ in range(30):
        daemon.post("/pub", b"x" * 1_000_000, topic="big")
    stuck.rdy(2500)
    wait_until(lambda: message_counts(daemon)[1] == 70, "messages are in flight")
    began_s = time.monotonic()
    code = daemon.stop(signal.SIGTERM, timeout_s=60.0)
    took_s = time.monotonic() - began_s
    outcome = stage.restart_and_drain()
    return Outcome(
        outcome.acked, outcome.lost, outcome.duplicated, outcome.foreign, {"exit": code, "seconds": round(took_s, 1)}
    )


def stop_during_a_sync(stage: Stage) -> Outcome:
    """Row 16: SIGTERM during a slow sync, with more data to sync after it."""
    daemon = stage.nsqd_with_channel(DISK_ONLY, "--sync-every=50", "--sync-timeout=60s")
    with Tracer(daemon, *delaying("fsync,fdatasync", 200)):
        stage.tracker.publish_many(daemon, TOPIC, bodies("unsynced", 180), batch_size=60)
        code = daemon.stop(timeout_s=60.0)
    internal = [line for line in daemon.log.splitlines() if "internal error" in line or "Traceback" in line]
    outcome = stage.restart_and_drain(SMALL_FILES)
    seen = {**outcome.seen, "exit": code, "internal errors": internal}
    return Outcome(outcome.acked, outcome.lost, outcome.duplicated, outcome.foreign, seen)


def _consume(stage: Stage, daemon: Daemon, ready: int) -> None:
    """Finish some messages of each group, the later ones first, until the daemon ends."""
    try:
        with RawClient(daemon.tcp_address) as client:
            assert client.sub(TOPIC, CHANNEL) == OK
            client.rdy(ready + 3)
            while True:
                messages = [client.read_message() for _ in range(ready)]
                for message in reversed(messages):
                    stage.tracker.finished.add(message.body)
                    client.fin(message.id)
    except (OSError, ConnectionEnded):
        pass


def _kill_after(stage: Stage, daemon: Daemon, acks: int) -> None:
    while len(stage.tracker.acked) < acks and daemon.running:
        time.sleep(0.0005)
    daemon.process.send_signal(signal.SIGKILL)
