"""Proof that executors can read the segment directory, before a single message is received into it.

A message that is finished at nsqd exists in the segment directory alone, so executors that cannot read that directory
must be found out earlier. The first batch of a query on a cluster is therefore empty: its tasks read back a file that
the driver's side wrote, and fail if they cannot. Spark plans the next batch only when all of them succeeded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from nsqx.errors import ConfigError
from nsqx.spark.storage import Storage, open_storage

if TYPE_CHECKING:
    from nsqx.spark.options import SourceOptions

_PREFIX = "probe-"
# Spark spreads tasks over its executors: more tasks reach more machines.
_TASK_COUNT = 16


@dataclass
class ProbePartition(InputPartition):
    """The task of reading one probe file."""

    location: str
    token: str


def check_place(options: SourceOptions, runs_here: bool | None, *, can_probe: bool) -> None:
    """Raise ConfigError if tasks run, or may run, where a local directory is not seen.

    ``runs_here`` tells whether tasks run on this machine, None if that is unknown. With ``can_probe`` the unknown will
    be found out.
    """
    storage = open_storage(options.segment_dir)
    if runs_here or not storage.is_local or options.segment_dir_is_shared or (runs_here is None and can_probe):
        return
    raise ConfigError(
        f"nsq: segmentDir {storage.location} is a directory of this machine, but Spark"
        f" {'may run' if runs_here is None else 'runs'} tasks on others: use storage that all machines see, such as"
        " hdfs:// or s3://; or, if every machine that runs tasks has this directory, set segmentDirIsShared to true"
    )


def write_probe(storage: Storage, token: str) -> list[InputPartition]:
    """Write the probe file; the tasks that read it."""
    storage.write(_PREFIX + token, lambda stream: stream.write(token.encode()))
    return [ProbePartition(storage.location, token) for _ in range(_TASK_COUNT)]


def read_probe(partition: ProbePartition) -> None:
    """Read the probe file in an executor; raises ConfigError if it is not there or cannot be read."""
    storage = open_storage(partition.location)
    try:
        with storage.open(_PREFIX + partition.token) as stream:
            found = bytes(stream.read()).decode("ascii", "replace")
    except OSError as error:
        reason = "" if isinstance(error, FileNotFoundError) else f" ({error})"
        raise unseen(storage.location, reason) from None
    if found != partition.token:
        raise unseen(storage.location, " (the probe file has other content)")


def remove_probes(storage: Storage) -> None:
    """Remove the probe files of this and former runs."""
    for name in storage.names():
        if name.startswith(_PREFIX):
            storage.delete(name)


def unseen(location: str, reason: str = "") -> ConfigError:
    """The error of an executor that cannot read the segment directory."""
    return ConfigError(
        f"nsq: this executor does not see segmentDir {location}{reason}: on more than one machine it must be on storage"
        " that all of them see, such as hdfs://, s3:// or a directory mounted everywhere. No message was received yet"
    )
