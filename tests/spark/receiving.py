"""A receiver in a process of its own that can be made to die at a chosen moment.

    python receiving.py OPTIONS FAULT COUNT

OPTIONS is the JSON of the source's options. FAULT is where it dies, at the COUNT-th time it comes there: ``append``
(the segment is durable, no FIN was sent), ``rename`` (the segment is written under its temporary name), ``finish``
(half of the FINs of a segment were sent; COUNT counts messages), ``trim`` (identities are kept, segments not yet
removed); or ``none``. It says so on its standard output when it receives, and ends when its standard input does. If
receiving becomes impossible it prints why and ends with status 3. LEASE_S and RENEW_S may be set in the environment.
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
    """Replace what is called at the fatal moment."""
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
            # What was sent before must have left this process.
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
