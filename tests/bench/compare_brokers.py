"""Compares nsqx's nsqd with Redis Streams, NATS JetStream, RabbitMQ or another nsqd.

      python tests/bench/compare_brokers.py [WORKLOAD...] --peer PATH

PATH is the program of the other broker: redis-server, nats-server, rabbitmq-server or nsqd. The workloads and all other
flags are those of ``nsqx bench compare``.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.peers.catalog import find_launcher  # noqa: E402
from nsqx.cli.bench import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(["compare", *sys.argv[1:]], find_launcher))
