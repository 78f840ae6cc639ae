"""The file operations that durability depends on."""

import errno
import os
import stat

import pytest

from nsqx.queues import files


def failing(error_number):
    def fail(*arguments):
        raise OSError(error_number, os.strerror(error_number))

    return fail


def test_replace_file_replaces_the_content(tmp_path):
    path = tmp_path / "file"
    files.replace_file(str(path), b"first")
    files.replace_file(str(path), b"second")
    assert path.read_bytes() == b"second"
    assert os.listdir(tmp_path) == ["file"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_replace_file_syncs_the_content_before_the_rename_and_the_directory_after(tmp_path, monkeypatch):
    calls = []
    sync, rename = os.fsync, os.rename

    def note_sync(descriptor):
        calls.append("sync directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "sync file")
        sync(descriptor)

    def note_rename(source, target):
        calls.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "rename", note_rename)
    files.replace_file(str(tmp_path / "file"), b"data")
    assert calls == ["sync file", "rename", "sync directory"]


@pytest.mark.parametrize("call", ["pwrite", "fsync", "rename"])
def test_a_failed_replace_keeps_the_old_file_and_leaves_no_temporary_file(tmp_path, monkeypatch, call):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(errno.ENOSPC))
        with pytest.raises(OSError, match="No space"):
            files.replace_file(str(path), b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_write_all_continues_after_a_short_write(tmp_path, monkeypatch):
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, position: write(descriptor, data[:3], position))
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        files.write_all(files.DATA, descriptor, bytearray(b"0123456789"), 2)
    finally:
        os.close(descriptor)
    assert (tmp_path / "file").read_bytes() == b"\x00\x000123456789"


def test_remove_if_there_accepts_a_missing_file(tmp_path):
    path = tmp_path / "file"
    path.touch()
    files.remove_if_there(files.DATA, str(path))
    files.remove_if_there(files.DATA, str(path))
    assert not path.exists()


def test_write_buffers_writes_any_number_of_buffers_after_short_writes(tmp_path, monkeypatch):
    write = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda descriptor, buffers, position: write(descriptor, buffers[:700], position))
    pieces = [b"%d," % number for number in range(3000)]
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        files.write_buffers(files.SEGMENT, descriptor, pieces, 2)
        files.sync_data(files.SEGMENT, descriptor)
    finally:
        os.close(descriptor)
    assert (tmp_path / "file").read_bytes() == b"\x00\x00" + b"".join(pieces)


def test_preallocate_fills_a_shorter_file_with_zeros(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"data")
    descriptor = os.open(path, os.O_RDWR)
    try:
        files.preallocate(files.COMMIT, descriptor, 10)
    finally:
        os.close(descriptor)
    assert path.read_bytes() == b"data" + bytes(6)


def test_make_directory_accepts_an_existing_one(tmp_path):
    path = tmp_path / "directory"
    files.make_directory(str(path))
    files.make_directory(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    files.remove_directory(str(path))
    assert not path.exists()
