"""POST /log/stage, POST /log/commit and GET /log/ledger of a real nsqd."""

import http.client
import json
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from daemons import Daemon, Fleet, start_nsqd, wait_until
from nsqx.nsqd.transactions import CommitOutcome, CommitRequest
from nsqx.queues.log.staging import PartMessages, PartName, StageJob
from nsqx.testing import LocalBroker
from rawclient import OK, RawClient, mpub_body

NODES = ["one:4151", "two:4151"]
FLAGS = ("--store=log", "--store-rule=classic*=classic")


@pytest.fixture(scope="module")
def nsqd() -> Any:
    with start_nsqd(
        "nsqx", *FLAGS, "--max-msg-size=1000", "--max-body-size=20000", "--max-transaction-bytes=8000"
    ) as daemon:
        yield daemon


def group(topic: str, *bodies: bytes, defer_ms: int = 0) -> bytes:
    body = mpub_body(list(bodies))
    return bytes([len(topic)]) + topic.encode() + struct.pack(">qI", defer_ms, len(body)) + body


def stage(nsqd: Daemon, query: str, batch: int, part: str, body: bytes, attempt: str = "0", **more: str) -> Any:
    words = {"query": query, "batch": str(batch), "part": part, "attempt": attempt, **more}
    answer = nsqd.request("POST", "/log/stage", body, query=words)
    return answer.status, answer.json()


def commit(nsqd: Daemon, query: str, batch: int, *parts: str, attempt: str = "0", **more: Any) -> Any:
    names = [{"part": part, "attempt": attempt} for part in parts]
    fields = {"query": query, "batch": batch, "nodes": NODES, "place": 0, "parts": names, **more}
    answer = nsqd.request("POST", "/log/commit", json.dumps(fields).encode())
    return answer.status, answer.json()


def bodies(nsqd: Daemon, topic: str) -> list[str]:
    answer = nsqd.request("GET", "/peek", query={"topic": topic, "offset": "0", "count": "1000"})
    return [message["text"] for message in answer.json().get("messages", [])]


def staged(data_path: Path) -> list[str]:
    directory = data_path / "nsqx.staged"
    return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []


class TestOneNsqd:
    def test_a_batch_of_several_topics_is_stored_once(self, nsqd: Daemon, topic: str) -> None:
        other = f"{topic}-other"
        assert stage(nsqd, topic, 5, "0", b"a\nb\n\nc", topic=topic) == (200, {"messages": 3, "duplicate": False})
        body = group(topic, b"d") + group(other, b"e", b"f")
        assert stage(nsqd, topic, 5, "1", body) == (200, {"messages": 3, "duplicate": False})
        assert bodies(nsqd, topic) == []
        assert commit(nsqd, topic, 5, "0", "1") == (200, {"messages": 6, "duplicate": False})
        assert (bodies(nsqd, topic), bodies(nsqd, other)) == (["a", "b", "c", "d"], ["e", "f"])
        for batch in (5, 4):
            assert commit(nsqd, topic, batch, "0", "1") == (200, {"messages": 0, "duplicate": True})
            assert stage(nsqd, topic, batch, "0", b"x", topic=topic) == (200, {"messages": 1, "duplicate": True})
        assert bodies(nsqd, topic) == ["a", "b", "c", "d"]
        assert nsqd.topic_stats(topic)["message_count"] == 4
        answer = nsqd.request("GET", "/log/ledger", query={"query": topic}).json()
        (entry,) = answer["queries"]
        assert (entry["batch"], entry["nodes"], entry["place"]) == (5, NODES, 0)

    def test_only_named_parts_and_attempts_are_stored(self, nsqd: Daemon, topic: str) -> None:
        for part, attempt in (("0", "0"), ("0", "1"), ("1", "0")):
            stage(nsqd, topic, 1, part, f"{part}/{attempt}".encode(), attempt, topic=topic)
        stage(nsqd, topic, 1, "0", b"0/1 again", "1", topic=topic)
        assert commit(nsqd, topic, 1, "0", attempt="1") == (200, {"messages": 1, "duplicate": False})
        assert bodies(nsqd, topic) == ["0/1 again"]
        wait_until(lambda: nsqd.stats()["transactions"]["staged_parts"] == 0, "the other parts are removed")

    def test_a_batch_without_messages_is_a_batch(self, nsqd: Daemon, topic: str) -> None:
        assert stage(nsqd, topic, 1, "0", b"\n", topic=topic) == (200, {"messages": 0, "duplicate": False})
        assert commit(nsqd, topic, 1, "0") == (200, {"messages": 0, "duplicate": False})
        assert commit(nsqd, topic, 2) == (200, {"messages": 0, "duplicate": False})
        assert commit(nsqd, topic, 2) == (200, {"messages": 0, "duplicate": True})

    def test_a_missing_part_stores_nothing(self, nsqd: Daemon, topic: str) -> None:
        stage(nsqd, topic, 1, "0", b"x", topic=topic)
        missing = {"message": "PART_NOT_FOUND", "part": "1", "attempt": "0"}
        assert commit(nsqd, topic, 1, "0", "1") == (404, missing)
        assert (bodies(nsqd, topic), commit(nsqd, topic, 1, "0")[0]) == ([], 200)

    def test_another_list_of_nodes_is_refused_until_it_is_announced(self, nsqd: Daemon, topic: str) -> None:
        assert commit(nsqd, topic, 2)[0] == 200
        mismatch = {"message": "LEDGER_MISMATCH", "batch": 2, "nodes": "one:4151,two:4151", "place": 0}
        for more in ({"nodes": ["one:4151"]}, {"place": 1}, {"nodes": [*NODES, "three:4151"]}):
            assert commit(nsqd, topic, 4, **more) == (409, mismatch)
            assert commit(nsqd, topic, 2, **more) == (200, {"messages": 0, "duplicate": True})
        assert commit(nsqd, topic, 4, nodes=["one:4151"], replace=True)[0] == 200
        assert commit(nsqd, topic, 5, nodes=["one:4151"])[0] == 200
        assert commit(nsqd, topic, 6)[0] == 409

    def test_a_classic_topic_is_refused(self, nsqd: Daemon, topic: str) -> None:
        refusal = (400, {"message": "NOT_A_LOG", "topic": "classic"})
        assert stage(nsqd, topic, 1, "0", b"x", topic="classic") == refusal
        assert stage(nsqd, topic, 1, "0", group(topic, b"x") + group("classic", b"x")) == refusal
        assert stage(nsqd, topic, 1, "0", b"x", topic="t#ephemeral")[1] == {
            "message": "NOT_A_LOG",
            "topic": "t#ephemeral",
        }

    def test_a_topic_that_became_classic_stores_nothing_of_the_batch(self, nsqd: Daemon, topic: str) -> None:
        other = f"{topic}-other"
        stage(nsqd, topic, 1, "0", group(topic, b"x") + group(other, b"x"))
        assert nsqd.request("POST", "/topic/convert", query={"topic": other, "store": "classic"}).status == 202
        wait_until(lambda: "converting" not in nsqd.topic_stats(other), "the conversion ends")
        assert commit(nsqd, topic, 1, "0") == (400, {"message": "NOT_A_LOG", "topic": other})
        assert bodies(nsqd, topic) == []
        assert nsqd.request("POST", "/topic/convert", query={"topic": other, "store": "log"}).status == 202
        wait_until(lambda: "converting" not in nsqd.topic_stats(other), "the conversion ends")
        assert commit(nsqd, topic, 1, "0") == (200, {"messages": 2, "duplicate": False})

    def test_a_batch_that_is_too_large_is_refused(self, nsqd: Daemon, topic: str) -> None:
        for part in ("0", "1"):
            stage(nsqd, topic, 1, part, b"\n".join([b"x" * 900] * 5), topic=topic)
        status, answer = commit(nsqd, topic, 1, "0", "1")
        assert (status, answer["message"], answer["bytes"] > 9000) == (413, "TRANSACTION_TOO_LARGE", True)
        assert bodies(nsqd, topic) == []

    def test_deferred_messages_are_due_after_the_commit(self, nsqd: Daemon, topic: str) -> None:
        nsqd.post("/topic/create", topic=topic)
        nsqd.post("/channel/create", topic=topic, channel="ch")
        stage(nsqd, topic, 1, "0", group(topic, b"now") + group(topic, b"later", defer_ms=60_000))
        stage(nsqd, topic, 1, "1", b"soon", topic=topic, defer="50")
        assert commit(nsqd, topic, 1, "0", "1")[1]["messages"] == 3
        with RawClient(nsqd.tcp_address) as consumer:
            assert consumer.sub(topic, "ch") == OK
            consumer.rdy(10)
            assert [consumer.read_message().body for _ in range(2)] == [b"now", b"soon"]
        assert nsqd.channel_stats(topic, "ch")["deferred_count"] == 1

    @pytest.mark.parametrize(
        ("words", "code"),
        [
            ({"query": None}, "MISSING_ARG_QUERY"),
            ({"query": "a b"}, "INVALID_QUERY"),
            ({"batch": None}, "MISSING_ARG_BATCH"),
            ({"batch": "-1"}, "INVALID_BATCH"),
            ({"batch": str(1 << 62)}, "INVALID_BATCH"),
            ({"part": None}, "MISSING_ARG_PART"),
            ({"part": "x" * 65}, "INVALID_PART"),
            ({"attempt": None}, "MISSING_ARG_ATTEMPT"),
            ({"attempt": "../x"}, "INVALID_ATTEMPT"),
            ({"topic": "a b"}, "INVALID_TOPIC"),
            ({"defer": "-1"}, "INVALID_DEFER"),
            ({"defer": "99999999999"}, "INVALID_DEFER"),
        ],
    )
    def test_invalid_stages(self, nsqd: Daemon, words: dict[str, str | None], code: str) -> None:
        query = {"query": "q", "batch": "1", "part": "0", "attempt": "0", "topic": "t", **words}
        answer = nsqd.request("POST", "/log/stage", b"x", query={k: v for k, v in query.items() if v is not None})
        assert (answer.status, answer.json()) == (400, {"message": code})

    @pytest.mark.parametrize(
        ("body", "status", "code"),
        [
            (b"x", 413, "BAD_BODY"),
            (group("t", b"x")[:-1], 413, "BAD_BODY"),
            (group("t", b"x" * 1001), 413, "BAD_MESSAGE"),
            (group("a b", b"x"), 400, "INVALID_TOPIC"),
            (group("t", b"x", defer_ms=-1), 400, "INVALID_DEFER"),
            (b"\x01t" + struct.pack(">qI", 0, 2) + b"xx", 413, "BAD_BODY"),
        ],
    )
    def test_invalid_groups(self, nsqd: Daemon, body: bytes, status: int, code: str) -> None:
        assert stage(nsqd, "q", 1, "0", body) == (status, {"message": code})

    def test_bodies_that_are_too_large(self, nsqd: Daemon) -> None:
        assert stage(nsqd, "q", 1, "0", b"x" * 1001, topic="t") == (413, {"message": "MSG_TOO_BIG"})
        assert stage(nsqd, "q", 1, "0", b"x\n" * 10_001, topic="t") == (413, {"message": "BODY_TOO_BIG"})

    @pytest.mark.parametrize(
        ("more", "code"),
        [
            ({"query": 1}, "INVALID_QUERY"),
            ({"batch": "1"}, "INVALID_BATCH"),
            ({"batch": True}, "INVALID_BATCH"),
            ({"nodes": []}, "INVALID_NODES"),
            ({"nodes": "a"}, "INVALID_NODES"),
            ({"place": 2}, "INVALID_PLACE"),
            ({"parts": None}, "INVALID_PARTS"),
            ({"parts": [{"part": "0"}]}, "INVALID_PARTS"),
            ({"parts": [{"part": "0", "attempt": ".."}, {"part": "/", "attempt": "0"}]}, "INVALID_PARTS"),
            ({"parts": [{"part": "0", "attempt": "1"}, {"part": "0", "attempt": "2"}]}, "REPEATED_PART"),
            ({"replace": 1}, "INVALID_REPLACE"),
        ],
    )
    def test_invalid_commits(self, nsqd: Daemon, more: dict[str, Any], code: str) -> None:
        assert commit(nsqd, **{"query": "q", "batch": 1, **more}) == (400, {"message": code})

    def test_a_commit_of_too_many_parts_is_refused(self, nsqd: Daemon) -> None:
        parts = [{"part": str(number), "attempt": "0"} for number in range(10_001)]
        body = json.dumps({"query": "q", "batch": 1, "nodes": NODES, "place": 0, "parts": parts}).encode()
        with start_nsqd("nsqx", *FLAGS) as larger:
            answer = larger.request("POST", "/log/commit", body)
            assert (answer.status, answer.json()) == (413, {"message": "TOO_MANY_PARTS", "parts": 10_001})

    def test_a_commit_needs_an_object(self, nsqd: Daemon) -> None:
        for body in (b"", b"[]", b"{"):
            answer = nsqd.request("POST", "/log/commit", body)
            assert (answer.status, answer.json()) == (400, {"message": "INVALID_BODY"})
        assert nsqd.request("GET", "/log/ledger", query={"query": "unknown"}).json() == {"message": "QUERY_NOT_FOUND"}

    def test_metrics(self, nsqd: Daemon, topic: str) -> None:
        commit(nsqd, topic, 1)
        commit(nsqd, topic, 1)
        numbers = nsqd.stats()["transactions"]
        page = nsqd.request("GET", "/metrics").body.decode()
        for name, key in (
            ("nsq_transactions_total", "committed"),
            ("nsq_transaction_duplicates_total", "duplicates"),
            ("nsq_ledger_queries", "queries"),
            ("nsq_staged_parts", "staged_parts"),
        ):
            assert f"\n{name} {numbers[key]}\n" in page


def test_parts_and_ledger_survive_kill_and_restart(tmp_path: Path, topic: str) -> None:
    with start_nsqd("nsqx", *FLAGS, data_path=tmp_path) as daemon:
        for batch in (1, 2):
            stage(daemon, "q", batch, "0", b"%d" % batch, topic=topic)
        assert commit(daemon, "q", 1, "0")[1]["messages"] == 1
        daemon.kill()
    with start_nsqd("nsqx", *FLAGS, data_path=tmp_path) as daemon:
        wait_until(lambda: staged(tmp_path) == ["q,2,0,0.part"], "the part of the committed batch is removed")
        assert commit(daemon, "q", 1, "0")[1]["duplicate"]
        assert commit(daemon, "q", 2, "0")[1]["messages"] == 1
        assert daemon.stop() == 0
    with start_nsqd("nsqx", *FLAGS, data_path=tmp_path) as daemon:
        assert commit(daemon, "q", 2, "0")[1]["duplicate"]
        assert bodies(daemon, topic) == ["1", "2"]


def test_the_ledger_outlives_its_topics(tmp_path: Path, topic: str) -> None:
    with start_nsqd("nsqx", *FLAGS, data_path=tmp_path) as daemon:
        stage(daemon, "q", 1, "0", b"x", topic=topic)
        commit(daemon, "q", 1, "0")
        daemon.post("/topic/delete", topic=topic)
        daemon.stop()
    with start_nsqd("nsqx", *FLAGS, data_path=tmp_path) as daemon:
        assert daemon.stats()["topics"] == []
        assert commit(daemon, "q", 1, "0")[1]["duplicate"]


def test_the_oldest_queries_are_forgotten(tmp_path: Path) -> None:
    with start_nsqd("nsqx", *FLAGS, "--ledger-age=1ms", data_path=tmp_path) as daemon:
        commit(daemon, "a", 1)
        commit(daemon, "b", 1)
        assert [entry["query"] for entry in daemon.request("GET", "/log/ledger").json()["queries"]] == ["b"]
        assert daemon.stats()["transactions"]["queries_forgotten"] == 1


def test_a_draining_nsqd_refuses_new_batches_and_knows_the_old_ones(fleet: Fleet, topic: str) -> None:
    nsqd = fleet.nsqd("nsqx", *FLAGS)
    for batch in (1, 2):
        stage(nsqd, "q", batch, "0", b"x", topic=topic)
    commit(nsqd, "q", 1, "0")
    nsqd.post("/drain")
    for answer in (stage(nsqd, "q", 3, "0", b"x", topic=topic), commit(nsqd, "q", 2, "0")):
        assert answer == (503, {"message": "EXITING"})
    assert commit(nsqd, "q", 1, "0")[1]["duplicate"]
    nsqd.post("/undrain")
    assert commit(nsqd, "q", 2, "0")[0] == 200


def test_a_full_log_refuses_the_whole_batch(fleet: Fleet, topic: str) -> None:
    nsqd = fleet.nsqd("nsqx", *FLAGS, "--log-max-bytes=10000", "--max-bytes-per-file=2000")
    other = f"{topic}-other"
    stage(nsqd, "q", 1, "0", group(other, b"x") + group(topic, *[b"x" * 900] * 8))
    assert commit(nsqd, "q", 1, "0")[0] == 200
    body = group(other, b"x") + group(topic, *[b"x" * 900] * 8)
    assert stage(nsqd, "q", 2, "0", body)[0] == 200
    assert commit(nsqd, "q", 2, "0") == (503, {"message": "EXITING"})
    assert (len(bodies(nsqd, other)), len(bodies(nsqd, topic))) == (1, 8)


def test_too_many_deferred_messages_are_refused(fleet: Fleet, topic: str) -> None:
    """They are appended in one turn of the event loop, which must not hold up other clients for long."""
    nsqd = fleet.nsqd("nsqx", *FLAGS)
    assert stage(nsqd, "q", 1, "0", b"x\n" * 100_000, topic=topic, defer="60000")[0] == 200
    assert stage(nsqd, "q", 1, "1", b"x\n" * 200_000, topic=topic)[0] == 200
    assert stage(nsqd, "q", 1, "2", b"x", topic=topic, defer="1")[0] == 200
    refusal = {"message": "TOO_MANY_DEFERRED", "deferred": 100_001}
    assert commit(nsqd, "q", 1, "0", "1", "2") == (413, refusal)
    assert commit(nsqd, "q", 1, "0", "1") == (200, {"messages": 300_000, "duplicate": False})


def test_publishes_do_not_wait_for_parts_that_a_slow_disk_writes(topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    running = threading.Semaphore(0)
    write = StageJob.run

    def write_slowly(job: StageJob) -> None:
        running.release()
        released.wait(60)
        write(job)

    monkeypatch.setattr(StageJob, "run", write_slowly)
    with LocalBroker(store="log", sync_every=1) as broker, ThreadPoolExecutor(40) as threads:

        def stage_one(part: int) -> int:
            with closing(http.client.HTTPConnection(broker.http_address, timeout=60)) as connection:
                connection.request("POST", f"/log/stage?query=q&batch=1&part={part}&attempt=0&topic={topic}", b"x")
                return connection.getresponse().status

        answers = [threads.submit(stage_one, part) for part in range(40)]
        try:
            for _ in range(8):
                assert running.acquire(timeout=60)
            broker.publish(topic, "not staged")
        finally:
            released.set()
        assert [answer.result() for answer in answers] == [200] * 40


def test_a_deletion_after_the_commit_takes_only_its_topic(tmp_path: Path, topic: str) -> None:
    """The deletion comes in the turn of the commit, before its frame is written."""
    other = f"{topic}-other"

    async def delete(broker: Any, commit_all: Any) -> CommitOutcome:
        append = broker.transactions._append

        def append_and_delete(*arguments: Any) -> CommitOutcome:
            outcome = append(*arguments)
            broker.delete_topic(topic)
            return outcome

        broker.transactions._append = append_and_delete
        try:
            return await commit_all
        finally:
            broker.transactions._append = append

    parts = [PartName("q", 1, "0", "0")]
    request = CommitRequest("q", 1, tuple(NODES), 0, parts, False)
    for expected in (CommitOutcome(2, False), CommitOutcome(0, True)):
        with LocalBroker(store="log", data_path=str(tmp_path)) as local:
            thread, daemon = local._running()
            broker = daemon.broker
            groups = [PartMessages(name, 0, 1, mpub_body([b"x"])[4:]) for name in (topic, other)]
            thread.run(broker.transactions.stage(parts[0], groups))
            if expected.is_duplicate:
                assert thread.run(broker.transactions.commit(request)) == expected
            else:
                assert thread.run(delete(broker, broker.transactions.commit(request))) == expected
            assert local.bodies(other) == [b"x"]
            assert [found["topic_name"] for found in local._get("/stats", format="json")["topics"]] == [other]


def test_tokens(fleet: Fleet, tmp_path: Path) -> None:
    tokens = {}
    for name in ("publish", "read"):
        tokens[name] = f"{name}-token-0123456789"
        (tmp_path / name).write_text(tokens[name] + "\n")
    nsqd = fleet.nsqd(
        "nsqx", *FLAGS, f"--http-publish-token-file={tmp_path}/publish", f"--http-read-token-file={tmp_path}/read"
    )
    for method, path, group_name in (
        ("POST", "/log/stage", "publish"),
        ("POST", "/log/commit", "publish"),
        ("GET", "/log/ledger", "read"),
    ):
        for name, token in tokens.items():
            answer = nsqd.request(
                method, path, b"{}" if method == "POST" else None, headers={"Authorization": f"Bearer {token}"}
            )
            assert (answer.status == 401) == (name != group_name), (path, name, answer)
