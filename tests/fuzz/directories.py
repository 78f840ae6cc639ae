"""Encodes a data directory as one byte string, so that it can be stored, mutated and shrunk like any other input.

      NAME \n  length, int32  content          for each file

Decoding accepts any bytes: an invalid entry ends the directory, a length beyond the end is reduced, and characters that
could leave the directory are replaced; only the directory of a topic log may be part of a name. The zeros at the end of
a commit file are left out. The module also makes the first inputs: directories that a broker has written.
"""

import re
import struct
import tempfile
from pathlib import Path

from broker_bench import SECOND, Bench
from nsqx.nsqd.metadata import encode_metadata
from nsqx.queues.log.commit_file import NAME_PREFIX

TOPIC, CHANNEL = "t", "c"
OPTIONS = {"max_msg_size": 2000, "max_bytes_per_file": 1500, "mem_queue_size": 0}
# With a very high file number the broker would look for every file below it.
_FAR = re.compile(r".*\.diskqueue\.0*[1-9]\d{2,}\.dat.*")
_HARMLESS = re.compile(rb"[^A-Za-z0-9_.:#/-]")
_IN_LOG = re.compile(r"[^/]+\.topic/[^/]*[^/.][^/]*")
_MAX_FILES = 40


def pack(files: dict[str, bytes]) -> bytes:
    """Encode ``files`` as one byte string."""
    return b"".join(name.encode() + b"\n" + struct.pack(">i", len(files[name])) + files[name] for name in sorted(files))


def unpack(data: bytes) -> dict[str, bytes]:
    """Decode the files in ``data``."""
    files: dict[str, bytes] = {}
    while data and len(files) < _MAX_FILES:
        encoded, newline, data = data.partition(b"\n")
        if not newline or len(data) < 4:
            break
        (size,) = struct.unpack_from(">i", data)
        end = 4 + max(0, min(size, len(data)))
        name = _HARMLESS.sub(b"_", encoded)[:100].decode()
        if not _IN_LOG.fullmatch(name):
            name = name.replace("/", "_")
        if name.strip(".") and not _FAR.fullmatch(name) and not name.endswith(".topic"):
            files[name] = data[4:end]
        data = data[end:]
    return files


def read_directory(directory: Path) -> dict[str, bytes]:
    """Return the files of a directory."""
    paths = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def write_directory(directory: Path, files: dict[str, bytes]) -> None:
    """Write ``files`` into a directory."""
    for name, content in files.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(content)


def seeds(store: str) -> list[bytes]:
    """Return the directory of a broker that crashed and of one that stopped, with finished and deferred messages."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        directory = Path(name)
        bench = Bench(directory, store=store, **OPTIONS)
        bench.broker.topic(TOPIC).channel(CHANNEL)
        bench.publish(TOPIC, *(b"message %d" % number * (number + 1) for number in range(25)))
        bench.defer(TOPIC, b"deferred", 3600 * SECOND)
        bench.broker.topic("alone")
        bench.publish("alone", b"no channel", b"reads this")
        consumer = bench.consume(TOPIC, CHANNEL, 5)
        taken = consumer.link.take_messages()
        for message in taken[:3]:
            assert consumer.channel.finish(consumer, message.id) is None
        bench.settle()
        metadata = encode_metadata(bench.broker.topics.values())
        crashed = {**_written(directory), "nsqd.dat": metadata}
        bench.broker.close_topics()
        stopped = {**_written(directory), "nsqd.dat": metadata}
    return [pack(crashed), pack(stopped)]


def _written(directory: Path) -> dict[str, bytes]:
    files = read_directory(directory)
    return {name: content.rstrip(b"\0") if name.startswith(NAME_PREFIX) else content for name, content in files.items()}
