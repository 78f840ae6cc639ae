"""/debug: reports about the stacks, tasks, threads and memory of a running nsqd, under the paths of Go's pprof.

The reports are plain text. ``profile`` has the collapsed-stack format of flame graph tools. It samples the Python
stacks of all threads by wall-clock time, so waiting is visible too. A compiled module appears only as the Python
function that called it. This module is independent of brokers and topics.
"""

import asyncio
import gc
import sys
import threading
import time
import traceback
import tracemalloc
from collections import Counter
from html import escape
from io import StringIO
from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from nsqx.gotext import INT64_MAX, INT64_MIN, quote
from nsqx.net.responses import HTML, TEXT, Response, plain_response

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from nsqx.net.requests import Request
    from nsqx.net.router import Router

DEFAULT_PROFILE_S = 30.0
MAX_PROFILE_S = 60.0
SAMPLES_PER_S = 100
# Limits that keep the reports readable.
MAX_HEAP_LINES = 100
MAX_COUNTED_OBJECTS = 1_000_000

_NO_SNIFF = (("X-Content-Type-Options", "nosniff"),)
_ALREADY_PROFILING = plain_response(500, "a profile is being taken already\n")

_INDEX = {
    "cmdline": "the command line",
    "goroutine": "asyncio tasks and where each waits",
    "heap": "allocations by line if tracemalloc is on (PYTHONTRACEMALLOC=1), else objects by type",
    "profile": "stacks of all threads, sampled for ?seconds=30",
    "threadcreate": "threads and their stacks",
}


def add_debug_routes(router: "Router", *, with_pprof: bool) -> None:
    """Add the two actions that nsqd always has, and the reports if ``with_pprof``."""
    router.add("PUT", "/debug/setblockrate", set_block_rate)
    router.add("POST", "/debug/freememory", free_memory)
    if with_pprof:
        router.add("GET", "/debug/pprof/", index)
        router.add("GET", "/debug/pprof/cmdline", lambda _request: _text("\0".join(sys.argv)))
        router.add("GET", "/debug/pprof/goroutine", lambda _request: _text(task_report()))
        router.add("GET", "/debug/pprof/heap", heap)
        router.add("GET", "/debug/pprof/profile", Profiler().profile)
        router.add("GET", "/debug/pprof/threadcreate", lambda _request: _text(thread_report()))


def set_block_rate(request: "Request") -> Response:
    """Accept and ignore the rate at which Go samples blocking: Python has no such setting.

    Go nsqd sets the rate and then answers 500 because its handler returns nothing. Here the answer is 200.
    """
    in_body = parse_qs(request.body.decode("latin-1")) if request.body else {}
    rate = in_body.get("rate", [request.query.get("rate", "")])[0]
    digits = rate[1:] if rate[:1] in ("+", "-") else rate
    if not (digits.isascii() and digits.isdigit()):
        return plain_response(400, f"invalid block rate : strconv.Atoi: parsing {quote(rate)}: invalid syntax")
    if len(digits) > 19 or not INT64_MIN <= int(rate) <= INT64_MAX:
        return plain_response(400, f"invalid block rate : strconv.Atoi: parsing {quote(rate)}: value out of range")
    return Response(200)


def free_memory(_request: "Request") -> Response:
    """Collect garbage; answers 200 where Go nsqd answers 500 (see ``set_block_rate``)."""
    gc.collect()
    return Response(200)


def index(_request: "Request") -> Response:
    """Answer with the list of reports."""
    rows = "".join(f'<li><a href="{name}">{name}</a>: {escape(text)}</li>\n' for name, text in _INDEX.items())
    page = f"<html>\n<head><title>/debug/pprof/</title></head>\n<body>\n<ul>\n{rows}</ul>\n</body>\n</html>\n"
    return Response(200, page.encode(), HTML, _NO_SNIFF)


async def heap(_request: "Request") -> Response:
    """Answer with a report on memory. The objects are counted in a thread, because there can be many."""
    return _text(await asyncio.get_running_loop().run_in_executor(None, heap_report))


class Profiler:
    """Takes one profile at a time."""

    def __init__(self) -> None:
        self._busy = False

    async def profile(self, request: "Request") -> Response:
        """Sample for ``seconds`` and answer with the stacks; ends early if the server stops."""
        duration_s = _parse_duration(request.query.get("seconds", ""))
        if self._busy:
            return _ALREADY_PROFILING
        self._busy = True
        stopped = threading.Event()
        try:
            loop = asyncio.get_running_loop()
            stacks = await loop.run_in_executor(None, sample_stacks, duration_s, stopped)
        finally:
            stopped.set()
            self._busy = False
        return _text("".join(f"{stack} {count}\n" for stack, count in stacks.most_common()))


def sample_stacks(duration_s: float, stopped: threading.Event) -> Counter[str]:
    """Count the samples of each stack of the other threads; a stack starts with the outermost function."""
    own_thread = threading.get_ident()
    names: dict[CodeType, str] = {}
    stacks: Counter[str] = Counter()
    deadline = time.monotonic() + duration_s
    while time.monotonic() < deadline and not stopped.wait(1 / SAMPLES_PER_S):
        for thread, frame in sys._current_frames().items():
            if thread != own_thread:
                stacks[_collapsed(frame, names)] += 1
    return stacks


def heap_report() -> str:
    """Return allocations by line if tracemalloc runs, else the number of objects of each type."""
    if tracemalloc.is_tracing():
        lines = tracemalloc.take_snapshot().statistics("lineno")
        return "".join(f"{statistic}\n" for statistic in lines[:MAX_HEAP_LINES])
    counts = Counter(map(type, islice(gc.get_objects(), MAX_COUNTED_OBJECTS)))
    rows = "".join(
        f"{count:>9} {kind.__module__}.{kind.__qualname__}\n" for kind, count in counts.most_common(MAX_HEAP_LINES)
    )
    return f"{counts.total()} objects, {gc.get_freeze_count()} more frozen, {sys.getallocatedblocks()} blocks\n{rows}"


def task_report() -> str:
    """Return every asyncio task and the line where it waits."""
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    report = StringIO()
    report.write(f"{len(tasks)} tasks\n")
    for task in tasks:
        report.write("\n")
        task.print_stack(file=report)
    return report.getvalue()


def thread_report() -> str:
    """Return every thread and its stack."""
    frames = sys._current_frames()
    threads = threading.enumerate()
    report = [f"{len(threads)} threads\n"]
    for thread in threads:
        report.append(f"\n{thread.name} (daemon: {thread.daemon})\n")
        frame = frames.get(thread.ident or 0)
        if frame is not None:
            report += traceback.format_stack(frame)
    return "".join(report)


def _collapsed(innermost: "FrameType", names: "dict[CodeType, str]") -> str:
    stack = []
    frame: FrameType | None = innermost
    while frame is not None:
        code = frame.f_code
        name = names.get(code)
        if name is None:
            module = frame.f_globals.get("__name__", "?")
            names[code] = name = f"{module}.{code.co_qualname}"
        stack.append(name)
        frame = frame.f_back
    return ";".join(reversed(stack))


def _parse_duration(seconds: str) -> float:
    """Return the duration of a profile; like Go, the default for everything that is not a positive number."""
    try:
        asked_s = float(seconds)
    except ValueError:
        return DEFAULT_PROFILE_S
    return min(asked_s, MAX_PROFILE_S) if asked_s > 0 else DEFAULT_PROFILE_S


def _text(report: str) -> Response:
    return Response(200, report.encode("utf-8", "replace"), TEXT, _NO_SNIFF)
