"""A running pipeline serves the figures of its sinks as metrics."""

from __future__ import annotations

import socket
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nsqx.errors import ConfigError
from nsqx.pipeline.figures import SinkFigures
from nsqx.pipeline.metrics import MetricsServer
from nsqx.pipeline.model import read_host_port


def metrics_of(*figures: SinkFigures) -> dict[str, float]:
    """Return the served metrics: name and labels except the pipeline, and the value."""
    with (
        MetricsServer("shop", lambda: figures) as server,
        urllib.request.urlopen(server.listen("127.0.0.1:0"), timeout=30) as answer,
    ):
        text = answer.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("pipeline") == "shop"
            found[f"{sample.name} {' '.join(labels.values())}"] = sample.value
    return found


def test_every_figure_of_a_sink_is_served() -> None:
    figures = SinkFigures(
        "files",
        batches=3,
        rows_in=100,
        rows_out=90,
        dead_letters=7,
        late_rows=2,
        failures=1,
        lag=5,
        rows_per_s=12.5,
        batch_s=0.5,
        written_s=1000.0,
    )
    states = {f"nsqx_pipeline_sink_state files {state}": 0 for state in ("retrying", "stopped", "failed")}
    assert metrics_of(figures) == {
        "nsqx_pipeline_rows_read_total files": 100,
        "nsqx_pipeline_rows_written_total files": 90,
        "nsqx_pipeline_batches_total files": 3,
        "nsqx_pipeline_dead_letters_total files": 7,
        "nsqx_pipeline_late_rows_total files": 2,
        "nsqx_pipeline_failures_total files": 1,
        "nsqx_pipeline_lag_messages files": 5,
        "nsqx_pipeline_rows_per_second files": 12.5,
        "nsqx_pipeline_batch_seconds files": 0.5,
        "nsqx_pipeline_last_batch_timestamp_seconds files": 1000,
        "nsqx_pipeline_sink_state files running": 1,
        **states,
    }


def test_gauges_are_missing_before_the_first_batch() -> None:
    found = metrics_of(SinkFigures("files", state="failed"), SinkFigures("totals"))
    assert found["nsqx_pipeline_rows_read_total files"] == 0
    assert found["nsqx_pipeline_sink_state files failed"] == 1
    assert found["nsqx_pipeline_sink_state totals running"] == 1
    assert not [name for name in found if name.startswith("nsqx_pipeline_lag")]


def test_an_address_in_use_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, MetricsServer("shop", list) as server:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"cannot serve metrics on {address}: Address already in use"):
            server.listen(address)


def test_addresses_are_read() -> None:
    assert read_host_port("127.0.0.1:9400") == ("127.0.0.1", 9400)
    assert read_host_port("[::1]:9400") == ("::1", 9400)
    assert read_host_port(":9400") == ("0.0.0.0", 9400)


@pytest.mark.parametrize("address", ["9400", "host", "host:", "host:http", "host:70000", "host:-1"])
def test_an_invalid_address_is_an_error(address: str) -> None:
    with pytest.raises(ConfigError, match="use host:port, such as 127.0.0.1:9400"):
        read_host_port(address)
