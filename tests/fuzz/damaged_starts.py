"""Starts real nsqd processes on damaged data directories."""

import shutil
import tempfile
from pathlib import Path

import directories
from bombardment import trouble_in
from mutation import Mutator
from targets import target_named

from daemons import DaemonFailed, start_nsqd


def start_on_damage(seed: int, count: int) -> list[str]:
    """Start, use and stop nsqd on ``count`` damaged directories; return the failures."""
    target = target_named("directory")
    mutator = Mutator(seed, target.seeds(), target.tokens)
    return [text for _ in range(count) for text in _start_on(mutator.next())]


def _start_on(data: bytes) -> list[str]:
    directory = tempfile.mkdtemp(prefix="fuzz-")
    try:
        directories.write_directory(Path(directory), directories.unpack(data))
        return [f"{text} on {data!r}" for text in _live_in(directory)]
    finally:
        shutil.rmtree(directory)


def _live_in(directory: str) -> list[str]:
    try:
        daemon = start_nsqd("nsqx", "--max-bytes-per-file=1500", "--mem-queue-size=0", data_path=directory)
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
