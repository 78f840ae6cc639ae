"""nsqx doctor on damaged directories of nsqx's and Go's nsqd; afterwards both daemons read all readable messages."""

import fcntl
import os
from pathlib import Path

import damage
import pytest
from damage import COUNT, DAMAGED, Damage, fill
from doctored import codes, damage_and_repair, doctor, read_by
from stage import DISK_ONLY, QUEUE, TOPIC, Stage, bodies

from daemons import has_go

pytestmark = pytest.mark.usefixtures("classic_store")

# The damage, the code that is found in a directory of nsqx, and the number of lost messages.
CASES = {
    damage.tear_last_record: ("data-torn", 1),
    damage.tear_last_length: ("data-torn", 1),
    damage.add_torn_record: ("data-torn", 0),
    damage.flip_body: ("data-damaged", 1),
    damage.flip_id: ("data-damaged", 1),
    damage.flip_first_and_last: ("data-damaged", 2),
    damage.flip_length_upwards: ("data-damaged", 1),
    damage.flip_length_a_little: ("data-damaged", 1),
    damage.flip_length_below_zero: ("data-damaged", 1),
    damage.remove_meta: ("meta-missing", 0),
    damage.empty_meta: ("meta-empty", 0),
    damage.cut_meta: ("meta-damaged", 0),
    damage.garble_meta: ("meta-damaged", 0),
    damage.garble_sidecars: ("checksums-damaged", 0),
    damage.flip_bits_of_sidecars: ("checksums-damaged", 0),
    damage.cut_sidecars: ("checksums-damaged", 0),
    damage.empty_sidecars: ("checksums-damaged", 0),
}
# In Go's directories, which have no checksums: damage to a body or to the digits of an id cannot be detected.
GO_CASES = {
    damage.tear_last_record: ("data-torn", 1),
    damage.add_torn_record: ("data-torn", 0),
    damage.flip_length_upwards: ("data-unreadable", 1),
    damage.flip_length_a_little: ("data-unreadable", 1),
    damage.flip_length_below_zero: ("data-unreadable", 1),
    damage.remove_meta: ("meta-missing", 0),
    damage.garble_meta: ("meta-damaged", 0),
}
QUICK = (damage.flip_length_upwards, damage.tear_last_record)
NEEDS_GO = pytest.mark.skipif(not has_go(), reason="the Go daemons are not built: make interop")


def cases(table: dict[Damage, tuple[str, int]]) -> list[object]:
    return [
        pytest.param(each, code, lost, id=each.__name__, marks=[] if each in QUICK else pytest.mark.slow)
        for each, (code, lost) in table.items()
    ]


def check(stage: Stage, lost: int, readers: tuple[str, ...]) -> None:
    for reader in readers:
        outcome = read_by(stage, reader)
        assert (len(stage.tracker.lost), outcome.duplicated, outcome.foreign) == (lost, 0, 0), reader
        assert dict(outcome.seen) == {}, reader


@pytest.mark.parametrize(("spoil", "code", "lost"), cases(CASES))
def test_a_damaged_directory_of_nsqx_is_repaired(stage: Stage, spoil: Damage, code: str, lost: int) -> None:
    report = damage_and_repair(stage, spoil)
    assert code in codes(report)
    check(stage, lost, ("nsqx", "go") if has_go() else ("nsqx",))


@NEEDS_GO
@pytest.mark.parametrize(("spoil", "code", "lost"), cases(GO_CASES))
def test_a_damaged_directory_of_go_is_repaired(stage: Stage, spoil: Damage, code: str, lost: int) -> None:
    stage.implementation = "go"
    report = damage_and_repair(stage, spoil)
    assert code in codes(report)
    check(stage, lost, ("nsqx", "go"))


@pytest.mark.parametrize("implementation", ["nsqx", pytest.param("go", marks=NEEDS_GO)])
def test_a_sound_directory_has_no_findings(stage: Stage, implementation: str) -> None:
    stage.implementation = implementation
    fill(stage)
    for path in stage.data_path.glob("*.bad"):
        path.unlink()  # Go nsqd sets aside files that it has read to their end
    code, report = doctor(stage.data_path)
    assert (code, report["findings"], report["message_count"]) == (0, [], COUNT)
    assert (report["topic_count"], report["is_sound"]) == (1, True)


def test_every_waiting_message_is_counted_after_a_crash(stage: Stage) -> None:
    """Each waiting message is counted, whatever the positions say, and delivered after a repair."""
    fill(stage, crashed=True, finished=10)
    stage.tracker.finished.clear()
    _, report = doctor(stage.data_path, "--repair")
    assert COUNT - 10 <= report["message_count"] <= COUNT
    assert report["is_sound"]
    delivered = read_by(stage, "nsqx")
    assert delivered.foreign == 0
    assert len(stage.tracker.lost) <= 10


@pytest.mark.parametrize("content", [None, b"", b"half", b'{"topics":7}', b'{"topics":[{"name":"a b"}]}'])
def test_nsqd_dat_is_created_from_the_names_of_the_queues(stage: Stage, content: bytes | None) -> None:
    """nsqd.dat is created from the names of the queues, and the daemon delivers everything."""
    fill(stage)
    path = stage.data_path / "nsqd.dat"
    whole = path.read_bytes()
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content if content != b"half" else whole[: len(whole) // 2])
    code, report = doctor(stage.data_path)
    assert code == 1
    assert codes(report) & {"nsqd-missing", "nsqd-damaged", "nsqd-names"}
    assert doctor(stage.data_path, "--repair")[0] == 0
    assert f'"name":"{TOPIC}"' in path.read_text()
    check(stage, 0, ("nsqx",))


def test_a_queue_missing_in_nsqd_dat_is_added(stage: Stage) -> None:
    fill(stage)
    (stage.data_path / "nsqd.dat").write_bytes(b'{"topics":null,"version":"1.3.0"}')
    code, report = doctor(stage.data_path)
    assert (code, codes(report)) == (1, {"orphan"})
    assert str(COUNT) in report["findings"][0]["what"] or str(COUNT) in report["findings"][1]["what"]
    assert doctor(stage.data_path, "--repair")[0] == 0
    check(stage, 0, ("nsqx",))


def test_stray_files_are_set_aside(stage: Stage) -> None:
    fill(stage)
    for name in ("orders.diskqueue.meta.dat.123.tmp", f"{QUEUE}.diskqueue.000099.dat.bad", "gone.diskqueue.000001.crc"):
        (stage.data_path / name).write_bytes(b"whatever")
    (stage.data_path / f"{QUEUE}.deferred.dat").write_bytes(b"not JSON")
    (stage.data_path / "notes.txt").write_bytes(b"of the operator")
    code, report = doctor(stage.data_path)
    assert (code, codes(report)) == (1, {"temporary", "set-aside", "checksums-stray", "due-times-damaged"})
    code, after = doctor(stage.data_path, "--repair")
    assert code == 0
    aside = {path.name for path in Path(after["set_aside_in"]).iterdir()}
    assert len(aside) == 4
    assert (stage.data_path / "notes.txt").exists()
    check(stage, 0, ("nsqx",))


def test_a_missing_data_file_is_reported(stage: Stage) -> None:
    fill(stage)
    (stage.data_path / f"{QUEUE}.diskqueue.000002.dat").unlink()
    code, report = doctor(stage.data_path)
    assert code == 1
    assert "data-missing" in codes(report)
    assert doctor(stage.data_path, "--repair")[0] == 0
    outcome = read_by(stage, "nsqx")
    assert 1 <= outcome.lost <= 60
    assert (outcome.duplicated, outcome.foreign) == (0, 0)


def test_the_report_explains_damage(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    from nsqx.cli.doctor import main

    fill(stage)
    damage.flip_body(stage.data_path)
    assert main([str(stage.data_path)]) == 1
    text = capsys.readouterr().out
    assert "1 message(s) from byte" in text
    assert "what to do: run nsqx doctor --repair" in text
    assert main([str(stage.data_path), "--repair"]) == 0
    text = capsys.readouterr().out
    assert "No problems left." in text
    assert "doctor-2" in text
    stage.restart_and_drain(damage.FILES)
    assert stage.tracker.lost == {bodies("stored", COUNT)[DAMAGED]}


def test_the_doctor_refuses_to_run_while_nsqd_runs(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    stage.nsqd(DISK_ONLY)
    assert doctor(stage.data_path)[0] == 2
    error = capsys.readouterr().err
    assert "in use by another instance of nsqd" in error
    assert len(error.splitlines()) == 1


def test_nsqd_does_not_start_while_the_doctor_runs(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    import nsqx.cli.doctor as command

    locked = []

    def look(data_path: str, max_msg_size: int) -> object:
        descriptor = os.open(data_path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            locked.append(True)
        finally:
            os.close(descriptor)
        return examine(data_path, max_msg_size)

    examine = command.examine
    monkeypatch.setattr(command, "examine", look)
    assert doctor(stage.data_path)[0] == 0
    assert locked == [True]


def test_the_parent_directory_is_not_reported_as_sound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A user may pass the parent directory, as in ``data in ./nsqx-data``."""
    from nsqx.cli.doctor import main

    for name in ("nsqd-1", "nsqd-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "nsqd.dat").write_text('{"topics":[],"version":"1.3.0"}')
    assert main([str(tmp_path)]) == 2
    assert f"examine {tmp_path}/nsqd-1 and {tmp_path}/nsqd-2" in capsys.readouterr().err
    assert main([str(tmp_path / "nsqd-1")]) == 0


@pytest.mark.parametrize("words", [[], ["--nonsense"], ["a", "b"], ["/does/not/exist"]])
def test_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    from nsqx.cli.doctor import main

    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
