"""What every client program of compare_clients.py does: one task, timed from the first call to the last answer.

Tasks: ``publish`` sends one message per command with at most WINDOW unanswered, ``publish_many`` sends batches of
BATCH, BATCHES of them at a time, ``consume`` finishes all messages of a channel with MAX_IN_FLIGHT. Prints the seconds
that it took, and those of its own processor time.
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
    """The clocks run."""
    global _started_s
    _started_s = time.perf_counter(), time.process_time()


def finish() -> None:
    """Everything is answered."""
    print(time.perf_counter() - _started_s[0], time.process_time() - _started_s[1], flush=True)
