"""The backlog: memory first, then disk; the oldest message comes out first."""

import pytest
from diskqueue_bench import open_queue
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqx.queues.backlog import Backlog
from nsqx.wire.message import Batch, QueuedMessage, new_batch, new_message
from rawclient import sized


@pytest.fixture
def disk(tmp_path):
    queue = open_queue(tmp_path)
    yield queue
    queue.close()


def make_message(body, timestamp=0):
    return new_message(b"%016x" % 0, body, timestamp, 0)


def make_batch(*bodies, timestamp=0):
    return new_batch(b"".join(map(sized, bodies)), 0, len(bodies), timestamp, 0)


def drain(backlog):
    bodies = []
    while (message := backlog.get()) is not None:
        bodies.append(message.body)
    return bodies


def test_messages_above_the_memory_limit_go_to_disk(disk):
    backlog = Backlog(2, disk)
    for body in (b"1", b"2", b"3"):
        backlog.put_message(make_message(body))
    assert (backlog.depth, backlog.disk_depth, disk.depth) == (3, 1, 1)
    assert backlog.has_messages()
    disk.write_pending()
    assert drain(backlog) == [b"1", b"2", b"3"]
    assert (backlog.depth, backlog.has_messages()) == (0, False)


def test_a_batch_is_split_at_the_limit(disk):
    backlog = Backlog(3, disk)
    backlog.put_message(make_message(b"0"))
    backlog.put_batch(make_batch(b"1", b"2", b"3", b"4"))
    assert (backlog.depth, backlog.disk_depth) == (5, 2)
    disk.write_pending()
    first = backlog.get()
    assert first.body == b"0"
    taken = [backlog.get() for _ in range(4)]
    assert [(message.id, message.body) for message in taken] == [
        (b"%016x" % number, b"%d" % (number + 1)) for number in range(4)
    ]


def test_freed_memory_is_used_again(disk):
    backlog = Backlog(2, disk)
    backlog.put_batch(make_batch(b"1", b"2"))
    assert backlog.get().body == b"1"
    backlog.put_batch(make_batch(b"3", b"4"))
    assert (backlog.depth, backlog.disk_depth) == (3, 1)


@pytest.mark.parametrize("limit", [0, 2])
def test_without_a_disk_the_overflow_is_dropped(limit):
    backlog = Backlog(limit, None)
    backlog.put_batch(make_batch(b"1", b"2", b"3"))
    backlog.put_message(make_message(b"4"))
    assert (backlog.depth, backlog.disk_depth) == (limit, 0)
    assert drain(backlog) == [b"1", b"2", b"3"][:limit]
    assert backlog.holds_memory() is (limit > 0)
    assert not backlog.has_messages()


def test_with_a_memory_limit_of_0_all_messages_go_to_disk(disk):
    backlog = Backlog(0, disk)
    backlog.put_batch(make_batch(b"1", b"2"))
    backlog.put_message(make_message(b"3"))
    assert (backlog.depth, backlog.disk_depth) == (3, 3)
    assert (backlog.has_messages(), backlog.get()) == (False, None)
    disk.write_pending()
    assert drain(backlog) == [b"1", b"2", b"3"]


def test_the_older_of_memory_and_disk_comes_first(disk):
    backlog = Backlog(1, disk)
    backlog.put_message(make_message(b"memory 1", 1))
    backlog.put_message(make_message(b"disk 2", 2))
    backlog.put_message(make_message(b"disk 4", 4))
    disk.write_pending()
    assert backlog.get().body == b"memory 1"
    backlog.put_message(make_message(b"memory 3", 3))
    assert drain(backlog) == [b"disk 2", b"memory 3", b"disk 4"]


def test_the_older_comes_first_even_in_the_middle_of_a_batch(disk):
    backlog = Backlog(2, disk)
    backlog.put_batch(make_batch(b"memory 5", b"memory 5 too", timestamp=5))
    backlog.put_message(make_message(b"disk 6", 6))
    backlog.put_message(make_message(b"disk 3", 3))
    disk.write_pending()
    assert backlog.get().body == b"memory 5"
    backlog.put_batch(make_batch(b"memory 7", timestamp=7))
    assert drain(backlog) == [b"memory 5 too", b"disk 6", b"disk 3", b"memory 7"]


def test_get_batch_returns_the_items_in_memory(disk):
    backlog = Backlog(4, disk)
    backlog.put_batch(make_batch(b"1", b"2"))
    backlog.put_message(make_message(b"3"))
    backlog.put_batch(make_batch(b"4", b"5"))
    disk.write_pending()
    items = [backlog.get_batch() for _ in range(3)]
    assert [type(item) for item in items] == [Batch, QueuedMessage, Batch]
    assert [items[0].count, items[1].body, items[2].count] == [2, b"3", 1]
    assert (backlog.get_batch(), backlog.depth, backlog.get().body) == (None, 1, b"5")


def test_get_batch_returns_the_rest_of_a_started_batch(disk):
    backlog = Backlog(4, disk)
    backlog.put_batch(make_batch(b"1", b"2", b"3"))
    assert backlog.get().body == b"1"
    rest = backlog.get_batch()
    assert (rest.count, rest.take().body, rest.take().body) == (2, b"2", b"3")
    assert backlog.depth == 0


def test_drain_memory_does_not_touch_the_disk(disk):
    backlog = Backlog(3, disk)
    backlog.put_batch(make_batch(b"1", b"2"))
    backlog.get()
    backlog.put_batch(make_batch(b"3", b"4", b"5"))
    head, whole = backlog.drain_memory()
    assert (head.count, head.take().body) == (1, b"2")
    assert (whole.count, whole.take().body) == (2, b"3")
    assert (backlog.depth, backlog.disk_depth) == (1, 1)
    disk.write_pending()
    assert drain(backlog) == [b"5"]


@pytest.mark.parametrize("ending", ["empty", "delete"])
def test_empty_and_delete_discard_memory_and_disk(disk, tmp_path, ending):
    backlog = Backlog(2, disk)
    backlog.put_batch(make_batch(b"1", b"2", b"3"))
    backlog.get()
    disk.write_pending()
    getattr(backlog, ending)()
    assert (backlog.depth, backlog.has_messages(), backlog.get()) == (0, False, None)
    # The meta file of an emptied queue that stays in use counts no messages.
    left = [path.read_bytes() for path in tmp_path.iterdir()]
    assert left == ([b"0\n1,0\n1,0\n"] if ending == "empty" else [])


@settings(max_examples=60, deadline=None)
@given(
    limit=st.integers(0, 6),
    steps=st.lists(
        st.one_of(st.integers(1, 5), st.just("message"), st.just("get"), st.just("get_batch"), st.just("write")),
        max_size=40,
    ),
)
def test_every_message_comes_out_once_and_memory_stays_within_its_limit(tmp_path_factory, limit, steps):
    disk = open_queue(tmp_path_factory.mktemp("disk"), max_file_size=150)
    backlog = Backlog(limit, disk)
    put, got = [], []
    for now, step in enumerate(steps):
        if step == "get":
            got += [message.body for message in [backlog.get()] if message is not None]
        elif step == "get_batch":
            got += bodies_of(backlog.get_batch())
        elif step == "write":
            disk.write_pending()
        else:
            bodies = [b"%d.%d" % (now, index) for index in range(1 if step == "message" else step)]
            put += bodies
            if step == "message":
                backlog.put_message(make_message(bodies[0], now))
            else:
                backlog.put_batch(make_batch(*bodies, timestamp=now))
        assert backlog.depth == len(put) - len(got)
        assert backlog.depth - backlog.disk_depth <= limit
    disk.write_pending()
    got += drain(backlog)
    assert sorted(got) == sorted(put)
    disk.close()


def bodies_of(item):
    if item is None:
        return []
    return [item.body] if isinstance(item, QueuedMessage) else [item.take().body for _ in range(item.count)]


def test_memory_items_are_copies_of_the_oldest_items(disk):
    backlog = Backlog(10, disk)
    backlog.put_batch(make_batch(b"1", b"2", b"3"))
    backlog.put_message(make_message(b"4"))
    backlog.put_batch(make_batch(b"5"))
    backlog.get()
    items = backlog.memory_items(100)
    assert [body for item in items for body in bodies_of(item)] == [b"2", b"3", b"4", b"5"]
    assert len(backlog.memory_items(2)) == 1
    assert len(backlog.memory_items(3)) == 2
    assert drain(backlog) == [b"2", b"3", b"4", b"5"]
