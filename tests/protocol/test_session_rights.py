"""Rights that change while a command arrives: the rights at the moment of execution count."""

import pytest

from nsqx.errors import ProtocolError
from nsqx.nsqd.authorizer import OpenAuthorizer
from rawclient import ERROR, OK, Frame, dpub, mpub, pub, sub

MAGIC = b"  V2"


class ChangingAuthorizer(OpenAuthorizer):
    """Grants everything until a test changes it; answers ``refresh`` when the test triggers it."""

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
def test_a_right_revoked_before_the_body_arrives_refuses_the_publish(bench, line, authorizer, name, command):
    line.send(MAGIC + command[:-1])
    authorizer.is_granted = False
    refusal = Frame(ERROR, f"E_UNAUTHORIZED AUTH failed for {name} on t".encode())
    assert line.send(command[-1:]) == [refusal]
    assert message_count(bench) == 0


@pytest.mark.parametrize(("name", "command"), COMMANDS)
def test_grants_that_expire_before_the_body_arrives_are_renewed(bench, line, authorizer, name, command):
    line.send(MAGIC + command[:-1])
    authorizer.is_fresh = False
    assert line.send(command[-1:]) == []
    assert message_count(bench) == 0
    authorizer.is_fresh, authorizer.is_granted = True, False
    authorizer.answer(None)
    assert line.receive() == [Frame(ERROR, f"E_UNAUTHORIZED AUTH failed for {name} on t".encode())]
    assert message_count(bench) == 0


@pytest.mark.parametrize(("name", "command"), COMMANDS)
def test_a_command_is_executed_once_after_its_grants_are_renewed(bench, line, authorizer, name, command):
    line.send(MAGIC)
    authorizer.is_fresh = False
    assert line.send(command + command[:-1]) == []
    authorizer.is_fresh = True
    authorizer.answer(None)
    assert line.receive() == [OK]
    authorizer.is_fresh = False
    assert line.send(command[-1:]) == []
    authorizer.is_fresh = True
    authorizer.answer(None)
    assert line.receive() == [OK]
    assert message_count(bench) == (4 if name == "MPUB" else 2)


def test_a_right_to_subscribe_can_be_revoked_while_it_is_renewed(line, authorizer):
    line.send(MAGIC)
    authorizer.is_fresh = False
    assert line.send(sub("t", "c")) == []
    authorizer.is_fresh, authorizer.is_granted = True, False
    authorizer.answer(None)
    assert line.receive() == [Frame(ERROR, b"E_UNAUTHORIZED AUTH failed for SUB on t")]
