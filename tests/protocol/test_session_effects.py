"""Effects of a session: the test gives bytes, takes the effects, and resolves them. There is no connection."""

import pytest

from nsqx.errors import BrokerExiting, ProtocolError
from nsqx.nsqd.authorizer import OpenAuthorizer
from nsqx.nsqd.effects import Authenticate, Close, PublishInSlices, RenewRights, Upgrade, WatchRights
from nsqx.wire.batches import SLICE_COUNT
from rawclient import ERROR, OK, RESPONSE, Frame, auth, identify, mpub, pub, sized, sub

UNAUTHORIZED = ProtocolError("E_UNAUTHORIZED", "AUTH failed")


class ExpiringAuthorizer(OpenAuthorizer):
    """Grants everything, as long as ``is_fresh`` is set."""

    is_enabled = True
    is_fresh = True

    def is_current(self, client):
        return self.is_fresh


@pytest.fixture
def authorizer(bench):
    bench.broker.authorizer = ExpiringAuthorizer()
    return bench.broker.authorizer


@pytest.fixture
def session(talk):
    return talk.session


def frames_of(talk):
    """Return the frames without carrying out an effect."""
    talk.bench.settle()
    return talk.link.take_frames()


def stop(talk, data, effect):
    """Send ``data``, and assert that the session stops at ``effect``, which it gives out once."""
    talk.session.receive(data)
    assert talk.session.is_waiting
    assert talk.session.take_effect() == effect
    assert talk.session.take_effect() is None


def test_commands_without_effects_need_no_connection(talk, session):
    session.receive(pub("t", b"x") + sub("t", "c") + mpub("t", [b"x", b"y"]))
    assert (session.effect, session.is_waiting) == (None, False)
    assert frames_of(talk) == [OK, OK, OK]


@pytest.mark.parametrize(
    ("asked", "upgrade"),
    [
        ({"tls_v1": True}, Upgrade(tls=True, snappy=False, deflate=False, deflate_level=6)),
        ({"snappy": True}, Upgrade(tls=False, snappy=True, deflate=False, deflate_level=6)),
        ({"tls_v1": True, "deflate": True, "deflate_level": 3}, Upgrade(True, False, True, 3)),
    ],
)
def test_identify_stops_at_an_upgrade_and_leaves_the_rest_to_the_layers(bench, talk, asked, upgrade):
    offered = bench.broker.upgrades
    offered.tls = offered.snappy = offered.deflate = True
    stop(talk, identify(feature_negotiation=True, **asked) + b"\x16\x03 layered", upgrade)
    talk.session.receive(b" bytes")
    assert len(frames_of(talk)) == 1
    assert talk.session.take_rest() == b"\x16\x03 layered bytes"
    talk.session.resolve(None)
    talk.session.receive(pub("t", b"x"))
    assert frames_of(talk) == [OK]


@pytest.mark.parametrize(
    ("outcome", "answers"),
    [(b"{}", [Frame(RESPONSE, b"{}"), OK]), (UNAUTHORIZED, [Frame(ERROR, b"E_UNAUTHORIZED AUTH failed")])],
)
def test_auth_stops_until_the_outcome_is_known(talk, session, outcome, answers):
    stop(talk, auth(b"secret") + pub("t", b"x"), Authenticate(b"secret"))
    assert frames_of(talk) == []
    session.resolve(outcome)
    assert not session.is_waiting
    assert frames_of(talk) == answers
    assert session.take_effect() == (Close() if outcome is UNAUTHORIZED else None)


@pytest.mark.parametrize("command", [pub("t", b"x"), mpub("t", [b"x"]), sub("t", "c")])
def test_expired_rights_stop_a_command_until_they_are_renewed(talk, session, authorizer, command):
    authorizer.is_fresh = False
    stop(talk, command, RenewRights())
    authorizer.is_fresh = True
    session.resolve(None)
    assert frames_of(talk) == [OK]


def test_rights_that_are_not_renewed_end_the_session(talk, session, authorizer):
    authorizer.is_fresh = False
    stop(talk, pub("t", b"x"), RenewRights())
    session.resolve(UNAUTHORIZED)
    assert session.take_effect() == Close()
    assert frames_of(talk) == [Frame(ERROR, b"E_UNAUTHORIZED AUTH failed")]


def test_the_right_of_a_subscriber_is_watched_and_can_be_revoked(talk, session, authorizer):
    stop(talk, sub("t", "c"), WatchRights("t", "c"))
    session.resolve(None)
    assert frames_of(talk) == [OK]
    session.revoke(UNAUTHORIZED)
    assert session.take_effect() == Close()
    assert frames_of(talk) == [Frame(ERROR, b"E_UNAUTHORIZED AUTH failed")]


@pytest.mark.parametrize(
    ("outcome", "answers"),
    [(None, [OK, OK]), (BrokerExiting(), [Frame(ERROR, b"E_MPUB_FAILED MPUB failed exiting")])],
)
def test_a_very_large_batch_is_published_by_the_connection(bench, talk, session, outcome, answers):
    bodies = [b"x"] * (SLICE_COUNT + 1)
    topic = bench.broker.topic("t")
    stop(talk, mpub("t", bodies) + pub("t", b"x"), PublishInSlices(topic, b"".join(map(sized, bodies))))
    assert topic.message_count == 0
    session.resolve(outcome)
    assert frames_of(talk) == answers
    assert talk.client.pub_counts.get("t", 0) == (len(bodies) + 1 if outcome is None else 0)


def test_a_fatal_error_asks_for_the_close(talk, session):
    session.receive(b"NONSENSE\n" + pub("t", b"x"))
    assert session.take_effect() == Close()
    assert frames_of(talk) == [Frame(ERROR, b"E_INVALID invalid command NONSENSE")]


def test_an_outcome_after_the_end_of_input_is_ignored(talk, session):
    stop(talk, auth(b"secret") + pub("t", b"x"), Authenticate(b"secret"))
    session.receive_end()
    assert session.take_effect() == Close()
    session.resolve(b"{}")
    session.revoke(UNAUTHORIZED)
    assert session.take_effect() is None
    assert frames_of(talk) == []
