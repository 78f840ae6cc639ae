"""The start of a store after a clean end, a crash, and a power cut."""

import shutil
from dataclasses import replace

import pytest
from log_bench import BOOT_ID, SMALL, Lines, bodies_of, change, checkpoint, commit, open_store, publish

from nsqx.queues.log.recovery import NO_BOOT_ID
from nsqx.queues.log.state import Hole
from nsqx.queues.log.store import LogStore

OTHER_BOOT = b"c" * 16


def crashed(path, *bodies):
    """Leave messages in the commit file, as after a crash."""
    store = open_store(path)
    log = store.logs.get("topic") or store.create_log("topic", 1 << 40, 5)
    for body in bodies:
        publish(log, body)
        commit(store)
    return log


def test_after_a_clean_end_offsets_go_on(tmp_path):
    store = open_store(tmp_path)
    log = store.create_log("topic", 1 << 40, 5)
    publish(log, b"a")
    store.close()
    store = LogStore(str(tmp_path), SMALL, OTHER_BOOT, Lines())
    assert not store.is_recovering
    log = store.logs["topic"]
    assert (log.end, log.written, log.stable, bodies_of(log)) == (1, 1, 1, {0: b"a"})


def test_after_a_crash_offsets_go_on_without_a_gap(tmp_path):
    crashed(tmp_path, b"a", b"b")
    log = open_store(tmp_path).logs["topic"]
    assert (log.end, log.stable, bodies_of(log)) == (2, 2, {0: b"a", 1: b"b"})


@pytest.mark.parametrize("boot_id", [OTHER_BOOT, NO_BOOT_ID])
def test_after_a_power_cut_offsets_go_on_at_the_lease(tmp_path, boot_id):
    crashed(tmp_path, b"a", b"b")
    store = open_store(tmp_path, boot_id=boot_id)
    log = store.logs["topic"]
    assert publish(log, b"c") == SMALL.lease_step
    commit(store)
    commit(store)
    assert bodies_of(log) == {0: b"a", 1: b"b", SMALL.lease_step: b"c"}
    again = open_store(tmp_path, boot_id=boot_id).logs["topic"]
    assert bodies_of(again) == {0: b"a", 1: b"b", SMALL.lease_step: b"c"}


def test_recovered_messages_are_seen_after_the_first_checkpoint(tmp_path):
    crashed(tmp_path, b"a")
    store = LogStore(str(tmp_path), SMALL, BOOT_ID, Lines())
    log = store.logs["topic"]
    assert (store.is_recovering, log.written, log.end) == (True, 0, 1)
    publish(log, b"b")
    assert store.begin_commit(is_synced=True) is None
    checkpoint(store)
    assert (store.is_recovering, log.written, log.stable) == (False, 1, 1)
    commit(store)
    assert log.written == 2


def test_the_state_survives_a_crash_and_a_clean_end(tmp_path):
    store = open_store(tmp_path)
    log = store.create_log("topic", 1 << 40, 5)
    change(log, lambda changes: changes.create_channel(1, "channel", 0))
    publish(log, b"a", b"b", b"c")
    log.append_deferred(b"\0\0\0\1d", 1, 5, 77)
    change(log, lambda changes: changes.finish(1, [(1, 2)]))
    change(log, lambda changes: changes.requeue(1, [(2, Hole(4, 99))]))
    commit(store)
    for _ in range(2):
        store = open_store(tmp_path)
        state = store.logs["topic"].state
        channel = state.channels[1]
        assert (channel.name, channel.next, channel.holes) == ("channel", 3, {0: Hole(), 2: Hole(4, 99)})
        assert (state.deferred, state.depth(1, state.end)) == ({3: 77}, 2)
        store.close()


def test_a_frame_that_was_not_completed_is_ignored(tmp_path):
    crashed(tmp_path, b"a", b"b")
    path = tmp_path / "nsqx.commit.0"
    path.write_bytes(path.read_bytes()[:-30])
    lines = Lines()
    store = open_store(tmp_path, lines=lines)
    assert (bodies_of(store.logs["topic"]), store.damaged_count, lines.lines) == ({0: b"a"}, 0, [])


def test_a_damaged_frame_that_was_durable_is_reported_and_the_others_are_used(tmp_path):
    crashed(tmp_path, b"first", b"second", b"third")
    path = tmp_path / "nsqx.commit.0"
    path.write_bytes(path.read_bytes().replace(b"second", b"sec0nd"))
    for boot_id in (BOOT_ID, OTHER_BOOT):
        copy = tmp_path / boot_id.decode()
        copy.mkdir()
        shutil.copy(path, copy)
        lines = Lines()
        store = open_store(copy, boot_id=boot_id, lines=lines)
        assert bodies_of(store.logs["topic"]) == {0: b"first", 2: b"third"}
        assert store.damaged_count == 1
        assert "damaged" in lines.lines[0]
        assert store.logs["topic"].end > SMALL.lease_step


DIRECT = replace(SMALL, segment_size=100_000, direct_size=1, unsynced_direct_size=1, lease_step=1000)


def create(log, number, name):
    change(log, lambda changes: changes.create_channel(number, name, log.end if number > 1 else 0))


def written_directly(path, *, is_synced):
    """Leave a durable message, and a direct write of two channels and messages that is durable or not."""
    store = open_store(path, DIRECT)
    log = store.create_log("topic", 1 << 40, 5)
    publish(log, b"durable")
    commit(store)
    create(log, 1, "first-channel")
    publish(log, b"second")
    publish(log, b"third")
    create(log, 2, "last-channel")
    publish(log, b"fourth")
    commit(store, is_synced=is_synced)
    return store


def segment_of(path):
    (segment,) = (path / "topic.topic").glob("*.seg")
    return segment


def erase(segment, text):
    """Replace the batch that contains a text by zeros, as if its sectors were not written."""
    content = segment.read_bytes()
    start = content.rindex(b"NXB1", 0, content.index(text))
    end = content.find(b"NXB1", start + 4)
    end = end if end >= 0 else len(content)
    segment.write_bytes(content[:start] + bytes(end - start) + content[end:])


@pytest.mark.parametrize(
    ("text", "bodies", "channels"),
    [
        (b"first-channel", [b"durable"], []),
        (b"second", [b"durable"], ["first-channel"]),
        (b"third", [b"durable", b"second"], ["first-channel"]),
        (b"last-channel", [b"durable", b"second", b"third"], ["first-channel"]),
    ],
)
def test_after_a_power_cut_nothing_is_used_after_the_first_missing_batch(tmp_path, text, bodies, channels):
    written_directly(tmp_path, is_synced=False)
    erase(segment_of(tmp_path), text)
    lines = Lines()
    for _ in range(2):
        store = open_store(tmp_path, DIRECT, OTHER_BOOT, lines)
        log = store.logs["topic"]
        assert list(bodies_of(log).values()) == bodies
        assert [channel.name for channel in log.state.channels.values()] == channels
        assert (store.damaged_count, lines.lines) == (0, [])
        assert log.state.depth(1, log.written) == len(bodies) if channels else log.state.unclaimed == 0
        store.close()


def test_after_a_crash_without_a_power_cut_a_missing_batch_is_damage(tmp_path):
    written_directly(tmp_path, is_synced=False)
    erase(segment_of(tmp_path), b"second")
    store = open_store(tmp_path, DIRECT)
    assert list(bodies_of(store.logs["topic"]).values()) == [b"durable", b"third", b"fourth"]
    assert (len(store.logs["topic"].state.channels), store.damaged_count) == (2, 1)


@pytest.mark.parametrize("text", [b"first-channel", b"second", b"last-channel"])
@pytest.mark.parametrize("options", [DIRECT, replace(DIRECT, direct_size=50_000)], ids=["segment", "frame"])
def test_a_batch_that_was_durable_before_a_later_write_is_damage(tmp_path, text, options):
    store = written_directly(tmp_path, is_synced=True)
    store.options = options
    publish(store.logs["topic"], b"later")
    commit(store)
    erase(segment_of(tmp_path), text)
    store = open_store(tmp_path, DIRECT, OTHER_BOOT)
    expected = [body for body in (b"durable", b"second", b"third", b"fourth", b"later") if body != text]
    assert list(bodies_of(store.logs["topic"]).values()) == expected
    names = [channel.name for channel in store.logs["topic"].state.channels.values()]
    assert names == [name for name in ("first-channel", "last-channel") if name.encode() != text]
    assert store.damaged_count == 1


def test_a_change_alone_that_was_durable_before_a_later_write_is_damage(tmp_path):
    store = open_store(tmp_path, DIRECT)
    log = store.create_log("topic", 1 << 40, 5)
    publish(log, b"durable")
    commit(store)
    create(log, 1, "first-channel")
    commit(store)
    publish(log, b"later")
    commit(store)
    erase(segment_of(tmp_path), b"first-channel")
    store = open_store(tmp_path, DIRECT, OTHER_BOOT)
    assert (list(bodies_of(store.logs["topic"]).values()), store.damaged_count) == ([b"durable", b"later"], 1)


def test_changes_that_were_not_used_do_not_replace_later_ones_with_their_serials(tmp_path):
    written_directly(tmp_path, is_synced=False)
    erase(segment_of(tmp_path), b"first-channel")
    store = open_store(tmp_path, DIRECT, OTHER_BOOT)
    create(store.logs["topic"], 1, "new-channel")
    commit(store)
    store.close()
    newest = max((tmp_path / "topic.topic").glob("*.seg"))
    content = bytearray(newest.read_bytes())
    snapshot_at = content.index(b"NXB1", 10)
    content[snapshot_at + 70] ^= 1
    content[content.index(b"NXB1", snapshot_at + 10) + 70] ^= 1
    newest.write_bytes(content)
    store = open_store(tmp_path, DIRECT, OTHER_BOOT)
    log = store.logs["topic"]
    assert [channel.name for channel in log.state.channels.values()] == ["new-channel"]
    assert (bodies_of(log)[0], store.damaged_count > 0) == (b"durable", True)


def test_a_log_is_found_without_its_identity_file(tmp_path):
    store = open_store(tmp_path)
    publish(store.create_log("topic", 1 << 40, 5), b"a")
    store.close()
    (tmp_path / "topic.topic" / "id").write_bytes(b"damaged")
    store = open_store(tmp_path)
    assert bodies_of(store.logs["topic"]) == {0: b"a"}
    store.close()
    lines = Lines()
    open_store(tmp_path, lines=lines)
    assert lines.lines == []


def test_a_log_that_is_only_in_a_commit_file_gets_its_directory(tmp_path):
    crashed(tmp_path, b"a")
    assert not (tmp_path / "topic.topic").exists()
    open_store(tmp_path)
    assert (tmp_path / "topic.topic" / "id").exists()


def test_with_a_damaged_snapshot_the_state_comes_from_the_segment_before(tmp_path):
    store = open_store(tmp_path)
    log = store.create_log("topic", 1 << 40, 5)
    change(log, lambda changes: changes.create_channel(1, "channel", 0))
    for number in range(40):
        publish(log, b"%d" % number + b"x" * 100)
        change(log, lambda changes, number=number: changes.finish(1, [(number, number + 1)]))
        commit(store)
    end = log.end
    store.close()
    newest = max((tmp_path / "topic.topic").glob("*.seg"))
    content = bytearray(newest.read_bytes())
    snapshot_at = content.index(b"NXB1", 10)
    content[snapshot_at + 70] ^= 1
    content[content.index(b"NXB1", snapshot_at + 10) + 70] ^= 1
    newest.write_bytes(content)
    store = open_store(tmp_path)
    log = store.logs["topic"]
    assert len(bodies_of(log)) == end
    assert log.state.channels[1].next == end
    assert (log.state.depth(1, log.written), store.damaged_count > 0) == (0, True)


def test_directories_of_unknown_logs_are_left_alone(tmp_path):
    directory = tmp_path / "topic.topic"
    directory.mkdir()
    (directory / f"{0:020d}.seg").write_bytes(b"something")
    lines = Lines()
    store = open_store(tmp_path, lines=lines)
    assert (store.logs, "cannot be identified" in lines.lines[0]) == ({}, True)
    publish(store.create_log("topic", 1 << 40, 5), b"a")
    store.close()
    assert bodies_of(open_store(tmp_path).logs["topic"]) == {0: b"a"}
    assert [path.suffix for path in tmp_path.iterdir() if path.name.startswith("topic.topic.")] == [".unknown"]


def test_a_directory_with_only_a_damaged_commit_file_is_usable(tmp_path):
    (tmp_path / "nsqx.commit.0").write_bytes(b"damaged")
    store = open_store(tmp_path)
    publish(store.create_log("topic", 1, 2), b"first")
    assert commit(store) is not None
    store.close()
    assert open_store(tmp_path).logs["topic"].end == 1
