"""What ends a benchmark early."""

from __future__ import annotations

from nsqx.errors import NSQError


class BenchFailed(NSQError):
    """A broker, a worker or a program did not do its part; the text says which and why."""
