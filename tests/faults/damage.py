"""Scenarios of data files that are damaged while no daemon runs (rows 7 to 11)."""

import struct
from collections.abc import Callable
from pathlib import Path

from datafiles import (
    BODY_OFFSET,
    ID_OFFSET,
    cut,
    data_files,
    files_that_go_ignores,
    find_records,
    flip_bit,
    is_saved,
    meta_file,
)
from stage import DISK_ONLY, QUEUE, TOPIC, Outcome, Stage, bodies, kill, wait_for_depth

from daemons import DaemonFailed, wait_until

COUNT = 200
# About 40 messages fit into a file.
FILES = "--max-bytes-per-file=4000"
DAMAGED = 90  # in the middle of the third file

Damage = Callable[[Path], None]


def fill(stage: Stage, *, crashed: bool = False, finished: int = 0) -> None:
    """Leave a channel of ``COUNT`` messages on disk, some of them finished, after a clean stop or a crash."""
    daemon = stage.nsqd_with_channel(DISK_ONLY, FILES, "--sync-timeout=50ms")
    stage.tracker.publish_many(daemon, TOPIC, bodies("stored", COUNT))
    wait_for_depth(daemon)
    if finished:
        stage.tracker.finish(stage.consumer(daemon, ready=10), finished)
    if crashed:
        wait_until(lambda: is_saved(stage.data_path, QUEUE), "the meta file is up to date")
        kill(daemon)
    else:
        daemon.stop()


def damaged(stage: Stage, damage: Damage, **options: bool) -> Outcome:
    """Fill, damage, restart and drain."""
    fill(stage, **options)
    damage(stage.data_path)
    return stage.restart_and_drain(FILES)


def tear_last_record(data_path: Path) -> None:
    """Row 7: the end of the last record is missing."""
    cut(data_files(data_path, QUEUE)[-1], find_records(data_path, QUEUE)[-1].end - 20)


def tear_last_length(data_path: Path) -> None:
    """Row 7: only two bytes of the last record exist."""
    cut(data_files(data_path, QUEUE)[-1], find_records(data_path, QUEUE)[-1].position + 2)


def add_torn_record(data_path: Path) -> None:
    """Row 7: a torn write follows the last record."""
    path = data_files(data_path, QUEUE)[-1]
    path.write_bytes(path.read_bytes() + struct.pack(">i", 86) + b"\x00" * 30)


def flip_body(data_path: Path) -> None:
    """Row 8: a bit of a body is wrong."""
    record = find_records(data_path, QUEUE)[DAMAGED]
    flip_bit(record.path, record.position + BODY_OFFSET + 3)


def flip_id(data_path: Path) -> None:
    """Row 8: a bit of an id is wrong; the header of a record is protected too."""
    record = find_records(data_path, QUEUE)[DAMAGED]
    flip_bit(record.path, record.position + ID_OFFSET + 5)


def flip_first_and_last(data_path: Path) -> None:
    """Row 8: a bit is wrong in the first record of the queue and in the last."""
    for record in (find_records(data_path, QUEUE)[0], find_records(data_path, QUEUE)[-1]):
        flip_bit(record.path, record.position + BODY_OFFSET)


def flip_length_upwards(data_path: Path) -> None:
    """Row 9: a length exceeds all limits."""
    record = find_records(data_path, QUEUE)[DAMAGED]
    flip_bit(record.path, record.position, bit=6)


def flip_length_a_little(data_path: Path) -> None:
    """Row 9: a length is wrong but plausible, so the next record is read from the wrong position."""
    record = find_records(data_path, QUEUE)[DAMAGED]
    flip_bit(record.path, record.position + 3, bit=4)


def flip_length_below_zero(data_path: Path) -> None:
    """Row 9: a length is negative."""
    record = find_records(data_path, QUEUE)[DAMAGED]
    flip_bit(record.path, record.position, bit=7)


def remove_meta(data_path: Path) -> None:
    """Row 10: the meta file is missing."""
    meta_file(data_path, QUEUE).unlink()


def empty_meta(data_path: Path) -> None:
    """Row 10: the meta file is empty."""
    meta_file(data_path, QUEUE).write_bytes(b"")


def cut_meta(data_path: Path) -> None:
    """Row 10: the meta file is truncated."""
    cut(meta_file(data_path, QUEUE), 5)


def garble_meta(data_path: Path) -> None:
    """Row 10: the meta file is not a meta file."""
    meta_file(data_path, QUEUE).write_bytes(b"\x00" * 30)


def remove_sidecars(data_path: Path) -> None:
    """Remove the files that only nsqx's nsqd has, as after a backup by file name patterns."""
    for path in _sidecars(data_path):
        path.unlink()


def cut_sidecars(data_path: Path) -> None:
    for path in _sidecars(data_path):
        cut(path, path.stat().st_size // 2)


def empty_sidecars(data_path: Path) -> None:
    for path in _sidecars(data_path):
        path.write_bytes(b"")


def garble_sidecars(data_path: Path) -> None:
    for path in _sidecars(data_path):
        path.write_bytes(bytes(number * 37 % 256 for number in range(path.stat().st_size)))


def flip_bits_of_sidecars(data_path: Path) -> None:
    for path in _sidecars(data_path):
        flip_bit(path, path.stat().st_size // 2, bit=2)


def _sidecars(data_path: Path) -> list[Path]:
    found = [path for path in files_that_go_ignores(data_path) if path.stat().st_size > 0]
    assert found, "there are no sidecars to damage"
    return found


def start_with_metadata(stage: Stage, content: bytes) -> Outcome:
    """Row 11: start nsqd on a damaged nsqd.dat; does it start, and what does it log?"""
    fill(stage)
    path = stage.data_path / "nsqd.dat"
    whole = path.read_bytes()
    path.write_bytes(content if content != b"half" else whole[: len(whole) // 2])
    try:
        stage.nsqd(DISK_ONLY)
    except DaemonFailed as failure:
        text = str(failure).strip().splitlines()[-1]
        path.write_bytes(whole)
        outcome = stage.restart_and_drain(FILES)
        return Outcome(outcome.acked, outcome.lost, outcome.duplicated, outcome.foreign, {"refuses to start": text})
    return Outcome(seen={"starts": True})
