"""A small cluster that shows every metric, and a reader of metric names."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from daemons import Daemon, Fleet, wait_until
from rawclient import RawClient

_SAMPLE = re.compile(r"^([a-z_:][a-z0-9_:]*)[ {]", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True)
class Measured:
    """The daemons. A consumer is connected and has finished a message, and a transaction was committed."""

    nsqd: Daemon
    nsqlookupd: Daemon


def metric_names(daemon: Daemon) -> set[str]:
    """Return the name of every metric on the /metrics page of a daemon."""
    return set(_SAMPLE.findall(daemon.request("GET", "/metrics").body.decode()))


def commit_batch(nsqd: Daemon) -> None:
    """Commit a transaction without messages, so that nsqd has a ledger."""
    batch = {"query": "q", "batch": 0, "nodes": ["one:4151"], "place": 0, "parts": []}
    assert nsqd.request("POST", "/log/commit", json.dumps(batch).encode()).status == 200


@contextmanager
def measured_cluster() -> Iterator[Measured]:
    """Run the cluster for the duration of the ``with`` block."""
    fleet = Fleet()
    try:
        lookupd = fleet.nsqlookupd("nsqx")
        nsqd = fleet.nsqd(
            "nsqx",
            f"--lookupd-tcp-address={lookupd.tcp_address}",
            "--e2e-processing-latency-percentile=0.99,0.95,0.5",
            "--metrics-per-client",
            "--store=log",
        )
        with RawClient(nsqd.tcp_address) as consumer:
            consumer.sub("clicks", "archive")
            consumer.rdy(1)
            nsqd.post("/pub", b"home", topic="clicks")
            consumer.fin(consumer.read_message().id)
            commit_batch(nsqd)
            wait_until(lambda: nsqd.channel_stats("clicks", "archive")["e2e_processing_latency"]["count"], "finished")
            wait_until(lambda: b"nsqlookupd_topics 1.0" in lookupd.request("GET", "/metrics").body, "registered")
            yield Measured(nsqd, lookupd)
    finally:
        fleet.close()
