"""Builds wheels and the source package from a copy of the tree, as `make wheel` does."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NEEDED_TO_BUILD = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in")


def hot_modules() -> list[str]:
    """Return the modules that setup.py compiles."""
    for statement in ast.parse((ROOT / "setup.py").read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "HOT_MODULES":
            modules: list[str] = ast.literal_eval(statement.value)
            return modules
    raise AssertionError("setup.py has no HOT_MODULES")


def copy_tree(target: Path) -> Path:
    """Copy the files needed to build, and the results of an earlier build, so that nothing is compiled twice."""
    target.mkdir()
    for name in NEEDED_TO_BUILD:
        if (ROOT / name).exists():
            shutil.copy2(ROOT / name, target)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so", "*.c")
    shutil.copytree(ROOT / "src", target / "src", ignore=ignored)
    for folder in (ROOT / "build").glob("*"):
        if folder.name == "src" or folder.name.startswith("temp."):
            shutil.copytree(folder, target / "build" / folder.name)
        elif folder.name.startswith("lib."):
            _copy_compiled(folder, target / "build" / folder.name)
    return target


def _copy_compiled(source: Path, target: Path) -> None:
    stems = {module.replace(".", "/") for module in hot_modules()}
    for path in source.rglob("*.so"):
        place = path.relative_to(source)
        if str(place).partition(".")[0] in stems:
            (target / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target / place)


def build_wheel(tree: Path, target: Path, *, pure: bool) -> Path:
    """Build a wheel of the tree in ``target`` and return its path."""
    environment = {**os.environ, "NSQX_PURE": "1" if pure else "0"}
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index", "--quiet"]
    done = subprocess.run(
        [*command, "--disable-pip-version-check", "--wheel-dir", str(target), str(tree)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = target.glob("*.whl")
    return wheel


def build_sdist(tree: Path, target: Path) -> Path:
    """Build the source package of the tree in ``target`` and return its path."""
    script = f"from setuptools import build_meta; build_meta.build_sdist({str(target)!r})"
    environment = {**os.environ, "NSQX_PURE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tree, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,) = target.glob("*.tar.gz")
    return sdist
