import os

import pytest
from log_bench import items

from nsqx.queues.checksums import item_sums
from nsqx.queues.log.staging import (
    PartDamaged,
    PartMessages,
    PartName,
    ReadPartsJob,
    RemovePartsJob,
    StageJob,
    decode_part,
    encode_part,
    is_intact,
    list_staged,
    parse_file_name,
    remove_unfinished,
)

NAME = PartName("query.1", 7, "3-1", "12")
GROUPS = [
    PartMessages("orders", 0, 2, items(b"one", b"two")),
    PartMessages("clicks", 5_000_000, 1, items(b"three")),
    PartMessages("orders", 0, 1, items(b"four")),
]


def stage(path, name=NAME, groups=GROUPS):
    job = StageJob(str(path), name, groups, is_first=True)
    job.run()
    assert job.error is None
    return job


def read(path, *names):
    job = ReadPartsJob(str(path), names)
    job.run()
    return job


class TestFile:
    def test_a_part_is_read_as_it_was_written(self):
        found = decode_part(NAME, encode_part(NAME, GROUPS))
        assert [group._replace(sums=b"") for group in found] == GROUPS
        assert [group.sums for group in found] == [item_sums(g.items, g.message_count) for g in GROUPS]
        assert decode_part(NAME, encode_part(NAME, [])) == []

    def test_every_changed_byte_and_every_end_is_noticed(self):
        data = encode_part(NAME, GROUPS)
        for position in range(len(data)):
            changed = data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
            with pytest.raises(PartDamaged):
                decode_part(NAME, changed)
            with pytest.raises(PartDamaged):
                decode_part(NAME, data[:position])
        with pytest.raises(PartDamaged):
            decode_part(NAME, data + b"x")

    def test_the_file_of_another_part_is_damaged(self):
        with pytest.raises(PartDamaged):
            decode_part(NAME._replace(attempt="13"), encode_part(NAME, GROUPS))

    def test_names(self):
        assert parse_file_name(NAME.file_name) == NAME
        for name in ("q,1,2.part", "q,1,2,3", "q,x,2,3.part", "q,1,2,3.part.123.tmp", "a b,1,2,3.part"):
            assert parse_file_name(name) is None


class TestJobs:
    def test_parts_are_staged_listed_read_and_removed(self, tmp_path):
        assert list_staged(str(tmp_path)) == []
        other = NAME._replace(part="4")
        size = stage(tmp_path).size
        stage(tmp_path, other, [])
        assert [(part.name, part.size) for part in list_staged(str(tmp_path))][0] == (NAME, size)
        assert len(read(tmp_path, other, NAME).groups) == 2
        job = RemovePartsJob(str(tmp_path), [NAME, other, NAME._replace(part="9")])
        job.run()
        assert (len(job.removed), job.error, list_staged(str(tmp_path))) == (3, None, [])

    def test_small_groups_are_merged_in_order(self, tmp_path):
        stage(tmp_path)
        clicks, orders = sorted(read(tmp_path, NAME).groups)
        assert clicks._replace(sums=b"") == GROUPS[1]
        merged = items(b"one", b"two", b"four")
        assert orders == PartMessages("orders", 0, 3, merged, item_sums(merged, 3))

    def test_large_groups_stay_apart(self, tmp_path):
        large = [PartMessages("orders", 0, 1, items(bytes([number]) * 200_000)) for number in range(5)]
        stage(tmp_path, groups=large)
        found = read(tmp_path, NAME).groups
        assert [group.message_count for group in found] == [2, 2, 1]
        assert b"".join(group.items for group in found) == b"".join(group.items for group in large)

    def test_a_missing_part_is_named(self, tmp_path):
        stage(tmp_path)
        missing = NAME._replace(attempt="x")
        job = read(tmp_path, NAME, missing)
        assert (job.missing, job.error) == (missing, None)

    def test_a_damaged_part_is_an_error(self, tmp_path):
        stage(tmp_path)
        (path,) = (tmp_path / "nsqx.staged").iterdir()
        path.write_bytes(path.read_bytes()[:-1])
        job = read(tmp_path, NAME)
        assert isinstance(job.error, PartDamaged)
        assert not is_intact(str(tmp_path), NAME)

    def test_what_a_crash_left_is_removed(self, tmp_path):
        stage(tmp_path)
        left = tmp_path / "nsqx.staged" / (NAME.file_name + ".123.tmp")
        left.write_bytes(b"x")
        remove_unfinished(str(tmp_path))
        assert os.listdir(tmp_path / "nsqx.staged") == [NAME.file_name]
        remove_unfinished(str(tmp_path / "none"))
