"""Every target on its stored inputs and on some generated ones; ``make fuzz`` does the same for longer."""

from collections.abc import Callable

import pytest
import reference_parsers
import target_wire
from hypothesis import HealthCheck, given, settings
from mutation import Mutator, in_pieces, inputs
from targets import TARGETS, Target, target_named

# Fewer examples for targets that run a broker or write a directory.
SLOW = {
    "session": 50,
    "directory": 25,
    "log_directory": 15,
    "log_state": 50,
    "doctor": 25,
    "metadata": 50,
    "due_times": 50,
    "round_trip": 50,
}
EXAMPLES = 200


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_stored_inputs_pass(target: Target) -> None:
    seeds = target.seeds()
    assert seeds
    for data in seeds:
        target.check(data)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_generated_inputs_pass(target: Target) -> None:
    @settings(max_examples=SLOW.get(target.name, EXAMPLES), deadline=None, suppress_health_check=list(HealthCheck))
    @given(inputs(target.seeds(), target.tokens))
    def check(data: bytes) -> None:
        target.check(data)

    check()


def test_a_parser_that_differs_from_the_reference_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_parsers, "MAX_LINE_LENGTH", 100)
    with pytest.raises(AssertionError):
        target_wire.check_commands(b"NOP " + b"x" * 200 + b"\n")


def test_a_parser_that_depends_on_pieces_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    whole: Callable[[bytes], list[bytes]] = lambda data: [data[:-1]]  # noqa: E731
    monkeypatch.setattr(target_wire, "in_pieces", whole)
    with pytest.raises(AssertionError):
        target_wire.check_frames(b"\x00\x00\x00\x06\x00\x00\x00\x00OK")


def test_the_pieces_of_an_input_are_the_whole_input() -> None:
    for data in (b"", b"x", bytes(range(256)) * 20):
        assert b"".join(in_pieces(data)) == data


def test_a_seed_gives_the_same_inputs_again() -> None:
    target = target_named("commands")
    first, second = (Mutator(7, target.seeds(), target.tokens) for _ in range(2))
    assert [first.next() for _ in range(50)] == [second.next() for _ in range(50)]
