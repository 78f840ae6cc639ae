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


class Setting:
    """A file with a clock in hand."""

    def __init__(self, directory: Path, pattern: str = "f<REV>.<DATETIME>", **rules: object) -> None:
        self.moment = datetime(2026, 1, 1, 12, tzinfo=UTC)
        self.clock_s = 0.0
        self.log = io.StringIO()
        places = {"output_dir": str(directory), "work_dir": str(directory), **rules}
        self.file = RotatingFile(
            FileNames(pattern, "%H"),
            Rules(**places),  # type: ignore[arg-type]
            Log("", DEBUG, self.log),
            "t/c",
            now=lambda: self.moment,
            clock=lambda: self.clock_s,
        )


def held(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_the_first_record_opens_a_file(tmp_path: Path) -> None:
    setting = Setting(tmp_path, "sub/dir/f.<DATETIME>")
    assert setting.file.needs_rotation()
    assert setting.file.write_all([b"a\n", b"b\n"])
    assert not setting.file.write_all([b"c\n"])
    setting.file.sync()
    assert held(tmp_path) == {"sub/dir/f.12": b"a\nb\nc\n"}
    setting.file.close()
    assert not setting.file.is_open
    setting.file.close()
    assert held(tmp_path) == {"sub/dir/f.12": b"a\nb\nc\n"}


def test_directories_are_for_the_group(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        setting = Setting(tmp_path, "a/b/f")
        setting.file.rotate()
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b", "a/b/f")]
    assert modes == [0o770, 0o770, 0o666]
    setting.file.close()


def test_rotation_by_name(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    setting.file.write_all([b"a"])
    setting.moment = setting.moment.replace(hour=13)
    assert setting.file.write_all([b"b"])
    setting.file.close()
    assert held(tmp_path) == {"f-000000.12": b"a", "f-000000.13": b"b"}
    assert "new filename f<REV>.13, rotating..." in setting.log.getvalue()


def test_rotation_by_interval(tmp_path: Path) -> None:
    setting = Setting(tmp_path, rotate_interval_s=10.0)
    setting.file.write_all([b"a"])
    setting.clock_s = 10.0
    assert not setting.file.needs_rotation()
    setting.clock_s = 10.5
    assert setting.file.write_all([b"b"])
    setting.file.close()
    assert held(tmp_path) == {"f-000000.12": b"a", "f-000001.12": b"b"}
    assert "10.5s since last open, rotating..." in setting.log.getvalue()


def test_rotation_by_size_counts_each_record(tmp_path: Path) -> None:
    setting = Setting(tmp_path, rotate_size=3)
    setting.file.write_all([b"ab", b"c", b"d", b"e"])
    setting.file.close()
    assert held(tmp_path) == {"f-000000.12": b"abcd", "f-000001.12": b"e"}


def test_a_file_that_is_there_is_appended_to(tmp_path: Path) -> None:
    (tmp_path / "f-000000.12").write_bytes(b"old ")
    setting = Setting(tmp_path)
    setting.file.write_all([b"new"])
    setting.file.close()
    assert held(tmp_path) == {"f-000000.12": b"old new"}


@pytest.mark.parametrize(("rules", "content"), [({"rotate_interval_s": 1.0}, b"x"), ({"rotate_size": 3}, b"long")])
def test_a_file_that_must_not_be_touched_is_passed_over(
    tmp_path: Path, rules: dict[str, object], content: bytes
) -> None:
    (tmp_path / "f-000000.12").write_bytes(content)
    setting = Setting(tmp_path, **rules)
    setting.file.write_all([b"new"])
    setting.file.close()
    assert held(tmp_path) == {"f-000000.12": content, "f-000001.12": b"new"}


def test_a_compressed_file_can_be_read_up_to_each_sync(tmp_path: Path) -> None:
    setting = Setting(tmp_path, gzip_level=6)
    setting.file.write_all([b"a"])
    setting.file.sync()
    assert gzip.decompress((tmp_path / "f-000000.12").read_bytes()) == b"a"
    setting.file.write_all([b"b"])
    setting.file.close()
    assert gzip.decompress((tmp_path / "f-000000.12").read_bytes()) == b"ab"


def test_finished_files_are_moved_and_overwrite_nothing(tmp_path: Path) -> None:
    work, out = tmp_path / "work", tmp_path / "out"
    out.mkdir()
    (out / "f-000000.12").write_bytes(b"taken")
    setting = Setting(tmp_path, output_dir=str(out), work_dir=str(work))
    setting.file.write_all([b"a"])
    assert held(work) == {"f-000001.12": b"a"}
    (out / "f-000001.12").write_bytes(b"taken meanwhile")
    setting.file.close()
    assert held(work) == {}
    assert held(out) == {"f-000000.12": b"taken", "f-000001.12": b"taken meanwhile", "f-000002.12": b"a"}
    # As after SIGHUP: the next record opens another file.
    setting.file.write_all([b"b"])
    setting.file.close()
    assert held(out)["f-000003.12"] == b"b"


def test_the_names_of_directories_need_not_be_tidy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    setting = Setting(tmp_path, output_dir="./out/", work_dir="work/../work2")
    setting.file.write_all([b"a"])
    setting.file.close()
    assert held(tmp_path) == {"out/f-000000.12": b"a"}


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_what_the_disk_refuses_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    setting = Setting(tmp_path)
    setting.file.rotate()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(rotating_file.os, call, full)
    step = setting.file.sync if call == "fsync" else lambda: setting.file.write_all([b"a"])
    with pytest.raises(UtilityFailed, match=r"\[t/c\] .*: no space left on device"):
        step()
    monkeypatch.undo()
    setting.file.close()


def test_directories_are_made_and_checked(tmp_path: Path) -> None:
    prepare(Rules(output_dir=str(tmp_path / "a/out"), work_dir=str(tmp_path / "a/work")))
    assert (tmp_path / "a" / "work").is_dir()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UtilityFailed, match="unable to create dir: mkdir .*file: file exists"):
        prepare(Rules(output_dir=str(tmp_path / "file"), work_dir=str(tmp_path / "file")))


def test_directories_on_two_file_systems_are_refused(tmp_path: Path) -> None:
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("a second file system is missing: mount a tmpfs on /dev/shm")
    with pytest.raises(UtilityFailed, match="the same file system"):
        prepare(Rules(output_dir=str(tmp_path), work_dir=str(other)))
