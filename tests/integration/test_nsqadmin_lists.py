"""nsqadmin lists over the whole cluster: channels, consumers and nodes, of real daemons."""

from collections.abc import Callable
from typing import Any

from daemons import Daemon, Fleet, wait_until
from rawclient import RawClient


def admin_of(fleet: Fleet, *nsqds: Daemon, **options: Any) -> Daemon:
    addresses = [f"--nsqd-http-address={nsqd.http_address}" for nsqd in nsqds]
    return fleet.nsqadmin("nsqx", "--poll-interval=100ms", "--history-window=5m", *addresses, **options)


def make(nsqd: Daemon, topic: str, *channels: str, messages: int = 0) -> None:
    nsqd.post("/topic/create", topic=topic)
    for channel in channels:
        nsqd.post("/channel/create", topic=topic, channel=channel)
    for _ in range(messages):
        nsqd.post("/pub", b"x", topic=topic)


def listed(admin: Daemon, kind: str, query: str = "") -> Any:
    answer = admin.request("GET", f"/api/overview/{kind}?{query}")
    assert answer.status == 200, answer.body
    return answer.json()


def when(admin: Daemon, kind: str, is_seen: Callable[[Any], bool], query: str = "") -> Any:
    """Return the first list for which ``is_seen``."""
    found: list[Any] = []

    def seen() -> bool:
        found[:] = [listed(admin, kind, query)]
        return is_seen(found[0])

    wait_until(seen, f"the list of {kind}", 30)
    return found[0]


def test_channels_of_all_topics_are_sorted_by_what_matters(fleet: Fleet) -> None:
    nsqds = [fleet.nsqd("nsqx") for _ in range(2)]
    make(nsqds[0], "orders", "idle", "stuck", messages=3)
    make(nsqds[1], "orders", "stuck", messages=2)
    make(nsqds[0], "audit", "empty")
    nsqds[0].post("/channel/empty", topic="orders", channel="idle")
    admin = admin_of(fleet, *nsqds)
    every = when(admin, "channels", lambda found: found["total"] == 3)
    first = every["channels"][0]
    assert (first["topic"], first["name"], first["depth"], first["nodes"]) == ("orders", "stuck", 5, 2)
    assert first["trouble"] == ["no_consumer"]
    assert [(row["topic"], row["name"]) for row in every["channels"][1:]] == [("audit", "empty"), ("orders", "idle")]
    old = when(admin, "channels", lambda found: found["channels"][0]["oldest_at_s"] is not None, "q=STUCK+ord")
    assert old["found"] == 1
    assert 0 <= old["time_s"] - old["channels"][0]["oldest_at_s"] < 60
    assert [row["name"] for row in listed(admin, "channels", "sort=name&limit=2")["channels"]] == ["empty", "idle"]
    assert listed(admin, "channels", "filter=paused")["channels"] == []
    for query, code in (("sort=x", "SORT"), ("filter=x", "FILTER"), ("limit=0", "LIMIT"), ("limit=x", "LIMIT")):
        answer = admin.request("GET", f"/api/overview/channels?{query}")
        assert (answer.status, answer.json()) == (400, {"message": f"INVALID_ARG_{code}"})


def test_consumers_of_all_topics(fleet: Fleet) -> None:
    nsqds = [fleet.nsqd("nsqx") for _ in range(2)]
    make(nsqds[0], "orders", "billing", messages=5)
    admin = admin_of(fleet, *nsqds)
    with RawClient(nsqds[0].tcp_address) as first, RawClient(nsqds[1].tcp_address) as second:
        for consumer in (first, second):
            consumer.identify(client_id="billing-1", hostname="host-1", user_agent="shop/1")
            consumer.sub("orders", "billing")
        first.rdy(1)
        for _ in range(2):
            first.fin(first.read_message().id)
        found = when(
            admin,
            "consumers",
            lambda found: found["total"] == 1 and found["consumers"][0]["finish_count"] == 2,
        )
        (row,) = found["consumers"]
        assert (row["topic"], row["channel"], row["client_id"], row["connections"]) == (
            "orders", "billing", "billing-1", 2,
        )  # fmt: skip
        assert sorted(row["nodes"]) == sorted(nsqd.http_address for nsqd in nsqds)
        assert row["ready_count"] == 1
        when(admin, "consumers", lambda found: found["consumers"][0]["finished_per_s"] == 0)
        assert listed(admin, "consumers", "q=SHOP+billing-1")["found"] == 1
        assert listed(admin, "consumers", "q=nobody")["consumers"] == []
    when(admin, "consumers", lambda found: found["total"] == 0)


def test_consumers_are_listed_without_a_history(fleet: Fleet) -> None:
    nsqd = fleet.nsqd("nsqx")
    where = f"--nsqd-http-address={nsqd.http_address}"
    admin = fleet.nsqadmin("nsqx", where, "--poll-interval=0")
    assert listed(admin, "consumers")["consumers"] == []
    for kind in ("channels", "nodes"):
        answer = admin.request("GET", f"/api/overview/{kind}")
        assert (answer.status, answer.json()) == (404, {"message": "HISTORY_DISABLED"})


def test_the_numbers_of_the_nodes(fleet: Fleet) -> None:
    nsqd = fleet.nsqd("nsqx")
    make(nsqd, "orders", "billing", messages=3)
    with RawClient(nsqd.tcp_address) as consumer:
        consumer.sub("orders", "billing")
        found = when(
            admin_of(fleet, nsqd), "nodes", lambda found: found["nodes"] and found["nodes"][0]["consumers"] == 1
        )
    (row,) = found["nodes"]
    assert (row["address"], row["implementation"], row["version"]) == (nsqd.http_address, "nsqx", "1.3.0")
    assert (row["connections"], row["depth"], row["topics"], row["channels"]) == (1, 3, 1, 1)
    assert row["memory_bytes"] > 10_000_000
    assert row["disk_free_bytes"] <= row["disk_size_bytes"]
    assert row["nsqx_version"]
    assert row["start_s"] > 1_600_000_000
