"""The settings of a topic by its name: rules, their order, and the refusal of invalid ones."""

import pytest

from nsqx.errors import ConfigError
from nsqx.nsqd.options import NsqdOptions
from nsqx.nsqd.topic_settings import TopicRules


def settings(topic_name, **options):
    found = TopicRules(NsqdOptions(**options)).settings_of(topic_name)
    return found.store, found.durability


def refusal(**options):
    with pytest.raises(ConfigError) as caught:
        TopicRules(NsqdOptions(**options))
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_topics_are_classic_and_durability_is_fsync_by_default():
    assert settings("t") == ("classic", "fsync")


def test_flags_decide_for_topics_that_no_rule_matches():
    assert settings("t", store="log", durability="write", store_rules=["x=classic"]) == ("log", "write")


def test_the_first_store_rule_that_matches_decides():
    rules = ["orders.test=classic", "orders*=log", "*=classic"]
    assert settings("orders.test", store_rules=rules)[0] == "classic"
    assert settings("orders.eu", store_rules=rules)[0] == "log"
    assert settings("clicks", store="log", store_rules=rules)[0] == "classic"


def test_a_topic_table_precedes_store_rules_and_flags():
    tables = [{"match": "orders*", "store": "log", "durability": "write"}]
    assert settings("orders", store_rules=["*=classic"], topic=tables) == ("log", "write")
    assert settings("clicks", store_rules=["*=classic"], topic=tables) == ("classic", "fsync")


def test_only_the_first_topic_table_that_matches_counts():
    tables = [{"match": "orders.*", "durability": "write"}, {"match": "orders*", "store": "log", "durability": "fsync"}]
    assert settings("orders.eu", topic=tables) == ("classic", "write")
    assert settings("orders", topic=tables) == ("log", "fsync")


def test_a_setting_that_the_table_lacks_comes_from_rules_and_flags():
    tables = [{"match": "a", "durability": "write"}, {"match": "b", "store": "log"}]
    assert settings("a", store_rules=["a=log"], topic=tables) == ("log", "write")
    assert settings("b", durability="write", topic=tables) == ("log", "write")


def test_ephemeral_topics_are_always_classic():
    assert settings("t#ephemeral", store="log", store_rules=["*=log"], topic=[{"match": "*", "store": "log"}]) == (
        "classic",
        "fsync",
    )


@pytest.mark.parametrize(
    ("glob", "matching", "others"),
    [
        ("orders", ["orders"], ["Orders", "orders2", "my-orders"]),
        ("orders*", ["orders", "orders.eu"], ["my-orders"]),
        ("*.eu", ["orders.eu", ".eu"], ["orderseu"]),
        ("day?", ["day1"], ["day", "day12"]),
        ("day[1-3]", ["day2"], ["day4"]),
        ("[!a]*", ["b"], ["a", "ab"]),
    ],
)
def test_a_glob_matches_the_whole_name_and_case(glob, matching, others):
    assert {settings(name, store_rules=[f"{glob}=log"])[0] for name in matching} == {"log"}
    assert {settings(name, store_rules=[f"{glob}=log"])[0] for name in others} == {"classic"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"store": "Log"}, 'invalid --store "Log": use classic or log'),
        ({"durability": ""}, 'invalid --durability "": use fsync or write'),
        ({"store_rules": ["orders"]}, '--store-rule "orders": use GLOB=STORE, for example orders*=log'),
        ({"store_rules": ["a=log", "b=disk"]}, '--store-rule "b=disk": invalid store "disk": use classic or log'),
        ({"store_rules": ["=log"]}, '--store-rule "=log": invalid glob "": use a-z A-Z 0-9 . _ - * ? [ ] !'),
        ({"store_rules": ["a b=log"]}, '--store-rule "a b=log": invalid glob "a b": use a-z A-Z 0-9 . _ - * ? [ ] !'),
        ({"topic": [{"store": "log"}]}, '[[topic]] table 1: match is required, for example match = "orders*"'),
        (
            {"topic": [{"match": "*"}, {"match": "a", "retain": "72h"}]},
            '[[topic]] table 2: unknown key "retain": use match, store, durability, retain_age, retain_bytes, max_age,'
            " max_bytes, when_full, message_ttl, max_attempts, dead_letter, channel_start",
        ),
        ({"topic": [{"match": 1}]}, "[[topic]] table 1: match must be a string"),
        ({"topic": [{"match": "a#b"}]}, '[[topic]] table 1: invalid match "a#b": use a-z A-Z 0-9 . _ - * ? [ ] !'),
        ({"topic": [{"match": "a", "store": ""}]}, '[[topic]] table 1: invalid store "": use classic or log'),
        (
            {"topic": [{"match": "a", "durability": "sync"}]},
            '[[topic]] table 1: invalid durability "sync": use fsync or write',
        ),
        (
            {"topic": [{"match": "a", "store": "classic", "durability": "write"}]},
            "[[topic]] table 1: durability needs store log",
        ),
        (
            {"topic": [{"match": "a", "retain_age": "3 days"}]},
            '[[topic]] table 1: invalid retain_age "3 days": use a duration, for example 72h, or 0s for no limit',
        ),
        (
            {"topic": [{"match": "a", "retain_age": 72}]},
            "[[topic]] table 1: invalid retain_age 72: use a duration, for example 72h, or 0s for no limit",
        ),
        (
            {"topic": [{"match": "a", "max_bytes": -1}]},
            "[[topic]] table 1: invalid max_bytes -1: use a number from 0 to 9223372036854775807",
        ),
        (
            {"topic": [{"match": "a", "max_attempts": 65536}]},
            "[[topic]] table 1: invalid max_attempts 65536: use a number from 0 to 65535",
        ),
        (
            {"topic": [{"match": "a", "dead_letter": "a b"}]},
            '[[topic]] table 1: invalid dead_letter "a b": use 1-64 of a-z A-Z 0-9 . _ -',
        ),
        ({"log_when_full": "drop"}, 'invalid --log-when-full "drop": use refuse or drop-oldest'),
        ({"channel_start": "first"}, 'invalid --channel-start "first": use auto or beginning or end'),
        ({"dead_letter_suffix": "#ephemeral"}, 'invalid --dead-letter-suffix "#ephemeral": use a-z A-Z 0-9 . _ -'),
        ({"log_max_age": 5, "log_retain_age": 6}, "retain_age must not exceed max_age"),
        (
            {"log_max_bytes": 5, "topic": [{"match": "a", "retain_bytes": 6}]},
            "[[topic]] table 1: retain_bytes must not exceed max_bytes",
        ),
    ],
)
def test_an_invalid_rule_is_refused_in_one_line(options, message):
    assert refusal(**options) == message


def test_settings_set_over_http_precede_tables_and_flags():
    rules = TopicRules(NsqdOptions(log_retain_age=5, max_attempts=3, topic=[{"match": "a", "retain_age": "1h"}]))
    assert rules.settings_of("b").retain_age == 5
    assert rules.settings_of("a").retain_age == 3_600_000_000_000
    found = rules.settings_of("a", {"retain_age": "1s", "max_attempts": "0"})
    assert (found.retain_age, found.max_attempts) == (1_000_000_000, 0)


@pytest.mark.parametrize(
    ("topic_name", "suffix", "expected"),
    [
        ("orders", ".dead", "orders.dead"),
        ("orders#ephemeral", ".dead", "orders.dead#ephemeral"),
        ("orders", "", ""),
    ],
)
def test_a_dead_letter_topic_has_the_suffix(topic_name, suffix, expected):
    rules = TopicRules(NsqdOptions(dead_letter_suffix=suffix))
    assert rules.settings_of(topic_name).dead_letter == expected
    assert rules.is_dead_letter_topic(expected) == bool(suffix)
    assert not rules.is_dead_letter_topic(topic_name)


def test_a_table_can_name_the_dead_letter_topic():
    rules = TopicRules(NsqdOptions(topic=[{"match": "orders*", "dead_letter": "graveyard", "max_attempts": 5}]))
    assert rules.settings_of("orders.eu").dead_letter == "graveyard"
    assert rules.is_dead_letter_topic("graveyard")
