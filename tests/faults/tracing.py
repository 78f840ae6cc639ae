"""strace on a running daemon: makes system calls fail, kills the daemon at one of them, or records them.

Owns the strace process and parses its output. Calls are those of all threads, counted from when strace is attached.
"""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from daemons import Daemon

# The calls that change data on disk, with the names that Go and Python use.
CHANGES = "write,pwrite64,writev,pwritev,pwritev2,ftruncate,fallocate,rename,renameat,renameat2,unlink,unlinkat"
SYNCS = "fsync,fdatasync,sync_file_range,syncfs"
NEW_NAMES = "rename,renameat,renameat2,unlink,unlinkat,link,linkat"

_ATTACHED = re.compile(r"strace: Process \d+ attached")
_LINE = re.compile(r"(\d+) +(.*)")
_CALL = re.compile(r"(\w+)\((.*)\) += (-?\d+|\?)(.*)", re.DOTALL)
_RESUMED = re.compile(r"<\.\.\. (\w+) resumed>(.*)", re.DOTALL)
_UNFINISHED = " <unfinished ...>"


class Tracer:
    """strace attached to ``daemon`` until the block ends; ``options`` decide what it does."""

    def __init__(self, daemon: Daemon, *options: str, output: Path | None = None) -> None:
        if shutil.which("strace") is None:
            pytest.skip("strace missing: install strace")
        target = str(output) if output is not None else os.devnull
        self._process = subprocess.Popen(
            ["strace", "-f", "-o", target, *options, "-p", str(daemon.pid)], stderr=subprocess.PIPE, text=True
        )
        assert self._process.stderr is not None
        line = self._process.stderr.readline()
        if not _ATTACHED.match(line):
            self.stop()
            pytest.skip(f"strace cannot attach, run as root: {line.strip()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Detach; the output is complete afterwards."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        self._process.communicate(timeout=20)


def failing(calls: str, error: str, when: str = "1+") -> list[str]:
    """Return options that make calls fail: all of them, or those that ``when`` selects."""
    return ["-e", f"trace={calls}", "-e", f"inject={calls}:error={error}:when={when}"]


def delaying(calls: str, delay_ms: int, path: Path | None = None) -> list[str]:
    """Return options that delay calls: all of them, or those on one file."""
    only = ["-P", str(path)] if path is not None else []
    return [*only, "-e", f"trace={calls}", "-e", f"inject={calls}:delay_enter={1000 * delay_ms}"]


def killing(calls: str, number: int) -> list[str]:
    """Return options that kill the daemon at the start of the call of this number."""
    return ["-e", f"trace={calls}", "-e", f"inject={calls}:signal=KILL:when={number}"]


def recording(extra: str = "") -> list[str]:
    """Return options that record everything written to files and sockets, in full."""
    others = "open,openat,creat,mkdir,mkdirat,rmdir,lseek,sendto,sendmsg,truncate,copy_file_range"
    calls = f"{CHANGES},{SYNCS},{NEW_NAMES},{others}"
    return ["-y", "-xx", "-s", "2000000", "-e", f"trace={calls}{extra}"]


@dataclass(frozen=True)
class Call:
    """A system call that has returned; ``began`` and ``ended`` are line numbers of the trace."""

    name: str
    arguments: str
    result: int
    began: int
    ended: int


def read_calls(output: Path) -> Iterator[Call]:
    """Yield the calls of a trace in the order of their return, without those that never returned."""
    unfinished: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(output.read_text().splitlines()):
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        thread, text = match.groups()
        began = number
        if text.endswith(_UNFINISHED):
            unfinished[thread] = number, text.removesuffix(_UNFINISHED)
            continue
        resumed = _RESUMED.fullmatch(text)
        if resumed is not None:
            began, start = unfinished.pop(thread)
            text = start + resumed[2]
        call = _CALL.fullmatch(text)
        if call is not None and call[3] != "?":
            yield Call(call[1], call[2], int(call[3]), began, number)
