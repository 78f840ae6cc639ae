"""The export of logs to disk queues: what each queue gets, and a stop before each file operation."""

import os
import random
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from log_directories import (
    DEFERRED,
    EXPECTED,
    LATER_NS,
    NOW_NS,
    close_descriptors,
    commit,
    items,
    open_logs,
    queue_contents,
    write_logs,
)
from nsqx.errors import ConfigError, MetadataError
from nsqx.nsqd.log_export import export_logs
from nsqx.nsqd.metadata import SavedTopic, load_metadata
from nsqx.queues import files
from nsqx.queues.diskqueue import DiskQueue
from nsqx.queues.due_times import load_due_times
from nsqx.queues.failpoints import Stopped
from nsqx.queues.log.stored import SilentLog, StoredLogs
from nsqx.wire.message import new_message

# The quick tests stop before some of the operations.
STEP = 1 if os.environ.get("NSQX_SLOW") else 7
TOPICS = [
    SavedTopic("orders", paused=False, channels=[("billing", False), ("mail", True)]),
    SavedTopic("plain", paused=False),
    SavedTopic("stopped", paused=True, channels=[("ch", False)]),
]


def export(path, *topics, max_file_size=500):
    return list(export_logs(str(path), topics, max_file_size, NOW_NS))


def assert_exported(path):
    for name, expected in EXPECTED.items():
        assert queue_contents(path, name) == expected, name
    assert load_metadata(str(path)) == TOPICS
    assert sorted(each.name for each in path.iterdir() if each.is_dir()) == [
        "orders.topic.exported", "plain.topic.exported", "stopped.topic.exported",
    ]  # fmt: skip
    assert StoredLogs(str(path)).logs == []


@pytest.mark.parametrize("is_clean", [True, False])
def test_every_queue_gets_its_messages(tmp_path, is_clean):
    write_logs(tmp_path, is_clean=is_clean)
    results = {each.topic: each for each in export(tmp_path)}
    assert_exported(tmp_path)
    counts = {name: count for each in results.values() for name, count in each.counts.items()}
    assert counts == {name: len(messages) for name, messages in EXPECTED.items()}
    assert [each.damaged for each in results.values()] == [[], [], []]
    assert results["orders"].deferred_count == 2
    assert results["orders"].directory == str(tmp_path / "orders.topic.exported")


def test_message_ids_stay_and_due_times_are_saved(tmp_path):
    write_logs(tmp_path)
    logs = {log.topic: log for log in StoredLogs(str(tmp_path)).logs}
    by_body = {message.body: message.offset for message in logs["orders"].messages(0)}
    export(tmp_path)
    for name, bodies in DEFERRED.items():
        identity = logs["orders"].identity
        ids = {b"%016x" % identity.id_number(by_body[body]) for body in bodies}
        due_times = load_due_times(str(tmp_path), name)
        assert due_times.keys() == ids
        assert {due.due_ns for due in due_times.values()} == {LATER_NS}


def test_only_the_named_topics_are_exported(tmp_path):
    write_logs(tmp_path)
    export(tmp_path, "plain")
    assert queue_contents(tmp_path, "plain") == EXPECTED["plain"]
    assert [log.topic for log in StoredLogs(str(tmp_path)).logs] == ["orders", "stopped"]
    assert load_metadata(str(tmp_path)) == [TOPICS[1]]
    with pytest.raises(ConfigError, match="no log of the topic 'plain'"):
        export(tmp_path, "orders", "plain")
    export(tmp_path, "stopped")
    export(tmp_path)
    assert queue_contents(tmp_path, "orders:mail") == EXPECTED["orders:mail"]


def test_messages_and_channels_of_classic_queues_stay(tmp_path):
    """As after Go's nsqd has used a data directory with logs."""
    write_logs(tmp_path)
    old = new_message(b"0000000000000001", b"old", NOW_NS, 1)
    for name in ("orders:billing", "orders:other"):
        queue = DiskQueue(name, str(tmp_path), 500, 1 << 20, SilentLog(), lambda: None)
        queue.put_message(old)
        queue.close()
    (tmp_path / "nsqd.dat").write_text(
        '{"topics":[{"name":"orders","paused":false,"channels":[{"name":"other","paused":true}]},'
        '{"name":"classic","paused":true,"channels":null}],"version":"1.3.0"}'
    )
    export(tmp_path)
    assert queue_contents(tmp_path, "orders:billing") == [(b"old", 1), *EXPECTED["orders:billing"]]
    assert queue_contents(tmp_path, "orders:other") == [(b"old", 1)]
    saved = {topic.name: topic for topic in load_metadata(str(tmp_path))}
    assert saved.keys() == {"orders", "classic", "plain", "stopped"}
    assert dict(saved["orders"].channels) == {"other": True, "billing": False, "mail": True}


def test_a_log_can_be_exported_again_after_the_topic_got_a_new_log(tmp_path):
    write_logs(tmp_path)
    export(tmp_path)
    store = open_logs(tmp_path)
    store.create_log("plain", 1, NOW_NS).append(items(b"new"), 1, NOW_NS)
    commit(store)
    store.close()
    (result,) = export(tmp_path)
    assert queue_contents(tmp_path, "plain") == [*EXPECTED["plain"], (b"new", 0)]
    assert result.directory.endswith(".exported")
    assert (tmp_path / "plain.topic.exported").is_dir()
    assert result.directory != str(tmp_path / "plain.topic.exported")


def test_damaged_messages_are_reported_and_the_others_are_exported(tmp_path):
    write_logs(tmp_path)
    segment = max((tmp_path / "plain.topic").glob("*.seg"))
    segment.write_bytes(segment.read_bytes().replace(b"plain 4", b"plain X"))
    (result,) = export(tmp_path, "plain")
    assert result.damaged == [(4, 5)]
    assert queue_contents(tmp_path, "plain") == [each for each in EXPECTED["plain"] if each[0] != b"plain 4"]


def test_nothing_is_exported_if_nsqd_dat_is_damaged(tmp_path):
    write_logs(tmp_path)
    (tmp_path / "nsqd.dat").write_text("{")
    with pytest.raises(MetadataError):
        export(tmp_path)
    assert len(StoredLogs(str(tmp_path)).logs) == 3


@pytest.fixture
def fast_path():
    """A directory where a sync takes no time, and in which no file stays open."""
    with TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as path:
        yield Path(path)
        close_descriptors(path)


@pytest.mark.parametrize("is_clean", [True, False])
def test_an_export_stopped_before_any_file_operation_can_be_repeated(fast_path, is_clean):
    original = fast_path / "original"
    write_logs(original, is_clean=is_clean)

    def run(path, stop_at):
        """Export until the operation ``stop_at``; return the number of operations."""
        count = 0

        def hook(_operation):
            nonlocal count
            count += 1
            if count >= stop_at:
                raise Stopped

        shutil.copytree(original, path)
        files.set_hook(hook)
        try:
            export(path)
        except Stopped:
            pass
        finally:
            files.set_hook(None)
        return count

    total = run(fast_path / "whole", 1 << 30)
    assert_exported(fast_path / "whole")
    assert total > 100
    for stop_at in range(1 + random.randrange(STEP), total + 1, STEP):
        path = fast_path / str(stop_at)
        run(path, stop_at)
        close_descriptors(path)
        if StoredLogs(str(path)).logs:
            export(path)
        assert_exported(path)
        shutil.rmtree(path)
