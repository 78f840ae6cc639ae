"""Scenarios of a data directory that is damaged, examined and repaired, and then read by a daemon."""

import contextlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

from damage import FILES, Damage, fill
from stage import Outcome, Stage

from nsqx.cli.doctor import main


def doctor(data_path: Path, *flags: str) -> tuple[int, dict[str, Any]]:
    """Run nsqx doctor; return the exit code and the report."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(["--json", *flags, str(data_path)])
    return code, json.loads(out.getvalue()) if out.getvalue() else {}


def codes(report: dict[str, Any]) -> set[str]:
    return {finding["code"] for finding in report["findings"]}


def contents(directory: Path) -> dict[str, bytes]:
    """Return the content of every file, including those in subdirectories."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def damage_and_repair(stage: Stage, damage: Damage, **options: bool) -> dict[str, Any]:
    """Fill, damage, examine and repair; return the first findings. No file content may be lost."""
    fill(stage, **options)
    damage(stage.data_path)
    before = contents(stage.data_path)
    code, report = doctor(stage.data_path)
    assert contents(stage.data_path) == before, "the examination has changed a file"
    assert code == (1 if report["findings"] else 0)
    code, after = doctor(stage.data_path, "--repair")
    kept = set(contents(stage.data_path).values())
    assert all(content in kept for content in before.values()), "a file is lost"
    assert (code, after["findings"]) == (0, [])
    return report


def read_by(stage: Stage, implementation: str) -> Outcome:
    """Return what a daemon delivers from a copy of the directory."""
    copy = stage.directory / f"for {implementation}"
    shutil.copytree(stage.data_path, copy)
    stage.implementation = implementation
    return stage.restart_and_drain(FILES, data_path=copy)
