"""Streaming and batch reads of topic logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from streams import Query, bodies, publish, until

from certificates import Authority
from nsqx.client.blocking import Producer
from nsqx.errors import ConfigError
from nsqx.spark.log_options import read_log_options
from nsqx.spark.log_source import LogBatchReader

if TYPE_CHECKING:
    from daemons import Daemon, Fleet


@pytest.fixture
def nsqd(fleet: Fleet) -> Daemon:
    return fleet.nsqd("nsqx", "--store=log", "--store-rule=classic*=classic")


def log_options(nsqds: list[Daemon], topics: str, **options: str) -> dict[str, str]:
    addresses = ",".join(nsqd.tcp_address for nsqd in nsqds)
    return {"nsq.nsqd": addresses, "subscribe": topics, "channel": "spark", "fetchRetryInterval": "200ms", **options}


def read(spark: Any, options: dict[str, str]) -> Any:
    return spark.read.format("nsq").options(**options).load()


def values(rows: Any) -> list[bytes]:
    return sorted((bytes(row.value) for row in rows.collect()), key=int)


def log_of(nsqd: Daemon, topic: str) -> dict[str, Any]:
    return nsqd.request("GET", "/log/offsets", query={"topic": topic}).json()["topics"][0]


def test_a_batch_read_needs_no_channel_and_can_be_repeated(spark: Any, nsqd: Daemon, topic: str) -> None:
    publish(nsqd, topic, bodies(0, 12_000))
    options = log_options([nsqd], topic, includeOffset="true", maxRecordsPerPartition="5000")
    del options["channel"]
    rows = read(spark, options)
    assert values(rows) == bodies(0, 12_000)
    assert values(rows) == bodies(0, 12_000)
    assert rows.rdd.getNumPartitions() == 3
    first = rows.orderBy("offset").first()
    shown = nsqd.request("GET", "/peek", query={"topic": topic, "offset": "0", "count": "1"}).json()["messages"][0]
    assert (first.topic, first.id, first.attempts, first.node) == (topic, shown["id"], 0, nsqd.tcp_address)
    assert (first.offset, first.log) == (0, log_of(nsqd, topic)["log"])
    assert abs(first.timestamp.timestamp() - shown["timestamp"] / 1e9) < 0.001
    bounded = {**options, "endingOffsets": json.dumps({topic: {nsqd.tcp_address: 7000}})}
    assert values(read(spark, bounded | {"startingOffsets": json.dumps({topic: {first.log: 10}})})) == bodies(10, 7000)


def test_a_stream_reads_several_nsqds_and_its_channel_follows(
    spark: Any, fleet: Fleet, topic: str, tmp_path: Path
) -> None:
    nsqds = [fleet.nsqd("nsqx", "--store=log") for _ in range(2)]
    for number, nsqd in enumerate(nsqds):
        publish(nsqd, topic, bodies(3000 * number, 3000 * (number + 1)))
    query = Query(spark, log_options(nsqds, topic, maxOffsetsPerTrigger="1000"), tmp_path)
    running = query.start()
    try:
        until(lambda: len(query.rows) == 6000, running)
        publish(nsqds[0], topic, bodies(6000, 6100))
        until(lambda: len(query.rows) == 6100, running)
        depth = [nsqd.channel_stats(topic, "spark")["depth"] for nsqd in nsqds]
        until(lambda: sum(nsqd.channel_stats(topic, "spark")["depth"] for nsqd in nsqds) == 0, running)
        assert depth is not None
    finally:
        running.stop()
    assert query.values == bodies(0, 6100)
    assert max(query.sizes) <= 1000


def test_available_now_ends_and_continues(spark: Any, nsqd: Daemon, topic: str, tmp_path: Path) -> None:
    publish(nsqd, topic, bodies(0, 2500))
    query = Query(spark, log_options([nsqd], topic, maxOffsetsPerTrigger="1000"), tmp_path)
    query.run_available()
    assert query.values == bodies(0, 2500)
    publish(nsqd, topic, bodies(2500, 3000))
    query.run_available()
    assert query.values == bodies(0, 3000)
    assert sum(query.sizes) == 3000


def test_https_with_client_certificates_and_tokens(spark: Any, fleet: Fleet, topic: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, client = authority.sign("server"), authority.sign("client")
    flags = [f"--tls-cert={server.cert}", f"--tls-key={server.key}", f"--tls-root-ca-file={authority.cert}"]
    flags += ["--tls-required=true", "--tls-client-auth-policy=require-verify"]
    for group in ("read", "consume", "admin"):
        (tmp_path / group).write_text(f"token-of-{group}\ntoken-of-spark\n")
        flags.append(f"--http-{group}-token-file={tmp_path / group}")
    (tmp_path / "spark").write_text("token-of-spark\n")
    nsqd = fleet.nsqd("nsqx", "--store=log", *flags)
    secure = {"tls_v1": True, "tls_root_ca_file": authority.cert, "tls_cert": client.cert, "tls_key": client.key}
    with Producer(nsqd.tcp_address, **secure) as producer:
        producer.publish_many(topic, bodies(0, 3000))
    access = {f"nsq.{name}": str(value).lower() if value is True else str(value) for name, value in secure.items()}
    access["nsq.nsqd_http_token_file"] = str(tmp_path / "spark")
    # Requests for several pieces: the tasks of a batch, and those of a stream.
    options = log_options([nsqd], topic, mode="log", maxRecordsPerPartition="1000", **access)
    assert values(read(spark, options)) == bodies(0, 3000)
    query = Query(spark, options, tmp_path)
    query.run_available()
    assert query.values == bodies(0, 3000)
    for missing, reason in (
        ("nsq.tls_root_ca_file", f"every nsqd: {nsqd.tcp_address}: TLS: the certificate is not trusted"),
        ("nsq.nsqd_http_token_file", "401 UNAUTHORIZED: set nsq.nsqd_http_token_file"),
    ):
        fewer = {name: value for name, value in options.items() if name != missing}
        with pytest.raises(ConfigError, match=reason):
            LogBatchReader(read_log_options(fewer, is_stream=False)).partitions()
