"""Runs every fault of the table on Go's nsqd and on ours and prints what came of it, as a Markdown table.

    python tests/faults/report.py [--slow] [row ...]

Exits with 1 if a row is not as expected. Run with the package on the path, as root for the rows that mount or trace.
"""

import argparse
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import pytest  # noqa: E402
from stage import Outcome, Stage  # noqa: E402
from table import ROWS, Row  # noqa: E402

HEADS = ("#", "fault", "Go nsqd", "nsqx", "expected", "")
LONGEST_CELL = 150


def main() -> int:
    parser = argparse.ArgumentParser(description="What becomes of each fault, with Go's nsqd and with ours.")
    parser.add_argument("--slow", action="store_true", help="run the rows that take minutes too")
    parser.add_argument("rows", nargs="*", help="numbers of the rows to run; all if none are given")
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
    return 1 if unmet else 0


def run(row: Row, implementation: str) -> Outcome | str:
    """The outcome, or why there is none."""
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
