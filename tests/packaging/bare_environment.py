"""A virtual environment with one wheel and the packages that it and its extras declare, as an installation creates it.

The declared packages are copied from the environment that runs the tests, so no network is needed. A package that is
used but not declared is missing.
"""

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Collection
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement


class BareEnvironment:
    """An environment with one wheel of this package and the packages of some of its extras."""

    def __init__(self, directory: Path, wheel: Path, extras: Collection[str] = ()) -> None:
        self._directory = directory
        venv.create(directory, with_pip=False)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.site_packages = directory / "lib" / version / "site-packages"
        self.python = str(directory / "bin" / "python")
        command = [sys.executable, "-m", "pip", "--python", self.python, "--quiet", "--disable-pip-version-check"]
        subprocess.run([*command, "install", "--no-index", "--no-deps", str(wheel)], check=True)
        (installed,) = self.site_packages.glob("nsqx-*.dist-info")
        for needed in _needed_by(Distribution.at(installed), set(extras)).values():
            self._copy(needed)

    def program(self, name: str) -> str:
        """Return the path of a command that the wheel installed."""
        return str(self._directory / "bin" / name)

    @property
    def programs(self) -> list[str]:
        """The names of all commands that the wheel installed."""
        (installed,) = self.site_packages.glob("nsqx-*.dist-info")
        return [point.name for point in Distribution.at(installed).entry_points.select(group="console_scripts")]

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables, without those that lead to the sources or to the environment of the tests."""
        return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def _copy(self, package: Distribution) -> None:
        for file in package.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                target = self.site_packages / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(file.locate()), target)


def _needed_by(package: Distribution, extras: set[str]) -> dict[str, Distribution]:
    """Return the packages that a package and its ``extras`` require, directly or not."""
    found: dict[str, Distribution] = {}
    wanted = _requirements(package, extras)
    while wanted:
        requirement = wanted.pop()
        if requirement.name not in found:
            found[requirement.name] = distribution(requirement.name)
            wanted += _requirements(found[requirement.name], requirement.extras)
    return found


def _requirements(package: Distribution, extras: set[str]) -> list[Requirement]:
    requirements = map(Requirement, package.requires or ())
    return [
        each
        for each in requirements
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *extras))
    ]
