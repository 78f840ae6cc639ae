"""Spark and pipelines work on a cluster whose HTTP APIs require tokens or client certificates."""

from __future__ import annotations

import json

import pytest
from streams import bodies, publish

from certificates import Authority
from nsqx.cli import pipeline as command

PIPELINE = """
[pipeline]
name = "secured"

[nsq]
lookupd = ["$lookupd"]

[nsq.options]
$options

[source.messages]
pattern = "$topic"
schema = "n INT"
options = { drainIdle = "300ms" }

[sink.first]
type = "json"
path = "$directory/first"
from = "messages"

[sink.second]
type = "json"
path = "$directory/second"
from = "messages"
"""


@pytest.fixture
def with_tokens(fleet, tmp_path):
    """Return an nsqlookupd, an nsqd, and the client options with their tokens."""
    for kind in ("nsqd", "lookupd"):
        (tmp_path / kind).write_text(f"token-of-{kind}")
    guards = ["--http-read-token-file={}", "--http-admin-token-file={}"]
    lookupd = fleet.nsqlookupd("nsqx", *(guard.format(tmp_path / "lookupd") for guard in guards))
    nsqd = fleet.nsqd(
        "nsqx",
        *(guard.format(tmp_path / "nsqd") for guard in guards),
        f"--lookupd-tcp-address={lookupd.tcp_address}",
        f"--lookupd-http-token-file={tmp_path / 'lookupd'}",
    )
    return lookupd, nsqd, {f"{kind}_http_token_file": f"{tmp_path / kind}" for kind in ("nsqd", "lookupd")}


@pytest.fixture
def with_certificates(fleet, tmp_path):
    authority = Authority(tmp_path)
    server, mine = authority.sign("server"), authority.sign("client")
    flags = [f"--tls-cert={server.cert}", f"--tls-key={server.key}", f"--tls-root-ca-file={authority.cert}"]
    flags += ["--http-client-cert-group=read", "--http-client-cert-group=admin"]
    lookupd = fleet.nsqlookupd("nsqx", *flags, "--https-address=127.0.0.1:0")
    nsqd = fleet.nsqd("nsqx", *flags, f"--lookupd-tcp-address={lookupd.tcp_address}", "--lookupd-tls")
    return lookupd, nsqd, {"tls_root_ca_file": authority.cert, "tls_cert": mine.cert, "tls_key": mine.key}


@pytest.fixture(params=["tokens", "certificates"])
def secured(request):
    return request.getfixturevalue(f"with_{request.param}")


def test_spark_reads_and_writes_on_a_secured_cluster(spark, secured, topic, tmp_path):
    lookupd, nsqd, client = secured
    options = {"nsq.lookupd": lookupd.http_address, **{f"nsq.{name}": value for name, value in client.items()}}
    publish(nsqd, topic, bodies(0, 100))
    lookupd.wait_for_log(rf"REGISTER category:topic key:{topic} ")
    reading = {"subscribePattern": topic, "channel": "spark", "segmentDir": f"{tmp_path / 'segments'}"}
    frame = spark.read.format("nsq").options(**options, **reading).load()
    assert frame.count() == 100
    frame.selectExpr("value").write.format("nsq").mode("append").options(**options, topic=f"{topic}_copy").save()
    again = {**reading, "subscribePattern": f"{topic}_copy", "segmentDir": f"{tmp_path / 'copies'}"}
    lookupd.wait_for_log(rf"REGISTER category:topic key:{topic}_copy ")
    assert spark.read.format("nsq").options(**options, **again).load().count() == 100


def test_a_pipeline_with_tokens_creates_its_channels(spark, with_tokens, topic, tmp_path, capsys):  # noqa: ARG001
    lookupd, nsqd, client = with_tokens
    publish(nsqd, topic, [json.dumps({"n": number}).encode() for number in range(20)])
    lookupd.wait_for_log(rf"REGISTER category:topic key:{topic} ")
    text = PIPELINE.replace("pattern =", "topic =")
    for name, value in (
        ("lookupd", lookupd.http_address),
        ("options", "\n".join(f'{name} = "{value}"' for name, value in client.items())),
        ("topic", topic),
        ("directory", str(tmp_path)),
    ):
        text = text.replace(f"${name}", value)
    path = tmp_path / "pipeline.toml"
    path.write_text(text)
    code = command.main(["run", str(path), "--once"])
    output = capsys.readouterr()
    assert code == 0, output
    for sink in ("first", "second"):
        rows = [line for part in (tmp_path / sink).glob("**/*.json") for line in part.read_text().splitlines()]
        assert len(rows) == 20, sink


def test_a_pipeline_without_tokens_names_the_daemon_that_rejects_it(with_tokens, topic, tmp_path, capsys):
    lookupd, _, _ = with_tokens
    text = PIPELINE.replace("$lookupd", lookupd.http_address).replace("$options", "").replace("$topic", topic)
    (tmp_path / "pipeline.toml").write_text(text.replace("$directory", str(tmp_path)))
    assert command.main(["run", str(tmp_path / "pipeline.toml"), "--once"]) == 1
    output = "".join(capsys.readouterr())
    assert lookupd.http_address in output
    assert "401" in output
