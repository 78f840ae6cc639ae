"""The workload of the client programs: publish messages and consume them; requeue one message and touch another.

The arguments of a program are the address of nsqd, a topic, a channel and options: ``deflate``, ``snappy``, ``tls``,
``ca=FILE``, ``cert=FILE``, ``key=FILE``, ``auth_secret=TEXT``.
When every message is finished, the program prints a report as one line of JSON. It stays connected until its stdin
ends, because its last commands may not have been sent yet.
"""

import json
import sys

SINGLES = [b"single %d" % number for number in range(10)]
BATCH = [b"batch %d" % number for number in range(30)]
LATER = b"later"
LATER_MS = 100
EVERYTHING = [*SINGLES, *BATCH, LATER]
REQUEUED, TOUCHED = SINGLES[3], SINGLES[4]
MAX_IN_FLIGHT = 7


class Arguments:
    """The command line of a client program."""

    def __init__(self) -> None:
        self.address, self.topic, self.channel, *words = sys.argv[1:]
        # Options that the Python clients accept under these names.
        self.options: dict[str, bool | str] = {}
        self.tls_files: dict[str, str] = {}
        for word in words:
            name, _, value = word.partition("=")
            if name in ("ca", "cert", "key"):
                self.tls_files[name] = value
            else:
                self.options["tls_v1" if name == "tls" else name] = value or True
        self.host, port = self.address.rsplit(":", 1)
        self.port = int(port)


def wait_for_stdin_end() -> None:
    """Block until stdin ends."""
    sys.stdin.read()


class Tally:
    """Records the attempts of each message and the finished messages."""

    def __init__(self) -> None:
        self.attempts: dict[str, list[int]] = {}
        self.finished: list[str] = []

    def must_requeue(self, body: bytes, attempts: int) -> bool:
        """Record a delivery. Return True if the message is to be requeued."""
        self.attempts.setdefault(body.decode(), []).append(attempts)
        return body == REQUEUED and attempts == 1

    def finish(self, body: bytes) -> bool:
        """Record a finished message. Return True if it was the last one."""
        self.finished.append(body.decode())
        return len(self.finished) == len(EVERYTHING)

    def report(self) -> None:
        print(json.dumps({"finished": sorted(self.finished), "attempts": self.attempts}), flush=True)
