"""Spark Connect has no JVM in this process: functions that need it raise one clear error."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="pyspark is missing: pip install 'nsqx[spark]'")
pytest.importorskip("grpc", reason="grpc is missing: pip install 'pyspark[connect]'")

from pyspark.sql.connect.session import SparkSession  # noqa: E402

from nsqx.errors import ConfigError  # noqa: E402
from nsqx.spark import jvm  # noqa: E402


@pytest.mark.parametrize(
    "call",
    [
        lambda spark: jvm.has_file_system(spark, "s3a"),
        jvm.hadoop_version,
        lambda spark: jvm.connect_jdbc(spark, "jdbc:h2:mem:x", "org.h2.Driver", {}),
    ],
)
def test_a_session_of_spark_connect_is_rejected(call):
    # Not initialized, because a session of Spark Connect opens a connection.
    spark = SparkSession.__new__(SparkSession)
    with pytest.raises(ConfigError, match="Spark Connect is not supported: use a session with its JVM"):
        call(spark)
