"""Every command in every state: executed, or refused with the text of Go nsqd."""

import pytest
from conversation import SessionClient

from broker_bench import TEST_STORE
from nsqx.nsqd.protocol_states import ALLOWED_STATES, ClientState
from rawclient import (
    ERROR,
    OK,
    RESPONSE,
    Frame,
    auth,
    cls,
    dpub,
    fin,
    identify,
    mpub,
    nop,
    pub,
    rdy,
    req,
    sub,
    touch,
    xpub,
)

ID = b"0123456789abcdef"
IS_LOG = TEST_STORE == "log"
ALWAYS = "INIT DISCONNECTED CONNECTED SUBSCRIBED CLOSING"


def failed(name):
    return [Frame(ERROR, f"E_{name}_FAILED {name} {ID.decode()} failed ID not in flight".encode())]


# The states in which a command is allowed, the command, and its answer there.
COMMANDS = {
    "IDENTIFY": ("INIT", identify(), [OK]),
    "AUTH": ("INIT", auth(b"secret"), [Frame(ERROR, b"E_AUTH_DISABLED AUTH disabled")]),
    "SUB": ("INIT", sub("t", "c"), [OK]),
    "RDY": ("SUBSCRIBED CLOSING", rdy(1), []),
    "FIN": ("SUBSCRIBED CLOSING", fin(ID), failed("FIN")),
    "REQ": ("SUBSCRIBED CLOSING", req(ID, 0), failed("REQ")),
    "TOUCH": ("SUBSCRIBED CLOSING", touch(ID), failed("TOUCH")),
    "CLS": ("SUBSCRIBED", cls(), [Frame(RESPONSE, b"CLOSE_WAIT")]),
    "NOP": (ALWAYS, nop(), []),
    "PUB": (ALWAYS, pub("u", b"x"), [OK]),
    "MPUB": (ALWAYS, mpub("u", [b"x", b"y"]), [OK]),
    "DPUB": (ALWAYS, dpub("u", 100, b"x"), [OK]),
    # Only log topics have offsets.
    "XPUB": (ALWAYS, xpub("u", [b"x"]), [Frame(RESPONSE, b'{"offset":0,"count":1}' if IS_LOG else b'{"count":1}')]),
}


def client_in(bench, state, *, has_nsqx=False):
    """Return a client that commands have brought into ``state``, if commands lead to it."""
    talk = SessionClient(bench)
    talk.client.has_nsqx = has_nsqx
    if state in (ClientState.SUBSCRIBED, ClientState.CLOSING):
        talk.send(sub("t", "c"))
    if state == ClientState.CLOSING:
        talk.send(cls())
    if state in (ClientState.DISCONNECTED, ClientState.CONNECTED):
        talk.client.state = state
    assert talk.client.state == state
    return talk


def test_the_states_have_the_numbers_of_stats():
    assert {state.name: state.value for state in ClientState} == {
        "INIT": 0,
        "DISCONNECTED": 1,
        "CONNECTED": 2,
        "SUBSCRIBED": 3,
        "CLOSING": 4,
    }


def test_every_command_is_in_the_table():
    assert [name.decode() for name in ALLOWED_STATES] == list(COMMANDS)


@pytest.mark.parametrize("state", ClientState)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_executed_or_refused(bench, name, state):
    allowed, command, answer = COMMANDS[name]
    has_nsqx = name == "XPUB"
    talk = client_in(bench, state, has_nsqx=has_nsqx)
    if state.name in allowed.split():
        assert talk.send(command) == answer
        return
    refusal = Frame(ERROR, f"E_INVALID cannot {name} in current state".encode())
    assert talk.send(command + b"NONSENSE\n") == [refusal]
    assert talk.is_closed
    # The state is checked before the parameters.
    assert client_in(bench, state, has_nsqx=has_nsqx).send(name.encode() + b"\n") == [refusal]


def test_ready_after_close_is_ignored(bench):
    talk = client_in(bench, ClientState.CLOSING)
    assert talk.send(rdy(1) + b"RDY x\n") == []
    assert not talk.is_closed
    assert talk.client.ready_count == 0


@pytest.mark.parametrize("sent", [b"NOP x\n", b"NOP\r\n"])
def test_parameters_of_nop_are_ignored(bench, sent):
    assert SessionClient(bench).send(sent) == []


@pytest.mark.parametrize("name", [*COMMANDS, "NONE", ""])
def test_only_identify_is_allowed_before_required_tls(bench, name):
    bench.broker.is_tls_required = True
    talk = SessionClient(bench)
    if name == "IDENTIFY":
        assert talk.send(identify()) == [OK]
        return
    refusal = Frame(ERROR, f"E_INVALID cannot {name} in current state (TLS required)".encode())
    assert talk.send(name.encode() + b" t\n") == [refusal]
    assert talk.is_closed


def test_a_well_formed_finish_before_required_tls_is_refused(bench):
    bench.broker.is_tls_required = True
    refusal = Frame(ERROR, b"E_INVALID cannot FIN in current state (TLS required)")
    assert SessionClient(bench).send(fin(ID)) == [refusal]


def test_every_command_is_allowed_after_required_tls(bench):
    bench.broker.is_tls_required = True
    talk = SessionClient(bench)
    talk.client.tls = True
    assert talk.send(sub("t", "c") + cls()) == [OK, Frame(RESPONSE, b"CLOSE_WAIT")]


def test_a_client_without_heartbeats_cannot_subscribe(bench):
    talk = SessionClient(bench)
    talk.send(identify(heartbeat_interval=-1))
    assert talk.send(b"SUB\n") == [Frame(ERROR, b"E_INVALID cannot SUB with heartbeats disabled")]
