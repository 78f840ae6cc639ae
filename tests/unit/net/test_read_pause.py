"""Reading is paused while there is at least one reason."""

import pytest

from nsqx.net.read_pause import ReadPause

ONE, OTHER = 1, 2


class TransportStandIn:
    """Keeps the calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.closing = False

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")


@pytest.fixture
def transport() -> TransportStandIn:
    return TransportStandIn()


@pytest.fixture
def pause(transport) -> ReadPause:
    return ReadPause(transport)


def test_the_first_reason_pauses_and_the_last_one_resumes(transport, pause):
    pause.add(ONE)
    pause.add(OTHER)
    pause.remove(ONE)
    assert (transport.calls, pause.reasons) == (["pause"], OTHER)
    pause.remove(OTHER)
    assert (transport.calls, pause.reasons) == (["pause", "resume"], 0)


def test_a_reason_counts_once(transport, pause):
    pause.add(ONE)
    pause.add(ONE)
    pause.remove(ONE)
    assert transport.calls == ["pause", "resume"]


def test_removing_an_unknown_reason_changes_nothing(transport, pause):
    pause.remove(ONE)
    pause.add(ONE)
    pause.remove(OTHER)
    assert (transport.calls, pause.reasons) == (["pause"], ONE)


def test_several_reasons_can_be_removed_at_once(transport, pause):
    pause.add(ONE | OTHER)
    pause.remove(ONE | OTHER)
    assert transport.calls == ["pause", "resume"]


def test_a_closing_transport_is_left_alone(transport, pause):
    transport.closing = True
    pause.add(ONE)
    pause.remove(ONE)
    assert transport.calls == []
