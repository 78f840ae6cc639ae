"""Failpoints: faults that tests inject into the file operations of ``files``.

      data.write=tear@3          the third write to a data file writes half of its data, then the process is killed
      meta.rename=stop           the process is killed before the first rename of a meta file
      data.write=short:ENOSPC    the first write to a data file writes half of its data, then fails
      *.sync=fail:EIO@2+         the second sync of any file, and each after it, fails
      data.sync=delay:200@1+     every sync of a data file takes 200 ms longer
      data.sync=delay:200@2-4    the second to the fourth sync do

Several faults are separated by commas. A daemon reads them from NSQX_FAILPOINTS in its environment. A test in the same
process passes them to ``files.set_hook``, with an ``on_stop`` that raises Stopped.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqx.queues.files import FileOperation

_FAULT = re.compile(r"([a-z*]+\.[a-z*]+)=(fail|short|tear|delay|stop)(?::(\w+))?(?:@(\d+)(\+|-\d+)?)?")


class Stopped(BaseException):
    """Simulated crash: code that catches this may only inspect files afterwards."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault at the operations ``first`` to ``last`` of those that match ``point``."""

    point: str
    action: str
    argument: str = ""
    first: int = 1
    last: int = 1

    def error(self, default: int) -> OSError:
        """Return the error to raise."""
        number = getattr(errno, self.argument) if self.argument else default
        return OSError(number, os.strerror(number))


def kill_process() -> None:
    """Kill this process, as a crash does: the files keep everything written, synced or not."""
    os.kill(os.getpid(), signal.SIGKILL)


class Failpoints:
    """A hook for ``files`` that injects faults; ``counts`` has the number of operations at each failpoint."""

    def __init__(self, faults: Sequence[Fault], on_stop: Callable[[], object] = kill_process) -> None:
        self.counts: Counter[str] = Counter()
        self._faults = faults
        self._matches: Counter[Fault] = Counter()
        self._on_stop = on_stop

    def __call__(self, operation: FileOperation) -> None:
        """Inject the faults that match this operation."""
        self.counts[operation.point] += 1
        for fault in self._faults:
            if fnmatchcase(operation.point, fault.point):
                self._matches[fault] += 1
                if fault.first <= self._matches[fault] <= fault.last:
                    self._carry_out(fault, operation)

    def _carry_out(self, fault: Fault, operation: FileOperation) -> None:
        if fault.action == "delay":
            threading.Event().wait(int(fault.argument) / 1000)
        elif fault.action == "fail":
            raise fault.error(errno.EIO)
        elif fault.action == "short":
            _write_half(operation)
            raise fault.error(errno.ENOSPC)
        else:
            if fault.action == "tear":
                _write_half(operation)
            self._on_stop()


def _write_half(operation: FileOperation) -> None:
    if operation.data:
        half = memoryview(operation.data)[: len(operation.data) // 2]
        os.pwrite(operation.descriptor, half, operation.position)


def failpoints_of(text: str, on_stop: Callable[[], object] = kill_process) -> Failpoints:
    """Parse the faults in ``text``; raises ValueError if it is invalid."""
    return Failpoints([_fault_of(item.strip()) for item in text.split(",") if item.strip()], on_stop)


def _fault_of(text: str) -> Fault:
    match = _FAULT.fullmatch(text)
    if match is None:
        raise ValueError(f"NSQX_FAILPOINTS: {text!r} is not POINT=fail|short|tear|delay|stop[:ARGUMENT][@N[+|-LAST]]")
    point, action, argument, number, onwards = match.groups()
    if action in ("fail", "short") and argument and not hasattr(errno, argument):
        raise ValueError(f"NSQX_FAILPOINTS: {argument!r} is not the name of an error, such as ENOSPC")
    if action == "delay" and not (argument or "").isdigit():
        raise ValueError(f"NSQX_FAILPOINTS: {text!r} needs the delay in milliseconds, as in delay:200")
    first = int(number or 1)
    last = 1 << 62 if onwards == "+" else int(onwards[1:]) if onwards else first
    return Fault(point, action, argument or "", first, last)
