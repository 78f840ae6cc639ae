"""The exactly-once sink: each batch is stored once, whatever is repeated, and at one nsqd."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from daemons import Daemon, Fleet, start_nsqd, wait_until
from nsqx.errors import ConfigError
from nsqx.spark.ledger_client import BatchId, BatchRefused, LedgerClient, LedgerNodeAway, StagedName
from nsqx.spark.log_sink import encode_group
from nsqx.spark.options import is_exactly_once, read_once_options

ONCE = ("--store=log", "--store-rule=classic*=classic")


@pytest.fixture(scope="module")
def log_nsqd() -> Any:
    with start_nsqd("nsqx", *ONCE) as daemon:
        yield daemon


def bodies(nsqd: Daemon, topic: str) -> list[str]:
    """Return the bodies of all messages in the log of a topic."""
    found: list[str] = []
    while True:
        query = {"topic": topic, "offset": str(len(found)), "count": "1000"}
        answer = nsqd.request("GET", "/peek", query=query).json()
        if not answer.get("messages"):
            return found
        found += [message["text"] for message in answer["messages"]]


def write_lines(directory: Path, name: str, first: int, end: int) -> None:
    directory.mkdir(exist_ok=True)
    (directory / name).write_text("".join(f"{number}\n" for number in range(first, end)))


def run_stream(spark: Any, place: Path, options: dict[str, str], partitions: int) -> None:
    """Write all lines that are there as batches of one file each."""
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(place / "lines"))
    writer = lines.repartition(partitions).writeStream.format("nsq").option("exactlyOnce", "true").options(**options)
    query = writer.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(150)


def forget_last_commit(place: Path) -> int:
    """Make Spark repeat the last batch; return its number."""
    commits = place / "checkpoint" / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)
    return last


class TestStreams:
    def test_a_repeated_batch_with_other_tasks_is_stored_once(
        self, spark: Any, log_nsqd: Daemon, topic: str, tmp_path: Path
    ) -> None:
        options = {"nsq.nsqd": log_nsqd.tcp_address, "topic": topic, "maxRequestBytes": "5000"}
        for number in range(3):
            write_lines(tmp_path / "lines", f"{number}.txt", 1000 * number, 1000 * number + 1000)
        run_stream(spark, tmp_path, options, 2)
        expected = sorted(map(str, range(3000)))
        assert sorted(bodies(log_nsqd, topic)) == expected
        before = log_nsqd.stats()["transactions"]["duplicates"]
        last = forget_last_commit(tmp_path)
        run_stream(spark, tmp_path, options, 3)
        assert sorted(bodies(log_nsqd, topic)) == expected
        assert log_nsqd.stats()["transactions"]["duplicates"] > before
        write_lines(tmp_path / "lines", "3.txt", 3000, 3010)
        run_stream(spark, tmp_path, options, 1)
        assert sorted(bodies(log_nsqd, topic)) == sorted(map(str, range(3010)))
        assert last in (2, 3)

    def test_batches_go_to_the_nsqds_in_turn_and_wait_for_one_that_is_away(
        self, spark: Any, fleet: Fleet, topic: str, tmp_path: Path
    ) -> None:
        paths = [tmp_path / name for name in ("one", "two")]
        for path in paths:
            path.mkdir()
        nsqds = [fleet.nsqd("nsqx", *ONCE, data_path=path) for path in paths]
        addresses = [nsqd.tcp_address for nsqd in nsqds]
        flags = [*ONCE, f"--tcp-address={addresses[1]}", f"--http-address={nsqds[1].http_address}"]
        options = {"nsq.nsqd": ",".join(addresses), "topic": topic}
        write_lines(tmp_path / "lines", "0.txt", 0, 100)
        run_stream(spark, tmp_path, options, 2)
        nsqds[1].kill()
        for number in range(1, 4):
            write_lines(tmp_path / "lines", f"{number}.txt", 100 * number, 100 * number + 100)

        def start_again() -> None:
            wait_until((tmp_path / "checkpoint" / "offsets" / "1").exists, "the second batch has begun", 120)
            nsqds[1] = fleet.nsqd("nsqx", *flags, data_path=paths[1])

        starter = threading.Thread(target=start_again)
        starter.start()
        run_stream(spark, tmp_path, options, 2)
        starter.join()
        found = [bodies(nsqd, topic) for nsqd in nsqds]
        assert [len(each) for each in found] == [200, 200]
        assert sorted(found[0] + found[1]) == sorted(map(str, range(400)))


class TestBatchWrites:
    def write(self, frame: Any, nsqd: Daemon, **options: str) -> None:
        writer = frame.write.format("nsq").mode("append").option("exactlyOnce", "true")
        writer.option("nsq.nsqd", nsqd.tcp_address).options(**options).save()

    def test_a_write_is_stored_wholly_and_with_a_name_once(self, spark: Any, log_nsqd: Daemon, topic: str) -> None:
        frame = spark.range(1000).selectExpr("CAST(id AS STRING) AS value").repartition(3)
        for _ in range(2):
            self.write(frame, log_nsqd, topic=topic)
        assert sorted(bodies(log_nsqd, topic)) == sorted([*map(str, range(1000))] * 2)
        other = f"{topic}-named"
        for version in ("1", "1", "2", "1"):
            self.write(frame, log_nsqd, topic=other, txnAppId=topic, txnVersion=version)
        assert sorted(bodies(log_nsqd, other)) == sorted([*map(str, range(1000))] * 2)

    def test_topics_and_delays_are_those_of_the_rows(self, spark: Any, log_nsqd: Daemon, topic: str) -> None:
        columns = (
            "CAST(id AS STRING) AS value",
            f"'{topic}-' || id % 2 AS topic",
            "IF(id < 4, 3600000, 0) AS defer_ms",
        )
        self.write(spark.range(10).selectExpr(*columns), log_nsqd)
        stats = [log_nsqd.topic_stats(f"{topic}-{number}") for number in (0, 1)]
        assert [(each["log"]["end"], each["log"]["deferred_count"]) for each in stats] == [(5, 2), (5, 2)]

    def test_a_classic_topic_is_an_error_that_says_what_to_do(self, spark: Any, log_nsqd: Daemon) -> None:
        frame = spark.range(10).selectExpr("CAST(id AS STRING) AS value")
        with pytest.raises(Exception, match="topic classic-1 is classic, and exactlyOnce needs log topics"):
            self.write(frame, log_nsqd, topic="classic-1")


def options_of(*nsqds: str, **more: str) -> Any:
    given = {"exactlyOnce": "true", "nsq.nsqd": ",".join(nsqds), "topic": "t", **more}
    return read_once_options(given, has_topic_column=False, is_stream=True)


def store(batch: BatchId, topic: str, *nsqds: str, **more: str) -> bool:
    """Stage a message and commit it; False for a duplicate."""

    async def run() -> bool:
        client = LedgerClient(options_of(*nsqds, **more))
        name = StagedName("0-0", "1")
        await client.stage(batch, name, encode_group(topic, [b"%d" % batch.number], 0))
        return await client.commit(batch, [name])

    return asyncio.run(run())


class TestClient:
    def test_another_list_of_nsqds_is_refused_until_the_old_one_is_named(self, fleet: Fleet, topic: str) -> None:
        nsqds = [fleet.nsqd("nsqx", *ONCE) for _ in range(3)]
        one, two, three = [nsqd.tcp_address for nsqd in nsqds]
        assert store(BatchId("q", 0), topic, one, two)
        assert store(BatchId("q", 1), topic, one, two)
        # Batch 1 is at the second nsqd. With three, it would go there too; with the order changed, to the first.
        for wrong in ((one, two, three), (two, one), (one, three), (three, two), (one,), (two,)):
            with pytest.raises(ConfigError, match=f"another list of nsqds, {one}, {two}: set the option previousNsqd"):
                store(BatchId("q", 1), topic, *wrong)
        previous = f"{one},{two}"
        assert not store(BatchId("q", 1), topic, one, three, previousNsqd=previous)
        assert store(BatchId("q", 2), topic, one, three, previousNsqd=previous)
        assert store(BatchId("q", 3), topic, one, three, previousNsqd=previous)
        assert not store(BatchId("q", 3), topic, one, three)
        assert store(BatchId("q", 4), topic, one, three)
        assert store(BatchId("q", 5), topic, two, previousNsqd="unknown")
        assert [bodies(nsqd, topic) for nsqd in nsqds] == [["0", "2", "4"], ["1", "5"], ["3"]]

    def test_a_new_query_needs_no_ledger(self, log_nsqd: Daemon, topic: str) -> None:
        assert store(BatchId(topic, 7), topic, log_nsqd.tcp_address)
        assert not store(BatchId(topic, 7), topic, log_nsqd.tcp_address)
        assert bodies(log_nsqd, topic) == ["7"]

    def test_an_nsqd_that_is_away_is_named_after_the_deadline(self, fleet: Fleet, topic: str) -> None:
        nsqd = fleet.nsqd("nsqx", *ONCE)
        nsqd.kill()
        with pytest.raises(LedgerNodeAway, match=f"nsqd {nsqd.tcp_address} does not answer.*no other"):
            store(BatchId("q", 0), topic, nsqd.tcp_address, commitTimeout="300ms")

    def test_an_nsqd_that_refuses_is_named_with_its_reason(self, fleet: Fleet, topic: str) -> None:
        nsqd = fleet.nsqd("nsqx", *ONCE)
        nsqd.post("/drain")
        with pytest.raises(LedgerNodeAway, match="503 draining"):
            store(BatchId("q", 0), topic, nsqd.tcp_address, commitTimeout="300ms")

    def test_an_nsqd_without_logs_is_refused(self, fleet: Fleet, topic: str) -> None:
        nsqd = fleet.nsqd("nsqx", "--http-address=")
        with pytest.raises(ConfigError, match="exactlyOnce needs nsqds of nsqx"):
            store(BatchId("q", 0), topic, nsqd.tcp_address)

    def test_errors_say_what_to_do(self, fleet: Fleet, topic: str) -> None:
        nsqd = fleet.nsqd("nsqx", *ONCE, "--max-transaction-bytes=10", "--max-body-size=1000")
        with pytest.raises(BatchRefused, match="TRANSACTION_TOO_LARGE: the batch has .* raise --max-transaction-bytes"):
            store(BatchId("q", 0), topic, nsqd.tcp_address)
        client = LedgerClient(options_of(nsqd.tcp_address))
        with pytest.raises(BatchRefused, match="BODY_TOO_BIG: raise --max-body-size of nsqd, or set"):
            asyncio.run(client.stage(BatchId("q", 0), StagedName("0", "0"), encode_group("t", [b"x" * 2000], 0)))
        with pytest.raises(BatchRefused, match="PART_NOT_FOUND: part 5, attempt 6, is gone: restart the query"):
            asyncio.run(client.commit(BatchId("q", 0), [StagedName("5", "6")]))


class TestOptions:
    def test_defaults(self) -> None:
        options = options_of("one:1", "two:2")
        assert options.cluster.nsqd_tcp_addresses == ("one:1", "two:2")
        assert (options.previous_nodes, options.commit_timeout_s, options.request_bytes) == ((), 600.0, 4 * 1024**2)

    @pytest.mark.parametrize(
        ("given", "text"),
        [
            ({"nsq.nsqd": "", "nsq.lookupd": "one:4161"}, "exactlyOnce requires nsq.nsqd, and no nsq.lookupd"),
            ({"txnAppId": "a"}, "only for batch writes"),
            ({"commitTimeout": "soon"}, "'soon' is not a duration"),
            ({"topic": "a b"}, "invalid topic name 'a b'"),
        ],
    )
    def test_wrong_options_of_a_stream(self, given: dict[str, str], text: str) -> None:
        with pytest.raises(ConfigError, match=text):
            read_once_options({"nsq.nsqd": "one:1", "topic": "t", **given}, has_topic_column=False, is_stream=True)

    @pytest.mark.parametrize(
        ("given", "text"),
        [
            ({"txnAppId": "a"}, "set both txnAppId and txnVersion"),
            ({"txnVersion": "1"}, "set both txnAppId and txnVersion"),
            ({"txnAppId": "a b", "txnVersion": "1"}, "invalid txnAppId 'a b'"),
            ({"txnAppId": "a", "txnVersion": "-1"}, "-1 is too small"),
        ],
    )
    def test_wrong_options_of_a_batch_write(self, given: dict[str, str], text: str) -> None:
        with pytest.raises(ConfigError, match=text):
            read_once_options({"nsq.nsqd": "one:1", "topic": "t", **given}, has_topic_column=False, is_stream=False)

    def test_options_of_the_other_sink_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="txnAppId is only for a sink with exactlyOnce=true"):
            is_exactly_once({"txnAppId": "a"})
        with pytest.raises(ConfigError, match="publishAttempts is only for a sink without exactlyOnce=true"):
            is_exactly_once({"exactlyOnce": "true", "publishAttempts": "3"})
        with pytest.raises(ConfigError, match="'yes' is neither true nor false"):
            is_exactly_once({"exactlyOnce": "yes"})
