"""Data directories of earlier releases: stored ones, and new ones written by the code of an earlier commit.

    python tests/old_releases.py RELEASE STORE       write the stored directory of a release again

``fill`` and ``check`` are the two halves of a test of upgrades: one nsqd is filled, and another must deliver exactly
the same from the same directory. They use only what the oldest release can do.
"""

import argparse
import io
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from daemons import Daemon, start_nsqd, wait_until
from rawclient import OK, RawClient, dpub

ROOT = Path(__file__).resolve().parents[1]
STORED = Path(__file__).resolve().parent / "integration" / "data_directories"
# Small files, so that a directory has several of each kind and stays small in the repository.
FLAGS = {
    "classic": ("--mem-queue-size=20", "--max-bytes-per-file=4000", "--max-req-timeout=1h"),
    "log": ("--store=log", "--commit-bytes=1048576", "--max-req-timeout=1h"),
}
CONSUMED, REQUEUED, PUBLISHED, UNCLAIMED, DEFERRED = 40, 3, 200, 30, 5
WAIT_S = 30.0


@dataclass(frozen=True)
class OldRelease:
    """A release whose directories must stay usable."""

    name: str
    commit: str
    stores: tuple[str, ...]


# 0.1.0 has no topic logs. Their format began with the second commit.
RELEASES = (
    OldRelease("0.1.0", "deb7f6da53111687af54bd4accec0a01795013a8", ("classic",)),
    OldRelease("0.2.0.dev1", "3d222614ca95c7f62b76d2956222d039c27168df", ("classic", "log")),
)
DIRECTORIES = [(release, store) for release in RELEASES for store in release.stores]


def source_of(release: OldRelease, target: Path) -> Path | None:
    """Extract the package of a release from git and return its path, or None if this clone has not that commit."""
    try:
        packed = subprocess.run(["git", "archive", release.commit, "src"], cwd=ROOT, capture_output=True, check=False)
    except FileNotFoundError:
        return None
    if packed.returncode != 0:
        return None
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(target, filter="data")
    return target / "src"


def start_old(source: Path, store: str, data_path: Path) -> Daemon:
    """Start the nsqd of an earlier release, uncompiled."""
    # 0.1.0 had a module for each program.
    module = ["nsqx.cli.nsqd"] if (source / "nsqx/cli/nsqd.py").exists() else ["nsqx.cli.main", "nsqd"]
    program = [sys.executable, "-m", *module]
    return start_nsqd("old", *FLAGS[store], data_path=data_path, program=program, env={"PYTHONPATH": str(source)})


def start_new(store: str, data_path: Path) -> Daemon:
    """Start the nsqd of this release with the flags of the directory."""
    return start_nsqd("nsqx", f"--store={store}", *FLAGS[store], data_path=data_path)


def body(kind: str, number: int) -> bytes:
    return f"{kind} {number:04} ".encode() + b"x" * 60


def bodies(kind: str, count: int, start: int = 0) -> Counter[bytes]:
    return Counter(body(kind, number) for number in range(start, count))


def fill(nsqd: Daemon) -> None:
    """Publish to three topics, finish some messages, requeue some, and pause a channel."""
    for topic, channel in (("orders", "billing"), ("orders", "mail"), ("later", "c")):
        nsqd.post("/topic/create", topic=topic)
        nsqd.post("/channel/create", topic=topic, channel=channel)
    nsqd.post("/channel/pause", topic="orders", channel="mail")
    with RawClient(nsqd.tcp_address) as producer:
        for number in range(PUBLISHED):
            assert producer.pub("orders", body("order", number)) == OK
        for number in range(UNCLAIMED):
            assert producer.pub("unclaimed", body("unclaimed", number)) == OK
        for number in range(DEFERRED):
            producer.send(dpub("later", 1000, body("later", number)))
            assert producer.read_frame() == OK
    with RawClient(nsqd.tcp_address) as consumer:
        assert consumer.sub("orders", "billing") == OK
        consumer.rdy(1)
        wanted = {body("order", number) for number in range(CONSUMED)}
        requeued: Counter[bytes] = Counter()
        while wanted:
            message = consumer.read_message()
            if message.body in wanted and requeued[message.body] == 0 and len(requeued) < REQUEUED:
                requeued[message.body] += 1
                consumer.req(message.id, 0)
            elif message.body in wanted:
                wanted.discard(message.body)
                consumer.fin(message.id)
            else:
                consumer.req(message.id, 0)


def check(nsqd: Daemon) -> None:
    """Consume everything; it must be exactly what ``fill`` left."""
    channels = {each["channel_name"]: each for each in nsqd.topic_stats("orders")["channels"]}
    assert {name: each["paused"] for name, each in channels.items()} == {"billing": False, "mail": True}
    nsqd.post("/channel/unpause", topic="orders", channel="mail")
    nsqd.post("/channel/create", topic="unclaimed", channel="c")
    expected = {
        ("orders", "billing"): bodies("order", PUBLISHED, CONSUMED),
        ("orders", "mail"): bodies("order", PUBLISHED),
        ("unclaimed", "c"): bodies("unclaimed", UNCLAIMED),
        ("later", "c"): bodies("later", DEFERRED),
    }
    for (topic, channel), wanted in expected.items():
        assert consume(nsqd, topic, channel, wanted.total()) == wanted, (topic, channel)


def consume(nsqd: Daemon, topic: str, channel: str, count: int) -> Counter[bytes]:
    """Finish ``count`` messages of a channel, which must be empty afterwards."""
    found: Counter[bytes] = Counter()
    with RawClient(nsqd.tcp_address) as consumer:
        assert consumer.sub(topic, channel) == OK
        consumer.rdy(50)
        for _ in range(count):
            message = consumer.read_message(timeout_s=WAIT_S)
            found[message.body] += 1
            consumer.fin(message.id)
        wait_until(lambda: is_empty(nsqd, topic, channel), f"{topic}/{channel} is empty", WAIT_S)
    return found


def is_empty(nsqd: Daemon, topic: str, channel: str) -> bool:
    stats = nsqd.channel_stats(topic, channel)
    return not (stats["depth"] or stats["in_flight_count"] or stats["deferred_count"])


def stored_directory(release: OldRelease, store: str) -> Path:
    """Return the path of the packed directory that a release wrote."""
    return STORED / f"{release.name}-{store}.tar.xz"


def write_stored(release: OldRelease, store: str) -> Path:
    """Let the code of a release write its directory, and pack it."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        source = source_of(release, directory / "release")
        if source is None:
            sys.exit(f"this clone has no commit {release.commit}: fetch the whole history")
        data_path = directory / "data"
        data_path.mkdir()
        nsqd = start_old(source, store, data_path)
        fill(nsqd)
        assert nsqd.stop() == 0
        target = stored_directory(release, store)
        target.parent.mkdir(exist_ok=True)
        with tarfile.open(target, "w:xz") as archive:
            for path in sorted(data_path.rglob("*")):
                archive.add(path, path.relative_to(data_path), recursive=False)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("release", choices=[release.name for release in RELEASES])
    parser.add_argument("store", choices=("classic", "log"))
    arguments = parser.parse_args()
    (release,) = (each for each in RELEASES if each.name == arguments.release)
    if arguments.store not in release.stores:
        sys.exit(f"release {release.name} has no store {arguments.store}")
    target = write_stored(release, arguments.store)
    print(f"{target.relative_to(ROOT)}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
