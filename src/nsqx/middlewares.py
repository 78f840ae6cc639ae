"""Middlewares for the subscribers of an app: log, metrics, traces, retries and time limits."""

from nsqx.client.middlewares import HandlerMetrics, limit_time, log_deliveries, retry, trace_handlers
from nsqx.client.routing import CallNext, Delivery, Middleware

__all__ = [
    "CallNext",
    "Delivery",
    "HandlerMetrics",
    "Middleware",
    "limit_time",
    "log_deliveries",
    "retry",
    "trace_handlers",
]
