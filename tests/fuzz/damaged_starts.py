"""Starts real nsqd processes on damaged data directories."""

import itertools
import shutil
import tempfile
from pathlib import Path

import directories
from bombardment import trouble_in
from mutation import Mutator
from targets import target_named

from daemons import DaemonFailed, start_nsqd


def start_on_damage(seed: int, count: int) -> list[str]:
    """Start, use and stop nsqd on ``count`` damaged directories of both stores; return the failures."""
    mutators = {}
    for store, name in (("classic", "directory"), ("log", "log_directory")):
        target = target_named(name)
        mutators[store] = Mutator(seed, target.seeds(), target.tokens)
    stores = itertools.islice(itertools.cycle(mutators), count)
    return [text for store in stores for text in _start_on(mutators[store].next(), store)]


def _start_on(data: bytes, store: str) -> list[str]:
    directory = tempfile.mkdtemp(prefix="fuzz-")
    try:
        directories.write_directory(Path(directory), directories.unpack(data))
        return [f"{text} on {data!r}" for text in _live_in(directory, store)]
    finally:
        shutil.rmtree(directory)


def _live_in(directory: str, store: str) -> list[str]:
    try:
        flags = (f"--store={store}", "--max-bytes-per-file=1500", "--mem-queue-size=0")
        daemon = start_nsqd("nsqx", *flags, data_path=directory)
    except DaemonFailed as refusal:
        # nsqd may refuse to start, with an error message.
        return trouble_in(str(refusal)) + (
            [] if "FATAL" in str(refusal) else [f"refused without an error message: {refusal}"]
        )
    try:
        daemon.post("/topic/create", topic=directories.TOPIC)
        daemon.post("/channel/create", topic=directories.TOPIC, channel=directories.CHANNEL)
        daemon.post("/pub", b"after the damage", topic=directories.TOPIC)
        daemon.stats()
    finally:
        code = daemon.stop()
    return trouble_in(daemon.log) + ([f"ended with {code}"] if code else [])
