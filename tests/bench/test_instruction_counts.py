"""The hot operations take no more instructions than in the baseline. instruction_counts.py updates the baseline."""

import instruction_counts
import pytest


@pytest.mark.timeout(240)
def test_the_hot_operations_take_no_more_instructions_than_the_baseline():
    reason = instruction_counts.missing()
    if reason:
        pytest.skip(f"instructions cannot be counted: {reason}")
    counts = instruction_counts.count()
    known = instruction_counts.load_baseline().get(instruction_counts.key())
    if known is None:
        pytest.skip(f"no baseline for {instruction_counts.key()}: {counts}")
    assert instruction_counts.compare(counts, known) == []


def test_costs_are_summed_without_calls_and_without_the_c_library():
    lines = ["ob=(1) /usr/lib/python.so", "fn=(1) f", "10 100", "+2 20", "calls=3 0", "12 5000", "* 3"]
    lines += ["cob=(2) /usr/lib/libc.so.6", "calls=1 1", "5 900", "", "ob=(2)", "fn=(2) memcpy", "0 900"]
    lines += ["ob=(1)", "fn=(3) g", "-1 7", "", "totals: 1030"]
    assert instruction_counts.own_instructions(lines) == 130


def test_higher_counts_and_unknown_operations_are_reported():
    known = {"pub": 1000, "parse": 100}
    assert instruction_counts.compare({"pub": 1040, "parse": 90}, known) == []
    assert instruction_counts.compare({"pub": 1060}, known) == [
        "pub: 1060 instructions per message, 1000 in the baseline"
    ]
    assert len(instruction_counts.compare({"new": 1}, known)) == 1
