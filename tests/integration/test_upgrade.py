"""Data directories go forward one release and back again, with both stores, and lose nothing."""

import tarfile
from pathlib import Path

import pytest

from old_releases import (
    DIRECTORIES,
    OldRelease,
    check,
    consume,
    fill,
    source_of,
    start_new,
    start_old,
    stored_directory,
)
from rawclient import OK, RawClient

NAMES = [f"{release.name}-{store}" for release, store in DIRECTORIES]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path | None]:
    """The packages of the earlier releases, by name, as far as the git history has them."""
    releases = {release.name: release for release, _ in DIRECTORIES}
    return {name: source_of(each, tmp_path_factory.mktemp("release")) for name, each in releases.items()}


def require_source(sources: dict[str, Path | None], release: OldRelease) -> Path:
    source = sources[release.name]
    if source is None:
        pytest.skip(f"no commit {release.commit[:12]}: fetch the whole git history")
    return source


@pytest.mark.parametrize(("release", "store"), DIRECTORIES, ids=NAMES)
def test_a_stored_directory_of_an_earlier_release_is_read(release: OldRelease, store: str, tmp_path: Path) -> None:
    with tarfile.open(stored_directory(release, store)) as archive:
        archive.extractall(tmp_path, filter="data")
    with start_new(store, tmp_path) as nsqd:
        check(nsqd)


@pytest.mark.parametrize(("release", "store"), DIRECTORIES, ids=NAMES)
def test_an_earlier_release_reads_a_directory_of_this_one(
    release: OldRelease, store: str, sources: dict[str, Path | None], tmp_path: Path
) -> None:
    source = require_source(sources, release)
    with start_new(store, tmp_path) as nsqd:
        fill(nsqd)
        assert nsqd.stop() == 0
    with start_old(source, store, tmp_path) as nsqd:
        check(nsqd)


@pytest.mark.parametrize(("release", "store"), DIRECTORIES, ids=NAMES)
def test_an_upgrade_can_be_taken_back(
    release: OldRelease, store: str, sources: dict[str, Path | None], tmp_path: Path
) -> None:
    source = require_source(sources, release)
    with start_old(source, store, tmp_path) as nsqd:
        fill(nsqd)
        assert nsqd.stop() == 0
    with start_new(store, tmp_path) as nsqd:
        with RawClient(nsqd.tcp_address) as producer:
            assert producer.pub("unclaimed", b"after the upgrade") == OK
        nsqd.post("/channel/create", topic="unclaimed", channel="early")
        assert nsqd.stop() == 0
    with start_old(source, store, tmp_path) as nsqd:
        assert consume(nsqd, "unclaimed", "early", 31)[b"after the upgrade"] == 1
