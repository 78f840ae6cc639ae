"""JSON schemas of type annotations."""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest

from nsqx.net.json_schema import SchemaCollection, component


class Leaf(TypedDict):
    """A leaf."""

    name: str


class Tree(TypedDict):
    leaves: list[Leaf]
    parent: "Tree | None"
    weight: NotRequired[Annotated[float, "Kilograms."]]


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (Any, {}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (dict[str, bool], {"type": "object", "additionalProperties": {"type": "boolean"}}),
        (int | None, {"type": ["integer", "null"]}),
        (list[str] | None, {"type": ["array", "null"], "items": {"type": "string"}}),
        (int | str | None, {"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}]}),
        (Literal["OK"], {"type": "string", "const": "OK"}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Annotated[int, {"minimum": 1}, "A count."], {"type": "integer", "minimum": 1, "description": "A count."}),
        ({"format": "binary"}, {"format": "binary"}),
    ],
)
def test_schema_of_an_annotation(annotation, schema):
    collection = SchemaCollection()
    assert collection.of(annotation) == schema
    assert collection.components == {}


def test_a_typed_dict_becomes_a_component():
    collection = SchemaCollection()
    assert collection.of(list[Leaf]) == {"type": "array", "items": component("Leaf")}
    assert collection.components == {
        "Leaf": {
            "type": "object",
            "description": "A leaf.",
            "properties": {"name": {"type": "string"}},
            "required": ["name"],
        }
    }


def test_a_typed_dict_may_contain_itself_and_optional_fields():
    collection = SchemaCollection()
    assert collection.of(Tree) == component("Tree")
    tree = collection.components["Tree"]
    assert "description" not in tree
    assert tree["properties"]["parent"] == {"anyOf": [component("Tree"), {"type": "null"}]}
    assert tree["properties"]["weight"] == {"type": "number", "description": "Kilograms."}
    assert tree["required"] == ["leaves", "parent"]


def test_a_type_that_json_does_not_have_is_an_error():
    with pytest.raises(TypeError, match="no JSON schema for <class 'bytes'>"):
        SchemaCollection().of(bytes)
