"""Counts the instructions of the hot operations with callgrind. Unlike times, counts do not depend on other processes.

    python tests/bench/instruction_counts.py            compare the counts with the baseline
    python tests/bench/instruction_counts.py --update   make the counts the baseline

The machine code depends on the versions of Python, the compiler and Cython. These versions are the key of a baseline,
and counts are compared only with the baseline of the same key. Functions of the C library are not counted, because
their copies and allocations depend on the processor and on addresses in memory. The operations run in a separate
process under valgrind, which counts only between two marks. Everything before the marks runs at nearly full speed.
"""

import ctypes
import gc
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BASELINE = HERE / "instruction_counts.json"
HEADER = Path("/usr/include/valgrind/callgrind.h")
TOLERANCE = 0.05

BATCH = 200
ROUNDS = 5
WARM_UP_ROUNDS = 3
BODY = b"x" * 200
_SIZED = len(BODY).to_bytes(4, "big") + BODY
PUB = b"PUB t\n" + _SIZED
MPUB = b"MPUB t\n" + (4 + len(_SIZED) * BATCH).to_bytes(4, "big") + BATCH.to_bytes(4, "big") + _SIZED * BATCH

# A C library with the marks, which are macros of valgrind.
MARKS = """
#include <valgrind/callgrind.h>
void mark_start(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void mark_toggle(void) { CALLGRIND_TOGGLE_COLLECT; }
void mark_stop(const char *name) { CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_STOP_INSTRUMENTATION; }
"""


def missing() -> str:
    """Return why instructions cannot be counted on this machine, or ""."""
    if shutil.which("valgrind") is None or not HEADER.exists():
        return "valgrind is not installed"
    if shutil.which("gcc") is None:
        return "gcc is not installed"
    import nsqx.nsqd.session

    if not str(nsqx.nsqd.session.__file__).endswith(".so"):
        return "the package is not compiled"
    return ""


def key() -> str:
    """Return the versions that the machine code depends on."""
    compiler = subprocess.run(["gcc", "-dumpfullversion"], capture_output=True, text=True, check=True).stdout.strip()
    try:
        cython = version("Cython")
    except PackageNotFoundError:
        cython = "unknown"
    implementation = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{implementation}, gcc {compiler}, Cython {cython}, {sysconfig.get_platform()}"


def count() -> dict[str, int]:
    """Return the instructions per message of each operation."""
    with tempfile.TemporaryDirectory(prefix="nsqx-counts-") as directory:
        library = Path(directory, "marks.so")
        source = Path(directory, "marks.c")
        source.write_text(MARKS)
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--collect-atstart=no"]
        command.append(f"--callgrind-out-file={directory}/out")
        done = subprocess.run(
            [*command, sys.executable, __file__, "--operate", library, directory],
            env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONMALLOC": "pymalloc"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"the operations failed under valgrind:\n{done.stdout}\n{done.stderr[-2000:]}")
        return dict(_read_dump(path) for path in sorted(Path(directory).glob("out.*")))


def _read_dump(path: Path) -> tuple[str, int]:
    """Return the name of an operation and its instructions per message from a file in callgrind's format."""
    text = path.read_text()
    trigger = re.search(r"^desc: Trigger: Client Request: (\S+) (\d+)$", text, re.MULTILINE)
    assert trigger is not None, text[:400]
    return trigger[1], round(own_instructions(text.splitlines()) / int(trigger[2]))


def own_instructions(lines: list[str]) -> int:
    """Return the sum of all costs without those of functions in the C library.

    ``ob=(7) /path`` names the object file of the following costs; later it is written as ``ob=(7)``. ``cob=`` names the
    object file of a called function. A cost is a line number, absolute or relative, and a count. The line after
    ``calls=`` is the cost of the called function. It is skipped, because it is also listed with that function.
    """
    names: dict[str, str] = {}
    is_counted, is_call, total = True, False, 0
    for line in lines:
        if line.startswith(("ob=", "cob=")):
            number, _, name = line.partition("=")[2].partition(" ")
            names.setdefault(number, name)
            if line.startswith("ob="):
                is_counted = "/libc" not in names[number]
        elif line.startswith("calls="):
            is_call = True
        elif line[:1] in "+-*0123456789" and line:
            if is_counted and not is_call:
                total += int(line.split()[1])
            is_call = False
    return total


def load_baseline() -> dict[str, dict[str, int]]:
    """Return the counts of all baselines by key."""
    found: dict[str, dict[str, int]] = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    return found


def compare(counts: dict[str, int], known: dict[str, int]) -> list[str]:
    """Return a line for each operation that takes more instructions than ``known`` or is not in ``known``."""
    lines = []
    for name, instructions in counts.items():
        if name not in known:
            lines.append(f"{name}: {instructions} instructions per message, not in the baseline")
        elif instructions > known[name] * (1 + TOLERANCE):
            lines.append(f"{name}: {instructions} instructions per message, {known[name]} in the baseline")
    return lines


@dataclass
class Operation:
    """An operation on BATCH messages. ``prepare`` runs before it; only ``run`` is counted."""

    name: str
    run: Callable[[], object]
    prepare: Callable[[], object] = lambda: None


def parse_operation() -> Operation:
    """Parse an MPUB."""
    from nsqx.wire.commands import BATCH as WHOLE
    from nsqx.wire.commands import CommandReader

    reader = CommandReader()

    def run() -> None:
        reader.feed(MPUB)
        reader.next()
        reader.expect_body()
        reader.next()
        reader.accept_batch(1_000_000, 1_000_000)
        assert reader.next() == WHOLE
        reader.take_batch()

    return Operation("parse_mpub", run)


def publish_operation(bench: Any, name: str, data: bytes, times: int = 1) -> Operation:
    """Execute the publish commands in ``data`` on a topic with one channel, and end the turn."""
    from nsqx.nsqd.session import ClientSession

    bench.broker.topic("t").channel("c")
    session = ClientSession(bench.broker, bench.connect())

    def run() -> None:
        for _ in range(times):
            bench.broker.turn.receive(session, data)
        bench.run_scheduled()

    return Operation(name, run)


def deliver_operation(bench: Any, name: str) -> Operation:
    """Deliver waiting messages to a client that becomes ready."""
    client = bench.consume("t", "c", 0)

    def prepare() -> None:
        for message in client.link.take_messages():
            assert client.channel.finish(client, message.id) is None
        bench.set_ready(client, 0)
        bench.publish("t", *[BODY] * BATCH)

    return Operation(name, lambda: bench.set_ready(client, BATCH), prepare)


def finish_operation(bench: Any, name: str) -> Operation:
    """Execute the FINs of messages in flight."""
    from nsqx.nsqd.session import ClientSession

    client = bench.consume("t", "c", BATCH)
    session = ClientSession(bench.broker, client)
    commands = bytearray()

    def prepare() -> None:
        bench.publish("t", *[BODY] * BATCH)
        commands[:] = b"".join(b"FIN %b\n" % message.id for message in client.link.take_messages())

    def run() -> None:
        bench.broker.turn.receive(session, bytes(commands))

    return Operation(name, run, prepare)


def operations(directory: Path) -> Iterator[Operation]:
    """Yield the hot operations. Each has its own real broker, whose links are lists of bytes."""
    sys.path.insert(0, str(HERE.parent))
    from broker_bench import Bench

    def bench(name: str, mem_queue_size: int, store: str = "classic") -> Any:
        path = directory / name
        path.mkdir()
        return Bench(path, mem_queue_size=mem_queue_size, store=store, durability="write")

    yield parse_operation()
    yield publish_operation(bench("publish", 10_000_000), "publish_to_one_channel", MPUB)
    yield deliver_operation(bench("deliver", 10_000_000), "deliver")
    yield finish_operation(bench("finish", 10_000_000), "finish")
    yield publish_operation(bench("pub", 10_000_000), "pub", PUB, BATCH)
    yield publish_operation(bench("disk_write", 0), "disk_write", MPUB)
    yield deliver_operation(bench("disk_read", 0), "disk_read")
    yield publish_operation(bench("log_publish", 0, "log"), "log_publish", MPUB)
    yield publish_operation(bench("log_pub", 0, "log"), "log_pub", PUB, BATCH)
    yield deliver_operation(bench("log_deliver", 0, "log"), "log_deliver")
    yield finish_operation(bench("log_finish", 0, "log"), "log_finish")


def operate(library_path: str, directory: str) -> None:
    """Run every operation between marks. This function runs under valgrind."""
    marks = ctypes.CDLL(library_path)
    gc.disable()
    for operation in operations(Path(directory)):
        for _ in range(WARM_UP_ROUNDS):
            operation.prepare()
            operation.run()
        marks.mark_start()
        for _ in range(ROUNDS):
            operation.prepare()
            marks.mark_toggle()
            operation.run()
            marks.mark_toggle()
        marks.mark_stop(f"{operation.name} {BATCH * ROUNDS}".encode())


def main() -> int:
    if sys.argv[1:2] == ["--operate"]:
        operate(*sys.argv[2:4])
        return 0
    reason = missing()
    if reason:
        print(reason, file=sys.stderr)
        return 1
    counts = count()
    baseline = load_baseline()
    known = baseline.get(key(), {})
    print(key())
    for name, instructions in counts.items():
        print(f"{name:<26}{instructions:>8}{known.get(name, 0):>8}")
    if "--update" in sys.argv[1:]:
        baseline[key()] = counts
        BASELINE.write_text(json.dumps(baseline, indent=2) + "\n")
        return 0
    return 1 if known and compare(counts, known) else 0


if __name__ == "__main__":
    sys.exit(main())
