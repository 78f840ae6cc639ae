"""/openapi.json of real daemons: its content, its access rules, and a comparison with the daemons' responses."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from daemons import Daemon, Fleet, wait_until
from openapi_documents import DAEMONS, generate, without_other_fields
from rawclient import RawClient, fin, pub, rdy, req, sub

TOPIC, CHANNEL, UNREAD = "orders", "billing", "unread"
# GET routes whose responses are streams or need Graphite.
NOT_COMPARED = {"/api/stream", "/api/tail/{topic}", "/api/graphite", "/debug/pprof/profile"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, Daemon]]:
    """Daemons whose responses have every kind of entry: clients, latencies, a missing nsqd, trouble, a change."""
    fleet = Fleet()
    lookupd = fleet.nsqlookupd("nsqx")
    flags = (f"--lookupd-tcp-address={lookupd.tcp_address}", "--topology-zone=z", "--topology-region=r")
    percentiles = "--e2e-processing-latency-percentile=0.5,1.0"
    log_flags = (f"--store-rule={TOPIC}=log", "--max-attempts=1")
    nsqd = fleet.nsqd("nsqx", *flags, "--enable-debug-endpoints", percentiles, *log_flags)
    lost = fleet.nsqd("nsqx", *flags)
    for each in (nsqd, lost):
        each.post("/pub", b"1", topic=UNREAD)
        each.post("/channel/create", topic=UNREAD, channel=CHANNEL)
    nsqadmin = fleet.nsqadmin("nsqx", f"--lookupd-http-address={lookupd.http_address}", "--poll-interval=200ms")
    nsqadmin.post("/api/topics", json.dumps({"topic": TOPIC}).encode())
    with RawClient(nsqd.tcp_address) as producer, RawClient(nsqd.tcp_address) as consumer:
        producer.send(pub(TOPIC, b"1"))
        assert producer.read_frame().data == b"OK"
        consumer.send(sub(TOPIC, CHANNEL) + rdy(1))
        assert consumer.read_frame().data == b"OK"
        consumer.send(fin(consumer.read_message().id))
        producer.send(pub(TOPIC, b"2"))
        assert producer.read_frame().data == b"OK"
        consumer.send(req(consumer.read_message().id, 0))
        wait_until(lambda: nsqd.request("GET", f"/dead?topic={TOPIC}").status == 200, "there is a dead letter")
        wait_until(
            lambda: nsqd.channel_stats(TOPIC, CHANNEL)["e2e_processing_latency"]["count"], "nsqd has measured a latency"
        )
        wait_until(
            lambda: health(nsqadmin)["nodes"] == 2 and health(nsqadmin)["trouble"]["worst"],
            "nsqadmin has polled both nsqds",
        )
        lost.kill()
        wait_until(lambda: health(nsqadmin)["missing"], "an nsqd is missing")
        yield {"nsqd": nsqd, "nsqlookupd": lookupd, "nsqadmin": nsqadmin}
    fleet.close()


def health(nsqadmin: Daemon) -> Any:
    return nsqadmin.request("GET", "/api/health").json()


def served_document(daemon: Daemon, path: str = "/openapi.json") -> Any:
    answer = daemon.request("GET", path)
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    return answer.json()


@pytest.mark.parametrize("name", DAEMONS)
def test_the_generated_document_is_served(name: str, cluster: dict[str, Daemon]) -> None:
    options = {"enable_debug_endpoints": True} if name == "nsqd" else {}
    assert served_document(cluster[name]) == generate(name, **options)
    assert served_document(cluster[name]) == generate(name, **options), "the second response is equal"


@pytest.mark.parametrize("name", DAEMONS)
def test_responses_have_exactly_the_documented_fields(name: str, cluster: dict[str, Daemon]) -> None:
    document = without_other_fields(served_document(cluster[name]))
    values = {"topic": TOPIC, "channel": CHANNEL, "node": cluster["nsqd"].http_address, "option": "log_level"}
    checked = set()
    for path, operations in document["paths"].items():
        content = operations.get("get", {}).get("responses", {}).get("200", {}).get("content", {})
        if "application/json" not in content or path in NOT_COMPARED:
            continue
        answer = cluster[name].request(
            "GET", f"{path.format_map(values)}?topic={TOPIC}&channel={CHANNEL}&format=json&time=-1h"
        )
        assert answer.status == 200, (path, answer)
        if answer.headers["content-type"].startswith("application/json"):
            schema = {**content["application/json"]["schema"], "components": document["components"]}
            Draft202012Validator(schema).validate(answer.json())
            checked.add(path)
    expected = {"nsqd": {"/stats", "/info", "/dead"}, "nsqlookupd": {"/lookup", "/nodes", "/debug"}}
    assert checked >= expected.get(name, {f"/api/{part}" for part in ("topics/{topic}/{channel}", "overview", "nodes")})


def test_a_daemon_with_tokens_serves_the_document_only_with_a_token(fleet: Fleet, tmp_path) -> None:
    (tmp_path / "tokens").write_text("0123456789abcdef\n")
    nsqd = fleet.nsqd("nsqx", f"--http-read-token-file={tmp_path / 'tokens'}")
    nsqadmin = fleet.nsqadmin("nsqx", "--lookupd-http-address=127.0.0.1:1", "--view-token=0123456789abcdef")
    for daemon in (nsqd, nsqadmin):
        assert daemon.request("GET", "/openapi.json").status == 401
        assert (
            daemon.request("GET", "/openapi.json", headers={"Authorization": "Bearer 0123456789abcdef"}).status == 200
        )


def test_nsqadmin_serves_the_document_under_its_base_path(fleet: Fleet) -> None:
    nsqadmin = fleet.nsqadmin("nsqx", "--lookupd-http-address=127.0.0.1:1", "--base-path=/admin")
    document = served_document(nsqadmin, "/admin/openapi.json")
    assert document == generate("nsqadmin", base_path="/admin")
    assert document["servers"][0]["url"] == "/admin"
    assert nsqadmin.request("GET", "/openapi.json").status == 404
