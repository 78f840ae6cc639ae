"""Rights that change while a command is under way: the right at the moment of carrying it out counts."""

import pytest

from nsqx.errors import ProtocolError
from nsqx.nsqd.authorizer import OpenAuthorizer
from rawclient import ERROR, OK, Frame, dpub, mpub, pub, sub

MAGIC = b"  V2"


class ChangingAuthorizer(OpenAuthorizer):
    """Grants everything until a test says otherwise; what it is asked anew, it answers when a test says so."""

    is_enabled = True

    def __init__(self) -> None:
        self.is_granted = self.is_fresh = True

    def is_current(self, client):
        return self.is_fresh

    def refresh(self, client, done):
        self.answer = done

    def check(self, client, command, topic_name, channel_name):
        if not self.is_granted:
            raise ProtocolError("E_UNAUTHORIZED", f"AUTH failed for {command} on {topic_name}")


@pytest.fixture
def authorizer(bench) -> ChangingAuthorizer:
    bench.broker.authorizer = ChangingAuthorizer()
    return bench.broker.authorizer


COMMANDS = [
    pytest.param("PUB", pub("t", b"body"), id="PUB"),
    pytest.param("DPUB", dpub("t", 1000, b"body"), id="DPUB"),
    pytest.param("MPUB", mpub("t", [b"body", b"more"]), id="MPUB"),
]


def message_count(bench) -> int:
    return bench.broker.topics["t"].message_count if "t" in bench.broker.topics else 0


@pytest.mark.parametrize(("name", "command"), COMMANDS)
def test_a_right_revoked_before_the_body_has_come(bench, line, authorizer, name, command):
    line.say(MAGIC + command[:-1])
    authorizer.is_granted = False
    refusal = Frame(ERROR, f"E_UNAUTHORIZED AUTH failed for {name} on t".encode())
    assert line.say(command[-1:]) == [refusal]
    assert message_count(bench) == 0


@pytest.mark.parametrize(("name", "command"), COMMANDS)
def test_grants_that_run_out_before_the_body_has_come_are_asked_for_anew(bench, line, authorizer, name, command):
    line.say(MAGIC + command[:-1])
    authorizer.is_fresh = False
    assert line.say(command[-1:]) == []
    assert message_count(bench) == 0
    authorizer.is_fresh, authorizer.is_granted = True, False
    authorizer.answer(None)
    assert line.listen() == [Frame(ERROR, f"E_UNAUTHORIZED AUTH failed for {name} on t".encode())]
    assert message_count(bench) == 0


@pytest.mark.parametrize(("name", "command"), COMMANDS)
def test_grants_that_are_renewed_let_the_command_through_once(bench, line, authorizer, name, command):
    line.say(MAGIC)
    authorizer.is_fresh = False
    assert line.say(command + command[:-1]) == []
    authorizer.is_fresh = True
    authorizer.answer(None)
    assert line.listen() == [OK]
    authorizer.is_fresh = False
    assert line.say(command[-1:]) == []
    authorizer.is_fresh = True
    authorizer.answer(None)
    assert line.listen() == [OK]
    assert message_count(bench) == (4 if name == "MPUB" else 2)


def test_a_right_to_subscribe_revoked_while_it_is_asked_for_anew(line, authorizer):
    line.say(MAGIC)
    authorizer.is_fresh = False
    assert line.say(sub("t", "c")) == []
    authorizer.is_fresh, authorizer.is_granted = True, False
    authorizer.answer(None)
    assert line.listen() == [Frame(ERROR, b"E_UNAUTHORIZED AUTH failed for SUB on t")]
