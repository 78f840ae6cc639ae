"""One process owns the segments on S3. A process that has lost its lease finishes no more messages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from streams import Query, bodies, make_channel, publish, source_options
from test_receiver import CommittingReader, channel_is_empty, stop_receiver
from test_segments import known, open_directory, rows, values

from daemons import wait_until
from nsqx.errors import ConfigError
from nsqx.spark import exclusive_create, lease
from nsqx.spark.lease import LeaseLost
from nsqx.spark.storage import open_storage

PROGRAM = Path(__file__).with_name("receiver_process.py")
LONG_S = 90.0
# The lease of receiver processes: long enough for a busy machine, short enough for a test.
LEASE_S = 4.0
RENEW_S = 0.5


@pytest.fixture
def short_leases(monkeypatch):
    """Make the leases of this process expire after 1.5 seconds."""
    monkeypatch.setattr(lease, "LEASE_S", 1.5)
    monkeypatch.setattr(lease, "RENEW_S", 0.2)
    monkeypatch.setattr(lease, "_POLL_S", 0.05)


@pytest.fixture
def start_receiver():
    """Return a function that starts a receiver process. The processes are killed at the end of the test."""
    started = []
    environment = {**os.environ, "LEASE_S": str(LEASE_S), "RENEW_S": str(RENEW_S)}

    def start(options):
        command = [sys.executable, str(PROGRAM), json.dumps(options), "none", "1"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        started.append(process)
        return process

    yield start
    for process in started:
        with process:
            process.kill()


def segments_in(storage):
    return [name for name in storage.names() if name.startswith("segment-")]


def test_files_can_be_written_replaced_and_deleted(s3_directory):
    storage = open_storage(s3_directory)
    assert storage.names() == []
    storage.create()
    storage.write("a", lambda stream: stream.write(b"one"))
    storage.write("a", lambda stream: stream.write(b"two"))
    assert storage.names() == ["a"]
    assert storage.read("a") == b"two"
    storage.delete("a")
    storage.delete("a")
    assert storage.names() == []
    with pytest.raises(FileNotFoundError):
        storage.open("a")


def test_a_segment_directory_on_s3_is_reopened_as_it_was_closed(s3_directory):
    directory = open_directory(s3_directory)
    directory.append([rows(0, 20)])
    directory.append([rows(20, 30)])
    directory.commit(20)
    directory.write_note("note", [1])
    directory.write_note("note", [2])
    directory.close(is_clean=True)
    again = open_directory(s3_directory)
    assert (again.state.committed, again.first_row, again.next_row) == (20, 20, 30)
    assert known(again) == [b"%016x" % number for number in range(30)]
    assert values(again, 20, 30) == [b"%d" % number for number in range(20, 30)]
    assert again.end_within(20, 30, 0, 6) == 23
    assert again.read_note("note") == [2]
    assert again.state.is_clean
    again.close(is_clean=True)


def test_only_one_of_several_simultaneous_starts_gets_the_lease(s3_directory, short_leases):
    for number in range(4):
        held, refused = [], []

        def try_lock(location, barrier, held, refused):
            storage = open_storage(location)
            barrier.wait()
            try:
                held.append(storage.lock(0.0))
            except ConfigError as error:
                refused.append(str(error))

        given = (s3_directory.replace("?", f"-{number}?"), threading.Barrier(4), held, refused)
        threads = [threading.Thread(target=try_lock, args=given) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG_S)
        assert (len(held), len(refused)) == (1, 3)
        assert all("is in use by process" in each for each in refused)
        held[0].verify()
        held[0].release()


def test_an_owner_whose_lease_expired_cannot_change_the_directory(s3_directory, short_leases, monkeypatch):
    monkeypatch.setattr(lease.Lease, "keep_renewing", lambda self: None)
    first = open_directory(s3_directory)
    first.append([rows(0, 10)])
    first.append([rows(10, 20)])
    second = open_directory(s3_directory)
    with pytest.raises(LeaseLost, match="another process has taken over"):
        first.append([rows(20, 25)])
    for change in (first.verify, lambda: first.commit(10), lambda: first.write_note("note", 1)):
        with pytest.raises(LeaseLost):
            change()
    first.close(is_clean=True)
    # The segment that the first owner wrote without the lease is ignored, also after the directory is reopened.
    assert len(segments_in(second.storage)) == 3
    assert second.append([rows(20, 40)]) == 40
    assert values(second, 0, 40) == [b"%d" % number for number in range(40)]
    second.close(is_clean=True)
    third = open_directory(s3_directory)
    assert values(third, 0, 40) == [b"%d" % number for number in range(40)]
    assert len(segments_in(third.storage)) == 3
    third.close(is_clean=True)


def test_a_restart_after_kill_waits_for_the_lease_to_expire(our_nsqd, topic, s3_directory, tmp_path, start_receiver):
    make_channel(our_nsqd, topic)
    publish(our_nsqd, topic, bodies(0, 2000))
    options = {**source_options(our_nsqd, topic, tmp_path, **{"nsq.msg_timeout": "2s"}), "segmentDir": s3_directory}
    first = start_receiver(options)
    assert first.stdout.readline() == b"receiving\n"
    wait_until(lambda: segments_in(open_storage(s3_directory)), "a segment is written", LONG_S)
    first.kill()
    first.wait()
    second = start_receiver(options)
    assert second.stdout.readline() == b"receiving\n"
    wait_until(lambda: channel_is_empty(our_nsqd, topic), "all messages are received", LONG_S)
    stop_receiver(second)
    reader = CommittingReader(options)
    reader.take()
    assert sorted(reader.values, key=int) == bodies(0, 2000)


def test_a_suspended_owner_that_resumes_causes_no_loss_and_no_duplicates(
    nsqd, topic, s3_directory, tmp_path, start_receiver
):
    make_channel(nsqd, topic)
    publish(nsqd, topic, bodies(0, 10_000))
    given = source_options(nsqd, topic, tmp_path, **{"nsq.msg_timeout": "3s", "maxInFlight": "500"})
    options = {**given, "segmentDir": s3_directory}
    first = start_receiver(options)
    assert first.stdout.readline() == b"receiving\n"
    wait_until(lambda: segments_in(open_storage(s3_directory)), "a segment is written", LONG_S)
    os.kill(first.pid, signal.SIGSTOP)
    try:
        second = start_receiver(options)
        assert second.stdout.readline() == b"receiving\n"
    finally:
        os.kill(first.pid, signal.SIGCONT)
    publish(nsqd, topic, bodies(10_000, 20_000))
    assert first.wait(LONG_S) == 3
    assert b"another process has taken over" in first.stdout.read()
    wait_until(lambda: channel_is_empty(nsqd, topic), "all messages are received", LONG_S)
    stop_receiver(second)
    reader = CommittingReader(options)
    reader.take()
    assert sorted(reader.values, key=int) == bodies(0, 20_000)


def test_an_idle_receiver_ends_when_its_lease_is_lost(our_nsqd, topic, s3_directory, tmp_path, start_receiver):
    make_channel(our_nsqd, topic)
    options = {**source_options(our_nsqd, topic, tmp_path), "segmentDir": s3_directory}
    first = start_receiver(options)
    assert first.stdout.readline() == b"receiving\n"
    os.kill(first.pid, signal.SIGSTOP)
    try:
        assert start_receiver(options).stdout.readline() == b"receiving\n"
    finally:
        os.kill(first.pid, signal.SIGCONT)
    assert first.wait(LONG_S) == 3


def test_a_query_reads_segments_on_s3(spark, our_nsqd, topic, s3_directory, tmp_path):
    make_channel(our_nsqd, topic)
    publish(our_nsqd, topic, bodies(0, 1000))
    query = Query(spark, {**source_options(our_nsqd, topic, tmp_path), "segmentDir": s3_directory}, tmp_path)
    query.run_available()
    assert query.values == bodies(0, 1000)


def test_storage_without_exclusive_create_is_rejected(s3_directory, monkeypatch):
    monkeypatch.setattr(exclusive_create, "_creation_of", lambda *_: lambda *_: True)
    with pytest.raises(ConfigError, match=r"cannot be locked against other queries \(it overwrites existing files"):
        open_directory(s3_directory)


def test_a_version_1_directory_is_converted(s3_directory):
    directory = open_directory(s3_directory)
    directory.append([rows(0, 20)])
    directory.close(is_clean=True)
    downgrade_to_version_1(directory)
    again = open_directory(s3_directory)
    assert again.state.identity == directory.state.identity
    assert again.append([rows(20, 30)]) == 30
    assert values(again, 0, 30) == [b"%d" % number for number in range(30)]
    again.close(is_clean=True)


def downgrade_to_version_1(directory):
    """Convert a directory to version 1, which had no leases."""
    storage = directory.storage
    for name in storage.names("owner"):
        storage.delete(f"owner/{name}")
    (name,) = segments_in(storage)
    content = storage.read(name)
    storage.write("-".join(name.split("-")[:4]) + ".arrow", lambda stream: stream.write(content))
    storage.delete(name)
    state = {"identity": directory.state.identity, "channel": "c", "committed": 0, "max_in_flight": 0, "is_clean": True}
    text = json.dumps({"version": 1, **state}).encode()
    storage.write("state.json", lambda stream: stream.write(text))
