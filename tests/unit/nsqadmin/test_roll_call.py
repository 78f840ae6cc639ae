"""Who is missed."""

from nsqx.nsqadmin.roll_call import FORGOTTEN_AFTER_S, RollCall


def addresses(roll: RollCall) -> list[str]:
    return [each["address"] for each in roll.missing]


def test_nobody_is_missed_who_answers() -> None:
    roll = RollCall()
    roll.note({}, {"a:1", "b:1"}, 100.0)
    assert roll.missing == []


def test_who_fails_is_missed_with_the_reason() -> None:
    roll = RollCall()
    roll.note({"b:1": "connection refused"}, {"a:1"}, 100.0)
    assert roll.missing == [{"address": "b:1", "last_seen_s": None, "reason": "connection refused"}]
    roll.note({}, {"a:1", "b:1"}, 105.0)
    roll.note({"b:1": "timeout"}, {"a:1"}, 110.0)
    assert roll.missing == [{"address": "b:1", "last_seen_s": 105.0, "reason": "timeout"}]


def test_who_is_no_longer_listed_is_missed_for_a_while() -> None:
    roll = RollCall()
    roll.note({}, {"a:1", "c:1", "b:1"}, 100.0)
    roll.note({}, {"a:1"}, 105.0)
    assert addresses(roll) == ["b:1", "c:1"]
    assert "no nsqlookupd lists it" in roll.missing[0]["reason"]
    roll.note({}, {"a:1", "c:1"}, 110.0)
    assert addresses(roll) == ["b:1"]
    roll.note({}, {"a:1", "c:1"}, 100.0 + FORGOTTEN_AFTER_S)
    assert addresses(roll) == ["b:1"]
    roll.note({}, {"a:1", "c:1"}, 101.0 + FORGOTTEN_AFTER_S)
    assert addresses(roll) == []


def test_one_that_always_fails_is_missed_for_good() -> None:
    roll = RollCall()
    for round_ in range(3):
        roll.note({"a:1": "refused"}, set(), 1000.0 * round_)
        assert addresses(roll) == ["a:1"]
