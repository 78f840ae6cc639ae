"""Files of emptied and deleted queues are removed in a thread: slowness delays no client, a crash restores nothing."""

import os
from pathlib import Path

import pytest

from daemons import Daemon, start_nsqd, wait_until

pytestmark = pytest.mark.usefixtures("classic_store")

ON_DISK = ("--mem-queue-size=0", "--max-bytes-per-file=1000", "--sync-timeout=10ms")
# Removing a data file takes ten minutes.
STUCK = {"NSQX_FAILPOINTS": "data.unlink=delay:600000@1+"}


def data_files(directory: Path, queue: str) -> list[str]:
    return sorted(name for name in os.listdir(directory) if name.startswith(f"{queue}.diskqueue.0"))


def start_with_backlog(directory: Path) -> Daemon:
    """Start an nsqd that cannot remove files in time, with 100 messages in the files of a channel and of a topic."""
    daemon = start_nsqd("nsqx", *ON_DISK, data_path=directory, env=STUCK)
    daemon.post("/topic/create", topic="t")
    daemon.post("/channel/create", topic="t", channel="c")
    for topic in ("t", "alone"):
        daemon.post("/mpub", b"\n".join([b"x" * 100] * 100), topic=topic)
    assert len(data_files(directory, "t:c")) > 10
    return daemon


def depth_of(daemon: Daemon, topic: str) -> int:
    depth: int = daemon.topic_stats(topic)["depth"]
    return depth


@pytest.mark.parametrize("route", ["/channel/empty", "/channel/delete", "/topic/empty", "/topic/delete"])
def test_a_slow_removal_delays_no_client(route: str, tmp_path: Path) -> None:
    daemon = start_with_backlog(tmp_path)
    try:
        topic = "t" if route.startswith("/channel") else "alone"
        daemon.post(route, topic=topic, channel="c")
        for _ in range(3):
            daemon.post("/pub", b"new", topic=topic)
        assert daemon.request("GET", "/ping").body == b"OK"
    finally:
        daemon.kill()


def test_a_crash_before_the_removal_restores_no_message(tmp_path: Path) -> None:
    daemon = start_with_backlog(tmp_path)
    daemon.post("/channel/empty", topic="t", channel="c")
    daemon.post("/topic/delete", topic="alone")
    # Pausing the channel saves nsqd.dat, which then no longer names the topic.
    daemon.post("/channel/pause", topic="t", channel="c")
    daemon.post("/pub", b"new", topic="t")
    assert len(data_files(tmp_path, "t:c")) > 10
    daemon.kill()
    with start_nsqd("nsqx", *ON_DISK, data_path=tmp_path) as again:
        assert again.topic_stats("alone") is None
        assert again.channel_stats("t", "c")["depth"] == 1
        wait_until(lambda: data_files(tmp_path, "alone") == [], "the files of the deleted topic are removed")
        wait_until(lambda: len(data_files(tmp_path, "t:c")) <= 2, "the files of the emptied channel are removed")
        assert again.channel_stats("t", "c")["depth"] == 1


def test_a_recreated_topic_keeps_its_messages(tmp_path: Path) -> None:
    """The removal of the old files, which continues after the restart, does not touch the new ones."""
    daemon = start_with_backlog(tmp_path)
    daemon.post("/topic/delete", topic="alone")
    daemon.post("/pub", b"first", topic="alone")
    assert depth_of(daemon, "alone") == 1
    daemon.post("/topic/pause", topic="alone")
    daemon.kill()
    with start_nsqd("nsqx", *ON_DISK, data_path=tmp_path) as again:
        assert depth_of(again, "alone") == 1
        again.post("/pub", b"second", topic="alone")
        wait_until(lambda: len(data_files(tmp_path, "alone")) <= 4, "the old files are removed")
        assert depth_of(again, "alone") == 2
        again.post("/topic/delete", topic="alone")
        wait_until(lambda: data_files(tmp_path, "alone") == [], "all files are removed")
        wait_until(lambda: not (tmp_path / "alone.diskqueue.meta.dat").exists(), "the meta file is removed")


def count_data_files(directory: Path) -> int:
    """Count the data files of the topic. Sidecars do not count: a sync may write one at any time."""
    return sum(name.endswith(".dat") for name in data_files(directory, "t"))


def test_the_exit_does_not_wait_for_all_removals(tmp_path: Path) -> None:
    """The next start removes the remaining files. Only the removal of the current file delays the exit."""
    slow = {"NSQX_FAILPOINTS": "data.unlink=delay:1500@1+"}
    with start_nsqd("nsqx", *ON_DISK, data_path=tmp_path, env=slow) as daemon:
        daemon.post("/mpub", b"\n".join([b"x" * 100] * 100), topic="t")
        count = count_data_files(tmp_path)
        daemon.post("/topic/delete", topic="t")
        assert daemon.stop() == 0
    assert count - 4 < count_data_files(tmp_path) < count
    with start_nsqd("nsqx", *ON_DISK, data_path=tmp_path):
        wait_until(lambda: data_files(tmp_path, "t") == [], "the files are removed")
