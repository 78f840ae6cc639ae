"""Lists what an installation of nsqx contains: a CycloneDX document, and a table of licences.

    python release/bill_of_materials.py [--extras admin,server] [--sbom FILE] [--licences FILE]

The packages of the extras are read from the environment that runs this program; `make sbom` uses that of the tests. The
packages of nsqadmin's page are read from ui/node_modules. The output depends on the versions only.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
import uuid
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = "admin,declarative,pipeline,s3,server,snappy,telemetry"
# The build puts the code of these packages into the page; svelte-check and others only run at the build.
PAGE = ROOT / "ui"


class Failed(Exception):
    """Something that is not installed, or has no licence."""


@dataclass(frozen=True, order=True)
class Component:
    """A package of an installation."""

    name: str
    version: str
    licence: str
    kind: str
    """pypi or npm."""

    @property
    def purl(self) -> str:
        """The package URL."""
        return f"pkg:{self.kind}/{self.name.replace('@', '%40')}@{self.version}"


def python_components(extras: set[str]) -> list[Component]:
    """Return the packages that the extras require, directly or not; raises Failed."""
    found: dict[str, Component] = {}
    project = _project()
    wanted = [Requirement(each) for each in project["dependencies"]]
    for extra in extras:
        if extra not in project["optional-dependencies"]:
            raise Failed(f"there is no extra {extra}: use {', '.join(project['optional-dependencies'])}")
        wanted += [Requirement(each) for each in project["optional-dependencies"][extra]]
    while wanted:
        requirement = wanted.pop()
        if requirement.name == "nsqx":
            for extra in requirement.extras:
                wanted += [Requirement(each) for each in project["optional-dependencies"][extra]]
            continue
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        package = _installed(requirement.name)
        if name not in found:
            found[name] = Component(name, package.version, licence_of(package), "pypi")
            wanted += _needs(package, {"", *requirement.extras})
        elif requirement.extras:
            known = [each for each in _needs(package, set(requirement.extras)) if each.name.lower() not in found]
            wanted += known
    return sorted(found.values())


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def _installed(name: str) -> Distribution:
    try:
        return distribution(name)
    except PackageNotFoundError:
        raise Failed(f"{name} is not installed: run make setup") from None


def _needs(package: Distribution, extras: set[str]) -> list[Requirement]:
    needed = []
    for requirement in map(Requirement, package.requires or ()):
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
            requirement.marker = None  # it holds
            needed.append(requirement)
    return needed


def licence_of(package: Distribution) -> str:
    """Return the licence of a package: its SPDX expression, its classifiers, or the first line of its licence field."""
    metadata = package.metadata
    expression = metadata.get("License-Expression")
    if expression:
        return str(expression)
    classifiers = [each for each in metadata.get_all("Classifier") or () if each.startswith("License :: ")]
    named = [each.rsplit(" :: ", 1)[1] for each in classifiers if each != "License :: OSI Approved"]
    if named:
        return " AND ".join(sorted(named))
    text = (metadata.get("License") or "").strip().splitlines()
    if not text or not text[0]:
        raise Failed(f"{package.metadata['Name']} does not name its licence")
    return text[0]


def page_components() -> list[Component]:
    """Return the packages that are built into the page; raises Failed."""
    document = json.loads((PAGE / "package.json").read_text(encoding="utf-8"))
    found = []
    for name in document["dependencies"]:
        path = PAGE / "node_modules" / name / "package.json"
        if not path.is_file():
            raise Failed(f"{name} is not installed: run make ui")
        package = json.loads(path.read_text(encoding="utf-8"))
        found.append(Component(name, package["version"], package["license"], "npm"))
    return sorted(found)


def sbom(version: str, components: list[Component]) -> dict[str, Any]:
    """Return the CycloneDX document."""
    own = f"pkg:pypi/nsqx@{version}"
    name = " ".join([own, *(each.purl for each in components)])
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, name)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": "nsqx",
                "version": version,
                "purl": own,
                "licenses": [{"license": {"id": "MIT"}}],
            }
        },
        "components": [
            {
                "type": "library",
                "bom-ref": each.purl,
                "name": each.name,
                "version": each.version,
                "purl": each.purl,
                "licenses": [{"license": {"name": each.licence}}],
            }
            for each in components
        ],
    }


def licence_table(components: list[Component]) -> str:
    """Return the licences as a table in Markdown."""
    lines = ["| package | version | licence | from |", "|---|---|---|---|"]
    lines += [f"| {each.name} | {each.version} | {each.licence} | {each.kind} |" for each in components]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extras", default=EXTRAS, help="the extras, separated by commas")
    parser.add_argument("--sbom", type=Path, help="write the CycloneDX document to this file")
    parser.add_argument("--licences", type=Path, help="write the table of licences to this file")
    arguments = parser.parse_args()
    try:
        components = python_components(set(filter(None, arguments.extras.split(",")))) + page_components()
    except Failed as error:
        print(f"bill_of_materials.py: {error}", file=sys.stderr)
        return 1
    sys.path.insert(0, str(ROOT / "src"))
    from nsqx.version import VERSION

    if arguments.sbom is not None:
        arguments.sbom.parent.mkdir(parents=True, exist_ok=True)
        arguments.sbom.write_text(json.dumps(sbom(VERSION, components), indent=1) + "\n", encoding="utf-8")
    if arguments.licences is not None:
        arguments.licences.parent.mkdir(parents=True, exist_ok=True)
        arguments.licences.write_text(licence_table(components), encoding="utf-8")
    if arguments.sbom is None and arguments.licences is None:
        print(licence_table(components), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
