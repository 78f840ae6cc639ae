"""The metrics endpoint of a running pipeline, in the format of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Self

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nsqx.errors import ConfigError
from nsqx.pipeline.figures import FAILED, RETRYING, RUNNING, STOPPED
from nsqx.pipeline.model import read_host_port

if TYPE_CHECKING:
    from nsqx.pipeline.figures import SinkFigures

_LABELS = ("pipeline", "sink")
# The name without the prefix, the figure, and the description.
_COUNTERS = (
    ("rows_read", "rows_in", "Messages read from the sources"),
    ("rows_written", "rows_out", "Rows written"),
    ("batches", "batches", "Batches written"),
    ("dead_letters", "dead_letters", "Records that were rejected and are in the dead letters"),
    ("late_rows", "late_rows", "Rows dropped because they were later than the watermark allows"),
    ("failures", "failures", "Failures of the query of the sink"),
)
_GAUGES = (
    ("lag_messages", "lag", "Messages that wait for the sink"),
    ("rows_per_second", "rows_per_s", "Rows read per second in the last batch"),
    ("batch_seconds", "batch_s", "Duration of the last batch"),
    ("last_batch_timestamp_seconds", "written_s", "Time of the last batch"),
)


class PipelineMetrics(Collector):
    """The metrics of all sinks, computed when they are asked for."""

    def __init__(self, pipeline: str, figures: Callable[[], Sequence[SinkFigures]]) -> None:
        self._pipeline = pipeline
        self._figures = figures

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics."""
        figures = self._figures()
        for name, attribute, text in _COUNTERS:
            counter = CounterMetricFamily(f"nsqx_pipeline_{name}", text, labels=_LABELS)
            for each in figures:
                counter.add_metric([self._pipeline, each.sink], getattr(each, attribute))
            yield counter
        for name, attribute, text in _GAUGES:
            gauge = GaugeMetricFamily(f"nsqx_pipeline_{name}", text, labels=_LABELS)
            for each in figures:
                if each.batches and getattr(each, attribute) is not None:
                    gauge.add_metric([self._pipeline, each.sink], getattr(each, attribute))
            yield gauge
        yield from self._states(figures)

    def _states(self, figures: Sequence[SinkFigures]) -> Iterator[Metric]:
        states = GaugeMetricFamily(
            "nsqx_pipeline_sink_state", "1 for the state that the sink is in", labels=(*_LABELS, "state")
        )
        for each in figures:
            for state in (RUNNING, RETRYING, STOPPED, FAILED):
                states.add_metric([self._pipeline, each.sink, state], each.state == state)
        yield states


class MetricsServer:
    """Serves the metrics over HTTP within a ``with`` block."""

    def __init__(self, pipeline: str, figures: Callable[[], Sequence[SinkFigures]]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(PipelineMetrics(pipeline, figures))
        self._exits = ExitStack()

    def listen(self, address: str) -> str:
        """Listen on ``host:port`` and return the URL of the metrics; raises ConfigError."""
        host, port = read_host_port(address)
        try:
            server, thread = start_http_server(port, host, self._registry)
        except OSError as error:
            raise ConfigError(f"cannot serve metrics on {address}: {error.strerror or error}") from None
        self._exits.callback(thread.join)
        self._exits.callback(server.server_close)
        self._exits.callback(server.shutdown)
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{server.server_port}/metrics"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exits.close()
