"""The settings of topics and channels over HTTP, with both stores, over restarts and conversions."""

import json
from pathlib import Path
from typing import Any

import pytest

from daemons import Daemon, Fleet, Response, wait_until


def get(nsqd: Daemon, path: str) -> Any:
    answer = nsqd.request("GET", path)
    assert answer.status == 200, answer.body
    return answer.json()


def put(nsqd: Daemon, path: str, **settings: object) -> Response:
    return nsqd.request("PUT", path, json.dumps(settings).encode())


def test_a_log_topic_has_every_setting(fleet: Fleet) -> None:
    nsqd = fleet.nsqd("nsqx", "--store=log", "--log-retain-age=72h", "--max-attempts=5")
    nsqd.post("/topic/create", topic="orders")
    assert get(nsqd, "/topic/config?topic=orders") == {
        "topic": "orders",
        "store": "log",
        "settings": {
            "durability": "fsync",
            "retain_age": "72h0m0s",
            "retain_bytes": 0,
            "max_age": "0s",
            "max_bytes": 0,
            "when_full": "refuse",
            "message_ttl": "0s",
            "max_attempts": 5,
            "dead_letter": "orders.dead",
            "channel_start": "auto",
        },
        "changed": [],
    }


def test_a_classic_topic_has_the_attempt_limit_only(fleet: Fleet) -> None:
    nsqd = fleet.nsqd("nsqx", "--store=classic")
    nsqd.post("/topic/create", topic="orders")
    assert get(nsqd, "/topic/config?topic=orders")["settings"] == {"max_attempts": 0, "dead_letter": "orders.dead"}
    assert put(nsqd, "/topic/config?topic=orders", max_attempts=3).json()["changed"] == ["max_attempts"]
    refused = put(nsqd, "/topic/config?topic=orders", retain_age="1h")
    assert (refused.status, refused.body) == (400, b'{"message":"INVALID_OPTION"}')


@pytest.mark.parametrize("store", ["classic", "log"])
def test_settings_survive_kill_9_and_null_restores_the_configuration(store: str, fleet: Fleet, tmp_path: Path) -> None:
    nsqd = fleet.nsqd("nsqx", f"--store={store}", "--max-attempts=7", data_path=tmp_path)
    nsqd.post("/topic/create", topic="orders")
    nsqd.post("/channel/create", topic="orders", channel="billing")
    changed = put(nsqd, "/topic/config?topic=orders", max_attempts=3, dead_letter="").json()
    assert changed["settings"]["max_attempts"] == 3
    assert put(nsqd, "/channel/config?topic=orders&channel=billing", max_attempts=9).status == 200
    nsqd.kill()
    nsqd = fleet.nsqd("nsqx", f"--store={store}", "--max-attempts=7", data_path=tmp_path)
    found = get(nsqd, "/topic/config?topic=orders")
    assert (found["settings"]["max_attempts"], found["settings"]["dead_letter"]) == (3, "")
    assert found["changed"] == ["max_attempts", "dead_letter"]
    assert get(nsqd, "/channel/config?topic=orders&channel=billing") == {
        "topic": "orders",
        "channel": "billing",
        "settings": {"max_attempts": 9, "dead_letter": ""},
        "changed": ["max_attempts"],
    }
    assert put(nsqd, "/topic/config?topic=orders", max_attempts=None).json()["settings"]["max_attempts"] == 7
    # Another channel of the name begins with the settings of the topic.
    nsqd.post("/channel/delete", topic="orders", channel="billing")
    nsqd.post("/channel/create", topic="orders", channel="billing")
    assert get(nsqd, "/channel/config?topic=orders&channel=billing")["settings"]["max_attempts"] == 7
    nsqd.post("/topic/delete", topic="orders")
    nsqd.post("/topic/create", topic="orders")
    assert get(nsqd, "/topic/config?topic=orders")["changed"] == []


def test_settings_survive_conversions(fleet: Fleet, tmp_path: Path) -> None:
    nsqd = fleet.nsqd("nsqx", "--store=classic", data_path=tmp_path)
    nsqd.post("/topic/create", topic="orders")
    put(nsqd, "/topic/config?topic=orders", max_attempts=3)
    for store in ("log", "classic", "log"):
        assert nsqd.request("POST", f"/topic/convert?topic=orders&store={store}").status == 202
        wait_until(lambda: "converting" not in nsqd.topic_stats("orders"), "the topic is converted")
        found = get(nsqd, "/topic/config?topic=orders")
        assert (found["store"], found["settings"]["max_attempts"]) == (store, 3)
        assert ("retain_age" in found["settings"]) == (store == "log")
    nsqd.kill()
    nsqd = fleet.nsqd("nsqx", "--store=classic", data_path=tmp_path)
    found = get(nsqd, "/topic/config?topic=orders")
    assert (found["store"], found["settings"]["max_attempts"]) == ("log", 3)


def test_the_durability_of_a_topic_can_be_changed(fleet: Fleet) -> None:
    nsqd = fleet.nsqd("nsqx", "--store=log")
    nsqd.post("/pub", b"1", topic="orders")
    assert nsqd.topic_stats("orders")["log"]["durability"] == "fsync"
    assert put(nsqd, "/topic/config?topic=orders", durability="write").status == 200
    assert nsqd.topic_stats("orders")["log"]["durability"] == "write"


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/topic/config", b"{}", 400, "MISSING_ARG_TOPIC"),
        ("/topic/config?topic=unknown", b"{}", 404, "TOPIC_NOT_FOUND"),
        ("/topic/config?topic=orders", b"", 400, "INVALID_BODY"),
        ("/topic/config?topic=orders", b"[]", 400, "INVALID_BODY"),
        ("/topic/config?topic=orders", b'{"retain":"1h"}', 400, "INVALID_OPTION"),
        ("/topic/config?topic=orders", b'{"store":"log"}', 400, "INVALID_OPTION"),
        ("/topic/config?topic=orders", b'{"retain_age":3600}', 400, "INVALID_VALUE"),
        ("/topic/config?topic=orders", b'{"max_attempts":-1}', 400, "INVALID_VALUE"),
        ("/topic/config?topic=orders", b'{"max_attempts":true}', 400, "INVALID_VALUE"),
        ("/topic/config?topic=orders", b'{"max_bytes":5,"retain_bytes":6}', 400, "INVALID_VALUE"),
        ("/topic/config?topic=orders", b'{"max_attempts":5,"dead_letter":"orders"}', 400, "INVALID_VALUE"),
        ("/channel/config?topic=orders&channel=unknown", b"{}", 404, "CHANNEL_NOT_FOUND"),
        ("/channel/config?topic=orders", b"{}", 400, "MISSING_ARG_CHANNEL"),
        ("/channel/config?topic=orders&channel=a%20b", b"{}", 400, "INVALID_ARG_CHANNEL"),
        ("/channel/config?topic=orders&channel=billing", b'{"retain_age":"1h"}', 400, "INVALID_OPTION"),
    ],
)
def test_invalid_changes_are_refused_and_change_nothing(
    path: str, body: bytes, status: int, code: str, orders: Daemon
) -> None:
    before = get(orders, "/topic/config?topic=orders")
    refused = orders.request("PUT", path, body)
    assert (refused.status, refused.json()) == (status, {"message": code})
    assert get(orders, "/topic/config?topic=orders") == before


@pytest.fixture(scope="module")
def orders() -> Any:
    fleet = Fleet()
    nsqd = fleet.nsqd("nsqx", "--store=log")
    nsqd.post("/topic/create", topic="orders")
    nsqd.post("/channel/create", topic="orders", channel="billing")
    yield nsqd
    fleet.close()


def test_a_topic_whose_name_is_too_long_for_a_suffix_needs_a_dead_letter_topic(fleet: Fleet) -> None:
    nsqd = fleet.nsqd("nsqx", "--store=log")
    name = "t" * 60
    nsqd.post("/topic/create", topic=name)
    assert put(nsqd, f"/topic/config?topic={name}", max_attempts=5).status == 400
    assert put(nsqd, f"/topic/config?topic={name}", max_attempts=5, dead_letter="dead").status == 200


def test_dead_letter_topics_have_no_attempt_limit(fleet: Fleet) -> None:
    nsqd = fleet.nsqd("nsqx", "--store=log", "--max-attempts=5")
    for topic in ("orders", "orders.dead", "other"):
        nsqd.post("/topic/create", topic=topic)
        nsqd.post("/channel/create", topic=topic, channel="c")

    def limit(topic: str) -> int:
        found: int = get(nsqd, f"/channel/config?topic={topic}&channel=c")["settings"]["max_attempts"]
        return found

    assert (limit("orders"), limit("orders.dead"), limit("other")) == (5, 0, 5)
    put(nsqd, "/topic/config?topic=orders", dead_letter="other")
    wait_until(lambda: limit("other") == 0, "the new dead-letter topic has no limit")
