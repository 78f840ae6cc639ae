"""Blocks of messages that were read from segments, and a reader that uses them."""

from log_bench import items

from nsqx.queues.log.batch import MESSAGES, new_batch
from nsqx.queues.log.blocks import LogBlock, LogBlocks
from nsqx.queues.log.reader import FOUND, MISSING, UNREAD, LogReader
from nsqx.queues.log.tail import LogTail


class TailOnly:
    """The parts of a log that a reader uses."""

    def __init__(self, written):
        self.tail = LogTail()
        self.written = written


def batch(first, *bodies):
    return new_batch(MESSAGES, first, len(bodies), 5, items(*bodies))


def block(first, end, *batches):
    return LogBlock(first, end, list(batches))


def body(reader, offset):
    assert reader.find(offset) == FOUND
    return reader.data[reader.start : reader.end]


def test_a_block_finds_the_batch_of_an_offset():
    one = block(10, 20, batch(10, b"a", b"b"), batch(15, b"c"))
    found = [one.find(offset) for offset in (10, 11, 12, 14, 15, 16)]
    assert [each and each.first for each in found] == [10, 10, None, None, 15, None]


def test_the_blocks_that_were_not_used_for_the_longest_time_are_dropped():
    size = block(0, 1, batch(0, b"a")).size
    blocks = LogBlocks(3 * size)
    logs = [TailOnly(100), TailOnly(100)]
    for first in range(3):
        blocks.add(logs[first % 2], block(first, first + 1, batch(first, b"a")))
    assert blocks.size == 3 * size
    assert blocks.find(logs[0], 0) is not None
    blocks.add(logs[0], block(3, 4, batch(3, b"a")))
    assert blocks.size == 3 * size
    kept = [(index, first) for index in range(2) for first in range(4) if blocks.find(logs[index], first) is not None]
    assert kept == [(0, 0), (0, 2), (0, 3)]
    blocks.forget(logs[0])
    assert (blocks.size, blocks.find(logs[0], 3)) == (0, None)


def test_one_block_is_kept_even_if_it_is_too_large():
    blocks = LogBlocks(0)
    log = TailOnly(100)
    for first in range(3):
        blocks.add(log, block(first, first + 1, batch(first, b"a")))
        assert [blocks.find(log, offset) is not None for offset in range(3)] == [first == offset for offset in range(3)]


def test_a_reader_finds_messages_in_blocks_and_in_the_tail():
    log, blocks = TailOnly(8), LogBlocks(1000)
    log.tail.add(batch(6, b"g", b"h"))
    log.tail.add(batch(8, b"unwritten"))
    reader = LogReader(log, blocks)
    assert reader.find(0) == UNREAD
    blocks.add(log, block(0, 6, batch(0, b"a", b"b", b"c"), batch(4, b"e")))
    assert [body(reader, offset) for offset in (0, 1, 2, 1, 4, 0)] == [b"a", b"b", b"c", b"b", b"e", b"a"]
    assert [reader.find(offset) for offset in (3, 5, 8)] == [MISSING, MISSING, UNREAD]
    assert (body(reader, 7), reader.block_end()) == (b"h", -1)
    assert (body(reader, 2), reader.block_end()) == (b"c", 6)


def test_a_reader_that_has_released_its_block_continues_at_its_place():
    log, blocks = TailOnly(6), LogBlocks(0)
    reader = LogReader(log, blocks)
    for _ in range(2):
        blocks.add(log, block(0, 6, batch(0, *(b"%d" % number for number in range(6)))))
        for offset in (0, 1, 4, 5, 2):
            assert body(reader, offset) == b"%d" % offset
            reader.release()
            assert (reader.data, reader.block_end()) == (b"", -1)
    blocks.forget(log)
    assert reader.find(3) == UNREAD
