"""Creation of the channels of all sinks before any of them is consumed, so every sink gets every message.

A new channel gets only messages that are published after its creation, except that the first channel of a topic gets
the topic's whole backlog. The channels are therefore registered at nsqlookupd, where nsqds that create the topic later
find them, and created on every nsqd that has the topic. A topic with a backlog and without channels is paused while its
channels are created. The channels of topics with a log begin at the beginning of the log, so they need no such care.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from nsqx.cluster.daemon import Change
from nsqx.cluster.fan_out import Answers, ask_all
from nsqx.cluster.lookupd import LookupdClient
from nsqx.cluster.node import merge_nodes
from nsqx.cluster.nsqd import NsqdClient
from nsqx.errors import ConfigError, NSQError, RequestFailed
from nsqx.pipeline.backfill import check_reach, check_starts, plan_backfill, plan_file_name, read_plan
from nsqx.pipeline.log_mode import create_log_channels, first_offsets, reads_logs
from nsqx.pipeline.state import start_file
from nsqx.spark.cluster import find_topics, http_session

if TYPE_CHECKING:
    from nsqx.pipeline.model import Nsq, Pipeline, Sink, Source
    from nsqx.pipeline.plan import Planned
    from nsqx.pipeline.state import PipelineState

_T = TypeVar("_T")

_TIMEOUT_S = 5.0


def check_reachable(nsq: Nsq) -> None:
    """Raise ConfigError if no nsqlookupd, or without nsqlookupd no nsqd, answers."""
    asyncio.run(_check_reachable(nsq))


async def _check_reachable(nsq: Nsq) -> None:
    if nsq.lookupd:
        try:
            await find_topics(nsq.lookupd, nsq.credentials())
        except RequestFailed as error:
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


def make_channels(pipeline: Pipeline, state: PipelineState, planned: Sequence[Planned]) -> None:
    """Create the channels of all sinks; raises ConfigError. Without nsqlookupd only those of topics with a log."""
    wanted: dict[str, list[str]] = {}
    for each in planned:
        starts: dict[str, int] = {}
        for source in each.sources:
            if reads_logs(pipeline, source, each.sink):
                starts |= _make_in_logs(pipeline, state, source, each.sink)
                continue
            if source.backfill:
                raise pipeline.fail(
                    f"source.{source.name}.backfill", "every nsqd that has the topic must have a log for it"
                )
            for topic in source.topics:
                wanted.setdefault(topic, []).append(pipeline.channel_of(source, each.sink))
        if starts and not state.has(f"{each.sink.name}/checkpoint/offsets"):
            state.write(start_file(each.sink), starts)
    if not pipeline.nsq.lookupd:
        return
    try:
        asyncio.run(_make_all(pipeline.nsq, wanted))
    except NSQError as error:
        raise pipeline.fail("nsq.lookupd", f"cannot create the channels: {error}") from None


def _make_in_logs(pipeline: Pipeline, state: PipelineState, source: Source, sink: Sink) -> dict[str, int]:
    is_new = not state.has(f"{sink.name}/checkpoint/offsets")
    try:
        if not source.backfill or not is_new:
            return create_log_channels(pipeline, source, sink)
        name = plan_file_name(sink.name, source.name)
        plan = read_plan(state, name)
        if plan is None:
            plan = plan_backfill(source.backfill, source.topics)
            check_reach(plan, first_offsets(pipeline, source, sink))
            state.write(name, plan.as_json())
        found = create_log_channels(pipeline, source, sink, plan.starts)
        check_starts(plan, found, pipeline.channel_of(source, sink))
        return found
    except NSQError as error:
        key = f"source.{source.name}{'.backfill' if source.backfill else ''}"
        raise pipeline.fail(key, str(error).removeprefix("nsq: ")) from None


async def _make_all(nsq: Nsq, wanted: dict[str, list[str]]) -> None:
    http = http_session(nsq.credentials())
    lookupds = LookupdClient.at(http, nsq.lookupd)
    for topic, channels in wanted.items():
        _accepted(await ask_all(lookupds, _register, topic, channels))
    for topic, channels in wanted.items():
        nodes = merge_nodes(_accepted(await ask_all(lookupds, LookupdClient.lookup, topic)))
        nsqds = NsqdClient.at(http, (node.http_address for node in nodes))
        (await ask_all(nsqds, _make_on, topic, channels)).require_all()


def _accepted(answers: Answers[_T]) -> list[_T]:
    """Return the answers of nsqlookupds, of which some may be down.

    Raises RequestFailed if none answers, or if one refuses.
    """
    if any(error.status for _, error in answers.failures):
        answers.require_all()
    return answers.require_one().values


async def _register(lookupd: LookupdClient, topic: str, channels: Sequence[str]) -> None:
    for channel in channels:
        await lookupd.apply(Change("create", topic, channel))


async def _make_on(nsqd: NsqdClient, topic: str, channels: Sequence[str]) -> None:
    stats = next((each for each in await nsqd.stats(topic) if each.get("topic_name") == topic), {})
    there = {each["channel_name"] for each in stats.get("channels") or []}
    missing = [channel for channel in channels if channel not in there]
    must_pause = not there and len(missing) > 1 and stats.get("depth", 0) > 0 and not stats.get("paused")
    if must_pause:
        await nsqd.apply(Change("pause", topic))
    try:
        for channel in missing:
            await nsqd.apply(Change("create", topic, channel))
    finally:
        if must_pause:
            await nsqd.apply(Change("unpause", topic))
