"""Clients that never finish, never read, never send, or send invalid commands harm only themselves (rows 17 to 22).

Deadlines of HTTP connections are tested in tests/integration/test_http_server.py (test_deadlines), limits on
connections in tests/integration/test_access.py (test_connections_of_one_address_are_limited).
"""

import bad_clients
import pytest
from bad_clients import MALFORMED
from stage import Stage

# nsqx's nsqd waits a minute for the magic, and HTTP at most a minute for a body; plus a margin.
PATIENCE_S = 90.0
# Nine probes after 15 s of silence, 15 s apart; plus a margin.
KEEPALIVE_S = 200.0


def test_a_consumer_that_never_finishes_gets_the_message_again(stage: Stage) -> None:
    """Row 17: the message is delivered again and again, and its attempts are counted."""
    outcome = bad_clients.never_finish(stage)
    assert outcome.seen == {"attempts": [1, 2, 3, 4, 5, 6], "different messages": 1}


def test_a_consumer_that_never_reads_is_closed(stage: Stage) -> None:
    """Row 18: the client is closed, little memory was used for it, and another consumer gets every message."""
    outcome = bad_clients.never_read(stage)
    assert outcome.seen["closed"]
    assert outcome.seen["most MiB for it"] < 8
    assert (outcome.lost, outcome.foreign) == (0, 0)


def test_an_idle_connection_takes_little_memory(stage: Stage) -> None:
    """Row 19: a connection takes at most 10 KiB."""
    assert bad_clients.idle_connections(stage, 500).seen["KiB each"] <= 10


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_very_many_idle_connections_take_little_memory(stage: Stage) -> None:
    """Row 19, with the number of connections of the table."""
    assert bad_clients.idle_connections(stage, 9000).seen["KiB each"] <= 10


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_silent_connections_are_closed(stage: Stage) -> None:
    """Row 20: every connection that sends nothing, or stops in the middle, is closed eventually."""
    assert bad_clients.silent_clients(stage, PATIENCE_S).seen["kept open"] == []


def test_connections_above_the_limit_are_closed(stage: Stage) -> None:
    """Row 20: connections above the limit are closed at once, and a freed place can be taken."""
    seen = bad_clients.crowd(stage, 60, 20).seen
    assert seen == {"open": 20, "one more is refused": True, "served when one has left": True}


def test_a_client_that_falls_silent_is_closed(stage: Stage) -> None:
    """Rows 20, 21: a client that stops within a command or answers no heartbeat is closed after two intervals."""
    heartbeats = bad_clients.silent_after_identify(stage).seen["heartbeats before the end"]
    assert set(heartbeats) == {"half a command", "no answer to heartbeats"}
    assert all(1 <= count <= 2 for count in heartbeats.values())


def test_heartbeats_detect_a_lost_machine(stage: Stage) -> None:
    """Row 21: heartbeats detect a lost machine, and its message is delivered to another consumer."""
    seen = bad_clients.vanished(stage).seen
    assert (seen["closed"], seen["delivered to another"]) == (True, True)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_keepalive_detects_a_lost_machine(stage: Stage) -> None:
    """Row 21: TCP keepalive detects a lost machine if the client has no heartbeats."""
    assert bad_clients.vanished(stage, -1, KEEPALIVE_S).seen["closed"]


def test_a_client_without_heartbeats_has_keepalive(stage: Stage) -> None:
    """Row 21: TCP keepalive is on for a client without heartbeats."""
    assert bad_clients.kept_alive(stage).seen["keepalive"]


def test_malformed_commands_get_an_error(stage: Stage) -> None:
    """Row 22: each gets an error, and the daemon continues; tests/interop compares with Go's answers."""
    daemon = stage.nsqd()
    answers = {name: bad_clients.malformed(daemon, name) for name in MALFORMED}
    assert {name: answer[: len(MALFORMED[name][1])] for name, answer in answers.items()} == {
        name: expected for name, (_, expected) in MALFORMED.items()
    }
    assert daemon.request("GET", "/ping").status == 200
    assert "Traceback" not in daemon.log


def test_announced_bodies_allocate_no_memory(stage: Stage) -> None:
    """Row 22: no memory is allocated for bytes that have not arrived."""
    outcome = bad_clients.announce_much(stage)
    assert outcome.seen["MiB grown"] < 20
    assert not outcome.seen["traceback"]


def test_a_line_without_an_end_closes_the_connection(stage: Stage) -> None:
    """Row 22: nsqd closes the connection and does not collect a line without an end."""
    outcome = bad_clients.line_without_end(stage)
    assert "still listening" not in outcome.seen["answers"]
    assert not outcome.seen["traceback"]
