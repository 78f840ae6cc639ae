import errno
import gzip
import io
import os
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from nsqx.log import DEBUG, Log
from nsqx.tools import rotating_file
from nsqx.tools.file_names import FileNames
from nsqx.tools.rotating_file import RotatingFile, Rules, prepare
from nsqx.tools.utility import UtilityFailed


class FileUnderTest:
    """A rotating file whose clocks the test sets."""

    def __init__(self, directory: Path, pattern: str = "f<REV>.<DATETIME>", **rules: object) -> None:
        self.now = datetime(2026, 1, 1, 12, tzinfo=UTC)
        self.clock_s = 0.0
        self.log = io.StringIO()
        places = {"output_dir": str(directory), "work_dir": str(directory), **rules}
        self.file = RotatingFile(
            FileNames(pattern, "%H"),
            Rules(**places),  # type: ignore[arg-type]
            Log("", DEBUG, self.log),
            "t/c",
            now=lambda: self.now,
            clock=lambda: self.clock_s,
        )


def contents_of(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_the_first_record_creates_the_file_and_its_directories(tmp_path: Path) -> None:
    case = FileUnderTest(tmp_path, "sub/dir/f.<DATETIME>")
    assert case.file.needs_rotation()
    assert case.file.write_all([b"a\n", b"b\n"])
    assert not case.file.write_all([b"c\n"])
    case.file.sync()
    assert contents_of(tmp_path) == {"sub/dir/f.12": b"a\nb\nc\n"}
    case.file.close()
    assert not case.file.is_open
    case.file.close()
    assert contents_of(tmp_path) == {"sub/dir/f.12": b"a\nb\nc\n"}


def test_created_directories_have_mode_770(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        case = FileUnderTest(tmp_path, "a/b/f")
        case.file.rotate()
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b", "a/b/f")]
    assert modes == [0o770, 0o770, 0o666]
    case.file.close()


def test_a_changed_name_rotates_the_file(tmp_path: Path) -> None:
    case = FileUnderTest(tmp_path)
    case.file.write_all([b"a"])
    case.now = case.now.replace(hour=13)
    assert case.file.write_all([b"b"])
    case.file.close()
    assert contents_of(tmp_path) == {"f-000000.12": b"a", "f-000000.13": b"b"}
    assert "new filename f<REV>.13, rotating..." in case.log.getvalue()


def test_the_file_is_rotated_after_the_interval(tmp_path: Path) -> None:
    case = FileUnderTest(tmp_path, rotate_interval_s=10.0)
    case.file.write_all([b"a"])
    case.clock_s = 10.0
    assert not case.file.needs_rotation()
    case.clock_s = 10.5
    assert case.file.write_all([b"b"])
    case.file.close()
    assert contents_of(tmp_path) == {"f-000000.12": b"a", "f-000001.12": b"b"}
    assert "10.5s since last open, rotating..." in case.log.getvalue()


def test_the_file_is_rotated_after_the_record_that_exceeds_the_size(tmp_path: Path) -> None:
    case = FileUnderTest(tmp_path, rotate_size=3)
    case.file.write_all([b"ab", b"c", b"d", b"e"])
    case.file.close()
    assert contents_of(tmp_path) == {"f-000000.12": b"abcd", "f-000001.12": b"e"}


def test_an_existing_file_is_appended_to(tmp_path: Path) -> None:
    (tmp_path / "f-000000.12").write_bytes(b"old ")
    case = FileUnderTest(tmp_path)
    case.file.write_all([b"new"])
    case.file.close()
    assert contents_of(tmp_path) == {"f-000000.12": b"old new"}


@pytest.mark.parametrize(("rules", "content"), [({"rotate_interval_s": 1.0}, b"x"), ({"rotate_size": 3}, b"long")])
def test_rotation_rules_skip_an_existing_file(tmp_path: Path, rules: dict[str, object], content: bytes) -> None:
    (tmp_path / "f-000000.12").write_bytes(content)
    case = FileUnderTest(tmp_path, **rules)
    case.file.write_all([b"new"])
    case.file.close()
    assert contents_of(tmp_path) == {"f-000000.12": content, "f-000001.12": b"new"}


def test_a_compressed_file_is_valid_after_each_sync(tmp_path: Path) -> None:
    case = FileUnderTest(tmp_path, gzip_level=6)
    case.file.write_all([b"a"])
    case.file.sync()
    assert gzip.decompress((tmp_path / "f-000000.12").read_bytes()) == b"a"
    case.file.write_all([b"b"])
    case.file.close()
    assert gzip.decompress((tmp_path / "f-000000.12").read_bytes()) == b"ab"


def test_finished_files_are_moved_without_overwriting_others(tmp_path: Path) -> None:
    work, out = tmp_path / "work", tmp_path / "out"
    out.mkdir()
    (out / "f-000000.12").write_bytes(b"taken")
    case = FileUnderTest(tmp_path, output_dir=str(out), work_dir=str(work))
    case.file.write_all([b"a"])
    assert contents_of(work) == {"f-000001.12": b"a"}
    (out / "f-000001.12").write_bytes(b"taken meanwhile")
    case.file.close()
    assert contents_of(work) == {}
    assert contents_of(out) == {"f-000000.12": b"taken", "f-000001.12": b"taken meanwhile", "f-000002.12": b"a"}
    # The next record opens another file, as after SIGHUP.
    case.file.write_all([b"b"])
    case.file.close()
    assert contents_of(out)["f-000003.12"] == b"b"


def test_directory_names_are_normalised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    case = FileUnderTest(tmp_path, output_dir="./out/", work_dir="work/../work2")
    case.file.write_all([b"a"])
    case.file.close()
    assert contents_of(tmp_path) == {"out/f-000000.12": b"a"}


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_disk_errors_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    case = FileUnderTest(tmp_path)
    case.file.rotate()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(rotating_file.os, call, full)
    step = case.file.sync if call == "fsync" else lambda: case.file.write_all([b"a"])
    with pytest.raises(UtilityFailed, match=r"\[t/c\] .*: no space left on device"):
        step()
    monkeypatch.undo()
    case.file.close()


def test_directories_are_created_and_checked(tmp_path: Path) -> None:
    prepare(Rules(output_dir=str(tmp_path / "a/out"), work_dir=str(tmp_path / "a/work")))
    assert (tmp_path / "a" / "work").is_dir()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UtilityFailed, match="unable to create dir: mkdir .*file: file exists"):
        prepare(Rules(output_dir=str(tmp_path / "file"), work_dir=str(tmp_path / "file")))


def test_directories_on_two_file_systems_are_rejected(tmp_path: Path) -> None:
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("a second file system is missing: mount a tmpfs on /dev/shm")
    with pytest.raises(UtilityFailed, match="the same file system"):
        prepare(Rules(output_dir=str(tmp_path), work_dir=str(other)))
