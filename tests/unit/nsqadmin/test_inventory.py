"""The inventory: which nsqds are missing, since when, and their messages."""

from nsqx.nsqadmin.inventory import Holding, Inventory

A_YEAR_S = 365 * 86400.0


def addresses(inventory: Inventory) -> list[str]:
    return [each["address"] for each in inventory.missing]


def listed(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "")


def test_an_answering_nsqd_is_not_missing() -> None:
    inventory = Inventory()
    assert inventory.note(listed("a:1", "b:1"), {}, 100.0) == []
    assert inventory.missing == []


def test_a_failing_nsqd_is_missing_with_the_reason() -> None:
    inventory = Inventory()
    inventory.note(listed("a:1", "b:1"), {"b:1": "connection refused"}, 100.0)
    (missing,) = inventory.missing
    assert (missing["address"], missing["reason"]) == ("b:1", "connection refused")
    assert (missing["last_seen_s"], missing["stranded"]) == (None, None), "it has never answered"
    inventory.note(listed("a:1", "b:1"), {}, 105.0)
    assert inventory.note(listed("a:1", "b:1"), {"b:1": "timeout"}, 110.0) == ["b:1"]
    (missing,) = inventory.missing
    assert (missing["last_seen_s"], missing["reason"], missing["stranded"]) == (105.0, "timeout", 0)


def test_an_unlisted_nsqd_stays_missing() -> None:
    inventory = Inventory()
    inventory.note(listed("a:1", "c:1", "b:1"), {}, 100.0)
    assert sorted(inventory.note(listed("a:1"), {}, 105.0)) == ["b:1", "c:1"]
    assert addresses(inventory) == ["b:1", "c:1"]
    assert inventory.missing[0]["reason"] == "No nsqlookupd lists it any more."
    assert inventory.note(listed("a:1", "c:1"), {}, 110.0) == []
    inventory.note(listed("a:1", "c:1"), {}, 110.0 + A_YEAR_S)
    assert addresses(inventory) == ["b:1"]


def test_messages_of_a_missing_nsqd_are_shown() -> None:
    inventory = Inventory()
    inventory.note(listed("a:1"), {}, 100.0)
    inventory.note({}, {}, 105.0)
    inventory.set_holdings("a:1", {"t": Holding(2, {"c": 3, "d": 0}), "u": Holding(0, {}), "v": Holding(9, {})})
    (missing,) = inventory.missing
    assert (missing["stranded"], missing["topics"]) == (14, 3)
    inventory.note({}, {}, 110.0)
    assert inventory.missing[0]["stranded"] == 14
    assert inventory.stranded_topics("a:1", 10) == [
        {"topic": "v", "stranded": 9, "waiting": 9, "channels": {}},
        {"topic": "t", "stranded": 5, "waiting": 2, "channels": {"c": 3, "d": 0}},
    ]
    assert len(inventory.stranded_topics("a:1", 1)) == 1
    assert inventory.stranded_topics("unknown:1", 1) == []


def test_only_an_unlisted_nsqd_can_be_forgotten() -> None:
    inventory = Inventory()
    inventory.note(listed("a:1", "b:1", "c:1"), {}, 100.0)
    inventory.note(listed("a:1", "c:1"), {"c:1": "refused"}, 105.0)
    assert not inventory.forget("a:1"), "it is present"
    assert not inventory.forget("c:1"), "it is still listed"
    assert not inventory.forget("unknown:1")
    assert inventory.forget("b:1")
    assert addresses(inventory) == ["c:1"]
    inventory.note(listed("a:1", "b:1", "c:1"), {}, 110.0)
    assert inventory.missing == []


def test_a_missing_nsqd_may_have_returned_at_another_address() -> None:
    inventory = Inventory()
    inventory.note({"10.0.0.1:4151": "host-a", "10.0.0.2:4151": "host-b"}, {}, 100.0)
    inventory.note({"10.0.0.2:4151": "host-b"}, {}, 105.0)
    assert inventory.missing[0]["maybe_at"] == ""
    inventory.note({"10.0.0.2:4151": "host-b", "10.0.0.9:4151": "host-a"}, {}, 110.0)
    assert addresses(inventory) == ["10.0.0.1:4151"], "the same host name does not prove that it is the same nsqd"
    assert inventory.missing[0]["maybe_at"] == "10.0.0.9:4151"
