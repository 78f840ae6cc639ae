"""The packages of a release are the same bytes whenever and wherever they are built."""

import importlib.util
import io
import os
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest
from built_packages import ROOT

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release_build", ROOT / "release" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Installed:
    """Builds with the Python of the tests, which has the tools already."""

    def python(self, interpreter: str, tools: tuple[str, ...]) -> str:
        return sys.executable


def test_two_builds_at_different_places_and_times_give_the_same_bytes(release: ModuleType, tmp_path: Path) -> None:
    for needed in ("setuptools", "pip"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed in this environment")
    packages: list[list[Path]] = []
    for name in ("one", "another-place"):
        tree = release.copy_sources(ROOT, tmp_path / name / "tree")
        for path in tree.rglob("*.py"):
            os.utime(path, (1.6e9 + len(packages), 1.6e9 + len(packages)))
        builder = release.Builder(tree, tmp_path / name / "dist", Installed(), 1_700_000_000)
        packages.append([builder.wheel(sys.executable, pure=True), builder.sdist()])
    release.compare(*packages)
    with tarfile.open(packages[0][1]) as archive:
        assert {member.mtime for member in archive.getmembers()} == {1_700_000_000}
        assert not [name for name in archive.getnames() if name.endswith((".so", ".c", ".pyc"))]


def archive_of(path: Path, members: list[tuple[str, bytes, int]]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content, mode in members:
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            member.mtime, member.uid, member.uname = path.stat().st_mtime, os.getpid(), path.name
            archive.addfile(member, io.BytesIO(content))
    return path


def test_a_source_package_has_no_trace_of_its_builder(release: ModuleType, tmp_path: Path) -> None:
    one = archive_of(tmp_path / "one.tar.gz", [("p/b", b"2", 0o664), ("p/a", b"1", 0o775)])
    other = archive_of(tmp_path / "other.tar.gz", [("p/a", b"1", 0o700), ("p/b", b"2", 0o600)])
    assert one.read_bytes() != other.read_bytes()
    for path in (one, other):
        release.normalise_sdist(path, 1_700_000_000)
    assert one.read_bytes() == other.read_bytes()
    with tarfile.open(one) as archive:
        assert [(each.name, each.mode, each.uname) for each in archive] == [("p/a", 0o755, ""), ("p/b", 0o644, "")]


def test_different_bytes_are_reported_by_name(release: ModuleType, tmp_path: Path) -> None:
    for place, content in (("x", b"1"), ("y", b"2")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "nsqx-1.whl").write_bytes(content)
    lists = [[tmp_path / place / "nsqx-1.whl"] for place in ("x", "y")]
    with pytest.raises(release.Failed, match=r"two builds gave different bytes: nsqx-1\.whl"):
        release.compare(*lists)


def test_the_time_of_the_packages(release: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert release.epoch_s(tmp_path) == 1_700_000_000
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(release.Failed, match="invalid SOURCE_DATE_EPOCH 'yesterday': use seconds since 1970"):
        release.epoch_s(tmp_path)
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    (tmp_path / "pyproject.toml").touch()
    os.utime(tmp_path / "pyproject.toml", (10, 10))
    assert release.epoch_s(tmp_path) == release.EARLIEST_S
