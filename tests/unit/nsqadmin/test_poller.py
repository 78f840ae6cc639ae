"""Polling the cluster, and the events for viewers."""

import asyncio
import io
from collections.abc import AsyncGenerator
from typing import Any, cast

import orjson
import pytest

from nsqx.errors import RequestFailed
from nsqx.log import WARN, Log
from nsqx.nsqadmin.live import LiveAPI
from nsqx.nsqadmin.options import NsqadminOptions
from nsqx.nsqadmin.poller import Poller
from nsqx.nsqadmin.sse import Viewers


class FakeSession:
    """A fake HTTP session: documents by URL; other URLs fail."""

    def __init__(self) -> None:
        self.documents: dict[str, Any] = {}

    def set_topics(self, node: str, **message_counts: int) -> None:
        topics = [
            {
                "topic_name": name,
                "channels": [],
                "depth": 0,
                "backend_depth": 0,
                "message_count": count,
                "paused": False,
            }
            for name, count in message_counts.items()
        ]
        url = f"http://{node}/stats?format=json&include_clients=false&include_mem=false"
        self.documents[url] = {"topics": topics, "node": {"nsqx_version": "0.1.0"}}

    def set_nodes(self, lookupd: str, *nodes: str) -> None:
        producers = [{"broadcast_address": node.split(":")[0], "http_port": int(node.split(":")[1])} for node in nodes]
        self.documents[f"http://{lookupd}/nodes"] = {"producers": producers}
        self.documents.setdefault(f"http://{lookupd}/topics", {"topics": []})

    async def ask(self, _kind: str, _method: str, url: str, _body: bytes) -> bytes:
        await asyncio.sleep(0)
        if url not in self.documents:
            raise RequestFailed(f"no {url}")
        return orjson.dumps(self.documents[url])


class PollerHarness:
    def __init__(self, **options: Any) -> None:
        self.answers = FakeSession()
        self.lines = io.StringIO()
        self.options = NsqadminOptions(state_file="-", **options)
        self.poller = Poller(self.options, cast("Any", self.answers), Log("", WARN, self.lines), 10)
        self.live = LiveAPI(self.poller, cast("Any", None), Viewers(10))

    async def poll(self) -> None:
        await self.poller.poll()
        polled, self.poller._polled = self.poller._polled, asyncio.Event()
        polled.set()

    def present(self) -> list[str]:
        return [topic.name for topic in self.poller.cluster_stats.present_topics()]


@pytest.fixture
def harness() -> PollerHarness:
    made = PollerHarness(nsqlookupd_http_addresses=["l1:1", "l2:1"])
    made.answers.set_nodes("l1:1", "a:1", "b:1")
    made.answers.set_nodes("l2:1", "b:1", "c:1")
    made.answers.set_topics("a:1", t=1)
    made.answers.set_topics("b:1", t=2, u=3)
    made.answers.set_topics("c:1")
    return made


async def test_every_node_is_polled_once(harness: PollerHarness) -> None:
    await harness.poll()
    assert harness.poller.node_count == 3
    assert harness.poller.cluster_stats.topics["t"].row["message_count"] == 3
    assert harness.poller.problems == []


async def test_an_nsqd_given_twice_is_polled_once() -> None:
    harness = PollerHarness(nsqd_http_addresses=["a:1", "a:1"])
    harness.answers.set_topics("a:1", t=1)
    await harness.poll()
    assert harness.poller.cluster_stats.topics["t"].row["nodes"] == 1


async def test_partial_failures_are_reported(harness: PollerHarness) -> None:
    del harness.answers.documents["http://l2:1/nodes"]
    harness.answers.documents["http://b:1/stats?format=json&include_clients=false&include_mem=false"] = {
        "topics": [{}],
        "node": {},
    }
    for _ in range(3):
        await harness.poll()
    assert harness.poller.problems[0] == "nsqlookupd l2:1: no http://l2:1/nodes"
    assert harness.poller.problems[1].startswith("nsqd b:1: not nsqd's stats")
    assert harness.present() == ["t"]
    assert harness.lines.getvalue().count("poll: nsqlookupd l2:1: no http://l2:1/nodes") == 1, (
        "logged once, not at every poll"
    )


async def test_a_poll_without_nsqlookupd_is_skipped(harness: PollerHarness) -> None:
    await harness.poll()
    harness.answers.documents.clear()
    await harness.poll()
    assert len(harness.poller.problems) == 1
    assert harness.present() == ["t", "u"]
    assert harness.poller.cluster_stats.clock.number == 1


async def test_a_poll_without_any_nsqd_is_skipped(harness: PollerHarness) -> None:
    await harness.poll()
    for url in [url for url in harness.answers.documents if "stats" in url]:
        del harness.answers.documents[url]
    await harness.poll()
    assert len(harness.poller.problems) == 3
    assert harness.present() == ["t", "u"]


async def test_a_topic_that_only_nsqlookupd_knows_is_listed(harness: PollerHarness) -> None:
    harness.answers.documents["http://l2:1/topics"] = {"topics": ["t", "made"]}
    await harness.poll()
    assert harness.present() == ["t", "u", "made"]
    assert harness.poller.cluster_stats.topics["made"].row["nodes"] == 0
    harness.answers.documents["http://l2:1/topics"] = {"topics": ["t"]}
    await harness.poll()
    assert harness.poller.cluster_stats.removed == ["made"]


async def test_messages_of_a_lost_node_are_stranded(harness: PollerHarness) -> None:
    await harness.poll()
    harness.answers.set_nodes("l2:1", "b:1")
    harness.answers.set_topics("a:1", t=1)
    harness.answers.set_nodes("l1:1", "a:1")
    harness.answers.set_nodes("l2:1", "c:1")
    await harness.poll()
    assert [each["address"] for each in harness.poller.inventory.missing] == ["b:1"]
    rows = harness.poller.cluster_stats.topics
    assert (rows["t"].row["nodes"], rows["t"].row["missing_nodes"]) == (1, 1)
    assert (rows["u"].row["nodes"], rows["u"].row["missing_nodes"]) == (0, 1), "u was on the lost node alone"
    assert harness.poller.forget("a:1") is False
    assert harness.poller.forget("b:1") is True
    await harness.poll()
    assert harness.present() == ["t"]


async def test_a_change_brings_the_next_poll_forward(harness: PollerHarness) -> None:
    harness.poller.interval_s = 3600.0
    harness.poller.start()
    async with asyncio.timeout(10):
        await harness.poller.next_poll.wait()
        harness.poller.wake()
        await harness.poller.next_poll.wait()
    await harness.poller.stop()


async def test_polling_continues_after_an_error(harness: PollerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = 0

    async def fail() -> None:
        nonlocal failures
        failures += 1
        raise RuntimeError("a programming error")

    monkeypatch.setattr(harness.poller, "poll", fail)
    harness.poller.interval_s = 0.001
    harness.poller.start()
    async with asyncio.timeout(10):
        for _ in range(3):
            await harness.poller.next_poll.wait()
    await harness.poller.stop()
    assert failures >= 3
    assert "a programming error" in harness.lines.getvalue()


def parse(data: bytes) -> tuple[str, Any]:
    fields = dict(line.split(b": ", 1) for line in data.strip().split(b"\n"))
    return fields[b"event"].decode(), orjson.loads(fields[b"data"])


async def next_event(events: AsyncGenerator[bytes, None]) -> tuple[str, Any]:
    async with asyncio.timeout(10):
        return parse(await anext(events))


async def test_a_stream_starts_with_a_snapshot_and_continues_with_changes(harness: PollerHarness) -> None:
    await harness.poll()
    events = harness.live._all_events(harness.poller)
    name, data = await next_event(events)
    assert name == "snapshot"
    assert [row["name"] for row in data["topics"]] == ["t", "u"]
    assert data["topics"][0]["sparkline"] == [0]
    waiting = asyncio.create_task(next_event(events))
    await asyncio.sleep(0)
    harness.answers.set_topics("b:1", t=7)
    await harness.poll()
    name, data = await waiting
    assert name == "delta"
    assert [(row["name"], row["message_count"]) for row in data["topics"]] == [("t", 8)]
    assert data["removed"] == ["u"]
    assert data["number"] == 1
    await events.aclose()


async def test_a_viewer_that_missed_a_poll_gets_a_snapshot(harness: PollerHarness) -> None:
    await harness.poll()
    events = harness.live._all_events(harness.poller)
    await next_event(events)
    for _ in range(2):
        await harness.poll()
    name, data = await next_event(events)
    # The stream waited for the first poll, which is over: it sends the current state.
    assert (name, data["number"]) == ("snapshot", 2)
    await events.aclose()


async def test_an_event_is_encoded_once_for_all_viewers(
    harness: PollerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.poll()
    written = 0
    write = harness.live._overview

    def count(poller: Poller) -> bytes:
        nonlocal written
        written += 1
        return write(poller)

    monkeypatch.setattr(harness.live, "_overview", count)
    for _ in range(5):
        events = harness.live._all_events(harness.poller)
        await next_event(events)
        await events.aclose()
    assert written == 1
    await harness.poll()
    events = harness.live._all_events(harness.poller)
    await next_event(events)
    await events.aclose()
    assert written == 2
