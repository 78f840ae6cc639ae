"""Every target on its kept inputs and on some made-up ones; ``make fuzz`` does the same for longer."""

from collections.abc import Callable

import pytest
import reference_parsers
import target_wire
from hypothesis import HealthCheck, given, settings
from mutation import Mutator, in_pieces, inputs
from targets import TARGETS, Target, target_named

# Whole brokers and directories take longer than parsers.
SLOW = {"session": 50, "directory": 25, "doctor": 25, "metadata": 50, "due_times": 50, "round_trip": 50}
EXAMPLES = 200


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_kept_inputs(target: Target) -> None:
    seeds = target.seeds()
    assert seeds
    for data in seeds:
        target.check(data)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_made_up_inputs(target: Target) -> None:
    @settings(max_examples=SLOW.get(target.name, EXAMPLES), deadline=None, suppress_health_check=list(HealthCheck))
    @given(inputs(target.seeds(), target.tokens))
    def check(data: bytes) -> None:
        target.check(data)

    check()


def test_a_reader_that_differs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_parsers, "MAX_LINE_LENGTH", 100)
    with pytest.raises(AssertionError):
        target_wire.check_commands(b"NOP " + b"x" * 200 + b"\n")


def test_a_reader_that_depends_on_pieces_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    whole: Callable[[bytes], list[bytes]] = lambda data: [data[:-1]]  # noqa: E731
    monkeypatch.setattr(target_wire, "in_pieces", whole)
    with pytest.raises(AssertionError):
        target_wire.check_frames(b"\x00\x00\x00\x06\x00\x00\x00\x00OK")


def test_pieces_are_the_whole() -> None:
    for data in (b"", b"x", bytes(range(256)) * 20):
        assert b"".join(in_pieces(data)) == data


def test_a_seed_gives_the_same_inputs_again() -> None:
    target = target_named("commands")
    first, second = (Mutator(7, target.seeds(), target.tokens) for _ in range(2))
    assert [first.next() for _ in range(50)] == [second.next() for _ in range(50)]
