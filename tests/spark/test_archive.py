"""``nsqx archive`` stores every message once, by date and hour, also after a crash at any point."""

from __future__ import annotations

import os

import pytest
from pipeline_runs import SLOW_S, read_rows
from streams import bodies, publish

from nsqx.cli import archive as command
from nsqx.pipeline import file_sink


def archive(nsqd, topic, directory, *flags):
    arguments = [topic, "--to", str(directory), "--nsqd", nsqd.tcp_address, "--once", "--option", "drainIdle=300ms"]
    return command.main([*arguments, *flags])


def values(directory):
    return sorted((row["value"] for row in read_rows(directory)), key=int)


@pytest.mark.timeout(SLOW_S)
def test_every_message_is_archived_once_by_date_and_hour(spark, nsqd, topic, tmp_path):
    publish(nsqd, topic, bodies(0, 500))
    assert archive(nsqd, topic, tmp_path) == 0
    publish(nsqd, topic, bodies(500, 700))
    assert archive(nsqd, topic, tmp_path) == 0
    rows = read_rows(tmp_path)
    assert values(tmp_path) == bodies(0, 700)
    for row in rows:
        assert f"{row['timestamp']:%Y-%m-%d}" == row["date"]
        assert f"{row['timestamp']:%H}" == f"{int(row['hour']):02}"
        assert row["topic"] == topic
        assert row["node"] == nsqd.tcp_address
        assert row["attempts"] == 1
    assert len({row["id"] for row in rows}) == 700
    channel = nsqd.channel_stats(topic, "archive")
    assert (channel["depth"], channel["in_flight_count"]) == (0, 0)
    # Spark reads the same rows as pyarrow.
    assert spark.read.parquet(str(tmp_path)).count() == 700


def temporary_files(directory):
    return [path for path in directory.rglob("*.tmp") if ".nsqx-archive" in str(path)]


@pytest.mark.timeout(SLOW_S)
def test_a_batch_with_a_commit_file_is_completed_by_the_next_run(spark, our_nsqd, topic, tmp_path, monkeypatch):
    """The process dies after the commit file is written and before the files are renamed."""
    publish(our_nsqd, topic, bodies(0, 100))
    with monkeypatch.context() as patch:
        calls = []

        def die(self, files):
            calls.append(files)
            raise RuntimeError("killed here")

        patch.setattr(file_sink.FileSink, "_rename", die)
        patch.setattr("nsqx.pipeline.query.MAX_FAILURES", 1)
        assert archive(our_nsqd, topic, tmp_path) == 1
    assert calls
    assert temporary_files(tmp_path)
    assert not list(tmp_path.glob("date=*"))
    publish(our_nsqd, topic, bodies(100, 150))
    assert archive(our_nsqd, topic, tmp_path) == 0
    assert values(tmp_path) == bodies(0, 150)
    assert not temporary_files(tmp_path)


@pytest.mark.timeout(SLOW_S)
def test_a_batch_without_a_commit_file_is_written_again(spark, our_nsqd, topic, tmp_path, monkeypatch):
    """The process dies after the tasks have written and before the commit file is written."""
    publish(our_nsqd, topic, bodies(0, 100))
    with monkeypatch.context() as patch:
        patch.setattr(file_sink, "write_json", lambda *_: (_ for _ in ()).throw(RuntimeError("killed here")))
        patch.setattr("nsqx.pipeline.query.MAX_FAILURES", 1)
        assert archive(our_nsqd, topic, tmp_path) == 1
    assert len(temporary_files(tmp_path)) == 1
    assert archive(our_nsqd, topic, tmp_path) == 0
    assert values(tmp_path) == bodies(0, 100)
    assert not temporary_files(tmp_path)


@pytest.mark.timeout(SLOW_S)
def test_a_batch_with_renamed_files_is_not_written_again(spark, our_nsqd, topic, tmp_path, monkeypatch):
    """The process dies after the files are renamed and before Spark records the batch. Spark runs it again."""
    publish(our_nsqd, topic, bodies(0, 100))
    original = file_sink.FileSink._rename
    with monkeypatch.context() as patch:

        def die(self, files):
            original(self, files)
            raise RuntimeError("killed here")

        patch.setattr(file_sink.FileSink, "_rename", die)
        patch.setattr("nsqx.pipeline.query.MAX_FAILURES", 1)
        assert archive(our_nsqd, topic, tmp_path) == 1
    assert values(tmp_path) == bodies(0, 100)
    before = {path: path.stat().st_ino for path in tmp_path.rglob("*.parquet")}
    assert archive(our_nsqd, topic, tmp_path) == 0
    assert values(tmp_path) == bodies(0, 100)
    assert {path: path.stat().st_ino for path in tmp_path.rglob("*.parquet")} == before


@pytest.mark.timeout(SLOW_S)
def test_a_sink_is_restarted_after_a_temporary_failure(spark, our_nsqd, topic, tmp_path, monkeypatch, capsys):
    publish(our_nsqd, topic, bodies(0, 100))
    original = file_sink.FileSink.write
    calls = []

    def fail_once(self, *arguments):
        calls.append(arguments)
        if len(calls) == 1:
            raise OSError("disk unavailable")
        return original(self, *arguments)

    monkeypatch.setattr(file_sink.FileSink, "write", fail_once)
    assert archive(our_nsqd, topic, tmp_path) == 0
    assert "archive: retrying: disk unavailable" in capsys.readouterr().out
    assert len(calls) >= 2
    assert values(tmp_path) == bodies(0, 100)


@pytest.mark.timeout(SLOW_S)
def test_errors_are_reported_in_one_line(spark, our_nsqd, tmp_path, capsys):
    assert command.main(["t"]) == 1
    assert capsys.readouterr().err == "nsqx archive: --to DIR is required\n"
    assert command.main(["bad topic!", "--to", str(tmp_path), "--nsqd", our_nsqd.tcp_address]) == 1
    assert "invalid topic name" in capsys.readouterr().err
    assert command.main(["t", "--to", str(tmp_path), "--nsqd", "127.0.0.1:1"]) == 1
    assert "nsqd 127.0.0.1:1: " in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert command.main(["t", "--to", str(tmp_path / "file"), "--nsqd", our_nsqd.tcp_address, "--once"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "cannot be used" in error
    assert os.listdir(tmp_path) == ["file"]
