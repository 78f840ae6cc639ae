"""What every client program does: publish, then consume all of it, one message requeued, one touched.

A program is run with the address of nsqd, a topic, a channel and the options to connect with: ``deflate``, ``snappy``,
``tls``, ``ca=FILE``, ``cert=FILE``, ``key=FILE``, ``auth_secret=TEXT``.
Once every message is finished it prints one line of JSON about them. It stays connected until its input ends, so that
the last answers have left before it goes.
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
        # Those that clients written in Python know by these names.
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


def wait_for_leave() -> None:
    """Block until the input ends."""
    sys.stdin.read()


class Tally:
    """Counts how often each message came, and which were finished."""

    def __init__(self) -> None:
        self.attempts: dict[str, list[int]] = {}
        self.finished: list[str] = []

    def must_requeue(self, body: bytes, attempts: int) -> bool:
        """Note that a message came; True if it is to be requeued this time."""
        self.attempts.setdefault(body.decode(), []).append(attempts)
        return body == REQUEUED and attempts == 1

    def finish(self, body: bytes) -> bool:
        """Note that a message was finished; True if it was the last."""
        self.finished.append(body.decode())
        return len(self.finished) == len(EVERYTHING)

    def report(self) -> None:
        print(json.dumps({"finished": sorted(self.finished), "attempts": self.attempts}), flush=True)
