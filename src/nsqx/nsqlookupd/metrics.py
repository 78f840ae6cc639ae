"""/metrics: nsqlookupd's state for Prometheus. Totals only; /lookup and /nodes have the details of each topic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from nsqx.version import NSQ_VERSION, VERSION

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from nsqx.nsqlookupd.lookupd import Lookupd


class LookupdMetricsPage:
    """Renders the page in the format that a client prefers."""

    def __init__(self, lookupd: Lookupd) -> None:
        self._collectors = CollectorRegistry()
        self._collectors.register(_LookupdCollector(lookupd))
        ProcessCollector(registry=self._collectors)
        PlatformCollector(registry=self._collectors)
        GCCollector(registry=self._collectors)

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return the page and its Content-Type, for an Accept header."""
        encode, content_type = choose_encoder(accept)
        return encode(self._collectors), content_type


class _LookupdCollector(Collector):
    def __init__(self, lookupd: Lookupd) -> None:
        self._lookupd = lookupd

    def collect(self) -> Iterator[Metric]:
        registry = self._lookupd.registry
        counts = self._lookupd.counts
        producer_count = len(registry.clients.producers)
        yield InfoMetricFamily(
            "nsqlookupd",
            "Versions of the implemented NSQ and of the package",
            value={"version": NSQ_VERSION, "nsqx_version": VERSION},
        )
        for name, help_text, value in (
            ("topics", "Topics known", registry.topic_count),
            ("channels", "Known channels of all topics", registry.channel_count),
            ("producers", "nsqds that are connected and have sent IDENTIFY", producer_count),
            (
                "inactive_producers",
                "Producers that were silent for longer than inactive-producer-timeout",
                producer_count - len(registry.active_peers()),
            ),
            ("connected_peers", "Open TCP connections", len(self._lookupd.connections)),
        ):
            yield GaugeMetricFamily(f"nsqlookupd_{name}", help_text, value)
        for name, help_text, value in (
            ("connections", "TCP connections accepted", counts.connections),
            ("registrations", "Additions of a producer to a registration", counts.registrations),
            ("unregistrations", "Removals of a producer from a registration", counts.unregistrations),
            ("pings", "Pings received", counts.pings),
            ("lookups", "Requests to /lookup", counts.lookups),
        ):
            yield CounterMetricFamily(f"nsqlookupd_{name}", help_text, value)
