"""Runs every fault of the table on Go's nsqd and on nsqx's nsqd with both stores, and prints a Markdown table.

    python tests/faults/report.py [--slow] [--runs 3000] [--lives 20] [--store log] [--save FILE] [row ...]

``--save`` also writes the table into a page, between the two comments SAVED.

Unless rows or a store are named, random use of the disk queue and of nsqd follows, against models of losses. NSQX_SEED
sets the first seed. Exits with 1 if a result is not as expected. Run it with the package on the path, and as root for
the rows that mount or trace.
"""

import argparse
import os
import random
import re
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

HEADS = ("#", "fault", "Go nsqd", "nsqx, classic store", "nsqx, log store", "expected", "")
STORES = ("go", "classic", "log")
SAVED = "<!-- results of tests/faults/report.py -->"
LONGEST_CELL = 150
# The time of a log line, and the temporary directory of a row.
_PLACES = re.compile(r"\[nsqd\] [\d/]+ [\d:.]+ |/[^ ]*/fault-\w+/")


def main() -> int:
    parser = argparse.ArgumentParser(description="Show the result of each fault, with Go's nsqd and with nsqx's.")
    parser.add_argument("--slow", action="store_true", help="also run the rows that take minutes")
    parser.add_argument("--runs", type=int, default=3000, help="runs of the disk queue in random use")
    parser.add_argument("--lives", type=int, default=20, help="runs of nsqd in random use, with several restarts each")
    parser.add_argument("--store", choices=STORES, action="append", help="run only this; default: all of them")
    parser.add_argument("--save", type=Path, help="also write the table into this page")
    parser.add_argument("rows", nargs="*", help="numbers of the rows to run; default: all")
    arguments = parser.parse_args()
    stores = arguments.store or STORES
    lines = [f"| {' | '.join(HEADS)} |", f"|{'---|' * len(HEADS)}"]
    print(*lines, sep="\n")
    unmet = 0
    for row in ROWS:
        if (arguments.rows and row.number not in arguments.rows) or (row.is_slow and not arguments.slow):
            continue
        outcomes = {store: run(row, store) if store in stores else "not run" for store in STORES}
        verdicts = [verdict(row, store, outcomes[store]) for store in ("classic", "log")]
        unmet += "NOT MET" in verdicts
        cells = (row.number, row.fault, *outcomes.values(), _expected(row), _summary(verdicts))
        lines.append("| " + " | ".join(_cell(str(cell)) for cell in cells) + " |")
        print(lines[-1], flush=True)
    if arguments.save is not None:
        save(arguments.save, lines)
    if not arguments.rows and not arguments.store:
        unmet += not run_models(arguments.runs, arguments.lives)
    return 1 if unmet else 0


def save(page: Path, lines: list[str]) -> None:
    """Replace the table between the comments of a page."""
    before, _, after = page.read_text().split(SAVED)
    page.write_text("\n".join([f"{before}{SAVED}", "", *lines, "", f"{SAVED}{after}"]))


def verdict(row: Row, store: str, outcome: Outcome | str) -> str:
    """Return whether an outcome of nsqx is as expected."""
    if isinstance(outcome, str):
        return "not run"
    is_met = row.log_is_met if store == "log" and row.log_is_met is not None else row.is_met
    return "ok" if is_met(outcome) else "NOT MET"


def _summary(verdicts: list[str]) -> str:
    for text in ("NOT MET", "ok"):
        if text in verdicts:
            return text
    return "not run"


def _expected(row: Row) -> str:
    return f"{row.expected}; log: {row.log_expected}" if row.log_expected else row.expected


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


def run(row: Row, store: str) -> Outcome | str:
    """Return the outcome with Go's nsqd, or with a store of nsqx, or the reason why there is none."""
    reason = {"go": row.go_cannot, "classic": row.classic_cannot, "log": row.log}[store]
    if isinstance(reason, str) and reason:
        return reason
    scenario = row.log if store == "log" and callable(row.log) else row.scenario
    implementation = "go" if store == "go" else "nsqx"
    with tempfile.TemporaryDirectory(prefix="fault-") as directory:
        try:
            with Stage(implementation, Path(directory), "" if store == "go" else store) as stage:
                return scenario(stage)
        except pytest.skip.Exception as reason:
            return f"not run: {reason}"
        except Exception as failure:
            if implementation == "go":
                return f"failed: {failure}"
            return Outcome(foreign=1, seen={"failed": str(failure)})


def _cell(text: str) -> str:
    text = _PLACES.sub("", " ".join(text.split())).replace("|", "/")
    return text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 1] + "…"


if __name__ == "__main__":
    sys.exit(main())
