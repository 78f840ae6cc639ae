"""A broker on any data directory.

It starts, or refuses with an error message. It delivers no more bytes than the directory holds, accepts and delivers
new messages, and closes.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import directories
from mutation import assert_one_line

from broker_bench import Bench
from nsqx.errors import MetadataError
from nsqx.nsqd.metadata import FILE_NAME, SavedTopic, load_metadata
from nsqx.queues.due_times import due_times_path, load_due_times

NEW_MESSAGE = b"published after the damage"
# More rounds than any directory here needs.
MAX_ROUNDS = 2000
INT64 = range(-(1 << 63), 1 << 63)


def check_directory(data: bytes) -> None:
    """Check a data directory in the encoding of ``directories``, with the classic store."""
    _check_directory(data, "classic")


def check_log_directory(data: bytes) -> None:
    """Check a data directory in the encoding of ``directories``, with topic logs."""
    _check_directory(data, "log")


def _check_directory(data: bytes, store: str) -> None:
    files = directories.unpack(data)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        directory = Path(name)
        directories.write_directory(directory, files)
        try:
            saved = load_metadata(name)
        except MetadataError as refusal:
            assert_one_line(refusal)
            saved = []
        live_on(directory, store, saved)
        # Messages that were finished before a clean stop are not delivered again.
        assert live_on(directory, store, saved) == []


def live_on(directory: Path, store: str, saved: Sequence[SavedTopic] = ()) -> list[bytes]:
    """Run a broker: consume everything, publish and consume one message, stop; return the messages found at first."""
    there = sum(path.stat().st_size for path in directory.rglob("*"))
    bench = Bench(directory, store=store, saved=saved[:20], **directories.OPTIONS)
    bench.broker.topic(directories.TOPIC).channel(directories.CHANNEL)
    for topic in bench.broker.topics.values():
        topic.unpause()
        for channel in topic.channels.values():
            channel.unpause()
    bench.settle()
    found = _drain(bench, there)
    bench.publish(directories.TOPIC, NEW_MESSAGE)
    assert _drain(bench, there) == [NEW_MESSAGE], "a new message was not delivered, or not alone"
    bench.broker.close_topics()
    return found


def _drain(bench: Bench, most_bytes: int) -> list[bytes]:
    consumer = bench.consume(directories.TOPIC, directories.CHANNEL, 100)
    bodies: list[bytes] = []
    for _ in range(MAX_ROUNDS):
        messages = consumer.link.take_messages()
        if not messages:
            break
        for message in messages:
            bodies.append(message.body)
            assert consumer.channel.finish(consumer, message.id) is None
        bench.settle()
    else:
        raise AssertionError("the broker delivers without end")
    assert sum(map(len, bodies)) <= most_bytes + len(NEW_MESSAGE), "more bytes were delivered than the directory holds"
    bench.leave(consumer)
    return bodies


def check_metadata(data: bytes) -> None:
    """Check any content of nsqd.dat."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        Path(name, FILE_NAME).write_bytes(data)
        try:
            saved = load_metadata(name)
        except MetadataError as refusal:
            assert_one_line(refusal)
            return
        bench = Bench(Path(name), saved=saved[:50])
        bench.broker.close_topics()
        for path in Path(name).iterdir():
            assert path.parent == Path(name)


def check_due_times(data: bytes) -> None:
    """Check any content of the file with due times."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        Path(due_times_path(name, "t:c")).write_bytes(data)
        try:
            due_times = load_due_times(name, "t:c")
        except ValueError:
            return
        for message_id, due_time in due_times.items():
            assert isinstance(message_id, bytes)
            assert due_time.delay_ns(0) in INT64
