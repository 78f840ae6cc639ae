"""The numbers of each node, and whether it runs nsqx or Go's nsqd."""

from nsqx.nsqadmin.cluster_stats import ClusterStats
from nsqx.nsqadmin.node_rows import NodeRows

OURS = {
    "version": "1.3.0",
    "health": "OK",
    "start_time": 900,
    "topics": [],
    "node": {
        "nsqx_version": "0.2.0",
        "memory_bytes": 5,
        "disk_free_bytes": 6,
        "disk_size_bytes": 7,
        "connections": 8,
    },
}


def test_nsqx_reports_everything_and_go_its_heap_if_asked() -> None:
    rows = NodeRows()
    rows.note("b:1", OURS, None)
    assert not rows.is_go("b:1")
    go = {"version": "1.3.0", "health": "NOK - full", "start_time": 800, "topics": []}
    rows.note("a:1", go, None)
    assert rows.is_go("a:1")
    assert [(row["address"], row["implementation"], row["nsqx_version"]) for row in rows.rows()] == [
        ("a:1", "go", ""),
        ("b:1", "nsqx", "0.2.0"),
    ]
    assert rows.rows()[0]["memory_bytes"] is None
    rows.note("a:1", {**go, "memory": {"heap_in_use_bytes": 4}}, None)
    first, second = rows.rows()
    assert (first["memory_bytes"], first["disk_free_bytes"], first["connections"], first["health"]) == (
        4, None, None, "NOK - full",
    )  # fmt: skip
    assert (second["memory_bytes"], second["disk_free_bytes"], second["disk_size_bytes"]) == (5, 6, 7)
    rows.keep(["b:1"])
    assert [row["address"] for row in rows.rows()] == ["b:1"]
    assert not rows.is_go("a:1")


def test_damaged_answers_are_unknown_numbers() -> None:
    rows = NodeRows()
    rows.note("a:1", {"version": 5, "node": {"memory_bytes": "x", "disk_free_bytes": -1}}, None)
    (row,) = rows.rows()
    assert (row["version"], row["memory_bytes"], row["disk_free_bytes"], row["start_s"]) == ("", None, None, None)


def test_the_rates_of_a_node_are_those_of_its_topics() -> None:
    stats = ClusterStats(10)

    def poll(time_s: float, published: int, depth: int) -> None:
        counts = ("backend_depth", "in_flight_count", "deferred_count", "requeue_count", "timeout_count")
        channel = {"channel_name": "c", **dict.fromkeys(counts, 0), "paused": False}
        channel |= {"message_count": published, "depth": depth, "client_count": 2}
        topic = {"topic_name": "t", "channels": [channel, {**channel, "channel_name": "d"}], "paused": False}
        stats.open()
        stats.add_node("a:1", [{**topic, "depth": 1, "backend_depth": 0, "message_count": published}], time_s)
        stats.close({"a:1"}, time_s)

    poll(1000.0, 100, 50)
    poll(1010.0, 200, 30)
    rows = NodeRows()
    rows.note("a:1", OURS, stats.node("a:1"))
    (row,) = rows.rows()
    assert (row["rate"], row["rate_out"], row["consumers"], row["depth"]) == (10, 24, 4, 61)
    assert (row["topics"], row["channels"], row["answered_s"]) == (1, 2, 1010)
