"""POST /topic/convert of a running nsqd: its answers, and the store after restarts with other flags."""

import json
from pathlib import Path

from daemons import Daemon, Fleet, wait_until
from rawclient import OK, ConnectionEnded, RawClient


def convert(nsqd: Daemon, **query: str) -> tuple[int, dict[str, str]]:
    response = nsqd.request("POST", "/topic/convert", query=query)
    return response.status, json.loads(response.body)


def store_of(nsqd: Daemon, topic: str) -> str:
    return "log" if "log" in nsqd.topic_stats(topic) else "classic"


def test_answers(fleet: Fleet, topic: str) -> None:
    nsqd = fleet.nsqd("nsqx", "--store=classic")
    nsqd.post("/topic/create", topic=topic)
    nsqd.post("/topic/create", topic="e#ephemeral")
    assert convert(nsqd, store="log") == (400, {"message": "MISSING_ARG_TOPIC"})
    assert convert(nsqd, topic=topic) == (400, {"message": "MISSING_ARG_STORE"})
    assert convert(nsqd, topic=topic, store="logs") == (400, {"message": "INVALID_STORE"})
    assert convert(nsqd, topic="unknown", store="log") == (404, {"message": "TOPIC_NOT_FOUND"})
    assert convert(nsqd, topic="e#ephemeral", store="log") == (400, {"message": "EPHEMERAL_TOPIC"})
    assert convert(nsqd, topic=topic, store="classic") == (200, {"topic": topic, "store": "classic"})
    assert convert(nsqd, topic=topic, store="log") == (202, {"topic": topic, "store": "log"})
    wait_until(lambda: "converting" not in nsqd.topic_stats(topic), "the conversion ends")
    assert convert(nsqd, topic=topic, store="log") == (200, {"topic": topic, "store": "log"})


def test_a_second_conversion_waits_until_the_first_has_ended(fleet: Fleet, topic: str) -> None:
    # Each sync takes a while, so the conversion does.
    nsqd = fleet.nsqd(
        "nsqx", "--store=classic", "--mem-queue-size=0", env={"NSQX_FAILPOINTS": "commit.datasync=delay:1000@1+"}
    )
    nsqd.post("/topic/create", topic=topic)
    nsqd.post("/channel/create", topic=topic, channel="c")
    nsqd.post("/mpub", b"1\n2\n3", topic=topic)
    assert convert(nsqd, topic=topic, store="log")[0] == 202
    stats = nsqd.topic_stats(topic)["converting"]
    assert (stats["from"], stats["to"], stats["moved"] + stats["left"]) == ("classic", "log", 3)
    assert "converting: classic to log" in nsqd.request("GET", "/stats").body.decode()
    assert convert(nsqd, topic=topic, store="classic") == (409, {"message": "CONVERTING"})
    wait_until(lambda: "converting" not in nsqd.topic_stats(topic), "the conversion ends")
    assert nsqd.channel_stats(topic, "c")["depth"] == 3


def test_consumers_reconnect_and_publishers_notice_nothing(fleet: Fleet, topic: str) -> None:
    nsqd = fleet.nsqd("nsqx", "--store=classic")
    with RawClient(nsqd.tcp_address) as consumer, RawClient(nsqd.tcp_address) as publisher:
        assert consumer.sub(topic, "c") == OK
        consumer.rdy(1)
        assert publisher.pub(topic, b"1") == OK
        assert consumer.read_message().attempts == 1
        assert convert(nsqd, topic=topic, store="log")[0] == 202
        try:
            consumer.read_until_closed()
        except ConnectionEnded:
            pass
        assert publisher.pub(topic, b"2") == OK
        with RawClient(nsqd.tcp_address) as again:
            assert again.sub(topic, "c") == OK
            again.rdy(2)
            found = {message.body: message.attempts for message in (again.read_message(), again.read_message())}
        assert found == {b"1": 2, b"2": 1}


def test_the_chosen_store_survives_restarts_and_wins_over_the_flag(fleet: Fleet, tmp_path: Path) -> None:
    nsqd = fleet.nsqd("nsqx", "--store=classic", data_path=tmp_path)
    for topic in ("chosen", "other"):
        nsqd.post("/topic/create", topic=topic)
        nsqd.post("/pub", b"1", topic=topic)
    assert convert(nsqd, topic="chosen", store="classic")[0] == 200
    assert nsqd.stop() == 0
    nsqd = fleet.nsqd("nsqx", "--store=log", data_path=tmp_path)
    wait_until(lambda: "converting" not in nsqd.topic_stats("other"), "the conversion ends")
    assert (store_of(nsqd, "chosen"), store_of(nsqd, "other")) == ("classic", "log")
    assert convert(nsqd, topic="chosen", store="log")[0] == 202
    nsqd.kill()
    nsqd = fleet.nsqd("nsqx", "--store=classic", data_path=tmp_path)
    for topic in ("chosen", "other"):
        wait_until(lambda topic=topic: "converting" not in nsqd.topic_stats(topic), "the conversion ends")
    # The kill may have repeated the message that was being moved.
    assert (nsqd.topic_stats("chosen")["depth"] in (1, 2), nsqd.topic_stats("other")["depth"]) == (True, 1)
    assert (store_of(nsqd, "chosen"), store_of(nsqd, "other")) == ("log", "classic")
