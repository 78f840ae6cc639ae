"""The messages that wait in a disk queue, read without changing it or its files.

A view has the positions of one moment, and can be read in a thread while the queue is in use. Files that the queue
removes meanwhile are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from nsqx.queues.positions import data_path
from nsqx.queues.record_reader import DAMAGED, RecordReader
from nsqx.wire import byteops
from nsqx.wire.message import QueuedMessage, message_at


class _NoLog:
    """A log that drops its lines: a view reports nothing."""

    def info(self, text: str, *args: object) -> None:
        """Drop a line."""

    warn = error = info


class QueueView(NamedTuple):
    """The unread part of a disk queue: files and positions, and the records that are not written yet."""

    name: str
    directory: str
    max_record_size: int
    read_file: int
    read_position: int
    write_file: int
    write_position: int
    pending: bytes

    def messages(self) -> Iterator[QueuedMessage]:
        """Yield the readable messages in their order."""
        reader = RecordReader(self.name, self.max_record_size, _NoLog())
        try:
            for number in range(self.read_file, self.write_file + 1):
                position = self.read_position if number == self.read_file else 0
                reader.go_to(data_path(self.directory, self.name, number), position)
                yield from self._messages_in(reader, self.write_position if number == self.write_file else -1)
        finally:
            reader.close()
        position = 0
        while position < len(self.pending):
            end = position + 4 + byteops.int32_at(self.pending, position)
            yield message_at(self.pending, position + 4, end)
            position = end

    def _messages_in(self, reader: RecordReader, written: int) -> Iterator[QueuedMessage]:
        while written < 0 or reader.position < written:
            size = reader.next_size(written)
            if size > 0:
                yield reader.take(size)
                continue
            following = reader.next_known() if size == DAMAGED else -1
            if following < 0:
                return
            reader.skip_to(following)
