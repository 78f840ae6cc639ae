"""Fields of JSON answers: absent and null are empty, and an error about a wrong type names the field."""

from collections.abc import Callable
from typing import Any

import pytest

from nsqx.cluster.json_fields import integer, items, objects, strings, switch, text
from nsqx.errors import RequestFailed


@pytest.mark.parametrize(
    ("read", "value", "empty"),
    [
        (integer, -3, 0),
        (text, "t", ""),
        (switch, True, False),
        (items, [1, "x"], None),
        (objects, [{"a": 1}], None),
        (strings, ["x"], []),
    ],
)
def test_a_field_may_be_present_absent_or_null(read: Callable[[Any, str], Any], value: Any, empty: Any) -> None:
    assert read({"key": value}, "key") == value
    assert read({}, "key") == empty
    assert read({"key": None}, "key") == empty


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (integer, 1.5),
        (integer, True),
        (text, 1),
        (switch, 0),
        (items, {}),
        (objects, ["x"]),
        (strings, [1]),
    ],
)
def test_a_wrong_type_is_rejected(read: Callable[[Any, str], Any], value: Any) -> None:
    with pytest.raises(RequestFailed, match="json: field depth "):
        read({"depth": value}, "depth")


@pytest.mark.parametrize("document", [None, [], "text"])
def test_a_document_must_be_an_object(document: Any) -> None:
    with pytest.raises(RequestFailed, match="json: not an object"):
        items(document, "topics")
