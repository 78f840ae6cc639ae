"""The choice of the adapter for a broker program."""

from __future__ import annotations

from pathlib import Path

from bench.peers.nats import nats_launcher
from bench.peers.rabbitmq import RabbitMQLauncher
from bench.peers.redis import redis_launcher
from nsqx.bench.brokers import Launcher, other_nsqd


def find_launcher(path: str, data_root: str | None = None) -> Launcher:
    """Return the launcher for the broker at ``path``; a program with an unknown name is treated as nsqd."""
    name = Path(path).name
    if name == "redis-server":
        return redis_launcher(path, data_root)
    if name == "nats-server":
        return nats_launcher(path, data_root)
    if name == "rabbitmq-server":
        return RabbitMQLauncher(path, data_root)
    return other_nsqd(path, data_root)
