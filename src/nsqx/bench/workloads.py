"""The table of workloads: the id, the description, the flags for nsqd and the load of each.

A workload can run on any nsqd; the flags are used if nsqd is started for the workload. Workloads of the log store have
other flags for the peer of a comparison, which need not know --store.
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
    batches,
    batches_then_drain,
    defer,
    defer_topics,
    fan_out,
    fan_out_log,
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

# Go's nsqd allocates the whole memory queue of each topic and channel, so it must not be larger than necessary.
_ALL_IN_MEMORY: Final = ("--mem-queue-size=1000000",)
_MORE_IN_MEMORY: Final = ("--mem-queue-size=10000000",)
# A publish to a log is acknowledged when it is written, or when it is durable.
_LOG_WRITE: Final = ("--store=log", "--durability=write")
_LOG_FSYNC: Final = ("--store=log", "--durability=fsync")
# The nearest promise of Go's nsqd: every message is written and synced, although OK may come before the sync.
_SYNC_EACH: Final = ("--mem-queue-size=0", "--sync-every=1")
_LARGE_QUEUE: Final = ("--mem-queue-size=10000000",)


@dataclass(frozen=True, slots=True)
class Workload:
    """One workload."""

    id: str
    about: str
    flags: tuple[str, ...]
    run: Callable[[Target, Limits], list[Figure]]
    topics: Callable[[Limits], Mapping[str, Sequence[str]]] = lambda _: {}
    """Channels by topic that must exist when a broker is started for the workload."""
    aliases: tuple[str, ...] = ()
    is_general: bool = False
    """True if the workload can run on brokers other than nsqd."""
    peer_flags: tuple[str, ...] | None = None
    """The flags of the peer in a comparison; None means the same flags."""


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
        "MPUB of 200 into memory, then consumed with RDY 2500 and one FIN per message",
        _LARGE_QUEUE,
        batches_then_drain("mem", 1_000_000),
        aliases=("mpub-mem", "sub-mem"),
        is_general=True,
    ),
    Workload("mpub-16", "MPUB of 200 into memory on 16 connections", _LARGE_QUEUE, batches(16), is_general=True),
    Workload(
        "spill",
        "the same with a memory queue of 10,000, so most messages go to disk",
        ("--mem-queue-size=10000",),
        batches_then_drain("spill", 500_000),
        aliases=("mpub-spill", "sub-spill"),
    ),
    Workload(
        "disk",
        "the same without a memory queue",
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
    Workload("http-pub", "POST /pub on 16 keep-alive connections", _ALL_IN_MEMORY, http_publish),
    Workload("large", "messages of 100 KiB, published and consumed at once", _ALL_IN_MEMORY, large, is_general=True),
    *(_many_workload(index) for index in range(len(MANY_COUNTS))),
    Workload(
        "defer",
        "100,000 deferred messages over 1,000 channels: how late they are delivered",
        (),
        defer,
        _channels_for(defer_topics),
    ),
    Workload(
        "log",
        "MPUB of 200 to a log, acknowledged when written, then consumed",
        _LOG_WRITE,
        batches_then_drain("log", 1_000_000),
        aliases=("mpub-log", "sub-log"),
        peer_flags=_MORE_IN_MEMORY,
    ),
    Workload(
        "mpub-fsync",
        "MPUB of 200 to a log on 16 connections, acknowledged when durable",
        _LOG_FSYNC,
        batches(16, "mpub-fsync"),
        peer_flags=_MORE_IN_MEMORY,
    ),
    Workload(
        "pub-2-fsync",
        "PUB to a log one at a time on 2 connections, acknowledged when durable",
        _LOG_FSYNC,
        one_by_one(2, "pub-2-fsync"),
        peer_flags=_SYNC_EACH,
    ),
    Workload(
        "pub-50-fsync",
        "the same on 50 connections",
        _LOG_FSYNC,
        one_by_one(50, "pub-50-fsync"),
        peer_flags=_ALL_IN_MEMORY,
    ),
    Workload(
        "fan-10-log",
        "one topic with a log and ten consumed channels: deliveries",
        _LOG_WRITE,
        fan_out_log,
        peer_flags=_ALL_IN_MEMORY,
    ),
    Workload(
        "many-100-fsync",
        "MPUB of 20 over 100 topics with logs, then PUB: rate, latency of OK, memory",
        _LOG_FSYNC,
        many_at(1, "many-100-fsync"),
        _channels_for(lambda limits: many_names(many_counts(limits)[1])),
        peer_flags=("--mem-queue-size=10000",),
    ),
    Workload("idle", "memory per connection of 9,000 idle subscribed connections", (), idle),
    _fair_workload("pub", "5 connections that pipeline PUB", beside_publishes),
    _fair_workload("dpub", "5 connections that pipeline DPUB", beside_deferred),
    _fair_workload("fin", "5 connections that pipeline FINs of unknown ids", beside_bad_finishes),
    _fair_workload("rdy", "5 connections that pipeline RDY after CLS", beside_late_ready),
    _fair_workload("ping", "5 connections that pipeline GET /ping", beside_pings),
    _fair_workload("mpub", "POST /mpub of 2.5 million lines", beside_tiny_lines, ()),
)


def find_workloads(names: Sequence[str]) -> list[Workload]:
    """Return the workloads with these names or aliases, all if none is given; raises BenchFailed if one is unknown."""
    if not names:
        return list(WORKLOADS)
    found: dict[str, Workload] = {}
    for name in names:
        matching = [each for each in WORKLOADS if name == each.id or name in each.aliases]
        if not matching:
            known = ", ".join(dict.fromkeys(word for each in WORKLOADS for word in (each.aliases or (each.id,))))
            raise BenchFailed(f"unknown workload {name!r}: use {known}")
        found.update({each.id: each for each in matching})
    return list(found.values())
