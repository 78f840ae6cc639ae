"""The long fuzz run: every target, running daemons, damaged directories and the HTTP contracts. Prints a table.

    python tests/fuzz/run.py [--minutes 10] [--seed N] [--only NAME ...] [--json FILE]

The exit code is 1 if an input failed. Failing inputs are printed and stored below --found. If atheris is installed,
every target also runs under it, on the uncompiled package.
"""

import argparse
import importlib.util
import itertools
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from bombardment import Report, bombard_nsqd, bombard_nsqlookupd, trouble_in  # noqa: E402
from damaged_starts import start_on_damage  # noqa: E402
from differential import compare  # noqa: E402
from mutation import Mutator  # noqa: E402
from targets import TARGETS, target_named  # noqa: E402

from daemons import Daemon, has_go, start_nsqadmin, start_nsqd, start_nsqlookupd  # noqa: E402

# Shares of the time: targets by mutation, targets by coverage, running daemons; contracts and starts take the rest.
MUTATION_SHARE, COVERAGE_SHARE, FIRE_SHARE = 0.35, 0.3, 0.2
# A shorter run would spend most of its time on starting.
MIN_COVERAGE_S = 4.0
INPUT_TIMEOUT_S = 20
MEMORY_LIMIT = 4 << 30
CONTRACT_EXAMPLES_PER_MINUTE = 12
STARTS_PER_MINUTE = 3
CONVERSATIONS_PER_MINUTE = 2000


@dataclass
class Result:
    """One line of the table."""

    name: str
    how: str
    inputs: int
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0
    remark: str = ""


class Hanging(BaseException):
    """An input took too long."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Run every parser of untrusted input on generated input.")
    parser.add_argument("--minutes", type=float, default=10.0, help="approximate duration (default 10)")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the mutations; by default a different one in each run"
    )
    parser.add_argument("--only", nargs="*", default=[], help="targets, or fire, go, starts, contracts")
    parser.add_argument("--found", default="build/fuzz", help="directory for failing inputs")
    parser.add_argument("--json", help="also write the figures to this file")
    parser.add_argument("--target", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    seed = arguments.seed or int(time.time())
    if arguments.target:
        return _run_one(arguments.target, seed, arguments.minutes * 60, Path(arguments.found))
    results = _run_all(arguments, seed)
    failed = sum(len(result.failures) for result in results)
    print(f"\n{sum(result.inputs for result in results)} inputs, {failed} failures, seed {seed}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"seed": seed, "results": list(map(asdict, results))}, indent=1))
    return 1 if failed else 0


def _run_all(arguments: argparse.Namespace, seed: int) -> list[Result]:
    total_s = arguments.minutes * 60
    only = set(arguments.only)
    found = Path(arguments.found).resolve()
    names = [target.name for target in TARGETS if not only or target.name in only]
    steps: list[Callable[[], Result]] = []
    for name in names:
        each_s = total_s * MUTATION_SHARE / len(names)
        steps.append(lambda name=name, each_s=each_s: _by_mutation(name, seed, each_s, found))  # type: ignore[misc]
    each_s = total_s * COVERAGE_SHARE / len(names) if names else 0.0
    if importlib.util.find_spec("atheris") and each_s >= MIN_COVERAGE_S:
        for name in names:
            steps.append(lambda name=name, each_s=each_s: _by_coverage(name, each_s, found))  # type: ignore[misc]
    if not only or "fire" in only:
        steps += [
            lambda: _fire_at_nsqd(seed, total_s * FIRE_SHARE),
            lambda: _fire_at_nsqlookupd(seed, total_s * FIRE_SHARE / 2),
        ]
    if (not only or "go" in only) and has_go():
        steps.append(lambda: _beside_go(seed, int(arguments.minutes * CONVERSATIONS_PER_MINUTE)))
    if not only or "starts" in only:
        steps.append(lambda: _starts(seed, max(2, int(arguments.minutes * STARTS_PER_MINUTE))))
    if (not only or "contracts" in only) and importlib.util.find_spec("schemathesis"):
        examples = max(4, int(arguments.minutes * CONTRACT_EXAMPLES_PER_MINUTE))
        for daemon in ("nsqd", "nsqlookupd", "nsqadmin"):
            steps.append(lambda daemon=daemon: _contract(daemon, examples, seed))  # type: ignore[misc]
    print("| what | how | inputs | failures | seconds | |\n|---|---|---:|---:|---:|---|")
    results = []
    for step in steps:
        started_s = time.monotonic()
        result = step()
        result.seconds = round(time.monotonic() - started_s, 1)
        results.append(result)
        cells = (result.name, result.how, result.inputs, len(result.failures), result.seconds, result.remark)
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)
        for failure in result.failures[:5]:
            print(f"  {failure[:1000]}", flush=True)
    return results


def _by_mutation(name: str, seed: int, seconds: float, found: Path) -> Result:
    """Run a target in a separate process, because it may hang or use all memory."""
    command = [sys.executable, __file__, "--target", name, "--seed", str(seed), "--minutes", str(seconds / 60)]
    done = subprocess.run([*command, "--found", str(found)], stdout=subprocess.PIPE, text=True, check=False)
    try:
        return Result(name, "mutation", **json.loads(done.stdout))
    except (ValueError, TypeError):
        return Result(name, "mutation", 0, [f"the process ended with {done.returncode}: {done.stdout}"])


def _run_one(name: str, seed: int, seconds: float, found: Path) -> int:
    """Print the number of inputs and the failures as JSON."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    signal.signal(signal.SIGALRM, _too_long)
    target = target_named(name)
    seeds = target.seeds()
    deadline_s = time.monotonic() + seconds
    tried = 0
    failures: dict[str, bytes] = {}
    for data in itertools.chain(seeds, Mutator(seed, seeds, target.tokens)):
        if time.monotonic() > deadline_s:
            break
        tried += 1
        failure = _failure_of(target.check, data)
        if failure and len(data) < len(failures.get(failure, data + b"x")):
            failures[failure] = data
    texts = [f"{failure}: {_keep(found, name, data)}" for failure, data in failures.items()]
    print(json.dumps({"inputs": tried, "failures": texts}))
    return 0


def _failure_of(check: Callable[[bytes], None], data: bytes) -> str:
    signal.alarm(INPUT_TIMEOUT_S)
    try:
        check(data)
    except (Exception, Hanging) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno} {str(error)[:100]}"
    finally:
        signal.alarm(0)
    return ""


def _too_long(_signal: int, _frame: Any) -> None:
    raise Hanging(f"not finished within {INPUT_TIMEOUT_S} s")


def _keep(found: Path, name: str, data: bytes) -> Path:
    directory = found / name
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / sha256(data).hexdigest()[:16]
    path.write_bytes(data)
    return path


def _by_coverage(name: str, seconds: float, found: Path) -> Result:
    directory = found / "atheris" / name
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(HERE / "with_atheris.py"), name, str(max(1, int(seconds))), str(directory)]
    source = str(HERE.parent.parent / "src")
    path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH", ""))))
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    text = done.stdout.decode(errors="replace")
    runs = re.search(r"number_of_executed_units: (\d+)", text)
    result = Result(name, "atheris", int(runs[1]) if runs else 0)
    if done.returncode:
        written = re.search(r"Test unit written to (\S+)", text)
        result.failures.append(f"{written[1] if written else 'no input stored'}: {text[-1500:]}")
    return result


def _fire_at_nsqd(seed: int, seconds: float) -> Result:
    with start_nsqlookupd("nsqx") as lookupd:
        flags = (f"--lookupd-tcp-address={lookupd.tcp_address}", "--mem-queue-size=100")
        with start_nsqd("nsqx", *flags) as daemon:
            before_kib = _rss_kib(daemon)
            report = bombard_nsqd(daemon, seed, seconds=seconds)
            return _fired("nsqd", report, daemon, before_kib)


def _fire_at_nsqlookupd(seed: int, seconds: float) -> Result:
    with start_nsqlookupd("nsqx") as daemon:
        before_kib = _rss_kib(daemon)
        return _fired("nsqlookupd", bombard_nsqlookupd(daemon, seed, seconds=seconds), daemon, before_kib)


def _fired(name: str, report: Report, daemon: Daemon, before_kib: int) -> Result:
    remark = f"memory {before_kib // 1024} MiB, then {_rss_kib(daemon) // 1024} MiB"
    if report.good_sent:
        remark += f"; valid client: {report.good_sent} sent, {report.good_lost} lost, {report.good_twice} duplicates"
    code = daemon.stop()
    failures = report.failures + trouble_in(daemon.log) + ([f"ended with {code}"] if code else [])
    return Result(name, "mutated input on TCP and HTTP", report.inputs, failures, remark=remark)


def _rss_kib(daemon: Daemon) -> int:
    return int(Path(f"/proc/{daemon.pid}/status").read_text().partition("VmRSS:")[2].split()[0])


def _beside_go(seed: int, count: int) -> Result:
    with start_nsqd("go") as go, start_nsqd("nsqx") as ours:
        failures = compare(go, ours, seed, count) + trouble_in(ours.log)
    return Result("nsqd", "same answers as Go's nsqd", count, failures)


def _starts(seed: int, count: int) -> Result:
    return Result("nsqd", "start on damaged directories", count, start_on_damage(seed, count))


def _contract(name: str, examples: int, seed: int) -> Result:
    from contracts import check_contract

    with start_nsqlookupd("nsqx") as lookupd:
        flags = (f"--lookupd-tcp-address={lookupd.tcp_address}", "--enable-debug-endpoints")
        with (
            start_nsqd("nsqx", *flags) as nsqd,
            start_nsqadmin("nsqx", f"--lookupd-http-address={lookupd.http_address}", "--poll-interval=1s") as nsqadmin,
        ):
            daemon = {"nsqd": nsqd, "nsqlookupd": lookupd, "nsqadmin": nsqadmin}[name]
            verdict = check_contract(f"http://{daemon.http_address}", examples, seed)
            failures = [f"{operation}: {text}" for operation, text in verdict.violations.items()]
            failures += trouble_in(daemon.log)
            return Result(
                name, "OpenAPI contract", verdict.requests, failures, remark=f"{verdict.operations} operations"
            )


if __name__ == "__main__":
    sys.exit(main())
