"""The store of a topic by its name: flags and [[topic]] tables of a running nsqd."""

import json
import subprocess
from pathlib import Path

from daemons import Fleet, program_command, wait_until
from rawclient import OK, RawClient, dpub, mpub, pub

CONFIG = """
store_rules = ["orders.test=classic"]

[[topic]]
match = "orders*"
store = "log"
"""


def test_an_invalid_table_ends_nsqd_with_one_line(tmp_path: Path) -> None:
    config = tmp_path / "nsqd.toml"
    config.write_text(CONFIG + 'retain_age = "3 days"\n')
    command = [*program_command("nsqx", "nsqd"), f"-config={config}", f"-data-path={tmp_path}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    reason = '[[topic]] table 1: invalid retain_age "3 days": use a duration, for example 72h, or 0s for no limit\n'
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.count("\n") == 1
    assert ended.stderr.endswith(f" FATAL: failed to instantiate nsqd - {reason}")


def test_config_answers_with_the_rules(fleet: Fleet, tmp_path: Path) -> None:
    config = tmp_path / "nsqd.toml"
    config.write_text(CONFIG)
    nsqd = fleet.nsqd("nsqx", f"--config={config}", "--store=classic", "--min-free-disk=1000")
    answers = {
        name: nsqd.request("GET", f"/config/{name}").body
        for name in ("store", "durability", "store_rules", "topic", "min_free_disk")
    }
    assert (answers.pop("store"), answers.pop("durability")) == (b"classic", b"fsync")
    assert {name: json.loads(body) for name, body in answers.items()} == {
        "store_rules": ["orders.test=classic"],
        "topic": [{"match": "orders*", "store": "log"}],
        "min_free_disk": 1000,
    }


def test_the_rules_choose_the_store_of_each_topic(fleet: Fleet, tmp_path: Path) -> None:
    config = tmp_path / "nsqd.toml"
    config.write_text(CONFIG)
    nsqd = fleet.nsqd("nsqx", f"--config={config}", "--store-rule=clicks=log", "--store=classic", data_path=tmp_path)
    for topic in ("orders.test", "clicks", "users", "orders%23ephemeral"):
        assert nsqd.request("POST", f"/pub?topic={topic}", b"1").status == 200
    assert nsqd.stop() == 0
    # The table precedes the rules.
    assert {path.name for path in tmp_path.glob("*.topic")} == {"orders.test.topic", "clicks.topic"}


def test_log_topics_refuse_publishes_below_the_limit_of_free_disk(fleet: Fleet) -> None:
    nsqd = fleet.nsqd("nsqx", "--store-rule=log*=log", "--store=classic", f"--min-free-disk={1 << 62}")
    for command, name in ((pub("log", b"1"), "PUB"), (mpub("log", [b"1"]), "MPUB"), (dpub("log", 10, b"1"), "DPUB")):
        with RawClient(nsqd.tcp_address) as client:
            client.send(command)
            answer = client.read_frame().data.decode()
            assert answer.startswith(f"E_{name}_FAILED {name} failed ")
            assert answer.endswith(f" bytes of disk are free, --min-free-disk is {1 << 62}")
    refused = nsqd.request("POST", "/pub?topic=log", b"1")
    assert (refused.status, refused.body) == (503, b'{"message":"EXITING"}')
    assert refused.headers["x-nsq-reason"].endswith(f" bytes of disk are free, --min-free-disk is {1 << 62}")
    assert b'nsq_topic_refused_total{topic="log",reason="no_space"} 4' in nsqd.request("GET", "/metrics").body
    assert nsqd.request("POST", "/pub?topic=classic", b"1").status == 200


def test_reports_show_the_logs_of_log_topics_only(fleet: Fleet) -> None:
    nsqd = fleet.nsqd("nsqx", "--store=log", "--store-rule=old=classic")
    for topic in ("new", "old"):
        nsqd.post("/topic/create", topic=topic)
        nsqd.post("/channel/create", topic=topic, channel="c")
        nsqd.post("/mpub", b"1\n2\n3", topic=topic)
    with RawClient(nsqd.tcp_address) as client:
        assert client.sub("new", "c") == OK
        client.rdy(2)
        first, _ = client.read_message(), client.read_message()
        client.rdy(0)
        client.fin(first.id)
        wait_until(lambda: nsqd.channel_stats("new", "c")["in_flight_count"] == 1, "a message is finished")
        new, old = nsqd.topic_stats("new"), nsqd.topic_stats("old")
        text = nsqd.request("GET", "/stats").body.decode()
        metrics = nsqd.request("GET", "/metrics").body.decode().splitlines()
    log = new["log"]
    assert (log["store"], log["durability"], log["first"], log["stable"], log["end"]) == ("log", "fsync", 0, 3, 3)
    cursor = new["channels"][0]["cursor"]
    assert cursor.pop("oldest") > 0
    assert cursor == {"floor": 1, "next": 2, "holes": 1, "dead": 0, "dropped": 0, "expired": 0}
    assert new.keys() - old.keys() == {"log"}
    assert "cursor" not in old["channels"][0]
    assert [line.split()[1] for line in text.splitlines() if line.startswith("      log: ")] == ["fsync"]
    assert 'nsq_topic_log_end_offset{topic="new"} 3' in metrics
    assert 'nsq_channel_holes{topic="new",channel="c"} 1' in metrics
    assert "nsq_commit_held_clients 0" in metrics
    assert [line for line in metrics if line.startswith("nsq_topic_log") and "old" in line] == []
