"""Faults of nsqd with topic logs: the rows of the table that no other test covers. ``make faults`` runs all of them."""

from collections.abc import Iterator
from pathlib import Path

import log_faults
import pytest
from report import SAVED, verdict
from stage import Stage
from table import ROWS, Row

from daemons import wait_until

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"
QUICK = (
    "bit flip in a body",
    "bit flip in the head of a batch",
    "both headers of a commit file damaged",
    "nsqd.dat damaged",
    "disk full: publishing",
    "fsync fails with EIO",
    "no descriptors: writing",
)
LOG_ROWS = [row for row in ROWS if not isinstance(row.log, str) or not row.log]


@pytest.fixture
def log_stage(tmp_path: Path) -> Iterator[Stage]:
    with Stage("nsqx", tmp_path, "log") as stage:
        yield stage


def is_quick(row: Row) -> bool:
    return row.fault in QUICK


def check(stage: Stage, row: Row) -> None:
    scenario = row.log if callable(row.log) else row.scenario
    outcome = scenario(stage)
    assert verdict(row, "log", outcome) == "ok", outcome


@pytest.mark.parametrize("row", list(filter(is_quick, LOG_ROWS)), ids=lambda row: row.fault)
def test_a_fault_has_the_expected_result(log_stage: Stage, row: Row) -> None:
    check(log_stage, row)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("row", [row for row in LOG_ROWS if not is_quick(row)], ids=lambda row: row.fault)
def test_another_fault_has_the_expected_result(log_stage: Stage, row: Row) -> None:
    check(log_stage, row)


def test_damage_is_counted_in_the_metrics(log_stage: Stage) -> None:
    log_faults.fill(log_stage, crashed=False)
    log_faults.flip_body(log_stage.data_path)
    daemon = log_stage.nsqd(log_faults.SEGMENTS)
    consumer = log_stage.consumer(daemon, ready=log_faults.COUNT)
    for _ in range(log_faults.COUNT - 1):
        consumer.fin(consumer.read_message().id)
    wait_until(
        lambda: b"\nnsq_log_damaged_messages_total 1\n" in daemon.request("GET", "/metrics").body, "damage is counted"
    )
    assert daemon.request("GET", "/ping").status == 200


def test_the_page_has_the_results_of_every_row() -> None:
    _, results, _ = PAGE.read_text().split(SAVED)
    published = [tuple(cell.strip() for cell in line.split("|")[1:3]) for line in results.splitlines()[3:] if line]
    assert published[1:] == [(row.number, row.fault.replace("|", "/")) for row in ROWS if not row.is_slow]
