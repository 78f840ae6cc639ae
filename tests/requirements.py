"""Prints the requirements of extras of pyproject.toml, one per line: ``python tests/requirements.py server,admin``."""

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def requirements(extras: str) -> Iterator[str]:
    """Yield the requirements of a comma-separated list of extras, and of the extras that these contain."""
    for extra in extras.split(","):
        for requirement in PROJECT["optional-dependencies"][extra]:
            if requirement.startswith("nsqx["):
                yield from requirements(requirement.removeprefix("nsqx[").removesuffix("]"))
            else:
                yield requirement


if __name__ == "__main__":
    print(*PROJECT["dependencies"], *requirements(sys.argv[1]), sep="\n")
