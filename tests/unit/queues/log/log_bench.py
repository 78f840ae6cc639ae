"""What the tests of topic logs share: items, stores that commit at once, and a log of messages by offset."""

import struct

from nsqx.queues.log.state import Changes
from nsqx.queues.log.store import LogOptions, LogStore

BOOT_ID = b"b" * 16
SMALL = LogOptions(commit_size=20_000, segment_size=1500, direct_size=3000, memory_size=2000, lease_step=64)


class Lines:
    """A log of the store that keeps the lines."""

    def __init__(self):
        self.lines = []

    def info(self, text, *args):
        self.lines.append(text % args)

    warn = error = info


def items(*bodies):
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def open_store(path, options=SMALL, boot_id=BOOT_ID, lines=None):
    store = LogStore(str(path), options, boot_id, lines or Lines())
    while store.is_recovering:
        checkpoint(store)
    return store


def publish(log, *bodies, timestamp=5):
    return log.append(items(*bodies), len(bodies), timestamp)


def commit(store, *, is_synced=True):
    """Commit, and return the job."""
    job = store.begin_commit(is_synced=is_synced)
    if job is not None:
        job.run()
        store.end_commit(job)
    return job


def checkpoint(store, *, is_complete=True):
    job = store.begin_checkpoint(is_complete=is_complete)
    if job is not None:
        job.run()
        store.end_checkpoint(job)
        if job.error is not None:
            raise job.error
    return job


def change(log, fill):
    changes = Changes()
    fill(changes)
    log.change(changes)


def bodies_of(log, offset=None, max_bytes=500):
    """Return all bodies by offset, from memory and from segments."""
    found = {}
    offset = log.first if offset is None else offset
    while offset < log.written:
        batch = log.batch_at(offset)
        if batch is not None:
            found.update(batch.bodies())
            offset = batch.end
            continue
        job = log.begin_read(offset, max_bytes)
        job.run()
        log.end_read(job)
        for batch in job.batches:
            found.update(batch.bodies())
        offset = job.next
    return found
