"""Runs every fault of the table on Go's nsqd and on nsqx's nsqd and prints the results as a Markdown table.

    python tests/faults/report.py [--slow] [--runs 3000] [--lives 20] [row ...]

Unless rows are named, random use of the disk queue and of nsqd follows, against models of losses. NSQX_SEED sets the
first seed. Exits with 1 if a result is not as expected. Run it with the package on the path, and as root for the rows
that mount or trace.
"""

import argparse
import os
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import pytest  # noqa: E402
from daemon_model import LIVES, run_daemon_seed  # noqa: E402
from queue_model import run_seed  # noqa: E402
from stage import Outcome, Stage  # noqa: E402
from table import ROWS, Row  # noqa: E402

HEADS = ("#", "fault", "Go nsqd", "nsqx", "expected", "")
LONGEST_CELL = 150


def main() -> int:
    parser = argparse.ArgumentParser(description="Show the result of each fault, with Go's nsqd and with nsqx's.")
    parser.add_argument("--slow", action="store_true", help="also run the rows that take minutes")
    parser.add_argument("--runs", type=int, default=3000, help="runs of the disk queue in random use")
    parser.add_argument("--lives", type=int, default=20, help="runs of nsqd in random use, with several restarts each")
    parser.add_argument("rows", nargs="*", help="numbers of the rows to run; default: all")
    arguments = parser.parse_args()
    print(f"| {' | '.join(HEADS)} |\n|{'---|' * len(HEADS)}")
    unmet = 0
    for row in ROWS:
        if (arguments.rows and row.number not in arguments.rows) or (row.is_slow and not arguments.slow):
            continue
        theirs = row.go_cannot or run(row, "go")
        ours = run(row, "nsqx")
        is_met = row.is_met(ours) if isinstance(ours, Outcome) else None
        unmet += is_met is False
        verdict = {True: "ok", False: "NOT MET", None: "not run"}[is_met]
        cells = (row.number, row.fault, theirs, ours, row.expected, verdict)
        print("| " + " | ".join(_cell(str(cell)) for cell in cells) + " |", flush=True)
    if not arguments.rows:
        unmet += not run_models(arguments.runs, arguments.lives)
    return 1 if unmet else 0


def run_models(queue_runs: int, daemon_runs: int) -> bool:
    """Use the disk queue and nsqd at random and print the counts; print the seed and return False after a loss."""
    first = int(os.environ.get("NSQX_SEED", random.SystemRandom().randrange(1 << 40)))
    counts: Counter[str] = Counter()
    acked = twice = 0
    try:
        for seed in range(first, first + queue_runs):
            counts += run_seed(seed).counts
        for seed in range(first, first + daemon_runs):
            with tempfile.TemporaryDirectory(prefix="model-") as directory, Stage("nsqx", Path(directory)) as stage:
                outcome = run_daemon_seed(stage, seed)
                acked, twice = acked + outcome.acked, twice + outcome.duplicated
    except AssertionError as failure:
        print(f"\n{failure}")
        return False
    print(
        f"\nDisk queue in random use, {queue_runs} runs from seed {first}: killed {counts['killed']} times, power cut "
        f"{counts['power cut']} times, {counts['restart_cleanly']} restarts; no message lost that must be kept."
        f"\nnsqd in random use, {daemon_runs} runs of {LIVES} starts: 0 of {acked} acked lost, {twice} delivered twice."
    )
    return True


def run(row: Row, implementation: str) -> Outcome | str:
    """Return the outcome, or the reason why there is none."""
    with tempfile.TemporaryDirectory(prefix="fault-") as directory:
        try:
            with Stage(implementation, Path(directory)) as stage:
                return row.scenario(stage)
        except pytest.skip.Exception as reason:
            return f"not run: {reason}"
        except Exception as failure:
            if implementation == "go":
                return f"failed: {failure}"
            return Outcome(foreign=1, seen={"failed": str(failure)})


def _cell(text: str) -> str:
    text = " ".join(text.split()).replace("|", "/")
    return text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 1] + "…"


if __name__ == "__main__":
    sys.exit(main())
