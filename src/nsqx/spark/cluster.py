"""HTTP queries to nsqlookupd and nsqd: the list of topics, and the depth of a channel."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import orjson

from nsqx.client.discovery import lookupd_url
from nsqx.errors import LookupFailed
from nsqx.net.address import format_host_port
from nsqx.net.daemon_http import NSQD, NSQLOOKUPD, Credentials, ask
from nsqx.net.http_client import HTTPRequestFailed

_TIMEOUT_S = 5.0


async def find_topics(lookupds: Iterable[str], credentials: Credentials) -> list[str]:
    """Return the topics of all nsqlookupds, sorted; raises LookupFailed if none of them answers."""
    topics: set[str] = set()
    for answer in await _ask_all(lookupds, credentials, "/topics"):
        topics.update(answer.get("topics") or [])
    return sorted(topics)


async def channel_depth(
    lookupds: Iterable[str], topics: Iterable[str], channel: str, credentials: Credentials
) -> int | None:
    """Return the depth of a channel over all nsqds of these topics; None if one of them does not answer."""
    depth = 0
    for topic in topics:
        try:
            answers = await _ask_all(lookupds, credentials, "/lookup", topic=topic)
        except LookupFailed:
            return None
        nodes = {
            format_host_port(each["broadcast_address"], int(each["http_port"]))
            for answer in answers
            for each in answer.get("producers") or []
        }
        counts = await asyncio.gather(*(_depth_on(node, topic, channel, credentials) for node in sorted(nodes)))
        for count in counts:
            if count is None:
                return None
            depth += count
    return depth


async def _depth_on(node: str, topic: str, channel: str, credentials: Credentials) -> int | None:
    url = lookupd_url(node, "/stats", format="json", topic=topic, include_clients="false")
    try:
        answer = await _ask(NSQD, url, credentials)
    except (HTTPRequestFailed, LookupFailed):
        return None
    depth = 0
    for each in answer.get("topics") or []:
        if each.get("topic_name") == topic:
            found = [entry for entry in each.get("channels") or [] if entry.get("channel_name") == channel]
            # Messages that wait in the topic go to the channel, also if it does not exist yet.
            depth += sum(int(entry.get("depth", 0)) for entry in found) + int(each.get("depth", 0))
    return depth


async def _ask_all(lookupds: Iterable[str], credentials: Credentials, path: str, **query: str) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = []
    failures: list[str] = []
    for lookupd in lookupds:
        try:
            answers.append(await _ask(NSQLOOKUPD, lookupd_url(lookupd, path, **query), credentials))
        except (HTTPRequestFailed, LookupFailed) as error:
            failures.append(f"nsqlookupd {lookupd}: {error}")
    if not answers:
        raise LookupFailed("; ".join(failures))
    return answers


async def _ask(kind: str, url: str, credentials: Credentials) -> dict[str, Any]:
    answer = await ask(kind, "GET", url, credentials, connect_timeout_s=_TIMEOUT_S, request_timeout_s=_TIMEOUT_S)
    if answer.status == 404 and b"TOPIC_NOT_FOUND" in answer.body:
        return {}
    if answer.status != 200:
        raise LookupFailed(f"status {answer.status}: {answer.body[:200].decode('utf-8', 'replace')}")
    try:
        found = orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        raise LookupFailed("the answer is not JSON") from None
    if not isinstance(found, dict):
        raise LookupFailed("the answer is not a JSON object")
    # Before NSQ 1.0 the answer was wrapped in "data".
    inner = found.get("data", found)
    return inner if isinstance(inner, dict) else {}
