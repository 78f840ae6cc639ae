"""The receiver, without Spark, stores every message exactly once, at whatever point it is killed."""

from __future__ import annotations

import asyncio
import errno
import json
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from streams import bodies, make_channel, publish, source_options

from daemons import wait_until
from nsqx.client.blocking import Producer
from nsqx.errors import ConfigError
from nsqx.spark import recorder
from nsqx.spark.intake import Intake
from nsqx.spark.options import read_source_options
from nsqx.spark.receiver import Receiver
from nsqx.spark.segments import SegmentDirectory
from nsqx.spark.slices import read_slices
from nsqx.spark.source import open_directory
from nsqx.spark.storage import LocalStorage
from proxy import Proxy

PROGRAM = Path(__file__).with_name("receiver_process.py")
# Long enough for a busy machine.
LONG_S = 90.0
COUNTS = {"go": 100_000, "nsqx": 50_000}


class CommittingReader:
    """Reads the rows of a segment directory and commits them, as a query does."""

    def __init__(self, options):
        self._options = read_source_options(options)
        self.values = []

    def take(self):
        directory = open_directory(self._options)
        try:
            start, end = directory.state.committed, directory.next_row
            for part in directory.slices(start, end, 1):
                for batch in read_slices(directory.storage.location, directory.state.identity, part):
                    self.values.extend(batch.column("value").to_pylist())
            directory.commit(end)
        finally:
            directory.close(is_clean=directory.state.is_clean)


@pytest.fixture
def start_receiver():
    """Return a function that starts a receiver process. The processes are killed at the end of the test."""
    started = []

    def start(options, fault="none", count=1):
        command = [sys.executable, str(PROGRAM), json.dumps(options), fault, str(count)]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        return started[-1]

    yield start
    for process in started:
        with process:
            process.kill()


def stop_receiver(process):
    """Stop a receiver process cleanly."""
    process.stdin.close()
    assert process.wait(LONG_S) == 0


def channel_is_empty(nsqd, topic):
    channel = nsqd.channel_stats(topic, "spark")
    return not (channel["depth"] or channel["in_flight_count"] or channel["deferred_count"])


def short_timeout_options(nsqd, topic, directory):
    """Return options with few messages in flight, a short message timeout and a window shorter than the backlog."""
    return source_options(
        nsqd, topic, directory, **{"maxInFlight": "500", "dedupWindow": "1000", "nsq.msg_timeout": "2s"}
    )


def test_a_receiver_killed_at_random_moments_stores_every_message_once(nsqd, topic, tmp_path, start_receiver):
    seed = random.randrange(2**32)
    print("seed", seed)
    moments = random.Random(seed)
    count = COUNTS["go" if "interop" in nsqd.command[0] else "nsqx"]
    make_channel(nsqd, topic)
    publish(nsqd, topic, bodies(0, count))
    options = short_timeout_options(nsqd, topic, tmp_path)
    reader = CommittingReader(options)
    for _ in range(3):
        process = start_receiver(options)
        assert process.stdout.readline() == b"receiving\n"
        time.sleep(moments.uniform(0.0, 0.25))
        process.kill()
        process.wait()
        reader.take()
    process = start_receiver(options)
    wait_until(lambda: channel_is_empty(nsqd, topic), "all messages are received", LONG_S)
    stop_receiver(process)
    reader.take()
    assert sorted(reader.values, key=int) == bodies(0, count)


@pytest.mark.parametrize(
    ("nsqd", "faults"),
    [("go", {"append": 7, "rename": 5, "finish": 700}), ("nsqx", {"append": 3, "rename": 6, "finish": 1200})],
    indirect=["nsqd"],
)
def test_a_receiver_killed_at_critical_points_stores_every_message_once(nsqd, topic, tmp_path, start_receiver, faults):
    """The receivers run at the same time, each with another fault and topic."""
    options = {fault: short_timeout_options(nsqd, f"{topic}_{fault}", tmp_path / fault) for fault in faults}
    readers = {fault: CommittingReader(each) for fault, each in options.items()}
    for each in options.values():
        make_channel(nsqd, each["subscribe"])
        publish(nsqd, each["subscribe"], bodies(0, 10_000))
    doomed = {fault: start_receiver(options[fault], fault, count) for fault, count in faults.items()}
    for fault, process in doomed.items():
        assert process.wait(LONG_S) == -9
        readers[fault].take()
    second = {fault: start_receiver(each) for fault, each in options.items()}
    for fault, process in second.items():
        wait_until(lambda name=f"{topic}_{fault}": channel_is_empty(nsqd, name), "all messages are received", LONG_S)
        stop_receiver(process)
        readers[fault].take()
        assert sorted(readers[fault].values, key=int) == bodies(0, 10_000)


class RunningReceiver:
    """A context manager that runs a receiver in this process."""

    def __init__(self, options):
        self._options = options
        self.directory = open_directory(read_source_options(options))
        self.receiver = Receiver(read_source_options(options), self.directory)

    def __enter__(self):
        self.receiver.start()
        return self

    def __exit__(self, *_):
        self.directory.close(is_clean=self.receiver.stop())

    def values(self):
        """Return all stored bodies, sorted by number."""
        directory = self.directory
        found = []
        for part in directory.slices(directory.state.committed, directory.next_row, 1):
            for batch in read_slices(directory.storage.location, directory.state.identity, part):
                found.extend(batch.column("value").to_pylist())
        return sorted(found, key=int)


def test_max_in_flight_above_max_rdy_count_opens_more_connections(fleet, topic, tmp_path):
    nsqd = fleet.nsqd("nsqx", "--max-rdy-count=100")
    make_channel(nsqd, topic)
    publish(nsqd, topic, bodies(0, 3000))
    with RunningReceiver({**short_timeout_options(nsqd, topic, tmp_path), "maxInFlight": "250"}) as running:
        wait_until(lambda: running.receiver.rows == 3000, "all messages are received", LONG_S)
        clients = nsqd.channel_stats(topic, "spark")["clients"]
        assert sorted(client["ready_count"] for client in clients) == [83, 83, 84]
    assert running.values() == bodies(0, 3000)
    assert running.directory.state.is_clean


async def test_lost_connections_cause_no_duplicates(nsqd, topic, tmp_path):
    make_channel(nsqd, topic)
    await asyncio.to_thread(publish, nsqd, topic, bodies(0, 20_000))
    async with Proxy(nsqd.tcp_address) as proxy:
        options = {**short_timeout_options(nsqd, topic, tmp_path), "nsq.nsqd": proxy.address}
        running = await asyncio.to_thread(RunningReceiver(options).__enter__)
        for rows in (1, 2000, 6000, 10_000):
            await asyncio.to_thread(running.receiver.wait_for_rows, rows - 1, LONG_S)
            proxy.cut()
        await asyncio.to_thread(wait_until, lambda: channel_is_empty(nsqd, topic), "all messages are received", LONG_S)
        await asyncio.to_thread(running.__exit__)
        assert proxy.connection_count >= 5
    assert running.values() == bodies(0, 20_000)


def test_messages_do_not_time_out_during_a_slow_write(our_nsqd, topic, tmp_path, monkeypatch):
    publish(our_nsqd, topic, bodies(0, 100))
    append = SegmentDirectory.append

    def slow_append(self, parts):
        time.sleep(3.2)
        return append(self, parts)

    monkeypatch.setattr(SegmentDirectory, "append", slow_append)
    with RunningReceiver(short_timeout_options(our_nsqd, topic, tmp_path)) as running:
        wait_until(lambda: running.receiver.rows == 100, "all messages are received", LONG_S)
        wait_until(lambda: channel_is_empty(our_nsqd, topic), "all messages are finished", LONG_S)
    channel = our_nsqd.channel_stats(topic, "spark")
    assert (channel["timeout_count"], channel["requeue_count"]) == (0, 0)


def test_a_slow_disk_does_not_end_a_bounded_read_early(our_nsqd, topic, tmp_path, monkeypatch):
    publish(our_nsqd, topic, bodies(0, 2000))
    append = SegmentDirectory.append

    def slow_append(self, parts):
        time.sleep(0.3)
        return append(self, parts)

    monkeypatch.setattr(SegmentDirectory, "append", slow_append)
    running = RunningReceiver({**short_timeout_options(our_nsqd, topic, tmp_path), "drainIdle": "100ms"})
    running.receiver.start(bound_ns=time.time_ns())
    wait_until(lambda: running.receiver.is_drained, "the read ends", LONG_S)
    assert running.values() == bodies(0, 2000)
    running.__exit__()


def test_messages_redelivered_after_a_late_fin_are_recognised(nsqd, topic, tmp_path, monkeypatch):
    publish(nsqd, topic, bodies(0, 12_000))
    append = SegmentDirectory.append
    hung = []

    def hanging_append(self, parts):
        end = append(self, parts)
        if not hung:
            hung.append(end)
            wait_until(
                lambda: nsqd.channel_stats(topic, "spark")["timeout_count"] >= end, "the messages time out", LONG_S
            )
        return end

    async def no_touching(self, _):
        await asyncio.Event().wait()

    monkeypatch.setattr(SegmentDirectory, "append", hanging_append)
    monkeypatch.setattr(Intake, "keep_touching", no_touching)
    with RunningReceiver(short_timeout_options(nsqd, topic, tmp_path)) as running:
        wait_until(
            lambda: running.receiver.known_count >= hung[0] if hung else False, "the messages are redelivered", LONG_S
        )
        wait_until(
            lambda: running.receiver.rows >= 12_000 and channel_is_empty(nsqd, topic),
            "all messages are finished",
            LONG_S,
        )
        assert running.values() == bodies(0, 12_000)
    assert list((tmp_path / "segments").glob("pins-*"))


def test_a_failed_write_is_retried(our_nsqd, topic, tmp_path, monkeypatch):
    publish(our_nsqd, topic, bodies(0, 100))
    write = LocalStorage.write
    failures = iter([True, True, False])

    def failing_write(self, name, fill):
        if name.startswith("segment-") and next(failures, False):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, name, fill)

    monkeypatch.setattr(recorder, "_WRITE_RETRY_S", 0.01)
    monkeypatch.setattr(LocalStorage, "write", failing_write)
    with RunningReceiver(short_timeout_options(our_nsqd, topic, tmp_path)) as running:
        wait_until(lambda: running.receiver.rows == 100, "all messages are received", LONG_S)
        assert running.values() == bodies(0, 100)


def test_a_full_disk_ends_the_query_without_losing_messages(our_nsqd, topic, tmp_path, monkeypatch):
    make_channel(our_nsqd, topic)
    publish(our_nsqd, topic, bodies(0, 100))
    write = LocalStorage.write

    def failing_write(self, name, fill):
        if name.startswith("segment-"):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, name, fill)

    monkeypatch.setattr(recorder, "_WRITE_RETRY_S", 0.01)
    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "write", failing_write)
        with (
            RunningReceiver(short_timeout_options(our_nsqd, topic, tmp_path)) as running,
            pytest.raises(ConfigError, match="cannot write to segmentDir .*No space left.* No message is lost"),
        ):
            running.receiver.wait_for_rows(0, LONG_S)
    with RunningReceiver(short_timeout_options(our_nsqd, topic, tmp_path)) as running:
        wait_until(lambda: running.receiver.rows == 100, "all messages are received", LONG_S)
        assert running.values() == bodies(0, 100)


def test_receiving_pauses_at_max_buffered_rows(our_nsqd, topic, tmp_path):
    make_channel(our_nsqd, topic)
    publish(our_nsqd, topic, bodies(0, 5000))
    options = {**short_timeout_options(our_nsqd, topic, tmp_path), "maxBufferedRows": "1000", "maxInFlight": "100"}
    with RunningReceiver(options) as running:
        receiver, directory = running.receiver, running.directory
        seen = 0
        while seen < 5000:
            wait_until(lambda: receiver.is_paused or receiver.rows == 5000, "the buffer is full")
            wait_until(lambda: not our_nsqd.channel_stats(topic, "spark")["in_flight_count"], "nothing is in flight")
            assert directory.buffered()[0] <= 1000 + 2 * 100
            seen = receiver.rows
            directory.commit(seen)
            receiver.committed()
            # The receiver may have resumed and filled the buffer again.
            wait_until(lambda seen=seen: receiver.rows > seen or not receiver.is_paused, "the receiver resumes")


def test_bytes_in_flight_are_bounded(nsqd, topic, tmp_path, monkeypatch):
    """While writes block, nsqd sends at most maxInFlightBytes plus the socket buffers."""
    make_channel(nsqd, topic)
    messages = [b"%03d" % number + bytes(999_997) for number in range(100)]
    for message in messages:
        publish(nsqd, topic, [message])
    append, is_open = SegmentDirectory.append, threading.Event()

    def waiting_append(self, parts):
        assert is_open.wait(LONG_S)
        return append(self, parts)

    def in_flight():
        return nsqd.channel_stats(topic, "spark")["in_flight_count"]

    monkeypatch.setattr(SegmentDirectory, "append", waiting_append)
    # One connection, so only the buffers of one socket are added.
    options = source_options(nsqd, topic, tmp_path, maxInFlightBytes="8m", maxInFlight="1000")
    with RunningReceiver(options) as running:
        wait_until(lambda: in_flight() > 8, "messages are held", LONG_S)
        before = 0
        while in_flight() > before:
            before = in_flight()
            time.sleep(0.5)
        assert before < 50
        is_open.set()
        wait_until(
            lambda: running.receiver.rows == 100 and channel_is_empty(nsqd, topic), "all messages are stored", LONG_S
        )
        found = []
        for part in running.directory.slices(0, 100, 1):
            for batch in read_slices(running.directory.storage.location, running.directory.state.identity, part):
                found.extend(batch.column("value").to_pylist())
        assert sorted(found) == messages
    assert nsqd.channel_stats(topic, "spark")["requeue_count"] == 0


LIBRARIES = [*Path("/usr/lib").glob("**/faketime/libfaketime.so.1")]


@pytest.fixture
def shifted_nsqd(request, fleet):
    """Run an nsqd whose wall clock is shifted."""
    if not LIBRARIES:
        pytest.skip("libfaketime missing: install libfaketime")
    shift = {"LD_PRELOAD": str(LIBRARIES[0]), "FAKETIME": request.param, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    return fleet.nsqd("nsqx", env=shift)


def bounded_read(options):
    """Start a bounded read."""
    running = RunningReceiver(options)
    running.receiver.start(bound_ns=time.time_ns())
    return running


@pytest.mark.parametrize("shifted_nsqd", ["+1h", "-1h"], indirect=True)
def test_a_bounded_read_contains_the_backlog_when_clocks_differ(shifted_nsqd, topic, tmp_path):
    make_channel(shifted_nsqd, topic)
    publish(shifted_nsqd, topic, bodies(0, 10_000))
    # maxInFlight is so low that reading the backlog takes longer than drainIdle.
    running = bounded_read(source_options(shifted_nsqd, topic, tmp_path, maxInFlight="20", drainIdle="400ms"))
    wait_until(lambda: running.receiver.is_drained, "the read ends", LONG_S)
    assert running.values() == bodies(0, 10_000)
    running.__exit__()


@pytest.mark.parametrize("shifted_nsqd", ["+1h", "-1h"], indirect=True)
def test_a_bounded_read_ends_during_publishing_when_clocks_differ(shifted_nsqd, topic, tmp_path):
    make_channel(shifted_nsqd, topic)
    publish(shifted_nsqd, topic, bodies(0, 1000))
    has_ended = threading.Event()

    def keep_publishing():
        with Producer(shifted_nsqd.tcp_address) as producer:
            for number in range(1000, 1_000_000):
                producer.publish(topic, b"%d" % number)
                if has_ended.wait(0.005):
                    return

    publisher = threading.Thread(target=keep_publishing)
    publisher.start()
    try:
        running = bounded_read(source_options(shifted_nsqd, topic, tmp_path, drainIdle="1s"))
        wait_until(lambda: running.receiver.is_drained, "the read ends", LONG_S)
    finally:
        has_ended.set()
        publisher.join()
    assert set(bodies(0, 1000)) <= set(running.values())
    running.__exit__()
