"""A program that runs one receiver and can kill itself at a chosen point.

    python receiver_process.py OPTIONS FAULT COUNT

OPTIONS is the JSON of the source's options. FAULT is the point at which the process kills itself, when it gets there
for the COUNT-th time:

    append    the segment is durable, no FIN has been sent
    rename    the segment is written under its temporary name
    finish    half of the FINs of a segment have been sent; COUNT counts messages
    trim      the identities are stored, the segments are not yet removed
    none      never

The program prints ``receiving`` when the receiver has started, and ends when its standard input is closed. If receiving
fails, it prints the error and exits with status 3. The environment variables LEASE_S and RENEW_S override the lease.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading

from nsqx.errors import NSQError
from nsqx.spark import lease, topics
from nsqx.spark.columns import ColumnReceiver
from nsqx.spark.options import read_source_options
from nsqx.spark.receiver import Receiver
from nsqx.spark.segments import SegmentDirectory
from nsqx.spark.storage import LocalStorage


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(fault: str, count: int) -> None:
    """Replace the function of the fault with one that kills the process."""
    left = count

    def is_time() -> bool:
        nonlocal left
        left -= 1
        return left <= 0

    append, rename, delete = SegmentDirectory.append, os.rename, LocalStorage.delete

    def fatal_append(self, parts):
        end = append(self, parts)
        if is_time():
            die()
        return end

    def fatal_rename(source, target):
        if "segment-" in target and is_time():
            die()
        rename(source, target)

    class FatalReceiver(ColumnReceiver):
        def finish(self, columns):
            nonlocal left
            left -= len(columns)
            if left > 0:
                super().finish(columns)
                return
            for place in range(len(columns) // 2):
                self.subscription.connection.send(b"FIN %s\n" % columns.message_id(place))
            # Wait until the socket has sent these FINs.
            threading.Timer(0.02, die).start()

    def fatal_delete(self, name):
        if name.startswith("segment-") and is_time():
            die()
        delete(self, name)

    if fault == "append":
        SegmentDirectory.append = fatal_append
    elif fault == "rename":
        os.rename = fatal_rename
    elif fault == "finish":
        topics.ColumnReceiver = FatalReceiver
    elif fault == "trim":
        LocalStorage.delete = fatal_delete
    else:
        assert fault == "none", fault


def main() -> None:
    options = read_source_options(json.loads(sys.argv[1]))
    arm(sys.argv[2], int(sys.argv[3]))
    lease.LEASE_S = float(os.environ.get("LEASE_S", lease.LEASE_S))
    lease.RENEW_S = float(os.environ.get("RENEW_S", lease.RENEW_S))
    directory = SegmentDirectory.open(
        options.segment_dir,
        channel=options.channel,
        max_in_flight=options.max_in_flight,
        window_rows=options.dedup_window,
        lock_wait_s=5.0,
    )
    receiver = Receiver(options, directory)
    receiver.start()
    print("receiving", flush=True)
    try:
        while not select.select([sys.stdin], [], [], 0.1)[0]:
            receiver.check()
    except NSQError as error:
        print(error, flush=True)
        sys.exit(3)
    directory.close(is_clean=receiver.stop())


if __name__ == "__main__":
    main()
