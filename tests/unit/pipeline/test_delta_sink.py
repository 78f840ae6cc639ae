"""A Delta sink needs a build of Delta for the installed Spark."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'nsqx[spark]'")

from nsqx.errors import ConfigError  # noqa: E402
from nsqx.pipeline.delta_sink import BUILDS, SETTINGS, delta_settings  # noqa: E402
from nsqx.pipeline.parser import read_pipeline  # noqa: E402

FILE = """
[pipeline]
name = "shop"
[source.orders]
topic = "orders"
format = "raw"
[sink.table]
from = "orders"
type = "$type"
path = "out"
"""


def pipeline_of(directory, kind="delta", more=""):
    path = directory / "shop.toml"
    path.write_text(FILE.replace("$type", kind) + more)
    return read_pipeline(str(path), nsqd=["127.0.0.1:4150"])


def test_the_published_build_for_the_version_of_spark_is_used(tmp_path):
    assert delta_settings(pipeline_of(tmp_path), "4.2.0") == (SETTINGS, (BUILDS[4, 2],))


def test_without_a_published_build_the_error_names_the_version_that_has_one(tmp_path):
    with pytest.raises(ConfigError) as caught:
        delta_settings(pipeline_of(tmp_path), "4.3.0")
    assert str(caught.value) == (
        f"{tmp_path}/shop.toml: sink.table.type: Delta has no published build for Spark 4.3: use pip install"
        " 'pyspark==4.2.*', or name a build of your own in [spark] packages"
    )


def test_a_build_that_the_pipeline_names_is_used(tmp_path):
    pipeline = pipeline_of(tmp_path, more='[spark]\npackages = ["org.example:delta-spark_4.3_2.13:5.0.0"]\n')
    assert delta_settings(pipeline, "4.3.0") == (SETTINGS, ())


def test_without_a_delta_sink_nothing_is_set(tmp_path):
    assert delta_settings(pipeline_of(tmp_path, "parquet"), "4.3.0") == ({}, ())


def test_iceberg_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"sink\.table\.type: Iceberg's published builds support Spark up to 4\.1"):
        pipeline_of(tmp_path, "iceberg")
