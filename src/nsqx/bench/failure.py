"""The error that ends a benchmark."""

from __future__ import annotations

from nsqx.errors import NSQError


class BenchFailed(NSQError):
    """A broker, a worker or a program failed; the text says which one and why."""
