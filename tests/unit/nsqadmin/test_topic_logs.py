"""Logs, settings, seeks and trims through nsqadmin's API, with scripted nsqds."""

import json
from typing import Any

import pytest
from admin_double import ADDRESSES, GO, LOGS, OTHER, Admin, unreachable

LOG_STATS = {
    "store": "log",
    "durability": "fsync",
    "id": "6f1c2a9e40d34b7c",
    "first": 10,
    "stable": 90,
    "end": 100,
    "bytes": 4096,
    "segments": 2,
    "deferred_count": 1,
}
CURSOR = {"floor": 20, "next": 30, "holes": 3}
SEEK = {"topic": "orders", "channel": "billing", "from": 30, "to": 10, "depth_before": 70, "depth": 90}
SEEK_RESULT = {"from": 30, "to": 10, "depth_before": 70, "depth": 90, "in_flight": 2, "forgotten": 1}


def topic_stats(**extras: Any) -> dict[str, Any]:
    channel = {"channel_name": "billing", "depth": 70, "in_flight_count": 2, "deferred_count": 1}
    cursor = {**CURSOR, **extras.pop("cursor", {})}
    topic = {"topic_name": "orders", "channels": [{**channel, "cursor": cursor}], "log": {**LOG_STATS, **extras}}
    return {"topics": [{"topic_name": "other"}, topic]}


@pytest.fixture
def admin() -> Admin:
    """Go's nsqd, a complete nsqd, and an nsqd without the newest numbers and routes."""
    admin = Admin()
    extras = {"kept_bytes": 100, "dropped": 4, "expired": 5, "duplicates": 6}
    cursor = {"dropped": 1, "expired": 2, "dead": 3, "oldest": 1794556800000000001}
    admin.script(LOGS, "GET /stats", topic_stats(**extras, cursor=cursor))
    listed = {"topic": "orders", "first_time": "2026-11-12T08:00:00Z", "bytes_per_message": 41}
    admin.script(LOGS, "GET /log/offsets", {"topics": [listed]})
    admin.script(LOGS, "GET /topic/config", {"settings": {"retain_age": "72h0m0s"}, "changed": ["retain_age"]})
    admin.script(OTHER, "GET /stats", topic_stats())
    return admin


class TestLog:
    def test_a_node_has_its_log_its_channels_and_its_settings(self, admin: Admin) -> None:
        answer = admin.get("/api/log/orders")
        assert (answer["topic"], answer["message"]) == ("orders", "")
        assert [node["node"] for node in answer["nodes"]] == list(ADDRESSES)
        node = answer["nodes"][1]
        assert (node["code"], node["error"]) == ("", "")
        assert node["log"] == {
            **LOG_STATS,
            "kept_bytes": 100,
            "dropped": 4,
            "expired": 5,
            "duplicates": 6,
            "first_time": "2026-11-12T08:00:00Z",
            "bytes_per_message": 41,
        }
        assert node["channels"] == [
            {
                "channel": "billing",
                "depth": 70,
                "in_flight_count": 2,
                "deferred_count": 1,
                **CURSOR,
                "dropped": 1,
                "expired": 2,
                "dead": 3,
                "oldest_ns": "1794556800000000001",
            }
        ]
        assert node["config"] == {
            "code": "",
            "error": "",
            "settings": {"retain_age": "72h0m0s"},
            "changed": ["retain_age"],
        }

    def test_numbers_that_a_node_does_not_report_are_null(self, admin: Admin) -> None:
        node = admin.get("/api/log/orders")["nodes"][2]
        assert (node["log"]["kept_bytes"], node["log"]["first_time"], node["log"]["bytes_per_message"]) == (None,) * 3
        assert (node["channels"][0]["dead"], node["channels"][0]["oldest_ns"]) == (None, None)
        assert (node["config"]["code"], node["config"]["settings"]) == ("NOT_AVAILABLE", {})

    def test_a_node_without_logs_is_not_a_failure(self, admin: Admin) -> None:
        node = admin.get("/api/log/orders")["nodes"][0]
        assert (node["code"], node["log"], node["channels"]) == ("", None, [])
        assert node["config"]["code"] == "NOT_AVAILABLE"

    def test_a_node_that_does_not_answer_is_listed(self, admin: Admin) -> None:
        # The query for the nodes of the topic succeeds, and the next one fails.
        admin.script(GO, "GET /stats", [{"topics": [{"topic_name": "orders"}]}, unreachable()])
        nodes = admin.get("/api/log/orders")["nodes"]
        assert [node["code"] for node in nodes] == ["UNREACHABLE", "", ""]
        assert nodes[0]["error"].endswith("connection refused")

    def test_a_topic_that_was_deleted_meanwhile_is_listed(self, admin: Admin) -> None:
        admin.script(GO, "GET /stats", [{"topics": [{"topic_name": "orders"}]}, {"topics": []}])
        assert admin.get("/api/log/orders")["nodes"][0]["code"] == "TOPIC_NOT_FOUND"

    @pytest.mark.parametrize(
        ("stats", "error"), [({"bytes": "many"}, "bytes is not an integer"), ({"id": 5}, "id is not a string")]
    )
    def test_an_invalid_answer_of_a_node_is_reported(self, admin: Admin, stats: dict[str, Any], error: str) -> None:
        admin.script(OTHER, "GET /stats", topic_stats(**stats))
        node = admin.get("/api/log/orders")["nodes"][2]
        assert (node["code"], node["log"]) == ("FAILED", None)
        assert error in node["error"]

    def test_an_unknown_topic_is_not_found(self, admin: Admin) -> None:
        assert admin.request("GET", "/api/log/unknown") == (404, {"message": "TOPIC_NOT_FOUND"})
        assert admin.request("GET", "/api/log/no%20name")[0] == 400

    def test_a_cluster_that_does_not_answer_is_a_failure(self, admin: Admin) -> None:
        for address in ADDRESSES:
            admin.script(address, "GET /stats", unreachable())
        status, document = admin.request("GET", "/api/log/orders")
        assert (status, document["message"].partition(":")[0]) == (502, "UPSTREAM_ERROR")


class TestSettings:
    def test_settings_are_sent_to_every_node(self, admin: Admin) -> None:
        changed = {"settings": {"retain_age": "24h0m0s"}, "changed": ["retain_age"]}
        admin.script(LOGS, "PUT /topic/config", {"topic": "orders", **changed})
        admin.script(OTHER, "PUT /topic/config", (400, {"message": "INVALID_VALUE"}))
        settings = {"retain_age": "24h", "max_bytes": 5, "dead_letter": None}
        status, document = admin.request("PUT", "/api/config/orders", {"settings": settings})
        assert status == 200
        codes = [(outcome["kind"], outcome["address"], outcome["code"]) for outcome in document["outcomes"]]
        assert codes == [("nsqd", GO, "NOT_AVAILABLE"), ("nsqd", LOGS, ""), ("nsqd", OTHER, "INVALID_VALUE")]
        assert document["outcomes"][1]["result"] == changed
        assert document["outcomes"][2]["result"] is None
        assert document["message"].startswith("WARNING: ")
        sent = admin.asked("/topic/config")
        assert [(each.method, json.loads(each.body)) for each in sent] == [("PUT", settings)] * 3
        record = admin.records[-1]
        assert (record.action, record.topic, record.outcome) == ("set_topic_config", "orders", "partly")
        assert '"retain_age":"24h"' in record.detail

    def test_settings_of_a_channel_are_read_and_changed_on_one_node(self, admin: Admin) -> None:
        config = {"settings": {"max_attempts": 5, "dead_letter": "orders.dead"}, "changed": []}
        admin.script(LOGS, "GET /channel/config", config)
        admin.script(LOGS, "PUT /channel/config", config)
        admin.script(OTHER, "GET /channel/config", (404, {"message": "CHANNEL_NOT_FOUND"}))
        nodes = admin.get("/api/config/orders/billing")["nodes"]
        assert [node["code"] for node in nodes] == ["NOT_AVAILABLE", "", "CHANNEL_NOT_FOUND"]
        assert nodes[1] == {"node": LOGS, "code": "", "error": "", **config}
        body = {"settings": {"max_attempts": 7}, "node": LOGS}
        status, document = admin.request("PUT", "/api/config/orders/billing", body)
        assert (status, len(document["outcomes"]), document["message"]) == (200, 1, "")
        assert admin.asked("/channel/config")[-2].query == [("topic", "orders"), ("channel", "billing")]
        record = admin.records[-1]
        assert (record.action, record.channel, record.node, record.outcome) == (
            "set_channel_config",
            "billing",
            LOGS,
            "done",
        )

    @pytest.mark.parametrize(
        ("body", "code"),
        [
            (b"", "INVALID_BODY"),
            (b"[]", "INVALID_BODY"),
            ({"settings": {"max_attempts": 1}, "node": 5}, "INVALID_BODY"),
            ({}, "INVALID_SETTINGS"),
            ({"settings": {}}, "INVALID_SETTINGS"),
            ({"settings": {"max_bytes": 1.5}}, "INVALID_SETTINGS"),
            ({"settings": {"max_bytes": True}}, "INVALID_SETTINGS"),
            ({"settings": {"max_bytes": [1]}}, "INVALID_SETTINGS"),
        ],
    )
    def test_an_invalid_body_is_rejected(self, admin: Admin, body: Any, code: str) -> None:
        assert admin.request("PUT", "/api/config/orders", body) == (400, {"message": code})
        assert admin.asked("/topic/config") == []


class TestSeek:
    def test_a_preview_shows_the_effect_on_each_node_and_is_not_recorded(self, admin: Admin) -> None:
        admin.script(LOGS, "POST /channel/seek", {**SEEK, "in_flight": 2, "forgotten": 1, "dry_run": True})
        admin.script(OTHER, "POST /channel/seek", (400, {"message": "NOT_A_LOG"}))
        status, document = admin.request("POST", "/api/seek/orders/billing", {"to": "beginning", "dry_run": True})
        assert status == 200
        assert [outcome["code"] for outcome in document["outcomes"]] == ["NOT_AVAILABLE", "", "NOT_A_LOG"]
        assert [outcome["result"] for outcome in document["outcomes"]] == [None, SEEK_RESULT, None]
        assert "has no log" in document["outcomes"][2]["error"]
        assert dict(admin.asked("/channel/seek")[1].query) == {
            "topic": "orders",
            "channel": "billing",
            "to": "beginning",
            "dry_run": "true",
        }
        assert admin.records == []

    def test_a_preview_that_fails_everywhere_is_an_answer(self, admin: Admin) -> None:
        admin.script(LOGS, "POST /channel/seek", (410, {"message": "OFFSET_GONE", "first": 10}))
        body = {"to": "5", "node": LOGS, "dry_run": True}
        status, document = admin.request("POST", "/api/seek/orders/billing", body)
        assert (status, document["outcomes"][0]["code"]) == (200, "OFFSET_GONE")
        assert document["outcomes"][0]["error"].endswith("first offset is 10.")

    def test_a_seek_is_recorded(self, admin: Admin) -> None:
        for address in (GO, LOGS, OTHER):
            admin.script(address, "POST /channel/seek", {**SEEK, "in_flight": 2, "forgotten": 1})
        status, document = admin.request("POST", "/api/seek/orders/billing", {"to": "-1h"})
        assert (status, document["message"]) == (200, "")
        assert dict(admin.asked("/channel/seek")[0].query) == {"topic": "orders", "channel": "billing", "to": "-1h"}
        record = admin.records[-1]
        assert (record.action, record.topic, record.channel) == ("seek_channel", "orders", "billing")
        assert (record.outcome, record.detail) == ("done", "to=-1h")

    def test_a_seek_to_an_offset_goes_to_its_node(self, admin: Admin) -> None:
        admin.script(LOGS, "POST /channel/seek", {**SEEK, "in_flight": 2, "forgotten": 1})
        assert admin.request("POST", "/api/seek/orders/billing", {"to": "10"}) == (400, {"message": "INVALID_NODE"})
        status, document = admin.request("POST", "/api/seek/orders/billing", {"to": "10", "node": LOGS})
        assert (status, [outcome["address"] for outcome in document["outcomes"]]) == (200, [LOGS])
        assert admin.records[-1].node == LOGS

    def test_a_seek_that_fails_everywhere_is_a_failure(self, admin: Admin) -> None:
        status, document = admin.request("POST", "/api/seek/orders/billing", {"to": "end"})
        assert status == 502
        assert {outcome["code"] for outcome in document["outcomes"]} == {"NOT_AVAILABLE"}
        assert document["message"].startswith("UPSTREAM_ERROR: ")
        assert admin.records[-1].outcome == "failed"

    @pytest.mark.parametrize(
        ("target", "body", "status", "code"),
        [
            ("/api/seek/orders/billing", {}, 400, "INVALID_POSITION"),
            ("/api/seek/orders/billing", {"to": "x" * 65}, 400, "INVALID_POSITION"),
            ("/api/seek/orders/no%20name", {"to": "end"}, 400, "INVALID_CHANNEL"),
            ("/api/seek/no%20name/billing", {"to": "end"}, 400, "INVALID_TOPIC"),
            ("/api/seek/orders/billing", {"to": "end", "node": "127.0.0.1:9"}, 404, "NODE_NOT_FOUND"),
            ("/api/seek/unknown/billing", {"to": "end"}, 404, "TOPIC_NOT_FOUND"),
        ],
    )
    def test_invalid_requests_are_rejected(self, admin: Admin, target: str, body: Any, status: int, code: str) -> None:
        assert admin.request("POST", target, body) == (status, {"message": code})


def test_a_trim_shows_its_effect_and_is_recorded(admin: Admin) -> None:
    result = {"before": 50, "first": 50, "dropped": {"billing": 12}, "dropped_from_topic": 0, "bytes": 2048}
    admin.script(LOGS, "POST /log/trim", {"topic": "orders", **result, "dry_run": True})
    body = {"before": "50", "node": LOGS, "dry_run": True}
    status, document = admin.request("POST", "/api/trim/orders", body)
    assert (status, document["outcomes"][0]["result"]) == (200, result)
    assert admin.records == []
    assert admin.request("POST", "/api/trim/orders", {**body, "dry_run": False})[0] == 200
    assert (admin.records[-1].action, admin.records[-1].detail) == ("trim_topic", "before=50")
    assert admin.request("POST", "/api/trim/orders", {"before": "50"})[1] == {"message": "INVALID_NODE"}


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("PUT", "/api/config/orders"),
        ("PUT", "/api/config/orders/billing"),
        ("POST", "/api/seek/orders/billing"),
        ("POST", "/api/trim/orders"),
    ],
)
def test_changes_need_the_role_operate(method: str, target: str) -> None:
    admin = Admin(consume_token="c" * 16, operate_token="o" * 16)
    headers = {"authorization": f"Bearer {'c' * 16}"}
    assert admin.request(method, target, {}, **headers) == (403, {"message": "FORBIDDEN"})
    assert admin.records[-1].outcome == "refused"
    assert admin.http.asked == []
    crossing = {"sec_fetch_site": "cross-site", "authorization": f"Bearer {'o' * 16}"}
    assert admin.request(method, target, {}, **crossing)[1] == {"message": "CROSS_ORIGIN"}


def test_viewers_read_logs_and_settings(admin: Admin) -> None:
    viewed = Admin(view_token="v" * 16, operate_token="o" * 16)
    for target in ("/api/log/orders", "/api/config/orders/billing"):
        assert viewed.request("GET", target)[0] == 401
        assert viewed.request("GET", target, authorization=f"Bearer {'v' * 16}")[0] == 200
