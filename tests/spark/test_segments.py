"""The segment directory keeps rows across restarts, finds them by offset and removes them after the commit."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from messages import add_message

from nsqx.errors import ConfigError
from nsqx.spark.columns import Columns
from nsqx.spark.identities import Identities
from nsqx.spark.rows import SPARK_SCHEMA, Rows
from nsqx.spark.segments import SegmentDirectory
from nsqx.spark.slices import DataLost, read_slices
from nsqx.spark.storage import LocalStorage

NODE = "127.0.0.1:4150"


def rows(start, end, topic="t", size=None, known=()):
    columns = Columns(topic, NODE)
    for number in range(start, end):
        value = b"%d" % number if size is None else b"x" * size
        add_message(columns, b"%016x" % number, 1_700_000_000_000_000_123 + number, 1, value)
    return Rows(columns, known)


def open_directory(path, window_rows=1000, lock_wait_s=0.0):
    return SegmentDirectory.open(
        str(path), channel="c", max_in_flight=10, window_rows=window_rows, lock_wait_s=lock_wait_s
    )


def values(directory, start, end, partitions=1):
    found = []
    for part in directory.slices(start, end, partitions):
        for batch in read_slices(directory.storage.location, directory.state.identity, part):
            assert batch.schema.equals(SPARK_SCHEMA)
            found.extend(batch.column("value").to_pylist())
    return found


def known(directory):
    return [message_id for part in directory.known_identities() for message_id in part.ids]


def test_appended_rows_are_read_with_the_spark_schema(tmp_path):
    directory = open_directory(tmp_path)
    assert directory.append([rows(0, 2), rows(2, 3, "u")]) == 3
    (part,) = directory.slices(0, 3, 1)
    (batch,) = read_slices(str(tmp_path), directory.state.identity, part)
    assert batch.to_pydict()["topic"] == ["t", "t", "u"]
    assert batch.to_pydict()["id"] == [f"{number:016x}" for number in range(3)]
    assert batch.to_pydict()["timestamp"][1].microsecond == 0
    assert batch.to_pydict()["node"] == [NODE] * 3
    directory.close(is_clean=True)


def test_rows_marked_as_known_are_not_stored(tmp_path):
    directory = open_directory(tmp_path)
    assert directory.append([rows(0, 5, known=[0, 3]), rows(5, 7, known=[0, 1]), rows(7, 9)]) == 5
    assert values(directory, 0, 5) == [b"1", b"2", b"4", b"7", b"8"]
    assert known(directory) == [b"%016x" % number for number in (1, 2, 4, 7, 8)]
    assert directory.buffered() == (5, 5)
    directory.close(is_clean=True)


def test_a_reopened_directory_has_its_rows_and_state(tmp_path):
    directory = open_directory(tmp_path)
    directory.begin(10)
    for start in range(0, 100, 10):
        directory.append([rows(start, start + 10)])
    directory.commit(35)
    directory.identities.pin([Identities("t", NODE, [b"%016x" % 7], [7])])
    identity = directory.state.identity
    directory.close(is_clean=False)
    again = open_directory(tmp_path)
    assert again.state.identity == identity
    assert (again.state.committed, again.first_row, again.next_row) == (35, 30, 100)
    assert not again.state.is_clean
    assert values(again, 35, 100) == [b"%d" % number for number in range(35, 100)]
    assert known(again) == [b"%016x" % number for number in range(100)]
    assert [part.ids for part in again.identities.pinned()] == [[b"%016x" % 7]]
    again.close(is_clean=True)
    assert open_directory(tmp_path).state.is_clean


def test_temporary_files_are_removed_on_open(tmp_path):
    directory = open_directory(tmp_path)
    directory.append([rows(0, 10)])
    directory.close(is_clean=False)
    (tmp_path / "segment-00000000000000000010-5-5.arrow.tmp").write_bytes(b"half")
    again = open_directory(tmp_path)
    assert again.next_row == 10
    assert not list(tmp_path.glob("*.tmp"))


@settings(max_examples=20, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=10),
    cut=st.tuples(st.integers(0, 300), st.integers(0, 300)),
    partitions=st.integers(1, 7),
)
def test_slices_of_any_range_contain_its_rows_in_order(tmp_path_factory, sizes, cut, partitions):
    directory = open_directory(tmp_path_factory.mktemp("segments"))
    start = 0
    for size in sizes:
        start = directory.append([rows(start, start + size)])
    first, last = sorted(min(each, start) for each in cut)
    if first < last:
        parts = directory.slices(first, last, partitions)
        assert len(parts) <= partitions
        counts = [sum(each.rows for each in part) for part in parts]
        assert set(counts[:-1]) <= {-(-(last - first) // partitions)}
        assert values(directory, first, last, partitions) == [b"%d" % number for number in range(first, last)]
    directory.close(is_clean=True)


@settings(max_examples=20, deadline=None)
@given(
    start=st.integers(0, 59),
    max_rows=st.integers(0, 80),
    max_bytes=st.integers(0, 800),
)
def test_end_within_keeps_the_limits_but_includes_at_least_one_row(tmp_path_factory, start, max_rows, max_bytes):
    directory = open_directory(tmp_path_factory.mktemp("segments"))
    for begin in range(0, 60, 20):
        directory.append([rows(begin, begin + 20, size=10)])
    end = directory.end_within(start, 60, max_rows, max_bytes)
    room = min(max_rows or 60, max(1, max_bytes // 10) if max_bytes else 60)
    assert end == min(60, start + room)
    directory.close(is_clean=True)


def test_identities_are_kept_for_the_window_after_their_rows_are_removed(tmp_path):
    directory = open_directory(tmp_path, window_rows=125_000)
    for start in range(0, 300_000, 15_000):
        directory.append([rows(start, start + 15_000)])
        directory.commit(start + 15_000)
    assert not list(tmp_path.glob("segment-*"))
    found = known(directory)
    assert found[-125_000:] == [b"%016x" % number for number in range(175_000, 300_000)]
    assert len(found) < 200_000
    assert directory.next_row == 300_000
    assert len(list(tmp_path.glob("ids-*"))) <= 5


def test_many_pin_files_are_merged(tmp_path):
    directory = open_directory(tmp_path)
    for number in range(50):
        directory.identities.pin([Identities("t", NODE, [b"%016x" % number], [number])])
    assert len(list(tmp_path.glob("pins-*"))) <= 17
    assert next(iter(directory.identities.pinned())).ids[0] == b"%016x" % 0
    directory.close(is_clean=True)
    again = open_directory(tmp_path)
    assert sum(len(part.ids) for part in again.identities.pinned()) == 50


def test_a_locked_directory_is_rejected_until_it_is_released(tmp_path):
    first = open_directory(tmp_path)
    with pytest.raises(ConfigError, match=f"in use by process {os.getpid()} on .*: stop that query"):
        open_directory(tmp_path)
    first.close(is_clean=True)
    open_directory(tmp_path).close(is_clean=True)


def test_segments_without_a_valid_state_file_are_rejected(tmp_path):
    directory = open_directory(tmp_path)
    directory.append([rows(0, 1)])
    directory.close(is_clean=True)
    (tmp_path / "state.json").unlink()
    with pytest.raises(ConfigError, match=r"has segments but no state.json"):
        open_directory(tmp_path)
    (tmp_path / "state.json").write_text("{}")
    with pytest.raises(ConfigError, match="has version unknown, expected 2"):
        open_directory(tmp_path)


def test_a_directory_that_cannot_be_created_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used: "):
        LocalStorage(str(tmp_path / "file" / "sub")).create()


class TestDataLoss:
    """A removed or damaged segment is reported with its name."""

    def filled(self, path):
        """Fill a directory with five segments of ten rows and commit five rows; return the names of the segments."""
        directory = open_directory(path)
        for start in range(0, 50, 10):
            directory.append([rows(start, start + 10)])
        directory.commit(5)
        directory.close(is_clean=True)
        return sorted(file.name for file in path.glob("segment-*"))

    @pytest.mark.parametrize(
        ("place", "missing"), [(0, "0 to 10"), (2, "20 to 30"), (4, "40 to 50")], ids=["oldest", "middle", "newest"]
    )
    def test_a_removed_segment_is_reported_before_planning(self, tmp_path, place, missing):
        (tmp_path / self.filled(tmp_path)[place]).unlink()
        directory = open_directory(tmp_path)
        expected = f"rows {missing} are missing|has rows 10 to 50: it was emptied"
        with pytest.raises(DataLost, match=expected):
            directory.check_start(5, fail_on_data_loss=True)
        name = r"segment-0{18}\d\d-" if place else "the first segment was removed"
        with pytest.raises(DataLost, match=name):
            directory.slices(5, 50, 1)

    def test_missing_rows_outside_the_requested_range_are_ignored(self, tmp_path):
        (tmp_path / self.filled(tmp_path)[2]).unlink()
        directory = open_directory(tmp_path)
        assert directory.check_start(30, fail_on_data_loss=True) == 30
        assert values(directory, 30, 50) == [b"%d" % number for number in range(30, 50)]

    @pytest.mark.parametrize("place", [2, 4])
    def test_without_fail_on_data_loss_the_other_rows_are_read(self, tmp_path, caplog, place):
        (tmp_path / self.filled(tmp_path)[place]).unlink()
        directory = open_directory(tmp_path)
        for _ in range(3):
            assert directory.check_start(5, fail_on_data_loss=False) == 5
        assert caplog.text.count("are missing in segmentDir") == 1
        assert directory.append([rows(50, 60)]) == 60
        kept = [number for number in range(5, 60) if number // 10 != place]
        assert found(directory, directory.slices(5, 60, 3, fail_on_data_loss=False)) == [b"%d" % each for each in kept]
        directory.commit(60)
        assert directory.next_row == 60
        directory.close(is_clean=True)
        assert open_directory(tmp_path).check_start(60, fail_on_data_loss=True) == 60

    def test_the_removal_of_all_segments_is_reported(self, tmp_path):
        for name in self.filled(tmp_path):
            (tmp_path / name).unlink()
        with pytest.raises(DataLost, match="rows 5 to 50 are missing"):
            open_directory(tmp_path).check_start(5, fail_on_data_loss=True)

    @given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
    @settings(max_examples=30, deadline=None)
    def test_a_flipped_bit_anywhere_is_reported(self, tmp_path_factory, place, bit):
        path = tmp_path_factory.mktemp("segments")
        damaged = path / self.filled(path)[1]
        content = bytearray(damaged.read_bytes())
        content[int(place * len(content))] ^= 1 << bit
        damaged.write_bytes(content)
        directory = open_directory(path)
        with pytest.raises(DataLost, match=f"{damaged.name} in segmentDir .* is damaged"):
            values(directory, 5, 50)
        parts = directory.slices(5, 50, 1)
        kept = [number for number in range(5, 50) if number // 10 != 1]
        assert found(directory, parts, fail_on_data_loss=False) == [b"%d" % number for number in kept]
        directory.close(is_clean=True)

    def test_a_truncated_segment_is_reported(self, tmp_path):
        damaged = tmp_path / self.filled(tmp_path)[4]
        damaged.write_bytes(damaged.read_bytes()[:-1])
        with pytest.raises(DataLost, match=f"{damaged.name} in segmentDir .* is damaged"):
            values(open_directory(tmp_path), 5, 50)

    def test_a_segment_removed_during_a_query_is_reported(self, tmp_path):
        names = self.filled(tmp_path)
        directory = open_directory(tmp_path)
        (tmp_path / names[1]).unlink()
        with pytest.raises(DataLost, match=f"{names[1]} is missing in segmentDir"):
            values(directory, 5, 50)
        assert directory.end_within(5, 50, 0, 5) > 5
        directory.commit(50)

    def test_a_version_1_directory_is_converted(self, tmp_path):
        names = self.filled(tmp_path)
        for name in names:
            (tmp_path / name).rename(tmp_path / ("-".join(name.split("-")[:4]) + ".arrow"))
        state = json.loads((tmp_path / "state.json").read_text())
        old = {key: state[key] for key in ("identity", "channel", "committed", "max_in_flight", "is_clean")}
        (tmp_path / "state.json").write_text(json.dumps({"version": 1, **old}))
        (tmp_path / "state.latest").unlink()
        directory = open_directory(tmp_path)
        assert (directory.state.identity, directory.state.committed) == (state["identity"], 5)
        assert directory.append([rows(50, 60)]) == 60
        assert values(directory, 5, 60) == [b"%d" % number for number in range(5, 60)]
        directory.close(is_clean=True)
        assert json.loads((tmp_path / "state.json").read_text())["version"] == 2
        (tmp_path / "segment-00000000000000000020-10-20.arrow").unlink()
        with pytest.raises(DataLost, match="rows 20 to 30 are missing"):
            open_directory(tmp_path).check_start(5, fail_on_data_loss=True)

    def test_a_damaged_latest_state_is_not_reported_as_data_loss(self, tmp_path):
        self.filled(tmp_path)
        for content in (b"", b"\0" * 300, b'{"identity"'):
            (tmp_path / "state.latest").write_bytes(content)
            directory = open_directory(tmp_path)
            assert directory.check_start(5, fail_on_data_loss=True) == 5
            assert directory.next_row == 50
            directory.close(is_clean=True)


def found(directory, parts, *, fail_on_data_loss=True):
    """Return the values in the parts of a batch."""
    location, identity = directory.storage.location, directory.state.identity
    return [
        value
        for part in parts
        for batch in read_slices(location, identity, part, fail_on_data_loss=fail_on_data_loss)
        for value in batch.column("value").to_pylist()
    ]
