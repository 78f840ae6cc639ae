"""The workloads by id: which flags an nsqd needs for each, what is done to it, and what that is about.

A workload runs against any nsqd; the flags are for whoever starts one for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nsqx.bench.failure import BenchFailed
from nsqx.bench.fairness import (
    beside_bad_finishes,
    beside_deferred,
    beside_late_ready,
    beside_pings,
    beside_publishes,
    beside_tiny_lines,
)
from nsqx.bench.loads import (
    CHANNEL,
    MANY_COUNTS,
    Limits,
    batches_then_drain,
    defer,
    defer_topics,
    fan_out,
    flow,
    http_publish,
    idle,
    large,
    many_at,
    many_counts,
    many_names,
    one_by_one,
)

if TYPE_CHECKING:
    from nsqx.bench.brokers import Target
    from nsqx.bench.figures import Figure

# Go's nsqd allocates its memory queues in full, for each topic and channel, so none is larger than it must be.
_ALL_IN_MEMORY: Final = ("--mem-queue-size=1000000",)


@dataclass(frozen=True, slots=True)
class Workload:
    """One row of the table."""

    id: str
    about: str
    flags: tuple[str, ...]
    run: Callable[[Target, Limits], list[Figure]]
    topics: Callable[[Limits], Mapping[str, Sequence[str]]] = lambda _: {}
    """Channels by topic that a broker started for it should know from the beginning."""
    aliases: tuple[str, ...] = ()
    is_general: bool = False
    """It can be put to brokers that are no nsqd."""


def _fair_workload(
    name: str, flood: str, run: Callable[[Target, Limits], list[Figure]], flags: tuple[str, ...] = _ALL_IN_MEMORY
) -> Workload:
    about = f"PUB one at a time beside {flood}: p99 and worst round trip"
    return Workload(f"fair-{name}", about, flags, run, aliases=("fair",))


def _channels_for(names: Callable[[Limits], list[str]]) -> Callable[[Limits], Mapping[str, Sequence[str]]]:
    return lambda limits: {topic: [CHANNEL] for topic in names(limits)}


def _many_workload(index: int) -> Workload:
    topics = MANY_COUNTS[index]
    return Workload(
        f"many-{topics}",
        f"MPUB of 20 over {topics:,} topics, then PUB: rate, latency of OK, memory",
        (f"--mem-queue-size={max(1_000_000 // topics, 1_000)}",),
        many_at(index),
        _channels_for(lambda limits: many_names(many_counts(limits)[index])),
        aliases=("many",),
    )


WORKLOADS: Final[tuple[Workload, ...]] = (
    Workload(
        "mem",
        "MPUB of 200 into memory, then drained with RDY 2500 and a FIN each",
        ("--mem-queue-size=10000000",),
        batches_then_drain("mem", 1_000_000),
        aliases=("mpub-mem", "sub-mem"),
        is_general=True,
    ),
    Workload(
        "spill",
        "the same with a memory queue of 10,000, so that most goes over disk",
        ("--mem-queue-size=10000",),
        batches_then_drain("spill", 500_000),
        aliases=("mpub-spill", "sub-spill"),
    ),
    Workload(
        "disk",
        "the same with no memory queue",
        ("--mem-queue-size=0",),
        batches_then_drain("disk", 500_000),
        aliases=("mpub-disk", "sub-disk"),
    ),
    Workload(
        "pub-2", "PUB one at a time, waiting for OK, on 2 connections", _ALL_IN_MEMORY, one_by_one(2), is_general=True
    ),
    Workload("pub-50", "the same on 50 connections", _ALL_IN_MEMORY, one_by_one(50), is_general=True),
    Workload(
        "flow",
        "publishers and consumers at once: throughput, then latency at 10,000 and 100,000 msg/s",
        _ALL_IN_MEMORY,
        flow,
        is_general=True,
    ),
    Workload("fan-10", "one topic with ten consumed channels: deliveries", _ALL_IN_MEMORY, fan_out),
    Workload("http-pub", "POST /pub on 16 connections that are kept", _ALL_IN_MEMORY, http_publish),
    Workload("large", "messages of 100 KiB, published and consumed at once", _ALL_IN_MEMORY, large, is_general=True),
    *(_many_workload(index) for index in range(len(MANY_COUNTS))),
    Workload(
        "defer",
        "100,000 deferred messages over 1,000 channels: how late they come",
        (),
        defer,
        _channels_for(defer_topics),
    ),
    Workload("idle", "memory for each of 9,000 subscribed connections that do nothing", (), idle),
    _fair_workload("pub", "5 connections that pipeline PUB", beside_publishes),
    _fair_workload("dpub", "5 connections that pipeline DPUB", beside_deferred),
    _fair_workload("fin", "5 connections that pipeline FINs of unknown ids", beside_bad_finishes),
    _fair_workload("rdy", "5 connections that pipeline RDY after CLS", beside_late_ready),
    _fair_workload("ping", "5 connections that pipeline GET /ping", beside_pings),
    _fair_workload("mpub", "POST /mpub of 2.5 million lines", beside_tiny_lines, ()),
)


def find_workloads(names: Sequence[str]) -> list[Workload]:
    """The workloads that ``names`` mean, all if there are none; raises BenchFailed for an unknown one."""
    if not names:
        return list(WORKLOADS)
    found: dict[str, Workload] = {}
    for name in names:
        matching = [each for each in WORKLOADS if name == each.id or name in each.aliases]
        if not matching:
            known = ", ".join(dict.fromkeys(word for each in WORKLOADS for word in (each.aliases or (each.id,))))
            raise BenchFailed(f"unknown workload {name!r}: there are {known}")
        found.update({each.id: each for each in matching})
    return list(found.values())
