"""Middlewares for the subscribers of an app: log, metrics, traces, retries and time limits."""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from nsqx.client.arguments import at_least_one
from nsqx.client.dispatcher import one_line
from nsqx.client.options import Duration, positive_seconds_of, seconds_of
from nsqx.client.pool import retry_delay_s
from nsqx.client.telemetry import OpenTelemetryConsumer
from nsqx.errors import GiveUp

if TYPE_CHECKING:
    from nsqx.client.routing import CallNext, Delivery, Middleware

_BUCKETS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)


def log_deliveries(logger: logging.Logger | None = None, level: int = logging.INFO) -> Middleware:
    """Return a middleware that logs one line for each message: where it is from, how long it took, and the outcome."""
    log = logger or logging.getLogger("nsqx.app")

    async def logged(delivery: Delivery, call_next: CallNext) -> Any:
        began_s = time.perf_counter()
        outcome = "cancelled"
        try:
            result = await call_next()
            outcome = "done"
            return result
        except Exception as error:
            outcome = one_line(error)
            raise
        finally:
            message = delivery.message
            log.log(
                level,
                "%s/%s: %s handled message %s, attempt %d, in %.1f ms: %s",
                delivery.topic,
                delivery.channel,
                delivery.function_name,
                message.id.decode("ascii", "replace"),
                message.attempts,
                (time.perf_counter() - began_s) * 1000,
                outcome,
            )

    return logged


class HandlerMetrics:
    """A middleware that counts the messages of each subscriber. ``prometheus`` returns the counts as text."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], int] = {}
        self._outcomes: dict[tuple[str, str, str], int] = {}
        self._buckets: dict[tuple[str, str], list[int]] = {}
        self._seconds: dict[tuple[str, str], float] = {}

    async def __call__(self, delivery: Delivery, call_next: CallNext) -> Any:
        """Count a message."""
        key = (delivery.topic, delivery.channel)
        self._running[key] = self._running.get(key, 0) + 1
        began_s = time.perf_counter()
        outcome = "cancelled"
        try:
            result = await call_next()
            outcome = "done"
            return result
        except Exception as error:
            outcome = "given up" if isinstance(error, GiveUp) else "failed"
            raise
        finally:
            elapsed_s = time.perf_counter() - began_s
            self._running[key] -= 1
            self._outcomes[*key, outcome] = self._outcomes.get((*key, outcome), 0) + 1
            counts = self._buckets.setdefault(key, [0] * (len(_BUCKETS_S) + 1))
            counts[bisect_left(_BUCKETS_S, elapsed_s)] += 1
            self._seconds[key] = self._seconds.get(key, 0.0) + elapsed_s

    def count(self, topic: str, channel: str, outcome: str = "done") -> int:
        """Return how many messages ended as ``done``, ``failed``, ``given up`` or ``cancelled``."""
        return self._outcomes.get((topic, channel, outcome), 0)

    def running(self, topic: str, channel: str) -> int:
        """Return how many messages are being handled."""
        return self._running.get((topic, channel), 0)

    def prometheus(self) -> str:
        """Return the counts in the text format of Prometheus."""
        lines = ["# TYPE nsqx_handler_messages_total counter"]
        for (topic, channel, outcome), count in sorted(self._outcomes.items()):
            labels = f'topic="{topic}",channel="{channel}",outcome="{outcome}"'
            lines.append(f"nsqx_handler_messages_total{{{labels}}} {count}")
        lines.append("# TYPE nsqx_handler_running gauge")
        for (topic, channel), count in sorted(self._running.items()):
            lines.append(f'nsqx_handler_running{{topic="{topic}",channel="{channel}"}} {count}')
        lines.append("# TYPE nsqx_handler_seconds histogram")
        for (topic, channel), counts in sorted(self._buckets.items()):
            labels, total = f'topic="{topic}",channel="{channel}"', 0
            for limit, count in zip((*_BUCKETS_S, "+Inf"), counts, strict=True):
                total += count
                lines.append(f'nsqx_handler_seconds_bucket{{{labels},le="{limit}"}} {total}')
            lines.append(f"nsqx_handler_seconds_sum{{{labels}}} {self._seconds[topic, channel]:.6f}")
            lines.append(f"nsqx_handler_seconds_count{{{labels}}} {total}")
        return "\n".join(lines) + "\n"


def trace_handlers() -> Middleware:
    """Return a middleware that records OpenTelemetry spans and metrics, as ``telemetry=True`` of a consumer.

    Raises ConfigError when the first message arrives and opentelemetry is not installed.
    """
    recorders: dict[tuple[str, str], OpenTelemetryConsumer] = {}

    async def traced(delivery: Delivery, call_next: CallNext) -> Any:
        key = (delivery.topic, delivery.channel)
        recorder = recorders.get(key)
        if recorder is None:
            recorder = recorders[key] = OpenTelemetryConsumer(*key)
        with recorder.processing(delivery.message):
            return await call_next()

    return traced


def retry(
    attempts: int = 3, delay: Duration = 0.1, on: type[Exception] | tuple[type[Exception], ...] = Exception
) -> Middleware:
    """Return a middleware that calls the function again at once, before nsqd delivers the message again.

    The delay before the second attempt is ``delay``, and doubles up to 5 s. GiveUp is never tried again. Use it for
    failures that last for a moment; for longer ones the requeue of the message does the same.
    """
    at_least_one("attempts", attempts)
    delay_s = seconds_of("delay", delay)

    async def retried(_: Delivery, call_next: CallNext) -> Any:
        for attempt in range(1, attempts):
            try:
                return await call_next()
            except GiveUp:
                raise
            except on:
                await asyncio.sleep(retry_delay_s(delay_s, attempt))
        return await call_next()

    return retried


def limit_time(limit: Duration) -> Middleware:
    """Return a middleware that cancels the function after ``limit``; the message then fails with TimeoutError."""
    limit_s = positive_seconds_of("limit", limit)

    async def limited(_: Delivery, call_next: CallNext) -> Any:
        async with asyncio.timeout(limit_s):
            return await call_next()

    return limited
