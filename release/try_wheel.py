"""Installs packages into empty environments, and runs a cluster, a producer and a consumer in each.

    python release/try_wheel.py [--dist DIR] [--python PATH ...] [--only KIND]

Each Python gets the wheel that pip chooses for it; the last one also gets the pure wheel and the source package, which
pip compiles. nsqadmin must serve its page, so the packages must be built with npm; the installation needs none. pip
needs the network. The client is installed alone too; it must stay at two packages beside nsqx. --only tries one kind:
wheel, pure, source or client.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# A loopback address of its own, so that the standard ports are free.
HOST = f"127.{os.getpid() % 250 + 1}.77.7"
READY = "Ctrl-C stops everything"
DEADLINE_S = 60
HOT_MODULE = "nsqx.nsqd.channel"


class Failed(Exception):
    """An installation that does not work."""


@dataclass(slots=True)
class Trial:
    """One installation: of which package, into which Python, and what it gave."""

    python_version: str
    package: str
    is_compiled: bool
    package_count: int
    size_mb: float
    start_s: float


class Environment:
    """A virtual environment that has nothing but pip."""

    def __init__(self, directory: Path, interpreter: str) -> None:
        self.directory = directory
        _run(interpreter, "-m", "venv", str(directory))
        self.python = str(directory / "bin" / "python")
        self._empty_mb = self.size_mb

    def install(self, *what: str) -> None:
        """Install packages with pip, from DIST and from the package index."""
        pip = (self.python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install")
        _run(*pip, "--constraint", str(ROOT / "constraints.txt"), *what)

    def program(self, name: str) -> str:
        """Return the path of an installed command."""
        return str(self.directory / "bin" / name)

    @property
    def size_mb(self) -> float:
        """The size of everything that is installed, pip included."""
        return sum(file.stat().st_size for file in self.directory.rglob("*") if file.is_file()) / 1e6

    @property
    def added_mb(self) -> float:
        """The size of what was added to the empty environment."""
        return self.size_mb - self._empty_mb

    @property
    def package_count(self) -> int:
        """The number of packages, without pip and setuptools, which are in some empty environments."""
        names = {
            path.name.partition("-")[0].lower() for path in self.directory.glob("lib/python*/site-packages/*.dist-info")
        }
        return len(names - {"pip", "setuptools"})


def check_page() -> None:
    """Fail unless nsqadmin serves its page."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:4171/", timeout=DEADLINE_S) as answer:
            page = answer.read()
    except OSError as error:
        raise Failed(f"nsqadmin serves no page: {error}") from None
    if b"<script" not in page:
        raise Failed("nsqadmin has no page: build the packages on a machine with npm")


def run_cluster(environment: Environment) -> float:
    """Run `nsqx up`, publish two messages and consume them; return the seconds until the cluster was ready."""
    nsqd = f"--nsqd-tcp-address={HOST}:4150"
    began_s = time.monotonic()
    with subprocess.Popen(
        [environment.program("nsqx"), "up", f"--host={HOST}", f"--data-path={environment.directory / 'data'}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            printed = []
            for line in process.stdout:
                printed.append(line)
                if READY in line:
                    break
            else:
                raise Failed(f"nsqx up ended: {''.join(printed)}")
            start_s = time.monotonic() - began_s
            _run(environment.program("nsqx"), "pub", nsqd, "greetings", "hello", "world")
            shown = _run(environment.program("nsqx"), "sub", nsqd, "--n=2", "greetings", "print")
            if shown.split() != ["hello", "world"]:
                raise Failed(f"consumed {shown!r}, not hello and world")
            check_page()
            process.send_signal(signal.SIGINT)
            if process.wait(DEADLINE_S) != 0:
                raise Failed(f"nsqx up exited with {process.returncode}")
        finally:
            process.kill()
    return start_s


def try_package(directory: Path, interpreter: str, dist: Path, package: str) -> Trial:
    """Install one package with the extras of a cluster, and run the cluster."""
    environment = Environment(directory, interpreter)
    version = _run(interpreter, "-c", "import platform; print(platform.python_version())").strip()
    if package == "chosen by pip":
        environment.install("--find-links", str(dist), "--no-index", "--no-deps", "nsqx")
        environment.install("--find-links", str(dist), "nsqx[admin,server]")
    else:
        environment.install(f"nsqx[admin,server] @ {(dist / package).as_uri()}")
    where = _run(environment.python, "-c", f"import {HOT_MODULE} as module; print(module.__file__)").strip()
    count, size_mb = environment.package_count, environment.added_mb
    trial = Trial(version, package, not where.endswith(".py"), count, size_mb, run_cluster(environment))
    if package.endswith("none-any.whl") and trial.is_compiled:
        raise Failed("the pure wheel has compiled modules")
    if package.endswith(".tar.gz") and not trial.is_compiled:
        raise Failed("pip did not compile the source package")
    return trial


def try_client(directory: Path, interpreter: str, dist: Path) -> str:
    """Install the client alone; return a line with its size."""
    environment = Environment(directory, interpreter)
    environment.install("--find-links", str(dist), "nsqx")
    if environment.package_count != 3:
        raise Failed(f"the client needs {environment.package_count - 1} packages beside nsqx, not 2")
    _run(environment.program("nsqx"), "pub", "-help")
    return f"the client alone: {environment.package_count} packages, {environment.added_mb:.1f} MB"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="the directory of the packages")
    parser.add_argument("--python", action="append", default=[], help="a Python to install into")
    parser.add_argument("--only", choices=("wheel", "pure", "source", "client"), help="try only this kind of package")
    arguments = parser.parse_args()
    dist = arguments.dist.resolve()
    interpreters = arguments.python or [sys.executable]
    kinds = {
        "wheel": [(interpreter, "chosen by pip") for interpreter in interpreters],
        "pure": [(interpreters[-1], path.name) for path in dist.glob("nsqx-*-none-any.whl")],
        "source": [(interpreters[-1], path.name) for path in dist.glob("nsqx-*.tar.gz")],
        "client": [],
    }
    wanted = [arguments.only] if arguments.only else list(kinds)
    missing = [kind for kind in ("pure", "source") if kind in wanted and not kinds[kind]]
    if missing:
        print(f"try_wheel.py: {dist} has no {missing[0]} package: run make wheel", file=sys.stderr)
        return 1
    plan = [each for kind in wanted for each in kinds[kind]]
    print("| Python | package | compiled | packages | MB | until `nsqx up` is ready |")
    print("|---|---|---|---|---|---|", flush=True)
    try:
        with tempfile.TemporaryDirectory(prefix="nsqx-try-") as scratch:
            for number, (interpreter, package) in enumerate(plan):
                trial = try_package(Path(scratch) / str(number), interpreter, dist, package)
                compiled = "yes" if trial.is_compiled else "no"
                figures = f"{trial.package_count} | {trial.size_mb:.1f} | {trial.start_s:.1f} s"
                print(f"| {trial.python_version} | {trial.package} | {compiled} | {figures} |", flush=True)
            if "client" in wanted:
                print(try_client(Path(scratch) / "client", interpreters[0], dist))
    except Failed as error:
        print(f"try_wheel.py: {error}", file=sys.stderr)
        return 1
    return 0


def _run(*command: str) -> str:
    # The variables of a developer must not lead to the sources.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, cwd=tempfile.gettempdir()
    )
    if done.returncode != 0:
        raise Failed(f"{' '.join(command[:4])} … failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
