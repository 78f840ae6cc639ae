"""nsqd with topic logs, killed under load: nothing that was acknowledged is lost, and depths are exact (rows 1 to 4).

NSQX_SEED repeats the random choices of a run, but not its timing. A failure includes the seed.
"""

import time
from pathlib import Path

import pytest
from kill_log import MIN_ACKNOWLEDGED, kill_nsqd
from seeds import NEW_SEED, QUICK_SEED

from daemons import Fleet, wait_until
from rawclient import OK, RawClient


@pytest.mark.parametrize("durability", ["fsync", "write"])
def test_nothing_acknowledged_is_lost_when_nsqd_is_killed(tmp_path: Path, durability: str) -> None:
    counts = kill_nsqd(3, durability, str(tmp_path), QUICK_SEED)
    assert counts["kills"] == 3
    assert counts["acknowledged"] >= MIN_ACKNOWLEDGED


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("durability", ["fsync", "write"])
def test_nothing_acknowledged_is_lost_in_many_kills(tmp_path: Path, durability: str) -> None:
    counts = kill_nsqd(200, durability, str(tmp_path), NEW_SEED)
    assert counts["segments"] > 200


def test_a_channel_survives_a_kill_after_the_answer_to_its_creation(fleet: Fleet, topic: str, tmp_path: Path) -> None:
    slow_disk = {"NSQX_FAILPOINTS": "commit.datasync=delay:300@1+"}
    daemon = fleet.nsqd("nsqx", "--store=log", data_path=tmp_path, env=slow_disk)
    daemon.post("/topic/create", topic=topic)
    daemon.post("/channel/create", topic=topic, channel="a")
    daemon.kill()
    daemon = fleet.nsqd("nsqx", "--store=log", data_path=tmp_path)
    daemon.post("/pub", b"1", topic=topic)
    assert daemon.channel_stats(topic, "a")["depth"] == 1


def test_depths_and_due_times_are_exact_after_a_crash(fleet: Fleet, topic: str, tmp_path: Path) -> None:
    daemon = fleet.nsqd("nsqx", "--store=log", data_path=tmp_path)
    daemon.post("/topic/create", topic=topic)
    for channel in ("a", "b"):
        daemon.post("/channel/create", topic=topic, channel=channel)
    with RawClient(daemon.tcp_address) as client:
        assert client.mpub(topic, [b"%d" % number for number in range(10)]) == OK
        assert client.dpub(topic, 6000, b"deferred") == OK
    due = time.monotonic() + 6
    daemon.post("/pub", b"deferred", topic=topic, defer="6000")
    with RawClient(daemon.tcp_address) as client:
        assert client.sub(topic, "a") == OK
        client.rdy(3)
        first, second, third = (client.read_message() for _ in range(3))
        client.fin(second.id)
        client.req(first.id, 6000)
        client.req(third.id, 0)
        time.sleep(0.3)
    daemon.kill()
    daemon = fleet.nsqd("nsqx", "--store=log", data_path=tmp_path)
    entry = daemon.channel_stats(topic, "a")
    assert (entry["depth"], entry["deferred_count"]) == (8, 3)
    entry = daemon.channel_stats(topic, "b")
    assert (entry["depth"], entry["deferred_count"]) == (10, 2)
    with RawClient(daemon.tcp_address) as client:
        assert client.sub(topic, "a") == OK
        client.rdy(100)
        messages = [client.read_message() for _ in range(11)]
        assert due - 0.1 <= time.monotonic() <= due + 3
        late = [message.body for message in messages[8:]]
        assert sorted(late) == [first.body, b"deferred", b"deferred"]
        assert {message.body for message in messages[:8]} == {b"%d" % number for number in range(10)} - {
            first.body,
            second.body,
        }
        for message in messages:
            client.fin(message.id)
    wait_until(lambda: daemon.channel_stats(topic, "a")["in_flight_count"] == 0, "everything is finished")
    assert daemon.stop() == 0
    daemon = fleet.nsqd("nsqx", "--store=log", data_path=tmp_path)
    assert daemon.channel_stats(topic, "a")["depth"] == 0
    assert daemon.channel_stats(topic, "b")["depth"] == 12
