"""Places on S3 have two names: pyarrow and botocore know ``s3://``, the file systems of Spark's JVM ``s3a://``.

Either may be given. What Python reads and writes (segments, state, files of sinks) and what the JVM does (checkpoints,
tables) can then lie side by side.
"""

from __future__ import annotations

import re
from typing import Any

from nsqx.errors import ConfigError

_JVM_NAME = re.compile(r"s3[an]://", re.IGNORECASE)
_ANY_NAME = re.compile(r"s3[an]?://", re.IGNORECASE)


def for_python(location: str) -> str:
    """The location as pyarrow names it."""
    return _JVM_NAME.sub("s3://", location, count=1) if _JVM_NAME.match(location) else location


def for_spark(location: str) -> str:
    """The location as Spark's JVM names it."""
    return _ANY_NAME.sub("s3a://", location, count=1) if _ANY_NAME.match(location) else location


def check_spark_reaches(spark: Any, location: str) -> None:
    """Raise ConfigError if Spark's JVM has no file system for this location."""
    if "://" not in location:
        return
    scheme = for_spark(location).partition("://")[0].lower()
    hadoop = spark._jvm.org.apache.hadoop
    try:
        hadoop.fs.FileSystem.getFileSystemClass(scheme, spark._jsc.hadoopConfiguration())
    except Exception:  # of Java, wrapped in one of py4j or pyspark
        version = hadoop.util.VersionInfo.getVersion()
        remedy = (
            f"add the package org.apache.hadoop:hadoop-aws:{version} (in a pipeline: [spark] packages; else the setting"
            " spark.jars.packages)"
            if scheme == "s3a"
            else f"add the jar with Hadoop's file system for {scheme}:// to its classpath"
        )
        raise ConfigError(f"{location}: Spark itself cannot reach this location: {remedy}") from None
