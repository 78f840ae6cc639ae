"""Syncs that take very long delay only the clients that wait for them (row 37)."""

import pytest
from stage import DISK_ONLY, Stage, kill

from daemons import Daemon
from rawclient import HEARTBEAT, OK, RawClient, pub

pytestmark = pytest.mark.usefixtures("classic_store")

# The first syncs of data files take longer than the test; the daemon is killed at its end.
STUCK_MS = 60_000


def stuck_publishers(stage: Stage, daemon: Daemon, count: int) -> list[RawClient]:
    """Return clients whose publishes wait for syncs that do not end, each to its own topic."""
    clients = []
    for number in range(count):
        client = RawClient(daemon.tcp_address)
        stage.cleanup.callback(client.close)
        client.identify(heartbeat_interval=1000)
        client.send(pub(f"stuck{number}", b"waits"))
        clients.append(client)
    daemon.wait_for_log(rf"DISKQUEUE\(stuck{count - 1}\): writeOne")
    return clients


def test_a_slow_sync_delays_only_clients_that_wait_for_it(stage: Stage) -> None:
    """Publishes over TCP and HTTP to other topics, deliveries, new subscriptions and heartbeats continue."""
    daemon = stage.nsqd(DISK_ONLY, "--sync-every=1", env={"NSQX_FAILPOINTS": f"data.sync=delay:{STUCK_MS}@1"})
    (stuck,) = stuck_publishers(stage, daemon, 1)
    with RawClient(daemon.tcp_address) as client, RawClient(daemon.tcp_address) as consumer:
        assert client.pub("other#ephemeral", b"in memory") == OK
        assert client.pub("other", b"on disk") == OK
        assert daemon.post("/pub", b"by HTTP", topic="other").status == 200
        assert consumer.sub("other", "channel") == OK
        consumer.rdy(2)
        assert {consumer.read_message().body for _ in range(2)} == {b"on disk", b"by HTTP"}
    assert stuck.read_frame().data == HEARTBEAT  # no OK has come before it
    kill(daemon)


def test_many_slow_syncs_leave_threads_for_others(stage: Stage) -> None:
    """Twelve syncs that do not end block neither syncs of other queues nor saves of nsqd.dat."""
    daemon = stage.nsqd(DISK_ONLY, "--sync-every=1", env={"NSQX_FAILPOINTS": f"data.sync=delay:{STUCK_MS}@2-13"})
    with RawClient(daemon.tcp_address) as client:
        assert client.pub("other", b"1") == OK
        stuck_publishers(stage, daemon, 12)
        assert client.pub("other", b"2") == OK
        assert daemon.post("/channel/create", topic="other", channel="new").status == 200
        assert daemon.post("/channel/pause", topic="other", channel="new").status == 200
    kill(daemon)
