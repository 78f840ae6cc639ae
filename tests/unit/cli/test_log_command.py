"""nsqx log on directories that a real LogStore has written."""

import fcntl
import json
import os

import pytest

from log_directories import EXPECTED, contents, queue_contents, write_logs
from nsqx.cli.log import main


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("logs") / "data"
    write_logs(path, is_clean=False)
    return path


def run(capfd, *words):
    """Return exit code, stdout and stderr."""
    code = main([str(word) for word in words])
    return code, *capfd.readouterr()


def test_ls_lists_topics_and_channels(written, capfd):
    code, out, _ = run(capfd, "ls", written)
    lines = [line.split() for line in out.splitlines()]
    assert code == 0
    assert lines[0] == ["topic", "log", "first", "end", "messages", "bytes", "segments"]
    assert [line[0] for line in lines[1:4]] == ["orders", "plain", "stopped"]
    assert lines[1][2:5] == ["0", "22", "22"]
    assert lines[6] == ["orders:billing", "8", "15", "2"]
    assert lines[7] == ["orders:mail", "0", "20", "0", "paused"]
    assert max(map(len, out.splitlines())) <= 80
    code, out, _ = run(capfd, "ls", "--json", written, "orders")
    (log,) = json.loads(out)
    assert (log["topic"], log["end"], log["channels"][0]["depth"]) == ("orders", 22, 15)


def test_reading_changes_nothing(written, capfd):
    before = contents(written)
    for words in (["ls"], ["verify"], ["show", "orders"], ["show", "orders", "--offset=0"]):
        assert run(capfd, words[0], written, *words[1:])[0] == 0
    assert contents(written) == before


def test_show_prints_channels_and_holes(written, capfd):
    code, out, _ = run(capfd, "show", written, "orders")
    assert code == 0
    assert "offsets 0 to 21, created " in out
    assert "deferred 1" in out
    assert "2027-01-15T09:00:00.000000Z" in out
    assert max(map(len, out.splitlines())) <= 80
    details = json.loads(run(capfd, "show", written, "orders", "--json")[1])
    assert [(hole["unfinished"], hole["attempts"]) for hole in details["holes"]] == [(3, 0), (5, 2)]


def test_show_prints_messages(written, capfd):
    code, out, _ = run(capfd, "show", written, "orders", "--offset=20", "--count=2", "--json")
    assert code == 0
    assert [(each["offset"], each["text"], each["channel"]) for each in json.loads(out)] == [
        (20, "deferred", ""),
        (21, "again", "billing"),
    ]
    out = run(capfd, "show", written, "orders", "--offset=3", "--count=1")[1]
    assert out.splitlines()[1] == "  order 03"
    code, _, err = run(capfd, "show", written, "orders", "--offset=22")
    assert (code, err) == (2, "nsqx log: --offset=22 is not in the log, which has the offsets 0 to 21\n")


def test_verify_names_topic_offset_file_and_position(tmp_path, capfd):
    write_logs(tmp_path)
    assert run(capfd, "verify", tmp_path)[0] == 0
    path = max((tmp_path / "plain.topic").glob("*.seg"))
    position = path.read_bytes().index(b"plain 4")
    path.write_bytes(path.read_bytes().replace(b"plain 4", b"plain X"))
    code, out, _ = run(capfd, "verify", tmp_path)
    assert code == 1
    assert str(path) in out
    assert "topic plain: 1 message is lost, offset 4" in out
    code, out, _ = run(capfd, "verify", "--json", tmp_path, "plain")
    (damage,) = json.loads(out)["damages"]
    assert (damage["topic"], damage["path"], damage["lost"]) == ("plain", str(path), [[4, 5]])
    assert damage["position"] < position < damage["position"] + damage["size"]
    assert run(capfd, "verify", tmp_path, "orders")[0] == 0


def test_export_fills_the_disk_queues(tmp_path, capfd):
    write_logs(tmp_path)
    code, out, _ = run(capfd, "export", tmp_path)
    assert code == 0
    assert "orders:billing: 15 messages" in out
    for name, expected in EXPECTED.items():
        assert queue_contents(tmp_path, name) == expected
    assert run(capfd, "export", tmp_path) == (0, f"{tmp_path} has no topic logs\n", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ls", "/nonexistent"], "open /nonexistent: No such file or directory"),
        (["show"], ""),
        (["frobnicate", "."], 'unknown command "frobnicate"'),
        (["show", "."], "show needs one topic"),
        (["export", ".", "other"], "has no log of the topic 'other'"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capfd, words, message):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capfd, *words)
    assert code == 2
    assert message in err


def test_a_directory_in_use_is_refused(written, capfd):
    lock = os.open(written, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        code, out, err = run(capfd, "ls", written)
    finally:
        os.close(lock)
    assert (code, out) == (2, "")
    assert "possibly in use by another instance of nsqd" in err
    assert err.count("\n") == 1
