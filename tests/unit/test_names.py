"""The rules for names of topics and channels."""

import pytest

from nsqx.names import is_ephemeral, is_valid_name, is_valid_producer


@pytest.mark.parametrize(
    "name",
    [
        "a",
        "test",
        "Test-with_every.kind0",
        ".",
        "-",
        "_",
        "x" * 64,
        "a#ephemeral",
        "x" * 54 + "#ephemeral",
    ],
)
def test_valid(name):
    assert is_valid_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "x" * 65,
        "x" * 55 + "#ephemeral",
        "#ephemeral",
        "a#ephemeral#ephemeral",
        "a#ephemera",
        "a#",
        "a#Ephemeral",
        "a b",
        " a",
        "a\n",
        "a\r",
        "\na",
        "a/b",
        "a:b",
        "a;b",
        "\u00e9",
        "\u0661",  # a digit that is not ASCII
        "\uff41",
        "a\x00",
        "\udc80",  # a byte that was not UTF-8
    ],
)
def test_invalid(name):
    assert not is_valid_name(name)


@pytest.mark.parametrize(("name", "expected"), [("a#ephemeral", True), ("a", False), ("a.ephemeral", False)])
def test_ephemeral(name, expected):
    assert is_ephemeral(name) is expected


@pytest.mark.parametrize(
    ("name", "is_valid"),
    [("billing-1", True), ("a.b_c", True), ("x" * 64, True), ("x" * 65, False), ("", False), ("a#ephemeral", False)],
)
def test_names_of_producers(name, is_valid):
    assert is_valid_producer(name) is is_valid
