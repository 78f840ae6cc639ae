"""The readers of topic logs, called as Spark calls them, without a JVM."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from streams import bodies, publish

from daemons import Daemon, Fleet, wait_until
from nsqx.errors import ConfigError
from nsqx.spark.log_fetch import LogRange
from nsqx.spark.log_http import POOL, NodeAway
from nsqx.spark.log_options import read_log_options
from nsqx.spark.log_source import LogBatchReader, LogStreamReader
from nsqx.spark.mode import EitherBatchReader, EitherStreamReader
from nsqx.spark.slices import DataLost
from nsqx.spark.source import SlicePartition

ALL = ReadMaxRows(2**62)


@pytest.fixture(autouse=True)
def _connections() -> Iterator[None]:
    """Close idle connections after a test."""
    yield
    POOL.close()


@pytest.fixture
def nsqd(fleet: Fleet) -> Daemon:
    return fleet.nsqd("nsqx", "--store=log", "--store-rule=classic*=classic", "--max-bytes-per-file=100000")


def options_of(nsqds: list[Daemon], topics: str, **options: str) -> dict[str, str]:
    addresses = ",".join(nsqd.tcp_address for nsqd in nsqds)
    quick = {"fetchRetries": "5", "fetchRetryInterval": "100ms", "fetchTimeout": "10s"}
    return {"nsq.nsqd": addresses, "subscribe": topics, "channel": "spark", **quick, **options}


def stream(options: dict[str, str]) -> LogStreamReader:
    return LogStreamReader(read_log_options(options, is_stream=True))


def batch(options: dict[str, str]) -> LogBatchReader:
    return LogBatchReader(read_log_options(options, is_stream=False))


def values(partitions: list[Any], reader: Any) -> list[bytes]:
    rows = [rows for part in partitions for rows in reader.read(part)]
    return [value for each in rows for value in each.column("value").to_pylist()]


def read_batch(options: dict[str, str]) -> list[bytes]:
    reader = batch(options)
    return values(list(reader.partitions()), reader)


class Driver:
    """Runs batches of a stream in the order of Spark's calls, and keeps its checkpoint."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options
        self.reader = stream(options)
        self.offset: dict[str, Any] | None = None
        self.rows: list[bytes] = []
        self.tolerates_away = False

    def restart(self, **options: str) -> None:
        """Begin again from the checkpoint, in a new process."""
        self.reader.stop()
        self.options |= options
        self.reader = stream(self.options)

    def start(self) -> dict[str, Any]:
        if self.offset is None:
            self.offset = json.loads(json.dumps(self.reader.initialOffset()))
        return self.offset

    def plan(self, limit: Any = ALL) -> tuple[dict[str, Any], list[Any]]:
        """Return the end and the tasks of the next batch."""
        deadline_s = time.monotonic() + 60
        while True:
            end = json.loads(json.dumps(self.reader.latestOffset(self.start(), limit)))
            # On a busy machine an nsqd may be slow to answer.
            if self.tolerates_away or not self.reader.reportLatestOffset()["#away"]:
                break
            assert time.monotonic() < deadline_s
        return end, self.reader.partitions(self.start(), end)

    def run(self, limit: Any = ALL) -> list[bytes]:
        """Run one batch and return its rows."""
        end, parts = self.plan(limit)
        rows = values(parts, self.reader)
        self.rows += rows
        self.offset = end
        return rows

    def run_until(self, count: int) -> None:
        """Run batches until there are so many rows."""
        deadline_s = time.monotonic() + 60
        while len(self.rows) < count:
            assert time.monotonic() < deadline_s, f"{len(self.rows)} of {count} rows"
            self.run()


def create(nsqd: Daemon, topic: str) -> str:
    nsqd.post("/topic/create", topic=topic)
    return log_of(nsqd, topic)["log"]


def log_of(nsqd: Daemon, topic: str) -> dict[str, Any]:
    return nsqd.request("GET", "/log/offsets", query={"topic": topic}).json()["topics"][0]


def test_a_batch_has_all_rows_in_parts(nsqd: Daemon, topic: str) -> None:
    publish(nsqd, topic, bodies(0, 30_000))
    options = options_of([nsqd], topic, includeOffset="true", maxRecordsPerPartition="10000")
    del options["channel"]
    reader = batch(options)
    parts = list(reader.partitions())
    assert len(parts) >= 3
    assert all(isinstance(part, LogRange) and part.end - part.start <= 10_000 for part in parts)
    rows = pa.Table.from_batches([rows for part in parts for rows in reader.read(part)])
    assert rows.column("value").to_pylist() == bodies(0, 30_000)
    assert rows.column("offset").to_pylist() == list(range(30_000))
    shown = nsqd.request("GET", "/peek", query={"topic": topic, "offset": "29999"}).json()["messages"][0]
    last = rows.slice(29_999).to_pylist()[0]
    assert last["id"] == shown["id"]
    assert last["timestamp"].timestamp() == pytest.approx(shown["timestamp"] / 1e9, abs=1e-5)
    assert (last["topic"], last["node"], last["attempts"]) == (topic, nsqd.tcp_address, 0)
    assert last["log"] == log_of(nsqd, topic)["log"]


def test_a_stream_is_repeated_until_it_is_committed(nsqd: Daemon, topic: str) -> None:
    publish(nsqd, topic, bodies(0, 100))
    driver = Driver(options_of([nsqd], topic))
    first = driver.plan()
    rows = values(first[1], driver.reader)
    assert rows == bodies(0, 100)
    # The process ends before batch 0 is committed, and asks for the first offset again.
    driver.offset = None
    publish(nsqd, topic, bodies(100, 150))
    driver.restart(startingOffsets="latest")
    assert driver.start() == {topic: {log_of(nsqd, topic)["log"]: 0}}
    assert values(driver.reader.partitions(driver.start(), first[0]), driver.reader) == rows
    driver.offset = first[0]
    assert driver.run() == bodies(100, 150)
    assert nsqd.channel_stats(topic, "spark")["depth"] == 50
    assert driver.reader.latestOffset(driver.offset, ALL) == driver.offset
    assert nsqd.channel_stats(topic, "spark")["depth"] == 0
    report = driver.reader.reportLatestOffset()
    assert (report[topic], report["#lost"]) == ({log_of(nsqd, topic)["log"]: 150}, 0)


def test_limits_are_shared_by_the_logs(fleet: Fleet, topic: str) -> None:
    nsqds = [fleet.nsqd("nsqx", "--store=log") for _ in range(2)]
    publish(nsqds[0], topic, bodies(0, 3000))
    publish(nsqds[1], topic, bodies(3000, 4000))
    driver = Driver(options_of(nsqds, topic, maxOffsetsPerTrigger="400"))
    assert driver.reader.getDefaultReadLimit().max_rows == 400
    end, parts = driver.plan(driver.reader.getDefaultReadLimit())
    assert sorted(part.end - part.start for part in parts) == [100, 300]
    by_bytes = Driver(options_of(nsqds, topic, maxBytesPerTrigger="4k"))
    assert 0 < len(by_bytes.run()) < 600
    driver.run(ReadMaxRows(1500))
    assert 1490 < len(driver.rows) <= 1500
    driver.run_until(4000)
    assert sorted(driver.rows, key=int) == bodies(0, 4000)
    assert end.keys() == {topic}


def test_a_stream_waits_for_enough_rows(nsqd: Daemon, topic: str) -> None:
    publish(nsqd, topic, bodies(0, 10))
    patient = Driver(options_of([nsqd], topic, minOffsetsPerTrigger="20"))
    assert patient.run() == []
    publish(nsqd, topic, bodies(10, 20))
    assert patient.run() == bodies(0, 20)
    publish(nsqd, topic, bodies(20, 21))
    patient.restart(maxTriggerDelay="100ms")
    patient.run_until(21)
    assert patient.rows == bodies(0, 21)


def test_available_now_ends_with_what_was_there(nsqd: Daemon, topic: str) -> None:
    publish(nsqd, topic, bodies(0, 100))
    driver = Driver(options_of([nsqd], topic))
    driver.start()
    driver.reader.prepareForTriggerAvailableNow()
    assert len(driver.run(ReadMaxRows(60))) == 60
    publish(nsqd, topic, bodies(100, 200))
    create(nsqd, "other")
    assert len(driver.run(ReadMaxRows(60))) == 40
    assert driver.run(ReadMaxRows(60)) == []
    driver.restart()
    assert len(driver.run(ReadAllAvailable())) == 100


def test_starting_and_ending_positions(nsqd: Daemon, topic: str) -> None:
    log = create(nsqd, topic)
    publish(nsqd, topic, bodies(0, 10))
    before_ms = int(
        nsqd.request("GET", "/peek", query={"topic": topic, "last": "1"}).json()["messages"][0]["timestamp"] / 1e6
    )
    wait_until(lambda: time.time_ns() // 10**6 > before_ms + 5, "the clock has moved on")
    publish(nsqd, topic, bodies(10, 20))
    options = options_of([nsqd], topic)
    middle = str(before_ms + 2)
    assert read_batch(options) == bodies(0, 20)
    assert read_batch({**options, "startingTimestamp": middle}) == bodies(10, 20)
    assert read_batch({**options, "endingTimestamp": middle}) == bodies(0, 10)
    by_node = json.dumps({topic: {nsqd.tcp_address: int(middle)}})
    assert read_batch({**options, "startingOffsetsByTimestamp": by_node}) == bodies(10, 20)
    assert read_batch({**options, "endingOffsetsByTimestamp": by_node}) == bodies(0, 10)
    assert read_batch({**options, "startingOffsets": json.dumps({topic: {log: 15}})}) == bodies(15, 20)
    assert read_batch({**options, "endingOffsets": json.dumps({topic: {log: 5}})}) == bodies(0, 5)
    assert read_batch({**options, "endingOffsets": json.dumps({topic: {log: -1}})}) == bodies(0, 20)
    late = str(before_ms + 10**9)
    assert read_batch({**options, "endingTimestamp": late}) == bodies(0, 20)
    with pytest.raises(ConfigError, match="has no message at or after the starting time"):
        read_batch({**options, "startingTimestamp": late})
    latest = {**options, "startingTimestamp": late, "startingOffsetsByTimestampStrategy": "latest"}
    assert read_batch(latest) == []
    for number, (start, first) in enumerate({"latest": 20, "earliest": 0, json.dumps({topic: {log: 7}}): 7}.items()):
        driver = Driver({**options, "channel": f"c{number}", "startingOffsets": start})
        assert driver.start() == {topic: {log: first}}
    driver = Driver({**options, "channel": "t", "startingTimestamp": middle})
    assert driver.start() == {topic: {log: 10}}


def test_topics_and_nodes_are_chosen(fleet: Fleet) -> None:
    lookupd = fleet.nsqlookupd("nsqx")
    nsqds = [fleet.nsqd("nsqx", "--store=log", f"--lookupd-tcp-address={lookupd.tcp_address}") for _ in range(2)]
    for number, nsqd in enumerate(nsqds):
        for name in ("orders_a", "orders_b", "clicks"):
            publish(nsqd, name, [b"%s%d" % (name.encode(), number)])
    options = options_of(nsqds, "orders_a")
    del options["nsq.nsqd"], options["subscribe"]
    options["nsq.lookupd"] = lookupd.http_address

    def found(**chosen: str) -> list[bytes]:
        return sorted(read_batch({**options, **chosen}))

    def is_known() -> bool:
        return len(found(subscribePattern="orders_.*")) == 4

    wait_until(is_known, "nsqlookupd knows the topics")
    assert found(subscribePattern="orders_.*") == [b"orders_a0", b"orders_a1", b"orders_b0", b"orders_b1"]
    assert found(subscribe="orders_a,clicks") == [b"clicks0", b"clicks1", b"orders_a0", b"orders_a1"]
    assert found(assign=json.dumps({"clicks": [nsqds[1].tcp_address]})) == [b"clicks1"]
    driver = Driver({**options, "subscribePattern": "orders_.*", "nsq.lookupd_poll_interval": "100ms"})
    assert len(driver.run()) == 4
    publish(nsqds[0], "orders_new", [b"new"])
    driver.run_until(5)
    assert driver.rows[-1] == b"new"


def test_messages_of_other_channels_and_deferred_ones_are_left_out(nsqd: Daemon, topic: str) -> None:
    create(nsqd, topic)
    for channel in ("spark", "other"):
        nsqd.post("/channel/create", topic=topic, channel=channel)
    publish(nsqd, topic, [b"1", b"2"])
    nsqd.post("/pub", b"later", topic=topic, defer="3600000")
    publish(nsqd, topic, [b"3"])
    driver = Driver(options_of([nsqd], topic))
    assert driver.run() == [b"1", b"2", b"3"]
    driver.run()
    assert nsqd.channel_stats(topic, "spark")["depth"] == 0
    assert nsqd.channel_stats(topic, "other")["depth"] == 3


def test_a_paused_channel_stops_the_query(nsqd: Daemon, topic: str) -> None:
    publish(nsqd, topic, [b"1"])
    driver = Driver(options_of([nsqd], topic))
    driver.start()
    nsqd.post("/channel/pause", topic=topic, channel="spark")
    assert driver.run() == []
    nsqd.post("/channel/unpause", topic=topic, channel="spark")
    assert driver.run() == [b"1"]


def test_retention_that_overtakes_a_query_is_an_error_or_counted(nsqd: Daemon, topic: str) -> None:
    publish(nsqd, topic, bodies(0, 100))
    driver = Driver(options_of([nsqd], topic))
    end, _ = driver.plan()
    assert nsqd.request("POST", "/log/trim", query={"topic": topic, "before": "40"}).status == 200
    driver.restart()
    reason = (
        rf"topic {topic} on nsqd {nsqd.tcp_address} \(log \w+\): nsqd has removed the messages from 0 to 40: the"
        " retention of the topic has overtaken this query. Raise retain_age"
    )
    with pytest.raises(DataLost, match=reason):
        driver.plan()
    with pytest.raises(DataLost, match=reason):
        driver.reader.partitions(driver.start(), end)
    driver.restart(failOnDataLoss="false")
    assert driver.run() == bodies(40, 100)
    assert driver.reader.reportLatestOffset()["#lost"] == 40


def test_an_executor_finds_that_messages_were_removed(nsqd: Daemon, topic: str) -> None:
    publish(nsqd, topic, bodies(0, 100))
    for strict in ("true", "false"):
        driver = Driver(options_of([nsqd], topic, channel=f"c{strict}", failOnDataLoss=strict))
        first = log_of(nsqd, topic)["first"]
        _, parts = driver.plan()
        assert nsqd.request("POST", "/log/trim", query={"topic": topic, "before": str(first + 10)}).status == 200
        if strict == "true":
            with pytest.raises(DataLost, match=f"nsqd has removed the messages from {first} to {first + 10}"):
                values(parts, driver.reader)
        else:
            assert values(parts, driver.reader) == bodies(first + 10, 100)


def test_a_topic_that_is_created_again_is_an_error_or_a_new_log(nsqd: Daemon, topic: str) -> None:
    publish(nsqd, topic, bodies(0, 10))
    driver = Driver(options_of([nsqd], topic))
    driver.run()
    old = log_of(nsqd, topic)["log"]
    end, parts = driver.plan()
    nsqd.post("/topic/delete", topic=topic)
    publish(nsqd, topic, bodies(10, 20))
    with pytest.raises(DataLost, match=rf"topic {topic}: log {old} is gone from nsqd {nsqd.tcp_address}.*offset 10 on"):
        driver.plan()
    driver.restart()
    with pytest.raises(
        DataLost, match=rf"log {old} is gone from every nsqd that answers.*It has now: topic {topic} on"
    ):
        driver.plan()
    driver.restart(failOnDataLoss="false")
    driver.run_until(20)
    assert driver.rows == bodies(0, 20)


def test_a_node_that_is_away_does_not_stop_the_others(fleet: Fleet, topic: str, tmp_path: Path) -> None:
    other = fleet.nsqd("nsqx", "--store=log")
    flags = ("--store=log", f"--data-path={tmp_path}")
    nsqd = fleet.nsqd("nsqx", *flags)
    publish(nsqd, topic, bodies(0, 10))
    publish(other, topic, bodies(10, 20))
    driver = Driver(options_of([nsqd, other], topic))
    assert len(driver.run()) == 20
    driver.tolerates_away = True
    nsqd.kill()
    publish(other, topic, bodies(20, 30))
    driver.run_until(30)
    assert nsqd.tcp_address in driver.reader.reportLatestOffset()["#away"]
    driver.restart(nodeTimeout="100ms")
    with pytest.raises(DataLost, match=r"log \w+ is gone from"):
        driver.run_until(len(driver.rows) + 1)
    with pytest.raises(ConfigError, match=rf"a batch read needs an answer of every nsqd: {nsqd.tcp_address}"):
        read_batch(options_of([nsqd, other], topic))
    with pytest.raises(ConfigError, match=f"the mode of this query is unknown: {nsqd.tcp_address}"):
        EitherBatchReader(options_of([nsqd], topic)).partitions()
    with pytest.raises(ConfigError, match=f"a batch read needs an answer of every nsqd: {nsqd.tcp_address}"):
        EitherBatchReader({**options_of([nsqd], topic), "mode": "log"}).partitions()


def test_a_frozen_node_does_not_stop_the_others(fleet: Fleet, topic: str) -> None:
    nsqds = [fleet.nsqd("nsqx", "--store=log") for _ in range(2)]
    for number, nsqd in enumerate(nsqds):
        publish(nsqd, topic, bodies(10 * number, 10 * number + 10))
    driver = Driver(options_of(nsqds, topic, fetchTimeout="1s"))
    assert len(driver.run()) == 20
    driver.tolerates_away = True
    nsqds[0].process.send_signal(signal.SIGSTOP)
    try:
        publish(nsqds[1], topic, bodies(20, 30))
        driver.run_until(30)
        assert nsqds[0].tcp_address in driver.reader.reportLatestOffset()["#away"]
    finally:
        nsqds[0].process.send_signal(signal.SIGCONT)
    publish(nsqds[0], topic, bodies(30, 40))
    driver.run_until(40)
    assert sorted(driver.rows, key=int) == bodies(0, 40)


def test_a_task_waits_for_its_node(fleet: Fleet, topic: str, tmp_path: Path) -> None:
    nsqd = fleet.nsqd("nsqx", "--store=log", f"--data-path={tmp_path}")
    publish(nsqd, topic, bodies(0, 10))
    driver = Driver(options_of([nsqd], topic))
    _, parts = driver.plan()
    nsqd.kill()
    with pytest.raises(NodeAway, match=rf"cannot read topic {topic} on nsqd {nsqd.tcp_address} .*offsets 0 to 10"):
        values(parts, driver.reader)


def test_kills_and_restarts_lose_and_repeat_nothing(fleet: Fleet, topic: str, tmp_path: Path) -> None:
    """The driver dies before or after its batch is committed, and nsqd dies at any time. The batches of a file."""
    rng = random.Random(20)
    flags = ["--store=log", f"--data-path={tmp_path}", "--max-bytes-per-file=200000"]
    nsqd = fleet.nsqd("nsqx", *flags)
    flags.append(f"--tcp-address={nsqd.tcp_address}")
    driver = Driver(options_of([nsqd], topic, maxOffsetsPerTrigger="700", fetchRetries="300"))
    count, committed = 0, []
    planned: tuple[dict[str, Any], list[Any]] | None = None
    while count < 12_000 or len(committed) < count:
        if count < 12_000:
            publish(nsqd, topic, bodies(count, count + 1000))
            count += 1000
        if planned is None:
            end, parts = driver.plan(ReadMaxRows(700))
            planned = end, parts
        event = rng.choice(["nothing", "nothing", "driver", "nsqd"])
        if event == "nsqd":
            nsqd.kill()
            nsqd = fleet.nsqd("nsqx", *flags)
        if event != "nothing":
            # The batch was begun, and is planned again from the checkpoint by a new process.
            driver.restart()
            planned = planned[0], driver.reader.partitions(driver.start(), planned[0])
        committed += values(planned[1], driver.reader)
        driver.offset, planned = planned[0], None
    assert sorted(committed, key=int) == bodies(0, count)
    driver.run()
    assert nsqd.channel_stats(topic, "spark")["depth"] == 0


def test_damage_is_an_error_or_left_out(fleet: Fleet, topic: str, tmp_path: Path) -> None:
    nsqd = fleet.nsqd("nsqx", "--store=log", f"--data-path={tmp_path}", "--log-memory=1048576")
    nsqd.post("/mpub", b"\n".join(b"%05d" % number + b"x" * 300 for number in range(1000)), topic=topic)
    nsqd.stop()
    (segment,) = tmp_path.glob("*.topic/*.seg")
    data = bytearray(segment.read_bytes())
    place = data.index(b"00500x")
    data[place + 20] ^= 1
    segment.write_bytes(data)
    nsqd = fleet.nsqd("nsqx", "--store=log", f"--data-path={tmp_path}", "--log-memory=1048576")
    options = options_of([nsqd], topic)
    with pytest.raises(
        DataLost, match="the files of this nsqd are damaged, and the messages 500 to 501 cannot be read"
    ):
        read_batch(options)
    left = [int(value[:5]) for value in read_batch({**options, "failOnDataLoss": "false"})]
    assert left == [number for number in range(1000) if number != 500]


def test_auto_decides_by_the_stores(nsqd: Daemon, topic: str, tmp_path: Path) -> None:
    for name in (topic, "classic"):
        publish(nsqd, name, bodies(0, 5))
    directory = {"segmentDir": str(tmp_path / "segments"), "drainIdle": "300ms"}

    def kinds(topics: str, **more: str) -> set[type]:
        options = {**options_of([nsqd], topics), **directory, **more}
        reader = EitherBatchReader(options)
        return {type(part) for part in reader.partitions()}

    nsqd.post("/channel/create", topic="classic", channel="spark")
    assert kinds(topic) == {LogRange}
    assert kinds("classic") == {SlicePartition}
    assert kinds(topic, mode="log") == {LogRange}
    # The directory has rows now, so the query goes on with them.
    assert kinds("classic") == {SlicePartition}
    with pytest.raises(ConfigError, match=f"mode log: topic classic has no log on nsqd {nsqd.tcp_address}"):
        kinds("classic", mode="log")
    with pytest.raises(ConfigError, match="startingTimestamp is only for mode log"):
        kinds("classic", startingTimestamp="1")
    with pytest.raises(ConfigError, match="no nsqd has a log for topic unknown"):
        kinds("unknown", mode="log")


def test_a_checkpoint_keeps_its_mode(nsqd: Daemon, topic: str, tmp_path: Path) -> None:
    publish(nsqd, topic, bodies(0, 5))
    options = {**options_of([nsqd], topic), "segmentDir": str(tmp_path / "segments")}
    reader = EitherStreamReader(options)
    start = reader.initialOffset()
    assert start == {topic: {log_of(nsqd, topic)["log"]: 0}}
    end = reader.latestOffset(start, ALL)
    reader.stop()
    again = EitherStreamReader(options)
    assert values(list(again.partitions(start, end)), again) == bodies(0, 5)
    again.stop()
    with pytest.raises(ConfigError, match="the checkpoint belongs to a query that has received a channel"):
        EitherStreamReader({**options, "mode": "log"}).latestOffset({"rows": 5, "segments": "x"}, ALL)


def test_go_nsqd_has_no_logs(fleet: Fleet, topic: str) -> None:
    from daemons import require_go

    require_go()
    nsqd = fleet.nsqd("go")
    with pytest.raises(ConfigError, match=f"mode log: topic {topic} has no log on nsqd {nsqd.tcp_address}"):
        EitherBatchReader({**options_of([nsqd], topic), "mode": "log"}).partitions()
    with pytest.raises(ConfigError, match="option segmentDir is required"):
        EitherBatchReader(options_of([nsqd], topic)).partitions()


def test_a_secured_nsqd_needs_a_token(fleet: Fleet, topic: str, tmp_path: Path) -> None:
    for group in ("read", "consume", "admin"):
        (tmp_path / group).write_text(f"{group}-token\nspark-token\n" if group != "admin" else "admin-token\n")
    (tmp_path / "spark").write_text("spark-token\n")
    flags = [f"--http-{group}-token-file={tmp_path / group}" for group in ("read", "consume", "admin")]
    nsqd = fleet.nsqd("nsqx", "--store=log", *flags)
    publish(nsqd, topic, bodies(0, 10))
    with pytest.raises(ConfigError, match="401 UNAUTHORIZED: set nsq.nsqd_http_token_file"):
        read_batch(options_of([nsqd], topic))
    directory = {"segmentDir": str(tmp_path / "s"), "drainIdle": "300ms"}
    unasked = EitherBatchReader({**options_of([nsqd], topic, channel="received"), **directory})
    assert {type(part) for part in unasked.partitions()} == {SlicePartition}
    secured = options_of([nsqd], topic, **{"nsq.nsqd_http_token_file": str(tmp_path / "spark")})
    assert read_batch(secured) == bodies(0, 10)
    with pytest.raises(ConfigError, match="may not create the channel spark"):
        stream(secured).initialOffset()
    admin = Driver({**secured, "nsq.nsqd_http_token_file": str(tmp_path / "admin")})
    assert admin.run() == bodies(0, 10)
    assert Driver(secured).run() == bodies(0, 10)
