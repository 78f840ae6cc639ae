"""Creation of Spark sessions with nsqx's settings, with clear errors if Java or pyspark is missing or too old."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from nsqx.errors import ConfigError
from nsqx.spark.jvm import has_jvm

LEAST_JAVA = 17
# The first version with read limits and availableNow for Python data sources.
LEAST_PYSPARK = (4, 2)
# The first version in which a session of Spark Connect can make another one.
LEAST_PYSPARK_CONNECT = (4, 3)
_REMOTE = "spark.remote"
_MISSING_JAVA = (
    f"Spark needs Java {LEAST_JAVA} or newer: install it (on Debian: apt install openjdk-17-jre-headless)"
    " or set JAVA_HOME"
)
_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
# The first 15 characters of Spark's thread names; Linux keeps no more.
_EXECUTOR_THREAD = "executor-heartb"
_SCHEDULER_THREAD = "driver-revive-t"


def check_pyspark() -> None:
    """Raise ConfigError if the installed pyspark is too old."""
    import pyspark

    found = re.match(r"(\d+)\.(\d+)", pyspark.__version__)
    if found is not None and (int(found[1]), int(found[2])) < LEAST_PYSPARK:
        least = ".".join(map(str, LEAST_PYSPARK))
        raise ConfigError(
            f"pyspark {pyspark.__version__} is too old, nsqx needs {least} or newer: pip install 'pyspark>={least}'"
        )


def check_spark() -> None:
    """Raise ConfigError unless suitable versions of pyspark and Java are installed."""
    try:
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"{error.name} is not installed: pip install 'nsqx[spark]'") from None
    check_pyspark()
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.path.exists(java):
        raise ConfigError(f"no Java found{f' in JAVA_HOME={home}' if home else ''}. {_MISSING_JAVA}")
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    match = _JAVA_VERSION.search(output)
    if match is None or int(match[1]) < LEAST_JAVA:
        raise ConfigError(f"{java} is {output.splitlines()[0] if output else 'of unknown version'}. {_MISSING_JAVA}")


def build_session(app_name: str = "nsqx", master: str | None = None, settings: Mapping[str, str] | None = None) -> Any:
    """Return a SparkSession; raises ConfigError if Java or pyspark is missing or too old.

    The default ``master`` is that of spark-submit, or else all cores of this machine. ``settings`` override the
    defaults.
    """
    check_spark()
    from pyspark.sql import SparkSession

    # Workers must use this Python, which has nsqx installed.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    if master is not None or "spark.master" not in _submitted():
        builder = builder.master(master or "local[*]")
    defaults = {"spark.ui.showConsoleProgress": "false", "spark.sql.session.timeZone": "UTC"}
    for name, value in {**defaults, **(settings or {})}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def connect_url(master: str | None, settings: Mapping[str, str] | None = None) -> str:
    """Return the address of a Spark Connect server, or an empty text for classic Spark.

    It is the master, or else the setting spark.remote, or else SPARK_REMOTE. Raises ConfigError if a classic master and
    SPARK_REMOTE are given.
    """
    if master and master.startswith("sc://"):
        return master
    remote = (settings or {}).get(_REMOTE) or os.environ.get("SPARK_REMOTE", "")
    if master and remote:
        raise ConfigError(f"the master {master} and the Spark Connect server {remote} are given: unset one of them")
    return remote


def build_connect_session(url: str) -> Any:
    """Return a new session at a Spark Connect server; raises ConfigError."""
    try:
        import pyarrow  # noqa: F401
        import pyspark
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigError(f"{error.name} is not installed: pip install 'nsqx[spark]'") from None
    found = re.match(r"(\d+)\.(\d+)", pyspark.__version__)
    if found is None or (int(found[1]), int(found[2])) < LEAST_PYSPARK_CONNECT:
        least = ".".join(map(str, LEAST_PYSPARK_CONNECT))
        raise ConfigError(f"Spark Connect needs pyspark {least} or newer, found {pyspark.__version__}: upgrade pyspark")
    try:
        session = SparkSession.builder.remote(url).getOrCreate()
        version = session.version
    except ImportError as error:
        text = " ".join(str(error).split())
        raise ConfigError(f"Spark Connect needs more packages: pip install 'nsqx[connect]' ({text})") from None
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise ConfigError(f"cannot connect to the Spark Connect server {url}: {text}") from None
    if version.split(".")[:2] != pyspark.__version__.split(".")[:2]:
        raise ConfigError(
            f"the Spark Connect server {url} has Spark {version}, and pyspark here is {pyspark.__version__}: install"
            f" the same version, pip install 'pyspark=={version}'"
        )
    return session


def default_parallelism(spark: Any) -> int:
    """Return the number of tasks that Spark runs at the same time; a session of Spark Connect runs a small job."""
    if has_jvm(spark):
        return int(spark.sparkContext.defaultParallelism)
    from pyspark.sql import functions as F  # noqa: N812

    # Without a setting, a range has a partition for each of these tasks.
    return int(spark.range(0, 4096).select(F.spark_partition_id().alias("partition")).distinct().count())


def _submitted() -> Mapping[str, str]:
    """Return the settings given by spark-submit."""
    from pyspark import SparkConf

    if "SPARK_ENV_LOADED" not in os.environ and "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    return dict(SparkConf().getAll())


def tasks_run_here() -> bool | None:
    """Return True if Spark runs its tasks on this machine (master local), False on a cluster, None if unknown.

    Only the driver's JVM knows the master, which may come from a command line, a file or a program. The threads of that
    JVM show whether it contains an executor or schedules remote ones. Only Linux exposes their names.
    """
    for process in _ancestors():
        threads = list(_thread_names(process))
        if any(name.startswith(_EXECUTOR_THREAD) for name in threads):
            return True
        if any(name.startswith(_SCHEDULER_THREAD) for name in threads):
            return False
    return None


def _ancestors() -> Iterator[int]:
    """Yield the parent of this process, its parent, and so on; a daemon may stand between this process and the JVM."""
    process = os.getppid()
    while process > 1:
        yield process
        try:
            with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as stream:
                # The process name in parentheses may contain any character.
                process = int(stream.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return


def _thread_names(process: int) -> Iterator[str]:
    for path in glob.iglob(f"/proc/{process}/task/*/comm"):
        # The thread may have ended in the meantime.
        with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as stream:
            yield stream.read()
