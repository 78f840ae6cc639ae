"""The tasks of the client programs of compare_clients.py. A task is timed from the first call to the last response.

``publish`` sends one message per command with at most WINDOW unanswered. ``publish_many`` sends batches of BATCH
messages, BATCHES of them at a time. ``consume`` finishes all messages of a channel with MAX_IN_FLIGHT. A program prints
the elapsed seconds and the seconds of its CPU time.
"""

import sys
import time

WINDOW = 1000
BATCH = 200
BATCHES = 10
MAX_IN_FLIGHT = 2500

task, address, topic, _count, _size = sys.argv[1:6]
variant = sys.argv[6] if len(sys.argv) > 6 else ""
count = int(_count)
body = b"x" * int(_size)
host, _, _port = address.rpartition(":")
port = int(_port)

_started_s: tuple[float, float] = (0.0, 0.0)


def start() -> None:
    """Start the clocks."""
    global _started_s
    _started_s = time.perf_counter(), time.process_time()


def finish() -> None:
    """Print the elapsed time and the CPU time since ``start``."""
    print(time.perf_counter() - _started_s[0], time.process_time() - _started_s[1], flush=True)
