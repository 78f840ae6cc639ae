"""Stored messages and dead letters through nsqadmin's API, with scripted nsqds."""

from typing import Any

import pytest
from admin_double import GO, LOGS, OTHER, Admin

TIME_NS = 1794556800000000000
ORIGIN = {
    "topic": "orders",
    "channel": "billing",
    "offset": 7,
    "id": "0c9f33d0a3c14000",
    "timestamp": TIME_NS,
    "attempts": 5,
    "reason": "requeued",
    "consumer": "worker-1",
    "time": TIME_NS + 1,
}


def stored(offset: int, time_ns: int, **changes: Any) -> dict[str, Any]:
    return {"offset": offset, "id": f"{offset:016x}", "timestamp": time_ns, "size": 2, "text": "{}", **changes}


def peeked(*messages: dict[str, Any], **changes: Any) -> dict[str, Any]:
    page = {"topic": "orders", "store": "log", "messages": list(messages), "next": 20, "end": 100, "scanned": 20}
    return {**page, "complete": True, **changes}


@pytest.fixture
def admin() -> Admin:
    return Admin()


def ids(document: dict[str, Any]) -> list[int]:
    return [int(message["id"], 16) for message in document["messages"]]


class TestBrowse:
    def test_the_messages_of_all_nodes_are_merged_by_time(self, admin: Admin) -> None:
        admin.script(LOGS, "GET /peek", peeked(stored(1, 10), stored(4, 40), stored(2, 20)))
        admin.script(OTHER, "GET /peek", peeked(stored(3, 30), stored(5, 50), next=100))
        document = admin.get("/api/browse/orders")
        assert ids(document) == [1, 3, 4, 2, 5], "the messages of one node stay in the order of nsqd"
        assert [message["node"] for message in document["messages"]] == [LOGS, OTHER, LOGS, LOGS, OTHER]
        assert (document["topic"], document["channel"], document["message"]) == ("orders", "", "")
        go, first, second = document["nodes"]
        assert (go["code"], go["complete"], go["next"]) == ("NOT_AVAILABLE", True, None)
        assert first == {
            "node": LOGS,
            "code": "",
            "error": "",
            "store": "log",
            "next": 20,
            "end": 100,
            "scanned": 20,
            "complete": False,
        }
        assert (second["next"], second["complete"]) == (100, True)

    def test_a_message_has_the_form_of_a_tail(self, admin: Admin) -> None:
        plain = stored(7, TIME_NS, attempts=2, state="deferred", due=TIME_NS + 5, truncated=True)
        binary = {"id": "0a", "timestamp": TIME_NS + 1, "size": 3, "base64": "AAH/"}
        admin.script(LOGS, "GET /peek", peeked(plain, binary))
        first, second = admin.get(f"/api/browse/orders?node={LOGS}")["messages"]
        assert first == {
            "node": LOGS,
            "offset": 7,
            "id": f"{7:016x}",
            "timestamp_ns": str(TIME_NS),
            "attempts": 2,
            "state": "deferred",
            "due_ns": str(TIME_NS + 5),
            "encoding": "text",
            "body": "{}",
            "size": 2,
            "truncated": True,
            "origin": None,
        }
        assert (second["encoding"], second["body"]) == ("base64", "AAH/")
        assert (second["offset"], second["attempts"], second["state"], second["due_ns"]) == (None, None, "", None)

    @pytest.mark.parametrize(
        ("given", "body", "truncated"),
        [
            ({"text": "abc"}, "abc", False),
            ({"text": "abcd"}, "abc", True),
            ({"text": "ab\u00e9"}, "ab", True),
            ({"text": "abc", "truncated": True}, "abc", True),
            ({"base64": "AAEC"}, "AAEC", False),
            ({"base64": "AAECAw=="}, "AAEC", True),
        ],
    )
    def test_a_body_is_cut_to_the_limit(self, admin: Admin, given: dict[str, Any], body: str, truncated: bool) -> None:
        admin.script(LOGS, "GET /peek", peeked({"id": "0a", "timestamp": 1, "size": 9, **given}))
        message = admin.get(f"/api/browse/orders?node={LOGS}&limit=3")["messages"][0]
        assert (message["body"], message["truncated"]) == (body, truncated)

    @pytest.mark.parametrize(
        ("query", "sent"),
        [
            ("", {}),
            ("time=-1h", {"time": "-1h"}),
            ("id=0c9f33d0a3c14000", {"id": "0c9f33d0a3c14000"}),
            ("last=50", {"last": "50"}),
            (f"node={LOGS}&offset=20", {"offset": "20"}),
            (f"node={LOGS}&skip=20", {"skip": "20"}),
            ("channel=billing&state=in_flight", {"channel": "billing", "state": "in_flight"}),
            ("contains=%E6%9D%8E&count=200&limit=1", {"contains": "李", "count": "200"}),
        ],
    )
    def test_the_query_is_forwarded(self, admin: Admin, query: str, sent: dict[str, str]) -> None:
        admin.script(LOGS, "GET /peek", peeked())
        admin.get(f"/api/browse/orders?{query}")
        asked = [each for each in admin.asked("/peek") if each.address == LOGS]
        assert dict(asked[0].query) == {"topic": "orders", "count": "20", "max_bytes": "4194304", **sent}

    @pytest.mark.parametrize(
        ("query", "status", "code"),
        [
            ("offset=5", 400, "INVALID_NODE"),
            ("skip=5", 400, "INVALID_NODE"),
            ("last=5&time=-1h", 400, "INVALID_POSITION"),
            (f"time={'1' * 65}", 400, "INVALID_POSITION"),
            ("count=0", 400, "INVALID_ARG_COUNT"),
            ("count=201", 400, "INVALID_ARG_COUNT"),
            ("limit=x", 400, "INVALID_ARG_LIMIT"),
            ("state=gone", 400, "INVALID_ARG_STATE"),
            ("channel=no%20name", 400, "INVALID_CHANNEL"),
            (f"contains={'x' * 257}", 400, "INVALID_ARG_CONTAINS"),
            ("node=127.0.0.1:9", 404, "NODE_NOT_FOUND"),
        ],
    )
    def test_an_invalid_query_is_rejected(self, admin: Admin, query: str, status: int, code: str) -> None:
        assert admin.request("GET", f"/api/browse/orders?{query}") == (status, {"message": code})
        assert admin.asked("/peek") == []

    def test_a_position_that_a_node_does_not_have_is_explained(self, admin: Admin) -> None:
        admin.script(LOGS, "GET /peek", (410, {"message": "OFFSET_GONE", "first": 10}))
        node = admin.get(f"/api/browse/orders?node={LOGS}&offset=5")["nodes"][0]
        assert (node["code"], node["error"][-3:]) == ("OFFSET_GONE", "10.")

    @pytest.mark.parametrize(
        "broken", [{"messages": 5}, {"messages": [{"id": 5}]}, {"messages": [{"base64": "?"}]}, {"next": "x"}]
    )
    def test_an_invalid_answer_of_a_node_is_reported(self, admin: Admin, broken: dict[str, Any]) -> None:
        admin.script(LOGS, "GET /peek", peeked(**broken))
        admin.script(OTHER, "GET /peek", peeked(stored(1, 1)))
        document = admin.get("/api/browse/orders")
        assert [node["code"] for node in document["nodes"]] == ["NOT_AVAILABLE", "FAILED", ""]
        assert "json: " in document["nodes"][1]["error"]
        assert ids(document) == [1]

    def test_reading_is_recorded(self, admin: Admin) -> None:
        admin.get("/api/browse/orders?channel=billing")
        record = admin.records[-1]
        assert (record.action, record.topic, record.channel) == ("browse_topic", "orders", "billing")


class TestDeadLetters:
    def test_letters_have_their_origin(self, admin: Admin) -> None:
        letter = stored(3, TIME_NS, origin=ORIGIN)
        page = {"topic": "orders", "dead_letter": "orders.dead", "count": 12, "messages": [letter], "next": 4}
        admin.script(LOGS, "GET /dead", {**page, "complete": False})
        admin.script(OTHER, "GET /dead", (404, {"message": "NO_DEAD_LETTERS"}))
        document = admin.get("/api/dead/orders?channel=billing")
        assert document["count"] == 12
        assert [(node["code"], node["count"]) for node in document["nodes"]] == [
            ("NOT_AVAILABLE", 0),
            ("", 12),
            ("", 0),
        ]
        assert [node["dead_letter"] for node in document["nodes"]] == ["", "orders.dead", ""]
        assert (document["nodes"][1]["next"], document["nodes"][1]["complete"]) == (4, False)
        expected = {key: value for key, value in ORIGIN.items() if key not in ("timestamp", "time")}
        expected |= {"timestamp_ns": str(TIME_NS), "time_ns": str(TIME_NS + 1)}
        assert document["messages"][0]["origin"] == expected
        assert dict(admin.asked("/dead")[0].query)["channel"] == "billing"
        assert admin.records[-1].action == "list_dead_letters"

    def test_a_page_begins_at_an_offset_of_one_node(self, admin: Admin) -> None:
        admin.script(LOGS, "GET /dead", {"count": 0, "messages": [], "complete": True})
        admin.get(f"/api/dead/orders?node={LOGS}&offset=4&count=5")
        assert dict(admin.asked("/dead")[0].query) == {
            "topic": "orders",
            "count": "5",
            "max_bytes": "4194304",
            "offset": "4",
        }
        assert admin.request("GET", "/api/dead/orders?offset=4") == (400, {"message": "INVALID_NODE"})
        assert admin.request("GET", f"/api/dead/orders?offset=x&node={LOGS}") == (400, {"message": "INVALID_POSITION"})

    def test_letters_of_a_classic_topic_have_one_page(self, admin: Admin) -> None:
        letter = {"id": "0a", "timestamp": 1, "size": 1, "text": "x"}
        admin.script(LOGS, "GET /dead", {"count": 5, "messages": [letter], "next": 1, "complete": False})
        node = admin.get(f"/api/dead/orders?node={LOGS}")["nodes"][0]
        assert (node["count"], node["next"], node["complete"]) == (5, None, False)

    def test_an_invalid_answer_of_a_node_is_reported(self, admin: Admin) -> None:
        admin.script(LOGS, "GET /dead", {"count": "many"})
        node = admin.get("/api/dead/orders")["nodes"][1]
        assert (node["code"], node["count"]) == ("FAILED", 0)

    def test_chosen_letters_are_redriven_on_their_nodes(self, admin: Admin) -> None:
        admin.script(LOGS, "POST /dead/redrive", {"redriven": 2, "left": 10})
        admin.script(OTHER, "POST /dead/redrive", (404, {"message": "CHANNEL_NOT_FOUND"}))
        letters = [{"node": LOGS, "offset": 3}, {"node": OTHER, "offset": 1}, {"node": LOGS, "offset": 5}]
        status, document = admin.request("POST", "/api/dead/orders", {"action": "redrive", "letters": letters})
        assert status == 200
        assert [(outcome["address"], outcome["code"]) for outcome in document["outcomes"]] == [
            (LOGS, ""),
            (OTHER, "CHANNEL_NOT_FOUND"),
        ]
        assert document["outcomes"][0]["result"] == {"redriven": 2, "left": 10}
        first, second = admin.asked("/dead/redrive")
        assert first.query == [("topic", "orders"), ("offset", "3"), ("offset", "5")]
        assert second.query == [("topic", "orders"), ("offset", "1")]
        record = admin.records[-1]
        assert (record.action, record.outcome) == ("redrive_dead_letters", "partly")
        assert record.detail.startswith("3 chosen; ")

    def test_all_letters_of_a_channel_are_purged_on_one_node(self, admin: Admin) -> None:
        admin.script(LOGS, "POST /dead/purge", {"purged": 9, "left": 0})
        body = {"action": "purge", "channel": "billing", "node": LOGS}
        status, document = admin.request("POST", "/api/dead/orders", body)
        assert (status, document["outcomes"][0]["result"]) == (200, {"purged": 9, "left": 0})
        assert admin.asked("/dead/purge")[0].query == [("topic", "orders"), ("channel", "billing")]
        record = admin.records[-1]
        assert (record.action, record.channel, record.node, record.detail) == (
            "purge_dead_letters",
            "billing",
            LOGS,
            "all",
        )

    def test_an_action_that_fails_everywhere_is_a_failure(self, admin: Admin) -> None:
        status, document = admin.request("POST", "/api/dead/orders", {"action": "purge"})
        assert (status, len(document["outcomes"])) == (502, 3)

    @pytest.mark.parametrize(
        ("body", "status", "code"),
        [
            (b"x", 400, "INVALID_BODY"),
            ({"action": "purge", "node": 5}, 400, "INVALID_BODY"),
            ({"action": "bury"}, 400, "INVALID_ACTION"),
            ({"action": "purge", "channel": "no name"}, 400, "INVALID_CHANNEL"),
            ({"action": "purge", "letters": []}, 400, "INVALID_LETTERS"),
            ({"action": "purge", "letters": "all"}, 400, "INVALID_LETTERS"),
            ({"action": "purge", "letters": [5]}, 400, "INVALID_LETTERS"),
            ({"action": "purge", "letters": [{"node": LOGS, "offset": "5"}]}, 400, "INVALID_LETTERS"),
            ({"action": "purge", "letters": [{"node": LOGS, "offset": -1}]}, 400, "INVALID_LETTERS"),
            ({"action": "purge", "letters": [{"node": LOGS, "offset": 1}] * 1001}, 400, "INVALID_LETTERS"),
            ({"action": "purge", "letters": [{"node": "127.0.0.1:9", "offset": 5}]}, 404, "NODE_NOT_FOUND"),
            ({"action": "purge", "letters": [{"node": LOGS, "offset": 5}], "node": GO}, 404, "NODE_NOT_FOUND"),
        ],
    )
    def test_an_invalid_body_is_rejected(self, admin: Admin, body: Any, status: int, code: str) -> None:
        assert admin.request("POST", "/api/dead/orders", body) == (status, {"message": code})
        assert admin.asked("/dead/purge") == []


@pytest.mark.parametrize("target", ["/api/browse/orders", "/api/dead/orders"])
class TestAccess:
    def test_reading_needs_the_role_consume(self, target: str) -> None:
        admin = Admin(view_token="v" * 16, consume_token="c" * 16)
        assert admin.request("GET", target)[0] == 401
        assert admin.request("GET", target, authorization=f"Bearer {'v' * 16}") == (403, {"message": "FORBIDDEN"})
        assert admin.records[-1].outcome == "refused"
        assert admin.http.asked == []
        assert admin.request("GET", target, authorization=f"Bearer {'c' * 16}")[0] == 200

    def test_reading_for_another_site_is_rejected(self, target: str) -> None:
        assert Admin().request("GET", target, sec_fetch_site="cross-site") == (403, {"message": "CROSS_ORIGIN"})

    def test_reading_can_be_disabled(self, target: str) -> None:
        assert Admin(messages=False).request("GET", target) == (403, {"message": "MESSAGES_DISABLED"})


def test_acting_on_dead_letters_needs_the_role_operate() -> None:
    admin = Admin(consume_token="c" * 16, operate_token="o" * 16)
    authorization = f"Bearer {'c' * 16}"
    assert admin.request("POST", "/api/dead/orders", {"action": "purge"}, authorization=authorization)[0] == 403


@pytest.mark.parametrize(
    ("token", "role", "may_consume", "may_operate"),
    [("", "view", False, False), ("c" * 16, "consume", True, False), ("o" * 16, "operate", True, True)],
)
def test_the_settings_name_the_rights(token: str, role: str, may_consume: bool, may_operate: bool) -> None:
    admin = Admin(consume_token="c" * 16, operate_token="o" * 16)
    settings = admin.get("/api/settings", **({"authorization": f"Bearer {token}"} if token else {}))
    assert (settings["role"], settings["may_consume"], settings["may_operate"]) == (role, may_consume, may_operate)
