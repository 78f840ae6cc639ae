"""Clients that never finish, never read, never speak, or speak nonsense harm themselves only (rows 17 to 22).

The deadlines of HTTP connections are tested in tests/integration/test_http_server.py (test_deadlines), the caps on
connections in tests/integration/test_access.py (test_connection_limits).
"""

import bad_clients
import pytest
from bad_clients import MALFORMED
from stage import Stage

# nsqd of this package gives a client a minute for its magic, and HTTP at most a minute for a body; plus some.
PATIENCE_S = 90.0
# Nine probes after 15 s of silence, 15 s apart; plus some.
KEEPALIVE_S = 200.0


def test_never_finishes(stage: Stage) -> None:
    """Row 17: the message comes again and again, and its attempts are counted."""
    outcome = bad_clients.never_finish(stage)
    assert outcome.seen == {"attempts": [1, 2, 3, 4, 5, 6], "different messages": 1}


def test_never_reads(stage: Stage) -> None:
    """Row 18: it is closed, little was held for it, and another consumer gets every message."""
    outcome = bad_clients.never_read(stage)
    assert outcome.seen["closed"]
    assert outcome.seen["most MiB for it"] < 8
    assert (outcome.lost, outcome.foreign) == (0, 0)


def test_idle_connections(stage: Stage) -> None:
    """Row 19: at most 10 KiB each."""
    assert bad_clients.idle_connections(stage, 500).seen["KiB each"] <= 10


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_very_many_idle_connections(stage: Stage) -> None:
    """Row 19, with as many as the table has."""
    assert bad_clients.idle_connections(stage, 9000).seen["KiB each"] <= 10


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_never_speaks(stage: Stage) -> None:
    """Row 20: every connection that says nothing, or stops in the middle, is closed in the end."""
    assert bad_clients.silent_clients(stage, PATIENCE_S).seen["kept open"] == []


def test_too_many(stage: Stage) -> None:
    """Row 20: with a cap, those beyond it are closed at once, and a place that is left can be taken."""
    seen = bad_clients.crowd(stage, 60, 20).seen
    assert seen == {"open": 20, "one more is refused": True, "served when one has left": True}


def test_falls_silent(stage: Stage) -> None:
    """Rows 20, 21: a client that stops in mid-command or answers no heartbeat is closed after two intervals."""
    heartbeats = bad_clients.silent_after_identify(stage).seen["heartbeats before the end"]
    assert set(heartbeats) == {"half a command", "no answer to heartbeats"}
    assert all(1 <= count <= 2 for count in heartbeats.values())


def test_vanishes(stage: Stage) -> None:
    """Row 21: a machine that is gone is found out by its heartbeats, and its message goes to another consumer."""
    seen = bad_clients.vanished(stage).seen
    assert (seen["closed"], seen["delivered to another"]) == (True, True)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_vanishes_without_heartbeats(stage: Stage) -> None:
    """Row 21: the same by TCP's keepalive, for a client that wants no heartbeats."""
    assert bad_clients.vanished(stage, -1, KEEPALIVE_S).seen["closed"]


def test_wants_no_heartbeats(stage: Stage) -> None:
    """Row 21: TCP finds out when its machine is gone."""
    assert bad_clients.kept_alive(stage).seen["keepalive"]


def test_malformed_commands(stage: Stage) -> None:
    """Row 22: a clean error each, and the daemon goes on; Go's answers are compared in tests/interop."""
    daemon = stage.nsqd()
    answers = {name: bad_clients.malformed(daemon, name) for name in MALFORMED}
    assert {name: answer[: len(MALFORMED[name][1])] for name, answer in answers.items()} == {
        name: expected for name, (_, expected) in MALFORMED.items()
    }
    assert daemon.request("GET", "/ping").status == 200
    assert "Traceback" not in daemon.log


def test_announces_much(stage: Stage) -> None:
    """Row 22: nothing is set aside for bytes that have not come."""
    outcome = bad_clients.announce_much(stage)
    assert outcome.seen["MiB grown"] < 20
    assert not outcome.seen["traceback"]


def test_line_without_end(stage: Stage) -> None:
    """Row 22: nsqd closes the connection; it does not gather what never becomes a command."""
    outcome = bad_clients.line_without_end(stage)
    assert "still listening" not in outcome.seen["answers"]
    assert not outcome.seen["traceback"]
