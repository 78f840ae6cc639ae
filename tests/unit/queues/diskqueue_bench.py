"""Helpers of the disk queue tests: open, fill, drain and sync a queue."""

import os
import struct

from broker_bench import BenchLog
from nsqx.queues.diskqueue import DiskQueue
from nsqx.wire.message import new_batch, new_message
from rawclient import sized

HEAD = 4 + 26  # the size of a record before its body
META = "q.diskqueue.meta.dat"
UNLIMITED = 1 << 30
# A directory where a sync takes no time, for tests with thousands of syncs.
FAST_DIRECTORY = "/dev/shm" if os.path.isdir("/dev/shm") else None


def data_name(number):
    return f"q.diskqueue.{number:06d}.dat"


def sums_name(number):
    return f"q.diskqueue.{number:06d}.crc"


def open_queue(directory, max_file_size=UNLIMITED, max_message_size=1000, log=None, on_pending=lambda: None):
    return DiskQueue("q", str(directory), max_file_size, max_message_size, log or BenchLog(), on_pending)


def put(queue, *bodies, timestamp=0):
    """Put single messages and leave them pending."""
    for body in bodies:
        queue.put_message(new_message(b"%016x" % 0, body, timestamp, 0))


def write(queue, *bodies, timestamp=0):
    put(queue, *bodies, timestamp=timestamp)
    queue.write_pending()


def put_batch(queue, *bodies):
    queue.put_batch(new_batch(b"".join(map(sized, bodies)), 0, len(bodies), 0, 0))


def take(queue, count=1):
    """Read and finish the next messages; return their bodies."""
    bodies = []
    for _ in range(count):
        message = queue.get()
        bodies.append(message.body)
        queue.finish(message.record)
    return bodies


def drain(queue):
    """Read and finish everything that can be read; return the bodies."""
    bodies = []
    while (message := queue.get()) is not None:
        bodies.append(message.body)
        queue.finish(message.record)
    return bodies


def sync(queue):
    job = queue.begin_sync()
    assert job is not None
    job.run()
    queue.end_sync(job)
    assert job.error is None, job.error


def record(body, timestamp=0, attempts=0, message_id=b"0" * 16):
    return struct.pack(">iqH16s", 26 + len(body), timestamp, attempts, message_id) + body
