"""The index of a segment."""

from nsqx.queues.log.index import SPACING, SegmentIndex, decode_index


def filled(times=range(100)):
    index = SegmentIndex()
    for number, time_ns in enumerate(times):
        index.add(number * 10, number * SPACING // 4, time_ns)
    return index


def test_a_position_is_at_or_before_the_offset():
    index = filled()
    for offset in range(1000):
        position = index.position_of(offset)
        assert position <= offset // 10 * SPACING // 4 < position + SPACING


def test_before_a_position_by_time_every_batch_is_older():
    times = [5, 9, 7, 8, 3, 12, 11, 20, 15, 30] * 10
    index = filled(times)
    for time_ns in range(35):
        position, highest = index.position_of_time(time_ns)
        before = times[: position * 4 // SPACING]
        assert all(older < time_ns for older in before)
        assert highest == max(before, default=highest)


def test_an_index_is_read_as_it_was_written():
    index = filled()
    read = decode_index(index.encode(5), 5)
    assert read.max_time == 99
    assert [read.position_of(offset) for offset in range(1000)] == [index.position_of(offset) for offset in range(1000)]


def test_a_damaged_index_and_that_of_another_segment_are_refused():
    data = filled().encode(5)
    assert decode_index(data, 6) is None
    assert decode_index(b"", 5) is None
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1
        assert decode_index(bytes(damaged), 5) is None
        assert decode_index(data[:position], 5) is None
