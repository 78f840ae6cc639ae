"""The receiver: runs a receiver loop in a thread, and is the reader's side of it.

    reader's thread                               the thread "nsq receiver"

    source, batch ──▶ Receiver ── a command ────▶ ReceiverLoop, which owns all connections
                         ▲                            │
                         └──────── ProgressBoard ◀────┘ Progress, a value that never changes

Each object belongs to one thread. A command is a callback of the event loop. Both threads use the segment directory,
which has locks of its own. Knows nothing of Spark.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nsqx.client.blocking import new_event_loop
from nsqx.errors import NSQError
from nsqx.spark.progress import ProgressBoard
from nsqx.spark.receiver_loop import ReceiverLoop
from nsqx.spark.recorder import Recorder
from nsqx.spark.topics import STOP_TIMEOUT_S

if TYPE_CHECKING:
    from nsqx.spark.options import SourceOptions
    from nsqx.spark.segments import SegmentDirectory

_log = logging.getLogger("nsqx.spark")

_START_TIMEOUT_S = 60.0


class Receiver:
    """Receives into an open segment directory between ``start`` and ``stop``. Belongs to the reader's thread."""

    def __init__(self, options: SourceOptions, directory: SegmentDirectory) -> None:
        self._options = options
        self._directory = directory
        self._board = ProgressBoard(directory.next_row)
        self._work: ReceiverLoop
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread | None = None

    def start(self, *, bound_ns: int = 0) -> None:
        """Start receiving; raises ConfigError or ClientError on failure.

        With ``bound_ns``, receiving ends when every message published before that time has arrived.
        """
        recorder = Recorder(
            self._directory, window_rows=self._options.dedup_window, max_in_flight=self._options.max_in_flight
        )
        recorder.recover()
        self._directory.begin(self._options.max_in_flight)
        self._work = ReceiverLoop(self._options, self._directory, recorder, self._board, bound_ns=bound_ns)
        runner = asyncio.Runner(loop_factory=new_event_loop)
        self._loop = runner.get_loop()
        self._thread = threading.Thread(
            target=_run, args=(runner, self._work, self._board), name="nsq receiver", daemon=True
        )
        self._thread.start()
        self._board.wait_for(lambda progress: progress.has_started or progress.has_ended, _START_TIMEOUT_S)
        self.check()

    def wait_for_rows(self, beyond: int, timeout_s: float) -> int:
        """Wait until there are more than ``beyond`` rows, receiving ends, or the timeout; return the number of rows."""
        if self.rows <= beyond and not self.is_drained:
            self._command(self._work.expect_rows, beyond, timeout_s)
            self._board.wait_for(lambda progress: progress.rows > beyond or progress.has_ended, timeout_s)
        self.check()
        return self.rows

    def committed(self) -> None:
        """Check the buffer limits again after rows were removed from the directory."""
        self._command(self._work.regulate)

    def stop(self) -> bool:
        """Store and finish what was received, then end; return True if nsqd confirmed every FIN."""
        if self._thread is not None and self._thread.is_alive():
            self._command(self._work.stop)
            self._thread.join(2 * STOP_TIMEOUT_S)
        return self._board.latest.is_clean

    def _command(self, call: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(call, *arguments)

    # Progress

    @property
    def rows(self) -> int:
        """The number of rows received since the directory was created."""
        return self._board.latest.rows

    @property
    def depth(self) -> int | None:
        """The number of messages that wait in the channel, or None if unknown."""
        return self._board.latest.depth

    @property
    def known_count(self) -> int:
        """The number of duplicates received."""
        return self._board.latest.known_count

    @property
    def is_paused(self) -> bool:
        """True while consuming is paused because the buffer is full."""
        return self._board.latest.is_paused

    @property
    def is_drained(self) -> bool:
        """True once receiving has ended, for example because a bounded read is complete."""
        return self._board.latest.has_ended

    def check(self) -> None:
        """Raise the error that ended receiving, if any."""
        failure = self._board.latest.failure
        if failure is not None:
            raise failure


def _run(runner: asyncio.Runner, work: ReceiverLoop, board: ProgressBoard) -> None:
    """Run the thread: receive, and publish how it ended."""
    failure: Exception | None = None
    is_clean = False
    try:
        with runner:
            is_clean = runner.run(work.run())
    except (NSQError, OSError) as error:
        failure = error
    except Exception as error:
        _log.exception("the receiver failed")
        failure = error
    finally:
        board.update(has_ended=True, is_clean=is_clean, failure=failure)
