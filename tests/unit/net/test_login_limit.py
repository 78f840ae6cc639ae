"""The limit on wrong logins: which clients it affects, and its memory."""

from nsqx.net import login_limit
from nsqx.net.login_limit import BURST, LoginLimit


def use_up(limit: LoginLimit, address: str, now_s: float = 0.0) -> None:
    for number in range(BURST):
        assert limit.allows(address, b"guess%d" % number, now_s)
        assert limit.wrong(address, now_s) == (number == BURST - 1)


def test_an_address_with_too_many_wrong_logins_must_wait() -> None:
    limit = LoginLimit()
    use_up(limit, "192.0.2.1")
    assert not limit.allows("192.0.2.1", b"right", 0.5)
    assert limit.allows("192.0.2.1", b"right", 1.0)
    limit.wrong("192.0.2.1", 1.0)
    assert not limit.allows("192.0.2.1", b"right", 1.5)
    assert limit.allows("192.0.2.1", b"right", 2.0)


def test_other_addresses_are_not_limited() -> None:
    limit = LoginLimit()
    use_up(limit, "192.0.2.1")
    assert limit.allows("192.0.2.2", b"right", 0.0)


def test_a_secret_that_was_correct_before_is_never_limited() -> None:
    limit = LoginLimit()
    limit.right("192.0.2.1", b"right")
    use_up(limit, "192.0.2.1")
    assert limit.allows("192.0.2.1", b"right", 0.0)
    assert not limit.allows("192.0.2.1", b"wrong", 0.0)
    limit.right("192.0.2.9", b"wrong")
    assert not limit.allows("192.0.2.1", b"wrong", 0.0)


def test_an_ipv6_network_counts_as_one_client() -> None:
    limit = LoginLimit()
    for number in range(BURST):
        limit.wrong(f"2001:db8::{number:x}", 0.0)
    assert not limit.allows("2001:db8::ffff", b"x", 0.0)
    assert limit.allows("2001:db8:0:1::1", b"x", 0.0)
    use_up(limit, "::ffff:192.0.2.1")
    assert not limit.allows("192.0.2.1", b"x", 0.0)


def test_memory_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(login_limit, "_MAX_ADDRESSES", 10)
    monkeypatch.setattr(login_limit, "_MAX_KNOWN", 10)
    limit = LoginLimit()
    for number in range(100):
        limit.wrong(f"198.51.100.{number}", 0.0)
        limit.right("192.0.2.1", b"%d" % number)
    assert len(limit._attempts) == 10
    assert len(limit._known) == 10
    assert limit.allows("198.51.100.99", b"x", 0.0)
