"""The example pipelines give the documented results on a cluster with nsqlookupd."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pipeline_runs import SLOW_S, read_rows

from daemons import wait_until
from nsqx.cli import pipeline as command
from nsqx.client.blocking import Consumer

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "pipelines"


class Example:
    """A copy of one example, and a cluster for it."""

    def __init__(self, name, directory, fleet):
        self.directory = directory / name
        shutil.copytree(EXAMPLES / name, self.directory)
        self.lookupd = fleet.nsqlookupd("nsqx")
        self.nsqd = fleet.nsqd("nsqx", f"--lookupd-tcp-address={self.lookupd.tcp_address}")
        wait_until(lambda: self.lookupd.request("GET", "/nodes").json()["producers"], "nsqd is registered")

    def generate(self, *topics):
        program = str(self.directory / "generate.py")
        subprocess.run([sys.executable, program, self.nsqd.tcp_address], check=True, stdout=subprocess.DEVNULL)

        def registered():
            return set(topics) <= set(self.lookupd.request("GET", "/topics").json()["topics"])

        wait_until(registered, "the topics are registered")

    def run(self):
        path = str(self.directory / "pipeline.toml")
        return command.main(["run", path, "--once", "--lookupd", self.lookupd.http_address])

    def take(self, topic, count):
        with Consumer(topic, "test", nsqd_tcp_addresses=[self.nsqd.tcp_address], max_in_flight=100) as consumer:
            found = []
            while len(found) < count:
                message = consumer.get(10)
                assert message is not None, f"{len(found)} of {count}"
                found.append(json.loads(message.body))
                message.finish()
            assert consumer.get(0.2) is None
            return found


@pytest.fixture
def example(request, tmp_path, fleet):
    return Example(request.param, tmp_path, fleet)


@pytest.mark.parametrize("example", ["clickstream"], indirect=True)
@pytest.mark.timeout(SLOW_S)
def test_clickstream_groups_clicks_into_sessions(spark, example):
    example.generate("clicks")
    assert example.run() == 0
    sessions = read_rows(example.directory / "sessions")
    # Ann's last click started a session that has not ended.
    assert Counter(session["user"] for session in sessions) == {"ann": 3, "bob": 3, "eve": 3, "sue": 3}
    assert {session["clicks"] for session in sessions} == {5}
    countries = {session["user"]: session["country"] for session in sessions}
    assert countries == {"ann": "AT", "bob": "DE", "eve": "FR", "sue": "unknown"}
    letters = read_rows(example.directory / "clickstream.state" / "dead-letters")
    assert sorted(letter["reason"].partition(":")[0] for letter in letters) == [
        "does not meet the requirement",
        "the value is not JSON",
    ]


@pytest.mark.parametrize("example", ["log_archive"], indirect=True)
@pytest.mark.timeout(SLOW_S)
def test_both_sinks_of_log_archive_get_the_existing_backlog(spark, example):
    """The topics have no channels before the run, which creates those of both sinks while the topics are paused."""
    example.generate("log.shop", "log.billing")
    assert example.run() == 0
    rows = read_rows(example.directory / "logs")
    assert Counter(row["service"] for row in rows) == {"shop": 300, "billing": 300}
    assert {row["level"] for row in rows} == {"DEBUG", "INFO", "WARNING", "ERROR"}
    assert all(row["text"].startswith("request ") and row["time"].startswith("2026-11-15T") for row in rows)
    errors = [row for row in rows if row["level"] == "ERROR"]
    found = example.take("log_errors", len(errors))
    assert {(each["time"], each["text"]) for each in found} == {(row["time"], row["text"]) for row in errors}
    topic = example.nsqd.topic_stats("log.shop")
    assert {channel["channel_name"] for channel in topic["channels"]} == {"log_archive.files", "log_archive.errors"}
    assert not topic["paused"]


@pytest.mark.parametrize("example", ["per_minute"], indirect=True)
@pytest.mark.timeout(SLOW_S)
def test_per_minute_publishes_counts_to_a_topic(spark, example):
    example.generate("orders")
    assert example.run() == 0
    # The tenth minute is not complete: no order is later than half a minute after its end.
    found = example.take("orders_per_minute", 27)
    assert Counter(each["minute"] for each in found) == {f"2026-11-15T08:{minute:02}:00.000Z": 3 for minute in range(9)}
    assert sum(each["orders"] for each in found) == 9 * 30
