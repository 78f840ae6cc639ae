"""A data directory with topic logs, written by a real LogStore, and the messages that each queue must have."""

import os
import struct
from pathlib import Path

from nsqx.queues.diskqueue import DiskQueue
from nsqx.queues.log.recovery import read_boot_id
from nsqx.queues.log.state import Changes, Hole
from nsqx.queues.log.store import LogOptions, LogStore
from nsqx.queues.log.stored import SilentLog

OPTIONS = LogOptions(commit_size=40_000, segment_size=1500, direct_size=20_000, memory_size=2000, lease_step=64)
NOW_NS = 1_800_000_000_000_000_000
LATER_NS = NOW_NS + 3_600_000_000_000
FIRST_ID = 1 << 40
BILLING, MAIL = 1, 2

# What an export must put into each disk queue: body and attempts, in order.
EXPECTED = {
    "orders": [(b"deferred", 0)],
    "orders:billing": [
        (b"order 03", 0),
        (b"order 05", 2),
        *((b"order %02d" % number, 0) for number in range(8, 20)),
        (b"again", 3),
    ],
    "orders:mail": [(b"order %02d" % number, 0) for number in range(20)],
    "plain": [(b"plain %d" % number, 0) for number in range(2, 7)],
    "stopped": [(b"stopped %d" % number, 0) for number in range(3, 5)],
    "stopped:ch": [(b"stopped %d" % number, 0) for number in range(3)],
}
DEFERRED = {"orders": {b"deferred"}, "orders:billing": {b"order 05"}}


def open_logs(path: Path) -> LogStore:
    """Open the store; what an earlier process left is in segments then."""
    store = LogStore(str(path), OPTIONS, read_boot_id(), SilentLog())
    while store.is_recovering:
        checkpoint(store)
    return store


def items(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def commit(store: LogStore) -> None:
    job = store.begin_commit(is_synced=True)
    assert job is not None
    job.run()
    store.end_commit(job)
    assert store.failure is None


def checkpoint(store: LogStore) -> None:
    job = store.begin_checkpoint(is_complete=True)
    if job is not None:
        job.run()
        store.end_checkpoint(job)
        assert store.failure is None


def write_logs(path: Path, *, is_clean: bool = True) -> None:
    """Write three topics: orders with two channels, plain without channels, and stopped, which is paused."""
    path.mkdir(exist_ok=True)
    store = open_logs(path)
    orders, plain, stopped = (store.create_log(topic, FIRST_ID, NOW_NS) for topic in ("orders", "plain", "stopped"))
    changes = Changes()
    changes.create_channel(BILLING, "billing", 0)
    changes.create_channel(MAIL, "mail", 0)
    changes.pause_channel(MAIL, True)
    orders.change(changes)
    for start in range(0, 20, 2):
        orders.append(items(b"order %02d" % start, b"order %02d" % (start + 1)), 2, NOW_NS + start)
        commit(store)
    orders.append_deferred(items(b"deferred"), 1, NOW_NS, LATER_NS)
    orders.append_addressed(BILLING, items(b"again"), 1, NOW_NS, attempts=3)
    changes.finish(BILLING, [(0, 3), (4, 5), (6, 8)])
    changes.requeue(BILLING, [(5, Hole(2, LATER_NS))])
    orders.change(changes)
    plain.append(items(*(b"plain %d" % number for number in range(7))), 7, NOW_NS)
    changes.set_unclaimed(2)
    plain.change(changes)
    changes.create_channel(1, "ch", 0)
    changes.pause_topic(True, 3)
    stopped.change(changes)
    stopped.append(items(*(b"stopped %d" % number for number in range(5))), 5, NOW_NS)
    commit(store)
    if is_clean:
        store.close()
    else:
        close_descriptors(path)


def queue_contents(path: Path, name: str) -> list[tuple[bytes, int]]:
    """Return body and attempts of every message of a disk queue, which stays as it is."""
    queue = DiskQueue(name, str(path), 1 << 20, 1 << 20, SilentLog(), lambda: None)
    found = []
    while queue.has_readable():
        message = queue.get()
        if message is not None:
            found.append((message.body, message.attempts))
    queue.close()
    return found


def contents(path: Path) -> dict[str, bytes]:
    """Return every file of a directory."""
    return {
        os.path.relpath(os.path.join(folder, name), path): Path(folder, name).read_bytes()
        for folder, _, names in os.walk(path)
        for name in names
    }


def close_descriptors(path: Path | str) -> None:
    """Close the files below a directory that a simulated crash has left open."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith(str(path)):
                os.close(int(name))
        except OSError:
            pass
