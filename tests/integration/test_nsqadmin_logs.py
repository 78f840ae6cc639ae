"""nsqadmin's API for logs, stored messages and dead letters, with real nsqds."""

import json
from pathlib import Path
from typing import Any

import pytest

from daemons import Daemon, Fleet, wait_until
from rawclient import RawClient

ADMIN_TOKEN, CONSUME_TOKEN, READ_TOKEN = ("admin-0123456789ab", "consume-0123456789", "read-0123456789abc")


class LogCluster:
    """Two nsqds with logs and an attempt limit of 1, and an nsqadmin that asks them."""

    def __init__(self, fleet: Fleet) -> None:
        flags = ("--store=log", "--max-attempts=1", "--log-retain-age=1h")
        self.nsqds = [fleet.nsqd("nsqx", *flags) for _ in range(2)]
        where = [f"--nsqd-http-address={nsqd.http_address}" for nsqd in self.nsqds]
        self.admin = fleet.nsqadmin("nsqx", *where, "--poll-interval=0")

    def make(self, topic: str, *channels: str, messages: int) -> None:
        for nsqd in self.nsqds:
            nsqd.post("/topic/create", topic=topic)
            for channel in channels:
                nsqd.post("/channel/create", topic=topic, channel=channel)
            nsqd.post("/mpub", b"\n".join(b"message %d" % number for number in range(messages)), topic=topic)

    def get(self, target: str) -> Any:
        answer = self.admin.request("GET", target)
        assert answer.status == 200, answer
        return answer.json()

    def change(self, method: str, target: str, **body: Any) -> list[Any]:
        """Return the outcomes of a change that succeeds on a node, in the order of the nsqds."""
        answer = self.admin.request(method, target, json.dumps(body).encode())
        assert answer.status == 200, answer
        outcomes = {each["address"]: each for each in answer.json()["outcomes"]}
        return [outcomes[nsqd.http_address] for nsqd in self.nsqds if nsqd.http_address in outcomes]


@pytest.fixture
def cluster(fleet: Fleet) -> LogCluster:
    return LogCluster(fleet)


def depths(cluster: LogCluster, topic: str, channel: str) -> list[int]:
    return [nsqd.channel_stats(topic, channel)["depth"] for nsqd in cluster.nsqds]


def test_settings_and_positions_are_changed_on_every_node(cluster: LogCluster, topic: str) -> None:
    cluster.make(topic, "c", messages=5)
    outcomes = cluster.change("PUT", f"/api/config/{topic}", settings={"retain_age": "2h", "max_bytes": 1 << 30})
    assert [each["result"]["settings"]["retain_age"] for each in outcomes] == ["2h0m0s"] * 2
    nodes = cluster.get(f"/api/log/{topic}")["nodes"]
    assert [node["log"]["end"] for node in nodes] == [5, 5]
    assert all(node["log"]["first_time"] for node in nodes)
    assert [sorted(node["config"]["changed"]) for node in nodes] == [["max_bytes", "retain_age"]] * 2
    preview = cluster.change("POST", f"/api/seek/{topic}/c", to="end", dry_run=True)
    assert [(each["result"]["depth_before"], each["result"]["depth"]) for each in preview] == [(5, 0)] * 2
    assert depths(cluster, topic, "c") == [5, 5]
    cluster.change("POST", f"/api/seek/{topic}/c", to="3", node=cluster.nsqds[1].http_address)
    assert depths(cluster, topic, "c") == [5, 2]
    config = cluster.change("PUT", f"/api/config/{topic}/c", settings={"max_attempts": 9})
    assert [each["result"]["changed"] for each in config] == [["max_attempts"]] * 2
    assert [node["settings"]["max_attempts"] for node in cluster.get(f"/api/config/{topic}/c")["nodes"]] == [9, 9]


def test_a_log_is_trimmed_on_one_node(cluster: LogCluster, topic: str) -> None:
    cluster.make(topic, "c", messages=5)
    place = {"before": "4", "node": cluster.nsqds[0].http_address}
    for is_dry_run in (True, False):
        outcomes = cluster.change("POST", f"/api/trim/{topic}", **place, dry_run=is_dry_run)
        assert outcomes[0]["result"]["dropped"] == {"c": 4}
        assert depths(cluster, topic, "c") == ([5, 5] if is_dry_run else [1, 5])


def test_pages_of_stored_messages_continue_on_each_node(cluster: LogCluster, topic: str) -> None:
    cluster.make(topic, "c", messages=7)
    page = cluster.get(f"/api/browse/{topic}?count=5&limit=4")
    assert [message["offset"] for message in page["messages"]].count(4) == 2
    assert {(message["body"], message["truncated"], message["size"]) for message in page["messages"]} == {
        ("mess", True, 9)
    }
    assert [(node["next"], node["end"], node["complete"]) for node in page["nodes"]] == [(5, 7, False)] * 2
    node = page["nodes"][0]["node"]
    rest = cluster.get(f"/api/browse/{topic}?count=5&node={node}&offset=5")
    assert [message["offset"] for message in rest["messages"]] == [5, 6]
    assert rest["nodes"][0]["complete"]
    found = cluster.get(f"/api/browse/{topic}?contains=MESSAGE%206")
    assert [message["body"] for message in found["messages"]] == ["message 6"] * 2
    newest = cluster.get(f"/api/browse/{topic}?last=1&channel=c")
    assert [message["state"] for message in newest["messages"]] == ["waiting"] * 2
    assert depths(cluster, topic, "c") == [7, 7]


def test_dead_letters_are_redriven_and_purged(cluster: LogCluster, topic: str) -> None:
    cluster.make(topic, "c", messages=3)
    nsqd = cluster.nsqds[0]
    with RawClient(nsqd.tcp_address) as consumer:
        consumer.sub(topic, "c")
        consumer.rdy(3)
        for _ in range(3):
            consumer.req(consumer.read_message().id, 0)
    wait_until(lambda: cluster.get(f"/api/dead/{topic}")["count"] == 3, "the messages are dead letters")
    letters = cluster.get(f"/api/dead/{topic}?channel=c")["messages"]
    assert [(each["origin"]["channel"], each["origin"]["reason"]) for each in letters] == [("c", "requeued")] * 3
    chosen = [{"node": letters[0]["node"], "offset": letters[0]["offset"]}]
    outcomes = cluster.change("POST", f"/api/dead/{topic}", action="redrive", letters=chosen)
    assert [each["result"] for each in outcomes] == [{"redriven": 1, "left": 2}]
    assert nsqd.channel_stats(topic, "c")["depth"] == 1
    answer = cluster.admin.request("POST", f"/api/dead/{topic}", json.dumps({"action": "purge"}).encode())
    results = {each["address"]: each["result"] or each["code"] for each in answer.json()["outcomes"]}
    assert results[nsqd.http_address] == {"purged": 2, "left": 0}
    assert results[cluster.nsqds[1].http_address] == "NO_DEAD_LETTERS"
    assert cluster.get(f"/api/dead/{topic}")["count"] == 0


@pytest.mark.parametrize(
    ("token", "code"), [(ADMIN_TOKEN, ""), (CONSUME_TOKEN, ""), (READ_TOKEN, "UNAUTHORIZED"), ("", "UNAUTHORIZED")]
)
def test_nsqd_decides_which_token_reads_bodies(fleet: Fleet, tmp_path: Path, topic: str, token: str, code: str) -> None:
    files = {}
    for name, value in (("admin", ADMIN_TOKEN), ("consume", CONSUME_TOKEN)):
        (tmp_path / name).write_text(value)
        files[name] = f"--http-{name}-token-file={tmp_path / name}"
    nsqd = fleet.nsqd("nsqx", "--store=log", *files.values())
    nsqd.post("/pub", b"secret", topic=topic)
    (tmp_path / "own").write_text(token or "unknown-0123456789")
    own = f"--nsqd-http-token-file={tmp_path / 'own'}"
    admin = fleet.nsqadmin("nsqx", f"--nsqd-http-address={nsqd.http_address}", own, "--poll-interval=0")
    answer = admin.request("GET", f"/api/browse/{topic}").json()
    assert answer["nodes"][0]["code"] == code
    assert [message["body"] for message in answer["messages"]] == ([] if code else ["secret"])
    if code:
        assert "--nsqd-http-token-file" in answer["nodes"][0]["error"]


def test_a_classic_topic_has_its_settings_and_its_messages(fleet: Fleet, topic: str) -> None:
    nsqd: Daemon = fleet.nsqd("nsqx", "--store=classic", "--max-attempts=4")
    nsqd.post("/mpub", b"one\ntwo\nthree", topic=topic)
    admin = fleet.nsqadmin("nsqx", f"--nsqd-http-address={nsqd.http_address}", "--poll-interval=0")
    node = admin.request("GET", f"/api/log/{topic}").json()["nodes"][0]
    assert (node["log"], node["channels"], node["config"]["settings"]["max_attempts"]) == (None, [], 4)
    page = admin.request("GET", f"/api/browse/{topic}?count=2").json()
    assert [message["body"] for message in page["messages"]] == ["one", "two"]
    assert (page["nodes"][0]["store"], page["nodes"][0]["next"], page["nodes"][0]["complete"]) == ("classic", 2, False)
    rest = admin.request("GET", f"/api/browse/{topic}?node={nsqd.http_address}&skip=2").json()
    assert [message["body"] for message in rest["messages"]] == ["three"]
    assert rest["nodes"][0]["complete"]
    refused = admin.request("GET", f"/api/browse/{topic}?last=2").json()["nodes"][0]
    assert (refused["code"], refused["error"].split(",")[0]) == ("NOT_A_LOG", "The topic has no log on this node")
