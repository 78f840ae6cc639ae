"""Questions to nsqd over HTTP."""

from __future__ import annotations

from typing import Any

from nsqx.cluster.credentials import NSQD
from nsqx.cluster.daemon import DaemonClient, Query
from nsqx.cluster.http import decode
from nsqx.cluster.json_fields import objects
from nsqx.cluster.node import Node
from nsqx.errors import RequestFailed


class NsqdClient(DaemonClient):
    """Asks one nsqd. Every method raises RequestFailed."""

    kind = NSQD

    async def info(self) -> Node:
        """Return the nsqd's description of itself, without its topics."""
        return Node.decode(await self.get("/info"))

    async def ask_object(self, method: str, path: str, query: Query, body: bytes = b"") -> dict[str, Any]:
        """Return the JSON object in the answer of a route."""
        document = decode(await self._ask(method, path, query, body))
        if not isinstance(document, dict):
            raise RequestFailed("json: not an object")
        return document

    async def stats(self, topic: str = "", channel: str = "", *, include_clients: bool = False) -> list[dict[str, Any]]:
        """Return the topics in /stats, all or those that match."""
        return topics_of(await self.stats_bytes(topic, channel, include_clients=include_clients))

    async def stats_bytes(
        self, topic: str = "", channel: str = "", *, include_clients: bool = False, include_mem: bool = True
    ) -> bytes:
        """Return the answer of /stats, for ``topics_of``."""
        query = {"format": "json", "topic": topic, "channel": channel}
        if not include_clients:
            query["include_clients"] = "false"
        if not include_mem:
            query["include_mem"] = "false"
        return await self._ask("GET", "/stats", {name: value for name, value in query.items() if value})

    async def dead(self, topic: str, channel: str = "", offset: str = "", skip: str = "", count: str = "") -> Any:
        """Return the answer of /dead: letters of a topic. The status of the error is 404 if there are none."""
        query = {"topic": topic, "channel": channel, "offset": offset, "skip": skip, "count": count}
        return await self.get("/dead", **{name: value for name, value in query.items() if value})

    async def change_dead(self, action: str, topic: str, channel: str, offsets: list[str], count: int) -> Any:
        """Redrive or purge letters of a topic, and return the answer."""
        query: dict[str, str | list[str]] = {"topic": topic, "offset": offsets, "count": str(count)}
        if channel:
            query["channel"] = channel
        return decode(await self._ask("POST", f"/dead/{action}", query))

    async def trim_log(self, topic: str, before: str, *, is_dry_run: bool = False) -> dict[str, Any]:
        """Drop the messages of a log topic before a position, or return what that would do."""
        query = {"topic": topic, "before": before, "dry_run": "true" if is_dry_run else "false"}
        return _object_with(decode(await self._ask("POST", "/log/trim", query)), "before")

    async def publish(self, topic: str, body: bytes, defer_ms: int = 0) -> None:
        query = {"topic": topic, "defer": str(defer_ms)} if defer_ms else {"topic": topic}
        await self._ask("POST", "/pub", query, body)

    async def peek(self, topic: str, channel: str = "", **query: str) -> dict[str, Any]:
        """Return the answer of /peek."""
        given = {"topic": topic, "channel": channel, **query}
        answer = decode(await self._ask("GET", "/peek", {name: value for name, value in given.items() if value}))
        return _object_with(answer, "messages")

    async def seek(self, topic: str, channel: str, to: str, *, is_dry_run: bool = False) -> dict[str, Any]:
        """Move a channel, or only return what that would do."""
        query = {"topic": topic, "channel": channel, "to": to, "dry_run": "true" if is_dry_run else "false"}
        return _object_with(decode(await self._ask("POST", "/channel/seek", query)), "depth")


def _object_with(answer: Any, key: str) -> dict[str, Any]:
    """Return an answer; raises RequestFailed if it is not an object with ``key``."""
    if not isinstance(answer, dict) or key not in answer:
        raise RequestFailed("the answer is not from nsqd")
    return answer


def topics_of(stats: bytes) -> list[dict[str, Any]]:
    """Return the topics in an answer of /stats; raises RequestFailed."""
    topics: list[dict[str, Any]] = stats_of(stats)["topics"]
    return topics


def stats_of(stats: bytes) -> dict[str, Any]:
    """Return an answer of /stats, with a list of topics; raises RequestFailed."""
    document: dict[str, Any] = decode(stats)
    topics = objects(document, "topics") or []
    if "topics" not in document:
        raise RequestFailed("the answer is not from nsqd")
    return {**document, "topics": topics}
