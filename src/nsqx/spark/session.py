"""A Spark session with the settings that this package wants, and clear words where Spark has none."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from nsqx.errors import ConfigError

LEAST_JAVA = 17
_MISSING_JAVA = (
    f"Spark needs Java {LEAST_JAVA} or newer: install it (on Debian: apt install openjdk-17-jre-headless)"
    " or set JAVA_HOME"
)
_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_MASTER = re.compile(r"(?:--conf\0|-D)spark\.master=([^\0]+)|--master\0([^\0]+)")


def check_spark() -> None:
    """Raise ConfigError unless pyspark and Java are here."""
    try:
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"{error.name} is missing: install with pip install 'nsqx[spark]'") from None
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.path.exists(java):
        raise ConfigError(f"no Java found{f' in JAVA_HOME={home}' if home else ''}. {_MISSING_JAVA}")
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    match = _JAVA_VERSION.search(told)
    if match is None or int(match[1]) < LEAST_JAVA:
        raise ConfigError(f"{java} is {told.splitlines()[0] if told else 'of no known version'}. {_MISSING_JAVA}")


def build_session(app_name: str = "nsqx", master: str | None = None, settings: Mapping[str, str] | None = None) -> Any:
    """A SparkSession; raises ConfigError if something that Spark needs is missing.

    Without ``master`` that of spark-submit, or else all cores of this machine. ``settings`` go over the defaults.
    """
    check_spark()
    from pyspark.sql import SparkSession

    # Workers must be this Python, with this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    if master is not None or "spark.master" not in _submitted():
        builder = builder.master(master or "local[*]")
    defaults = {"spark.ui.showConsoleProgress": "false", "spark.sql.session.timeZone": "UTC"}
    for name, value in {**defaults, **(settings or {})}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _submitted() -> Mapping[str, str]:
    """Settings that came from spark-submit."""
    from pyspark import SparkConf

    if "SPARK_ENV_LOADED" not in os.environ and "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    return dict(SparkConf().getAll())


def driver_master() -> str:
    """The master of the driver that started this process, as far as its command line tells; else nothing."""
    try:
        with open(f"/proc/{os.getppid()}/cmdline", encoding="utf-8", errors="replace") as stream:
            return master_in(stream.read())
    except OSError:
        return ""


def master_in(command_line: str) -> str:
    """The master in a Java command line whose words end with NUL; the last one counts."""
    found = _MASTER.findall(command_line)
    return (found[-1][0] or found[-1][1]) if found else ""
