"""Conversion of S3 URLs: pyarrow and botocore use ``s3://``, the file systems of Spark's JVM use ``s3a://``.

Users may give either. Files written by Python (segments, state, files of sinks) and files written by the JVM
(checkpoints, tables) can then share a location.
"""

from __future__ import annotations

import re
from typing import Any

from nsqx.errors import ConfigError
from nsqx.spark.jvm import hadoop_version, has_file_system, has_jvm

_JVM_NAME = re.compile(r"s3[an]://", re.IGNORECASE)
_ANY_NAME = re.compile(r"s3[an]?://", re.IGNORECASE)


def for_python(location: str) -> str:
    """Return the location with the scheme that pyarrow uses."""
    return _JVM_NAME.sub("s3://", location, count=1) if _JVM_NAME.match(location) else location


def for_spark(location: str) -> str:
    """Return the location with the scheme that Spark's JVM uses."""
    return _ANY_NAME.sub("s3a://", location, count=1) if _ANY_NAME.match(location) else location


def check_spark_reaches(spark: Any, location: str) -> None:
    """Raise ConfigError if Spark's JVM has no file system for this location."""
    if "://" not in location:
        return
    scheme = for_spark(location).partition("://")[0].lower()
    if not has_jvm(spark):
        _check_server_reaches(spark, location, scheme)
        return
    if has_file_system(spark, scheme):
        return
    remedy = (
        f"add the package org.apache.hadoop:hadoop-aws:{hadoop_version(spark)} to [spark] packages of the pipeline, or"
        " to Spark's setting spark.jars.packages"
        if scheme == "s3a"
        else f"add the jar with Hadoop's file system for {scheme}:// to its classpath"
    )
    raise ConfigError(f"Spark has no file system for {location}: {remedy}")


def _check_server_reaches(spark: Any, location: str, scheme: str) -> None:
    """Raise ConfigError if a Spark Connect server has no file system for this location."""
    try:
        # Spark looks the path up, and an error about a missing path comes after one about the file system.
        spark.read.text(for_spark(location)).schema  # noqa: B018
    except Exception as error:
        text = str(error)
        if "ClassNotFoundException" in text or "No FileSystem for scheme" in text or "UnsupportedFileSystem" in text:
            package = "the package org.apache.hadoop:hadoop-aws in the version of its Hadoop"
            remedy = package if scheme == "s3a" else f"Hadoop's file system for {scheme}://"
            raise ConfigError(
                f"the Spark Connect server has no file system for {location}: start the server with {remedy}"
            ) from None
