"""JSON schemas of Python type annotations.

A TypedDict becomes a component schema under its own name, with its docstring as the description. ``Annotated`` adds a
description (a string) or further keywords (a dict) to a type. A dict in the place of a type is a finished schema.
"""

from __future__ import annotations

from inspect import cleandoc
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

Schema = dict[str, Any]

_TYPE_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}


def component(name: str) -> Schema:
    """Return a reference to the component schema ``name``."""
    return {"$ref": f"#/components/schemas/{name}"}


class SchemaCollection:
    """Makes schemas, and collects the component schemas that they refer to."""

    def __init__(self) -> None:
        self.components: dict[str, Schema] = {}

    def of(self, annotation: Any) -> Schema:
        """Return the schema of a type; raises TypeError for a type that JSON does not have."""
        if isinstance(annotation, dict):
            return annotation
        if annotation is Any:
            return {}
        origin, arguments = get_origin(annotation), get_args(annotation)
        if origin is Annotated:
            return self._annotated(*arguments)
        if annotation in _TYPE_NAMES:
            return {"type": _TYPE_NAMES[annotation]}
        if is_typeddict(annotation):
            return self._component(annotation)
        if origin is Literal:
            values: Schema = {"const": arguments[0]} if len(arguments) == 1 else {"enum": list(arguments)}
            return {**self.of(type(arguments[0])), **values}
        if origin is list:
            return {"type": "array", "items": self.of(arguments[0])}
        if origin is dict:
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        if origin in (Union, UnionType):
            return self._union(arguments)
        raise TypeError(f"no JSON schema for {annotation!r}")

    def _annotated(self, annotation: Any, *additions: str | Schema) -> Schema:
        schema = dict(self.of(annotation))
        for addition in additions:
            schema |= {"description": addition} if isinstance(addition, str) else addition
        return schema

    def _union(self, members: tuple[Any, ...]) -> Schema:
        schemas = [self.of(member) for member in members]
        if len(schemas) == 2 and schemas[1] == {"type": "null"} and "type" in schemas[0]:
            return {**schemas[0], "type": [schemas[0]["type"], "null"]}
        return {"anyOf": schemas}

    def _component(self, typed_dict: Any) -> Schema:
        name = typed_dict.__name__
        if name not in self.components:
            schema: Schema = {"type": "object"}
            self.components[name] = schema  # before its fields, which may refer to it
            if typed_dict.__doc__:
                schema["description"] = cleandoc(typed_dict.__doc__)
            properties = schema["properties"] = {}
            required = schema["required"] = []
            for key, hint in get_type_hints(typed_dict, include_extras=True).items():
                is_optional = get_origin(hint) is NotRequired
                properties[key] = self.of(get_args(hint)[0] if is_optional else hint)
                if not is_optional:
                    required.append(key)
        return component(name)
