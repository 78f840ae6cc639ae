"""The receiver without Spark: what it takes from nsqd is on disk once, wherever it dies."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from daemons import wait_until
from nsqx.spark.options import read_source_options
from nsqx.spark.receiver import Receiver
from nsqx.spark.segments import read_slices
from nsqx.spark.source import open_directory
from streams import bodies, make_channel, publish, source_options

PROGRAM = Path(__file__).with_name("receiving.py")
COUNT = 100_000


class Outlet:
    """Takes rows out of a segment directory as a query would, and lets go of them."""

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


def start(options, fault="none", count=1):
    command = [sys.executable, str(PROGRAM), json.dumps(options), fault, str(count)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def end(process):
    """End a receiver cleanly."""
    process.stdin.close()
    assert process.wait(20) == 0
    process.stdout.close()


def channel_is_empty(nsqd, topic):
    channel = nsqd.channel_stats(topic, "spark")
    return not (channel["depth"] or channel["in_flight_count"] or channel["deferred_count"])


def hurried_options(nsqd, topic, directory):
    """Few in flight, soon handed out again, and a window far shorter than the backlog."""
    return source_options(
        nsqd, topic, directory, **{"maxInFlight": "500", "dedupWindow": "1000", "nsq.msg_timeout": "1s"}
    )


def test_killed_at_random_moments(nsqd, topic, tmp_path):
    seed = random.randrange(2**32)
    print("seed", seed)
    moments = random.Random(seed)
    make_channel(nsqd, topic)
    publish(nsqd, topic, bodies(0, COUNT))
    options = hurried_options(nsqd, topic, tmp_path)
    outlet = Outlet(options)
    for _ in range(5):
        process = start(options)
        assert process.stdout.readline() == b"receiving\n"
        time.sleep(moments.uniform(0.0, 0.25))
        process.kill()
        process.communicate()
        outlet.take()
    process = start(options)
    wait_until(lambda: channel_is_empty(nsqd, topic), "everything is received", 40)
    end(process)
    outlet.take()
    assert sorted(outlet.values, key=int) == bodies(0, COUNT)


@pytest.mark.parametrize(("fault", "count"), [("append", 1), ("append", 7), ("rename", 5), ("finish", 700)])
def test_killed_at_the_worst_moments(nsqd, topic, tmp_path, fault, count):
    make_channel(nsqd, topic)
    publish(nsqd, topic, bodies(0, 10_000))
    options = hurried_options(nsqd, topic, tmp_path)
    outlet = Outlet(options)
    process = start(options, fault, count)
    process.wait(20)
    process.communicate()
    assert process.returncode == -9
    outlet.take()
    process = start(options)
    wait_until(lambda: channel_is_empty(nsqd, topic), "everything is received", 40)
    end(process)
    outlet.take()
    assert sorted(outlet.values, key=int) == bodies(0, 10_000)


def test_a_lost_connection_repeats_nothing(fleet, nsqd, topic, tmp_path):
    """nsqd restarts with messages in flight; they are handed out again, and known."""
    make_channel(nsqd, topic)
    publish(nsqd, topic, bodies(0, 20_000))
    options = hurried_options(nsqd, topic, tmp_path)
    process = start(options)
    assert process.stdout.readline() == b"receiving\n"
    for client in wait_until(lambda: nsqd.channel_stats(topic, "spark")["clients"], "the receiver is connected"):
        assert client["ready_count"] == 500
    segments = tmp_path / "segments"
    wait_until(lambda: list(segments.glob("segment-*")), "something is received")
    nsqd.post("/channel/pause", topic=topic, channel="spark")
    end(process)
    process = start(options)
    nsqd.post("/channel/unpause", topic=topic, channel="spark")
    wait_until(lambda: channel_is_empty(nsqd, topic), "everything is received", 40)
    end(process)
    outlet = Outlet(options)
    outlet.take()
    assert sorted(outlet.values, key=int) == bodies(0, 20_000)
