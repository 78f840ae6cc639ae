"""The bill of materials lists what an installation contains."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from built_packages import ROOT

SCRIPT = ROOT / "release" / "bill_of_materials.py"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict:
    if not (ROOT / "ui" / "node_modules").is_dir() or importlib.util.find_spec("uvicorn") is None:
        pytest.skip("npm or the extra admin is not installed")
    path = tmp_path_factory.mktemp("sbom") / "sbom.json"
    done = run("--extras=admin,server", f"--sbom={path}")
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text())


def test_it_lists_direct_and_indirect_packages_and_the_page(document: dict) -> None:
    names = {each["name"] for each in document["components"]}
    assert {"httptools", "orjson", "uvicorn", "h11", "cryptography", "svelte", "uplot"} <= names
    assert not {"pytest", "pyspark", "vite"} & names


def test_every_component_has_a_version_a_licence_and_a_unique_reference(document: dict) -> None:
    components = document["components"]
    assert all(each["version"] and each["licenses"][0]["license"]["name"] for each in components)
    assert len({each["bom-ref"] for each in components}) == len(components)


def test_the_same_versions_give_the_same_document(document: dict, tmp_path: Path) -> None:
    run("--extras=server,admin", f"--sbom={tmp_path / 'again.json'}")
    assert json.loads((tmp_path / "again.json").read_text()) == document


def test_packages_of_the_extras_of_packages_are_listed() -> None:
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("grpc") is None:
        pytest.skip("the extra declarative is not installed")
    done = run("--extras=declarative")
    assert done.returncode == 0, done.stderr
    assert "\n| grpcio | " in done.stdout


def test_an_unknown_extra_is_refused() -> None:
    done = run("--extras=servers")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("bill_of_materials.py: there is no extra servers: use server, ")
