"""Mutated input on real daemons for a few seconds; ``make fuzz`` does the same for longer."""

import pytest
from bombardment import bombard_nsqd, bombard_nsqlookupd, trouble_in
from damaged_starts import start_on_damage

from daemons import Fleet

INPUTS_PER_BOMBER = 150
SEED = 1


@pytest.mark.timeout(180)
def test_nsqd_survives_mutated_input_and_a_valid_client_loses_no_message(fleet: Fleet) -> None:
    daemon = fleet.nsqd("nsqx", "--mem-queue-size=100")
    report = bombard_nsqd(daemon, SEED, inputs=INPUTS_PER_BOMBER)
    assert report.failures == []
    assert report.good_sent > 0
    assert report.inputs == 6 * INPUTS_PER_BOMBER
    assert daemon.stop() == 0
    assert trouble_in(daemon.log) == []


@pytest.mark.timeout(180)
def test_nsqlookupd_survives_mutated_input_and_keeps_registrations(fleet: Fleet) -> None:
    daemon = fleet.nsqlookupd("nsqx")
    report = bombard_nsqlookupd(daemon, SEED, inputs=INPUTS_PER_BOMBER)
    assert report.failures == []
    assert daemon.stop() == 0
    assert trouble_in(daemon.log) == []


@pytest.mark.timeout(180)
def test_nsqd_starts_on_damaged_directories_or_reports_why_not() -> None:
    assert start_on_damage(SEED, 4) == []


def test_tracebacks_in_a_log_are_found() -> None:
    assert trouble_in("[nsqd] INFO: well\nTraceback (most recent call last):\nKeyError: 'x'\n") != []
    assert trouble_in("[nsqd] 2026/11/15 11:44:03 ERROR: client(127.0.0.1:1) - Connection reset by peer\n") == []
