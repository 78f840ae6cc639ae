"""nsqx log ledger, nsqx log export and nsqx doctor on a directory with a ledger and staged parts."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from doctored import codes, contents, doctor

from log_directories import NOW_NS, commit, items, open_logs
from nsqx.cli.log import main
from nsqx.queues.log.ledger import LedgerEntry
from nsqx.queues.log.log import LEDGER_LOG
from nsqx.queues.log.staging import PartMessages, PartName, StageJob
from nsqx.queues.log.state import Changes
from nsqx.queues.log.stored import StoredLogs

NODES = ("one:4151", "two:4151")


def stage(path: Path, batch: int, part: str) -> Path:
    name = PartName("totals", batch, part, "0")
    job = StageJob(str(path), name, [PartMessages("orders", 0, 1, items(b"x"))], is_first=True)
    job.run()
    assert job.error is None
    return path / "nsqx.staged" / name.file_name


def fill(path: Path, *, is_clean: bool) -> list[Path]:
    """Write a topic, a ledger with batch 7, and a part of that batch and one of the next."""
    store = open_logs(path)
    store.create_log("orders", 1 << 40, NOW_NS).append(items(b"order"), 1, NOW_NS)
    ledger = store.create_log(LEDGER_LOG, 1 << 41, NOW_NS)
    changes = Changes()
    changes.commit_batch("totals", LedgerEntry(7, NODES, 1, NOW_NS))
    ledger.change(changes)
    store.join(ledger, store.logs["orders"])
    commit(store)
    if is_clean:
        store.close()
    return [stage(path, 7, "0"), stage(path, 8, "1")]


def run(capfd: Any, *words: object) -> tuple[int, str]:
    code = main([str(word) for word in words])
    return code, capfd.readouterr().out


@pytest.mark.parametrize("is_clean", [True, False])
def test_the_ledger_and_the_parts_are_shown(tmp_path: Path, capfd: Any, is_clean: bool) -> None:
    fill(tmp_path, is_clean=is_clean)
    before = contents(tmp_path)
    code, out = run(capfd, "ledger", tmp_path)
    lines = [line.split() for line in out.splitlines()]
    assert code == 0
    assert lines[0] == ["query", "batch", "place", "committed", "nodes"]
    assert (lines[1][:3], lines[1][4]) == (["totals", "7", "1"], "one:4151,two:4151")
    assert [(line[1], line[2], line[-1]) for line in lines[4:]] == [("7", "0", "committed"), ("8", "1", "waits")]
    assert max(map(len, out.splitlines())) <= 80
    shown = json.loads(run(capfd, "ledger", "--json", tmp_path)[1])
    assert (shown["queries"][0]["nodes"], [part["batch"] for part in shown["parts"]]) == (list(NODES), [7, 8])
    assert run(capfd, "ls", tmp_path)[1].splitlines()[1].startswith("orders ")
    assert LEDGER_LOG not in run(capfd, "ls", tmp_path)[1]
    assert run(capfd, "verify", tmp_path) == (0, f"{tmp_path}: 1 log, 1 message, no damage\n")
    assert contents(tmp_path) == before


def test_a_directory_without_a_ledger(tmp_path: Path, capfd: Any) -> None:
    open_logs(tmp_path).close()
    assert run(capfd, "ledger", tmp_path) == (0, f"{tmp_path} has no ledger and no staged parts\n")
    assert main(["ledger", str(tmp_path), "orders"]) == 2
    assert "ledger takes no topic" in capfd.readouterr().err


def test_an_export_leaves_the_ledger(tmp_path: Path, capfd: Any) -> None:
    fill(tmp_path, is_clean=True)
    code, out = run(capfd, "export", tmp_path)
    assert (code, "orders: exported" in out, LEDGER_LOG in out) == (0, True, False)
    stored = StoredLogs(str(tmp_path))
    assert stored.logs == []
    assert stored.ledger is not None
    assert stored.ledger.state.ledger.find("totals") == LedgerEntry(7, NODES, 1, NOW_NS)


def test_the_doctor_finds_and_sets_aside_a_damaged_part(tmp_path: Path) -> None:
    _, waiting = fill(tmp_path, is_clean=True)
    assert codes(doctor(tmp_path)[1]) == set()
    data = waiting.read_bytes()
    waiting.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    code, report = doctor(tmp_path)
    assert (code, codes(report)) == (1, {"part-damaged"})
    assert report["findings"][0]["name"] == os.path.join("nsqx.staged", waiting.name)
    assert doctor(tmp_path, "--repair")[1]["findings"] == []
    assert not waiting.exists()
    assert data[:-1] + bytes([data[-1] ^ 1]) in contents(tmp_path).values()


def test_the_doctor_finds_and_repairs_a_damaged_ledger(tmp_path: Path) -> None:
    fill(tmp_path, is_clean=True)
    (segment,) = (tmp_path / "nsqx.ledger").glob("*.seg")
    data = bytearray(segment.read_bytes())
    data[-5] ^= 1
    segment.write_bytes(data)
    code, report = doctor(tmp_path)
    assert code == 1
    assert codes(report) & {"log-damaged", "log-torn"}
    assert doctor(tmp_path, "--repair")[1]["findings"] == []
