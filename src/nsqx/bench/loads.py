"""The loads of the workloads, and their measurements. Every phase is limited by a count and a time."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from nsqx.bench.consumers import BenchConsumer, Subscriber
from nsqx.bench.failure import BenchFailed
from nsqx.bench.figures import KIBIBYTES, MEBIBYTES, PER_SECOND, Figure, lateness_figures
from nsqx.bench.protocols import (
    HTTPPublish,
    NSQConsume,
    NSQPublish,
    encode_publish,
    encode_publish_many,
)
from nsqx.bench.publishers import ClosedLoop, DeferredPublisher, OpenLoop, closed_loops, split_evenly
from nsqx.bench.shared_counters import SharedCounters
from nsqx.bench.worker_processes import RunResult, Worker, run_together

if TYPE_CHECKING:
    from nsqx.bench.brokers import Target, Usage

CHANNEL: Final = "bench"
READY_COUNT: Final = 2500
BATCH: Final = 200
GRACE_S: Final = 60.0
_WARM_UP_SHARE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a run; 0 means the default of the workload."""

    count: int = 0
    seconds: float = 10.0
    size: int = 0
    processes: int = 2

    def counted(self, default: int) -> int:
        """Return the count, or the default of the workload."""
        return self.count or default


class _Meter:
    """Runs workers and measures the CPU time of the broker."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._before: Usage | None = None

    def run(self, workers: Sequence[Worker], seconds: float) -> tuple[RunResult, float | None]:
        """Return the result of the workers, and the CPU seconds of the broker, or None if its process is unknown."""
        result = run_together(workers, seconds + GRACE_S, self._begin)
        after = self._target.usage()
        if after is None or self._before is None:
            return result, None
        return result, after.cpu_s - self._before.cpu_s

    def _begin(self) -> None:
        self._before = self._target.usage()


def _cpu_us(cpu_s: float | None, count: int) -> float | None:
    return None if cpu_s is None or not count else cpu_s * 1e6 / count


def new_topic(name: str) -> str:
    """Return a topic name that is not in use."""
    return f"bench_{name.replace('-', '_')}_{secrets.token_hex(4)}"


def make_channel(target: Target, topic: str, channel: str = CHANNEL) -> None:
    target.protocol.make_queue(target.tcp_address, topic, channel)


def _body(limits: Limits, default: int = 200) -> bytes:
    return b"x" * (limits.size or default)


def _publish_rate(name: str, workers: list[ClosedLoop], target: Target, limits: Limits) -> tuple[Figure, int]:
    """Run publishers; return their rate and the number of messages."""
    result, cpu_s = _Meter(target).run(workers, limits.seconds)
    count = result.count()
    return Figure(name, count / result.elapsed_s(), PER_SECOND, _cpu_us(cpu_s, count)), count


def _publish_batches(
    name: str, target: Target, topic: str, connections: int, count: int, limits: Limits
) -> tuple[Figure, int]:
    """Publish batches of 200 messages; return their rate and the number of messages."""
    make_channel(target, topic)
    batch = min(BATCH, count)
    bodies = [_body(limits)] * batch
    workers = closed_loops(
        target.tcp_address,
        lambda _: target.protocol.publisher(topic, bodies),
        connections,
        limits.processes,
        batch,
        count,
        limits.seconds,
    )
    return _publish_rate(name, workers, target, limits)


def batches(connections: int, name: str = "") -> Callable[[Target, Limits], list[Figure]]:
    name = name or f"mpub-{connections}"

    def run(target: Target, limits: Limits) -> list[Figure]:
        count = limits.counted(1_000_000)
        return [_publish_batches(name, target, new_topic(name), connections, count, limits)[0]]

    return run


def batches_then_drain(kind: str, default_count: int) -> Callable[[Target, Limits], list[Figure]]:
    def run(target: Target, limits: Limits) -> list[Figure]:
        topic = new_topic(kind)
        count = limits.counted(default_count)
        published, count = _publish_batches(f"mpub-{kind}", target, topic, limits.processes, count, limits)
        counters = SharedCounters.of_backlog(count, limits.processes)
        consumers = [
            BenchConsumer(
                target.tcp_address,
                [target.protocol.consumer(topic, CHANNEL, READY_COUNT)],
                limits.seconds,
                counters,
                slot,
            )
            for slot in range(limits.processes)
        ]
        result, cpu_s = _Meter(target).run(consumers, limits.seconds)
        drained = result.count()
        if not drained:
            raise BenchFailed("no message was received")
        rate = drained / result.elapsed_s()
        return [published, Figure(f"sub-{kind}", rate, PER_SECOND, _cpu_us(cpu_s, drained))]

    return run


def one_by_one(connections: int, name: str = "") -> Callable[[Target, Limits], list[Figure]]:
    name = name or f"pub-{connections}"

    def run(target: Target, limits: Limits) -> list[Figure]:
        topic = new_topic(name)
        make_channel(target, topic)
        bodies = [_body(limits)]
        workers = closed_loops(
            target.tcp_address,
            lambda _: target.protocol.publisher(topic, bodies),
            connections,
            limits.processes,
            1,
            limits.counted(100_000),
            limits.seconds,
        )
        return [_publish_rate(name, workers, target, limits)[0]]

    return run


def http_publish(target: Target, limits: Limits) -> list[Figure]:
    if not target.http_address:
        raise BenchFailed("http-pub requires --nsqd-http-address")
    topic = new_topic("http-pub")
    make_channel(target, topic)
    workers = closed_loops(
        target.http_address,
        lambda _: HTTPPublish(target.http_address, topic, _body(limits)),
        16,
        limits.processes,
        1,
        limits.counted(100_000),
        limits.seconds,
    )
    return [_publish_rate("http-pub", workers, target, limits)[0]]


def _through(
    name: str,
    target: Target,
    limits: Limits,
    *,
    channels: int,
    count: int,
    batch: int,
    publishers: int,
    consumers: int,
    window: int,
    ready_count: int = READY_COUNT,
    size: int = 200,
) -> Figure:
    """Run publishers and consumers at once until every channel has received every message; deliveries per second."""
    topic = new_topic(name)
    names = [f"{CHANNEL}{index}" for index in range(channels)]
    for channel in names:
        make_channel(target, topic, channel)
    batch = min(batch, count)
    bodies = [_body(limits, size)] * batch
    counters = SharedCounters(publishers, consumers, channels)
    workers: list[Worker] = [
        replace(
            ClosedLoop(target.tcp_address, [target.protocol.publisher(topic, bodies)], batch, part, limits.seconds),
            counters=counters,
            slot=slot,
            window=window,
        )
        for slot, part in enumerate(split_evenly(count, publishers))
    ]
    for slot in range(consumers):
        protocols = [target.protocol.consumer(topic, channel, ready_count) for channel in names[slot::consumers]]
        workers.append(BenchConsumer(target.tcp_address, protocols, limits.seconds + 10, counters, slot))
    result, cpu_s = _Meter(target).run(workers, limits.seconds)
    received = sum(each.count for each in result.outcomes[publishers:])
    if not received:
        raise BenchFailed("no message was received")
    return Figure(name, received / result.elapsed_s(), PER_SECOND, _cpu_us(cpu_s, received))


def flow(target: Target, limits: Limits) -> list[Figure]:
    figures = [
        _through(
            "flow",
            target,
            limits,
            channels=1,
            count=limits.counted(1_000_000),
            batch=BATCH,
            publishers=1,
            consumers=1,
            window=50_000,
        )
    ]
    for rate in (10_000, 100_000) if target.is_nsqd else ():
        figures += _latency(target, limits, rate)
    return figures


def _latency(target: Target, limits: Limits, rate: int) -> list[Figure]:
    name = f"flow {rate // 1000}k"
    topic = new_topic("flow-paced")
    make_channel(target, topic)
    count = limits.counted(int(rate * min(limits.seconds, 5.0)))
    counters = SharedCounters(1, 1)
    size = max(limits.size or 200, 8)
    workers: list[Worker] = [
        OpenLoop(target.tcp_address, topic, size, rate, count, counters),
        BenchConsumer(
            target.tcp_address,
            [NSQConsume(topic, CHANNEL, READY_COUNT, is_timed=True)],
            limits.seconds + 10,
            counters,
            0,
        ),
    ]
    result, cpu_s = _Meter(target).run(workers, limits.seconds)
    samples = result.outcomes[1].samples_ns
    if not samples:
        raise BenchFailed("no message was received")
    warm = samples[int(len(samples) * _WARM_UP_SHARE) :] or samples
    return lateness_figures(name, warm, _cpu_us(cpu_s, len(samples)))


def fan_out(target: Target, limits: Limits) -> list[Figure]:
    return _fan_out("fan-10", target, limits)


def fan_out_log(target: Target, limits: Limits) -> list[Figure]:
    return _fan_out("fan-10-log", target, limits)


def _fan_out(name: str, target: Target, limits: Limits) -> list[Figure]:
    return [
        _through(
            name,
            target,
            limits,
            channels=10,
            count=limits.counted(100_000),
            batch=BATCH,
            publishers=1,
            consumers=limits.processes,
            window=20_000,
        )
    ]


def large(target: Target, limits: Limits) -> list[Figure]:
    return [
        _through(
            "large",
            target,
            limits,
            channels=1,
            count=limits.counted(10_000),
            batch=1,
            publishers=limits.processes,
            consumers=1,
            window=500,
            ready_count=100,
            size=100 * 1024,
        )
    ]


MANY_COUNTS: Final = (1, 100, 10_000)


def many_names(count: int) -> list[str]:
    return [f"bench_many_{index}" for index in range(count)]


def many_counts(limits: Limits) -> list[int]:
    """Return the numbers of topics, limited by the message count to keep trial runs short."""
    return [min(count, max(limits.count, 1)) if limits.count else count for count in MANY_COUNTS]


def many_at(index: int, label: str = "") -> Callable[[Target, Limits], list[Figure]]:
    label = label or f"many-{MANY_COUNTS[index]}"

    def run(target: Target, limits: Limits) -> list[Figure]:
        topics = many_names(many_counts(limits)[index])
        if not target.knows_topics:
            for topic in topics:
                make_channel(target, topic)
        body = _body(limits)
        count = limits.counted(400_000)
        batch = min(20, count)
        requests = [encode_publish_many(topic, [body] * batch) for topic in topics]
        half = len(requests) // 2
        workers = closed_loops(
            target.tcp_address,
            lambda number: NSQPublish(requests[half:] + requests[:half] if number % 2 else requests),
            limits.processes,
            limits.processes,
            batch,
            count,
            limits.seconds,
        )
        before = target.usage()
        rate, _ = _publish_rate(label, workers, target, limits)
        singles = [encode_publish(topic, body) for topic in topics]
        timed = ClosedLoop(
            target.tcp_address, [NSQPublish(singles)], 1, limits.counted(10_000), limits.seconds, is_timed=True
        )
        result, _ = _Meter(target).run([timed], limits.seconds)
        figures = [rate, *lateness_figures(f"{label} publish", result.outcomes[0].samples_ns)[:2]]
        if before is not None:
            figures.append(Figure(f"{label} memory before", before.memory_bytes / 1048576, MEBIBYTES))
        return figures

    return run


def defer_topics(limits: Limits) -> list[str]:
    return [f"bench_defer_{index}" for index in range(min(1_000, limits.counted(100_000)))]


def defer(target: Target, limits: Limits) -> list[Figure]:
    topics = defer_topics(limits)
    count = limits.counted(100_000)
    # Due times are spread over ten seconds, after the time for publishing; shorter for a trial run.
    earliest_ms, latest_ms = (8_000, 18_000) if count >= 100_000 else (200, 400)
    processes = min(limits.processes, len(topics))
    counters = SharedCounters(1, processes)
    # Go's nsqd scans twenty channels every 100 ms, so a thousand channels take several seconds.
    seconds = latest_ms / 1000 + max(limits.seconds, 60.0)
    workers: list[Worker] = [
        DeferredPublisher(
            target.tcp_address, topics, max(limits.size or 200, 8), count, earliest_ms, latest_ms, counters
        )
    ]
    for slot in range(processes):
        protocols = [NSQConsume(topic, CHANNEL, 500, is_timed=True) for topic in topics[slot::processes]]
        workers.append(BenchConsumer(target.tcp_address, protocols, seconds, counters, slot))
    result, cpu_s = _Meter(target).run(workers, seconds)
    samples = result.outcomes[1].samples_ns
    for outcome in result.outcomes[2:]:
        samples += outcome.samples_ns
    if len(samples) < count:
        raise BenchFailed(f"only {len(samples)} of {count} deferred messages were received")
    return lateness_figures("defer late", samples, _cpu_us(cpu_s, count))


def idle(target: Target, limits: Limits) -> list[Figure]:
    connections = limits.counted(9_000)
    before = target.usage()
    if before is None:
        raise BenchFailed("idle requires --pid, the broker's process id, to measure its memory")
    topic = new_topic("idle")
    protocols = [NSQConsume(topic, CHANNEL, 0) for _ in range(connections)]
    held_bytes = 0

    def measure_memory() -> None:
        nonlocal held_bytes
        time.sleep(0.5)
        after = target.usage()
        assert after is not None
        held_bytes = after.memory_bytes - before.memory_bytes

    workers = [
        Subscriber(target.tcp_address, protocols[slot :: limits.processes], 1.0) for slot in range(limits.processes)
    ]
    run_together(workers, limits.seconds + GRACE_S, measure_memory)
    return [Figure("idle", held_bytes / connections / 1024, KIBIBYTES)]
