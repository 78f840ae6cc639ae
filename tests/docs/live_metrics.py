"""A small cluster that shows every metric, and a reader of metric names."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from daemons import Daemon, Fleet, wait_until
from rawclient import RawClient

_SAMPLE = re.compile(r"^([a-z_:][a-z0-9_:]*)[ {]", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True)
class Measured:
    """The daemons. A consumer is connected and has finished a message."""

    nsqd: Daemon
    nsqlookupd: Daemon


def metric_names(daemon: Daemon) -> set[str]:
    """Return the name of every metric on the /metrics page of a daemon."""
    return set(_SAMPLE.findall(daemon.request("GET", "/metrics").body.decode()))


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
            wait_until(lambda: nsqd.channel_stats("clicks", "archive")["e2e_processing_latency"]["count"], "finished")
            wait_until(lambda: b"nsqlookupd_topics 1.0" in lookupd.request("GET", "/metrics").body, "registered")
            yield Measured(nsqd, lookupd)
    finally:
        fleet.close()
