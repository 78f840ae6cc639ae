"""A small cluster in which everything that can be measured is, and the names of the metrics it shows."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from daemons import Daemon, Fleet, wait_until
from rawclient import RawClient

_SAMPLE = re.compile(r"^([a-z_:][a-z0-9_:]*)[ {]", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True)
class Measured:
    """The daemons, with a consumer connected that has finished a message."""

    nsqd: Daemon
    nsqlookupd: Daemon


def metric_names(daemon: Daemon) -> set[str]:
    """Every metric on a daemon's page."""
    return set(_SAMPLE.findall(daemon.request("GET", "/metrics").body.decode()))


@contextmanager
def measured_cluster() -> Iterator[Measured]:
    """Start it; end it."""
    fleet = Fleet()
    try:
        lookupd = fleet.nsqlookupd("nsqx")
        nsqd = fleet.nsqd(
            "nsqx",
            f"--lookupd-tcp-address={lookupd.tcp_address}",
            "--e2e-processing-latency-percentile=0.99,0.95,0.5",
            "--metrics-per-client",
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
