"""nsqadmin tells nsqx and Go's nsqd apart, so that a migration can be followed."""

from typing import Any

from daemons import Fleet, wait_until


def test_nodes_of_both_implementations(fleet: Fleet) -> None:
    ours, theirs = fleet.nsqd("nsqx"), fleet.nsqd("go")
    for nsqd in (ours, theirs):
        nsqd.post("/topic/create", topic="orders")
        nsqd.post("/channel/create", topic="orders", channel="c")
        nsqd.post("/pub", b"x", topic="orders")
    addresses = [f"--nsqd-http-address={nsqd.http_address}" for nsqd in (ours, theirs)]
    admin = fleet.nsqadmin("nsqx", "--poll-interval=100ms", "--history-window=5m", *addresses)
    rows: dict[str, Any] = {}

    def seen() -> bool:
        found = admin.request("GET", "/api/overview/nodes").json()["nodes"]
        rows.update((row["address"], row) for row in found)
        return len(rows) == 2 and rows[theirs.http_address]["memory_bytes"] is not None

    wait_until(seen, "both nodes with their memory", 30)
    go = rows[theirs.http_address]
    assert (go["implementation"], go["nsqx_version"]) == ("go", "")
    assert (go["disk_free_bytes"], go["connections"]) == (None, None)
    assert go["start_s"] > 1_600_000_000
    assert rows[ours.http_address]["implementation"] == "nsqx"
    (channel,) = admin.request("GET", "/api/overview/channels").json()["channels"]
    assert (channel["nodes"], channel["depth"]) == (2, 2)
    assert channel["oldest_at_s"] is not None, "that of our node"
    ours.post("/channel/empty", topic="orders", channel="c")

    def unknown() -> bool:
        (channel,) = admin.request("GET", "/api/overview/channels").json()["channels"]
        return channel["depth"] == 1 and channel["oldest_at_s"] is None

    wait_until(unknown, "only Go's message is left, of unknown age", 30)
