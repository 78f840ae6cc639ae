"""A check that executors can read the segment directory, before any message is received into it.

A message that is finished at nsqd exists only in the segment directory, so executors that cannot read the directory
must be detected earlier. The first batch of a query on a cluster is therefore empty: its tasks read a file that the
source wrote beside the driver, and fail if they cannot. Spark plans the next batch only after all of them have
succeeded.
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
# Spark distributes tasks over its executors, so more tasks reach more machines.
_TASK_COUNT = 16


@dataclass
class ProbePartition(InputPartition):
    """A task that reads the probe file."""

    location: str
    token: str


def check_place(options: SourceOptions, runs_here: bool | None, *, can_probe: bool) -> None:
    """Raise ConfigError if the segment directory is local and tasks run, or may run, on other machines.

    ``runs_here`` is True if tasks run on this machine, and None if that is unknown. With ``can_probe``, the unknown
    case is accepted because a probe will decide it.
    """
    storage = open_storage(options.segment_dir)
    if runs_here or not storage.is_local or options.segment_dir_is_shared or (runs_here is None and can_probe):
        return
    raise ConfigError(
        f"nsq: segmentDir {storage.location} is a directory of this machine, but Spark"
        f" {'may run' if runs_here is None else 'runs'} tasks on other machines: use storage that all of them can read,"
        " such as hdfs:// or s3://, or set segmentDirIsShared to true if the directory is mounted on every machine"
    )


def write_probe(storage: Storage, token: str) -> list[InputPartition]:
    """Write the probe file and return the tasks that read it."""
    storage.write(_PREFIX + token, lambda stream: stream.write(token.encode()))
    return [ProbePartition(storage.location, token) for _ in range(_TASK_COUNT)]


def read_probe(partition: ProbePartition) -> None:
    """Read the probe file in an executor; raises ConfigError if it is missing or cannot be read."""
    storage = open_storage(partition.location)
    try:
        with storage.open(_PREFIX + partition.token) as stream:
            found = bytes(stream.read()).decode("ascii", "replace")
    except OSError as error:
        reason = "" if isinstance(error, FileNotFoundError) else f" ({error})"
        raise unreadable_error(storage.location, reason) from None
    if found != partition.token:
        raise unreadable_error(storage.location, " (the probe file has other content)")


def remove_probes(storage: Storage) -> None:
    """Remove the probe files of this and earlier runs."""
    for name in storage.names():
        if name.startswith(_PREFIX):
            storage.delete(name)


def unreadable_error(location: str, reason: str = "") -> ConfigError:
    """Return the error of an executor that cannot read the segment directory."""
    return ConfigError(
        f"nsq: this executor cannot read segmentDir {location}{reason}: use storage that all machines can read, such as"
        " hdfs://, s3:// or a directory mounted on every machine. No message was received yet"
    )
