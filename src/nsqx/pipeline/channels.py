"""Creation of the channels of all sinks before any of them is consumed, so every sink gets every message.

A new channel gets only messages that are published after its creation, except that the first channel of a topic gets
the topic's whole backlog. The channels are therefore registered at nsqlookupd, where nsqds that create the topic later
find them, and created on every nsqd that has the topic. A topic with a backlog and without channels is paused while its
channels are created.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from nsqx.client.discovery import lookupd_url
from nsqx.errors import ConfigError, LookupFailed, NSQError
from nsqx.net.address import format_host_port
from nsqx.net.daemon_http import NSQD, NSQLOOKUPD, Credentials, ask
from nsqx.net.http_client import HTTPAnswer, HTTPRequestFailed
from nsqx.spark.cluster import find_topics

if TYPE_CHECKING:
    from nsqx.pipeline.model import Nsq, Pipeline
    from nsqx.pipeline.plan import Planned

_TIMEOUT_S = 5.0


def check_reachable(nsq: Nsq) -> None:
    """Raise ConfigError if no nsqlookupd, or without nsqlookupd no nsqd, answers."""
    asyncio.run(_check_reachable(nsq))


async def _check_reachable(nsq: Nsq) -> None:
    if nsq.lookupd:
        try:
            await find_topics(nsq.lookupd, nsq.credentials())
        except LookupFailed as error:
            raise ConfigError(f"{error}: start it, or set its address in [nsq] lookupd or --lookupd") from None
        return
    failures = []
    for address in nsq.nsqd:
        host, _, port = address.rpartition(":")
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(host, int(port)), _TIMEOUT_S)
        except (OSError, ValueError, TimeoutError) as error:
            failures.append(f"nsqd {address}: {getattr(error, 'strerror', None) or error or 'no answer'}")
        else:
            writer.close()
            return
    raise ConfigError(f"{'; '.join(failures)}: start it, or set its address in [nsq] nsqd or --nsqd")


def make_channels(pipeline: Pipeline, planned: Sequence[Planned]) -> None:
    """Create the channels of all sinks; no-op without nsqlookupd. Raises ConfigError."""
    if not pipeline.nsq.lookupd:
        return
    wanted: dict[str, list[str]] = {}
    for each in planned:
        for source in each.sources:
            for topic in source.topics:
                wanted.setdefault(topic, []).append(pipeline.channel_of(source, each.sink))
    try:
        asyncio.run(_ChannelMaker(pipeline.nsq.credentials()).make_all(pipeline.nsq.lookupd, wanted))
    except NSQError as error:
        raise pipeline.fail("nsq.lookupd", f"cannot create the channels: {error}") from None


class _ChannelMaker:
    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    async def make_all(self, lookupds: Iterable[str], wanted: dict[str, list[str]]) -> None:
        for lookupd in lookupds:
            for topic, channels in wanted.items():
                for channel in channels:
                    try:
                        await self._post(NSQLOOKUPD, lookupd, "/channel/create", topic=topic, channel=channel)
                    except HTTPRequestFailed:
                        # One of several nsqlookupds may be down; check_reachable has found one that answers.
                        continue
        for topic, channels in wanted.items():
            for node in await self._nodes_of(lookupds, topic):
                await self._make_on(node, topic, channels)

    async def _make_on(self, node: str, topic: str, channels: Sequence[str]) -> None:
        found = (await self._get(NSQD, node, "/stats", format="json", topic=topic)).get("topics") or []
        stats: dict[str, Any] = next((each for each in found if each.get("topic_name") == topic), {})
        there = {each["channel_name"] for each in stats.get("channels") or []}
        missing = [channel for channel in channels if channel not in there]
        must_pause = not there and len(missing) > 1 and stats.get("depth", 0) > 0 and not stats.get("paused")
        if must_pause:
            await self._post(NSQD, node, "/topic/pause", topic=topic)
        try:
            for channel in missing:
                await self._post(NSQD, node, "/channel/create", topic=topic, channel=channel)
        finally:
            if must_pause:
                await self._post(NSQD, node, "/topic/unpause", topic=topic)

    async def _nodes_of(self, lookupds: Iterable[str], topic: str) -> list[str]:
        nodes: set[str] = set()
        for lookupd in lookupds:
            try:
                answer = await self._get(NSQLOOKUPD, lookupd, "/lookup", topic=topic)
            except HTTPRequestFailed:
                continue
            for each in answer.get("producers") or []:
                nodes.add(format_host_port(each["broadcast_address"], int(each["http_port"])))
        return sorted(nodes)

    async def _get(self, kind: str, address: str, path: str, **query: str) -> dict[str, Any]:
        answer = await self._ask(kind, "GET", address, path, query)
        if answer.status == 404:  # the topic does not exist yet
            return {}
        found = orjson.loads(_good(answer, address, path).body)
        return found if isinstance(found, dict) else {}

    async def _post(self, kind: str, address: str, path: str, **query: str) -> None:
        _good(await self._ask(kind, "POST", address, path, query), address, path)

    async def _ask(self, kind: str, method: str, address: str, path: str, query: dict[str, str]) -> HTTPAnswer:
        url = lookupd_url(address, path, **query)
        return await ask(
            kind, method, url, self._credentials, connect_timeout_s=_TIMEOUT_S, request_timeout_s=_TIMEOUT_S
        )


def _good(answer: HTTPAnswer, address: str, path: str) -> HTTPAnswer:
    if answer.status != 200:
        raise NSQError(f"{address}{path}: status {answer.status}: {answer.body[:200].decode('utf-8', 'replace')}")
    return answer
