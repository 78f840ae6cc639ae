"""A simulated machine for a whole broker: virtual time, threads that run one at a time, and a disk that loses power.

Everything runs in one process and follows from a seed. The event loop jumps to the next timer instead of waiting. A
job of an executor runs in a real thread, but only one thread runs at any moment, and the run decides how much virtual
time a sync takes. A ``DiskModel`` follows the file operations and returns the files that a power cut may leave.
"""

import asyncio
import contextlib
import selectors
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from disk_model import DiskModel, Image
from recording_os import RecordingOS

from nsqx.queues import files
from nsqx.queues.failpoints import Stopped
from nsqx.queues.files import FileOperation


class VirtualSelector(selectors.DefaultSelector):
    """Advances the clock of its loop instead of waiting."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if not events:
            assert timeout is not None, "the loop would wait forever"
            self.loop.advance(timeout)
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time advances only when there is nothing left to run now."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        selector = VirtualSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now_s

    def advance(self, duration_s: float) -> None:
        self.now_s += max(0.0, duration_s)


class VirtualClock:
    """The broker's clock on a virtual loop."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now_ns(self) -> int:
        return round(self._loop.time() * 1e9)

    def wall_ns(self) -> int:
        return self.now_ns() + 1_700_000_000_000_000_000

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_at(when_ns / 1e9 + 1e-9, callback)


class Job:
    """A call in its own thread, which runs only between ``resume`` and its next ``wait``."""

    def __init__(self, machine: "Machine", call: Callable[[], Any], on_end: Callable[[], None]) -> None:
        self.result: Future[Any] = Future()
        self._machine = machine
        self._call = call
        self._on_end = on_end
        self._may_run = threading.Semaphore(0)
        self._has_stopped = threading.Semaphore(0)
        self._wait_s = -1.0
        self._is_over = False
        threading.Thread(target=self._main, daemon=True).start()

    def resume(self) -> None:
        """Run the thread until it waits or ends; called by the loop."""
        if self._is_over:
            return
        self._machine.current_job = self
        self._wait_s = -1.0
        self._may_run.release()
        self._has_stopped.acquire()
        self._machine.current_job = None
        if self._wait_s >= 0 and not self._machine.is_over:
            self._machine.loop.call_later(self._wait_s, self.resume)
        elif self._is_over:
            self._on_end()

    def wait(self, duration_s: float) -> None:
        """Run the loop for a while; called by the thread."""
        self._wait_s = duration_s
        self._has_stopped.release()
        self._may_run.acquire()
        if self._machine.is_over:
            raise Stopped

    def _main(self) -> None:
        self._may_run.acquire()
        try:
            if not self._machine.is_over:
                self.result.set_result(self._call())
        except Stopped:
            pass
        except BaseException as error:
            self.result.set_exception(error)
        self._is_over = True
        self._has_stopped.release()


class VirtualExecutor:
    """An executor with ``max_workers`` threads, of which one runs at a time."""

    def __init__(self, machine: "Machine", max_workers: int) -> None:
        self._machine = machine
        self._idle = max_workers
        self._queued: list[Job] = []

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        job = Job(self._machine, lambda: call(*arguments), self._ended)
        self._machine.jobs.append(job)
        self._queued.append(job)
        self._start_next()
        return job.result

    def _start_next(self) -> None:
        while self._idle and self._queued:
            self._idle -= 1
            self._machine.loop.call_soon(self._queued.pop(0).resume)

    def _ended(self) -> None:
        self._idle += 1
        self._start_next()

    def shutdown(self, wait: bool = True) -> None:
        """Nothing to release."""


class VirtualJobThreads:
    """``JobThreads`` on a virtual machine."""

    def __init__(self, machine: "Machine", most: int) -> None:
        self._machine = machine
        self._executor = VirtualExecutor(machine, most)

    def run(self, job: Any, done: Callable[[Any], object]) -> None:
        future = self._executor.submit(job.run)
        future.add_done_callback(lambda _: self._machine.loop.call_soon_threadsafe(done, job))

    def join(self) -> None:
        """Nothing to release."""


class Machine:
    """Loop, threads and disk. ``sync_time_s`` returns the duration of a sync, ``fails`` whether it fails."""

    def __init__(
        self, directory: Path, sync_time_s: Callable[[FileOperation], float], fails: Callable[[FileOperation], bool]
    ) -> None:
        self.loop = VirtualLoop()
        self.clock = VirtualClock(self.loop)
        self.disk = DiskModel(directory, Image.read(directory))
        self.os = RecordingOS(self.disk)
        self.current_job: Job | None = None
        self.jobs: list[Job] = []
        self.is_over = False
        self._sync_time_s = sync_time_s
        self._fails = fails

    def executor(self, max_workers: int, thread_name_prefix: str = "") -> VirtualExecutor:
        """Replace ThreadPoolExecutor."""
        return VirtualExecutor(self, max_workers)

    def job_threads(self, most: int, name: str) -> VirtualJobThreads:
        """Replace JobThreads."""
        return VirtualJobThreads(self, most)

    def hook(self, operation: FileOperation) -> None:
        """Handle a file operation that is about to run."""
        job = self.current_job
        if operation.name not in (files.SYNC, files.DATASYNC):
            if job is not None and operation.name in (files.RENAME, files.UNLINK, files.WRITE, files.WRITEV):
                job.wait(1e-6)
            return
        end = self.os.begin_sync(operation.descriptor)
        if job is not None:
            job.wait(self._sync_time_s(operation))
        if self._fails(operation):
            self.os.fail_sync(operation.descriptor)
            raise OSError(5, "Input/output error")
        end()

    def close(self) -> None:
        """End every thread and the loop."""
        self.is_over = True
        for job in self.jobs:
            job.resume()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        with contextlib.suppress(AssertionError):
            self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()
