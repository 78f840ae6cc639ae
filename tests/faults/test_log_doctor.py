"""nsqx doctor and nsqx log verify on damaged logs: the loss is exact, and a repair keeps everything else."""

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from doctored import codes, doctor

from log_directories import (
    NOW_NS,
    checkpoint,
    close_descriptors,
    commit,
    contents,
    items,
    open_logs,
    write_logs,
)
from nsqx.queues.log.state import Changes
from nsqx.queues.log.stored import StoredLogs
from nsqx.queues.log.verify import LogCheck, commit_damages

STEP = 1 if os.environ.get("NSQX_SLOW") else 149

Places = set[tuple[str, int]]


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory where a sync takes no time."""
    with TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as path:
        yield Path(path)
        close_descriptors(path)


def fill(path: Path, way: str) -> None:
    """Write two logs of several segments; the messages are in segments, in commit files, or in both."""
    path.mkdir()
    store = open_logs(path)
    for number in range(16):
        for topic in ("one", "two"):
            log = store.logs.get(topic) or store.create_log(topic, 1 << 30, NOW_NS)
            changes = Changes()
            if not log.state.channels:
                changes.create_channel(1, "ch", 0)
                log.change(changes)
            bodies = [b"%s %d %d %s" % (topic.encode(), number, index, b"." * 60) for index in range(1 + number % 3)]
            first = log.append(items(*bodies), len(bodies), NOW_NS)
            if number % 4 == 0:
                changes.finish(1, [(first, first + 1)])
                log.change(changes)
        commit(store)
        if number == 8 and way != "commit files":
            checkpoint(store)
    if way == "segments":
        store.close()
    else:
        close_descriptors(path)


def readable(path: Path) -> dict[tuple[str, int], bytes]:
    return {
        (log.topic, message.offset): message.body
        for log in StoredLogs(str(path)).logs
        for message in log.messages(log.first)
    }


def verified_loss(path: Path) -> tuple[Places, bool, bool]:
    """Return the messages that are reported as lost, whether more may be, and whether there is any damage."""
    stored = StoredLogs(str(path))
    damages = commit_damages(stored)
    for log in stored.logs:
        damages += LogCheck(log).damages
    lost = {(damage.topic, offset) for damage in damages for run in damage.lost for offset in range(*run)}
    return lost, any(damage.is_end_unknown for damage in damages), bool(damages or stored.recovery.unidentified)


@pytest.mark.parametrize("way", ["segments", "commit files", "both"])
def test_the_loss_by_a_changed_byte_is_exact_and_the_repair_keeps_the_rest(place: Path, way: str) -> None:
    original = place / "original"
    fill(original, way)
    everything = readable(original)
    assert len(everything) == 62
    assert verified_loss(original) == (set(), False, False)
    for path in sorted(original.rglob("*")):
        if not path.is_file():
            continue
        content = path.read_bytes()
        interesting = [at for at in range(len(content)) if any(content[max(0, at - 4) : at + 5])]
        for at in interesting[random.randrange(STEP) :: STEP]:
            damaged = place / "damaged"
            shutil.copytree(original, damaged)
            changed = bytearray(content)
            changed[at] ^= 1 << random.randrange(8)
            (damaged / path.relative_to(original)).write_bytes(changed)
            try:
                check(damaged, everything)
            except BaseException as failure:
                raise AssertionError(f"{failure!r} after a change of {path.relative_to(original)} at {at}") from failure
            shutil.rmtree(damaged)


def check(damaged: Path, everything: dict[tuple[str, int], bytes]) -> None:
    before = contents(damaged)
    found = readable(damaged)
    assert found.items() <= everything.items(), "a false message"
    missing = everything.keys() - found.keys()
    lost, is_more_possible, is_damaged = verified_loss(damaged)
    assert lost <= missing, f"not lost: {lost - missing}"
    assert lost == missing or is_more_possible, f"not reported: {missing - lost}"
    code, report = doctor(damaged)
    assert contents(damaged) == before, "the examination has changed a file"
    assert code or not is_damaged
    code, after = doctor(damaged, "--repair")
    assert (code, after["findings"]) == (0, [])
    assert readable(damaged) == found


def test_findings_name_the_lost_messages(place: Path) -> None:
    fill(place / "data", "segments")
    path = min((place / "data" / "one.topic").glob("*.seg"))
    path.write_bytes(path.read_bytes().replace(b"one 1 1", b"one 1 X"))
    code, report = doctor(place / "data")
    assert (code, codes(report)) == (1, {"log-damaged"})
    (finding,) = report["findings"]
    assert finding["name"] == f"one.topic/{path.name}"
    assert "topic one: 1 message is lost, offset 2" in finding["what"]
    assert (report["log_count"], report["log_message_count"]) == (2, 62)
    code, after = doctor(place / "data", "--repair")
    assert code == 0
    assert "one: continues without 1 lost messages" in after["repairs"]
    assert [each.name for each in Path(after["set_aside_in"]).iterdir()] == [f"one.topic.{path.name}"]


def test_a_missing_segment_is_named_with_its_messages(place: Path) -> None:
    fill(place / "data", "segments")
    paths = sorted((place / "data" / "one.topic").glob("*.seg"))
    assert len(paths) > 2
    first, end = int(paths[1].stem), int(paths[2].stem)
    paths[1].unlink()
    code, report = doctor(place / "data")
    assert (code, codes(report)) == (1, {"log-missing"})
    assert f"offsets {first} to {end - 1}" in report["findings"][0]["what"]
    assert doctor(place / "data", "--repair")[0] == 0


def test_a_torn_tail_is_moved_to_a_torn_file(place: Path) -> None:
    fill(place / "data", "both")
    everything = readable(place / "data")
    path = max((place / "data" / "one.topic").glob("*.seg"))
    torn = path.read_bytes()[:30]
    with path.open("ab") as file:
        file.write(torn)
    code, report = doctor(place / "data")
    assert (code, codes(report)) == (1, {"log-torn"})
    code, after = doctor(place / "data", "--repair")
    assert (code, after["findings"]) == (0, [])
    (kept,) = Path(after["set_aside_in"]).iterdir()
    assert (kept.name, kept.read_bytes()) == (f"one.topic.{path.name}.torn", torn)
    assert readable(place / "data") == everything


def test_a_damaged_index_is_set_aside(place: Path) -> None:
    fill(place / "data", "segments")
    path = min((place / "data" / "one.topic").glob("*.idx"))
    path.write_bytes(b"no index")
    code, report = doctor(place / "data")
    assert (code, codes(report)) == (1, {"log-index"})
    assert doctor(place / "data", "--repair")[0] == 0
    assert not path.exists()


def test_a_directory_that_cannot_be_identified_is_named(place: Path) -> None:
    fill(place / "data", "segments")
    directory = place / "data" / "one.topic"
    for path in directory.iterdir():
        path.write_bytes(bytes(100))
    code, report = doctor(place / "data")
    assert code == 1
    assert "log-unidentified" in codes(report)


def test_disk_queues_beside_a_log_are_named(tmp_path: Path) -> None:
    """Go's nsqd sees the topics of nsqd.dat, but not their logs."""
    write_logs(tmp_path)
    (tmp_path / "orders:billing.diskqueue.meta.dat").write_text("0\n0,0\n0,0\n")
    (tmp_path / "nsqd.dat").write_text('{"topics":[{"name":"orders","channels":[{"name":"billing"}]}]}')
    code, report = doctor(tmp_path)
    assert (code, codes(report)) == (1, {"log-beside-queues"})
    assert "orders:billing" in report["findings"][0]["what"]
    assert "nsqx log export" in report["findings"][0]["advice"]


def test_logs_without_damage_have_no_findings(tmp_path: Path) -> None:
    for is_clean in (True, False):
        write_logs(tmp_path / str(is_clean), is_clean=is_clean)
        code, report = doctor(tmp_path / str(is_clean))
        assert (code, report["findings"]) == (0, [])


def test_a_damaged_header_of_a_commit_file_is_named_and_the_file_is_kept(place: Path) -> None:
    fill(place / "data", "commit files")
    everything = readable(place / "data")
    path = place / "data" / "nsqx.commit.0"
    damaged = b"damaged!" + path.read_bytes()[8:4096] + b"damaged!" + path.read_bytes()[4104:]
    path.write_bytes(damaged)
    code, report = doctor(place / "data")
    assert (code, codes(report)) == (1, {"commit-damaged"})
    assert report["findings"][0]["name"] == "nsqx.commit.0"
    assert readable(place / "data") == everything
    code, after = doctor(place / "data", "--repair")
    assert (code, after["findings"]) == (0, [])
    assert [each.read_bytes() for each in Path(after["set_aside_in"]).iterdir()] == [damaged]
    assert readable(place / "data") == everything


def test_a_commit_file_that_nsqd_has_set_aside_is_named(place: Path) -> None:
    fill(place / "data", "segments")
    (place / "data" / "nsqx.commit.0.bad").write_bytes(b"damaged")
    code, report = doctor(place / "data")
    assert (code, codes(report)) == (1, {"set-aside"})
    assert doctor(place / "data", "--repair")[0] == 0


def test_missing_commit_files_are_named(place: Path) -> None:
    fill(place / "data", "both")
    for path in (place / "data").glob("nsqx.commit.*"):
        path.unlink()
    code, report = doctor(place / "data")
    assert (code, codes(report)) == (1, {"commit-damaged"})
    assert "there is no commit file: an unknown number of messages may be lost" in report["findings"][0]["what"]
    assert doctor(place / "data", "--repair")[0] == 0
