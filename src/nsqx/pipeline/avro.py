"""Avro records: converts their schema to Spark's and decodes message bodies. Needs fastavro.

``framing`` is the prefix of the record:

    none             no prefix
    single-object    two marker bytes and the fingerprint of the schema, 10 bytes in all
    confluent        a zero byte and the schema's number in a schema registry, 5 bytes in all
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from nsqx.errors import ConfigError

_SINGLE_OBJECT = b"\xc3\x01"
_SINGLE_OBJECT_LENGTH = 10
_REGISTRY_LENGTH = 5
_PRIMITIVES = {
    "boolean": "boolean",
    "int": "integer",
    "long": "long",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "string": "string",
    "enum": "string",
    "fixed": "binary",
}
_LOGICAL = {
    "date": "date",
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "local-timestamp-millis": "timestamp_ntz",
    "local-timestamp-micros": "timestamp_ntz",
    "uuid": "string",
}


def spark_schema_json(avro_schema: str) -> dict[str, Any]:
    """Return the Spark schema, in its JSON form, of an Avro record; raises ConfigError."""
    try:
        parsed = json.loads(avro_schema)
    except ValueError as error:
        raise ConfigError(f"the Avro schema is not valid JSON: {error}") from None
    if not isinstance(parsed, dict) or parsed.get("type") != "record":
        raise ConfigError("the Avro schema must be a record: its fields become columns")
    _fastavro_schema(avro_schema)
    named: dict[str, Any] = {}
    found = _type_of(parsed, named)
    assert isinstance(found, dict)
    return found


def _type_of(kind: Any, named: dict[str, Any]) -> Any:
    if isinstance(kind, list):
        return _union_type(kind, named)
    if isinstance(kind, str):
        if kind in named:
            return named[kind]
        if kind not in _PRIMITIVES:
            raise ConfigError(
                f"the Avro schema uses type {kind!r} before it is defined: define it first; recursive types cannot be"
                " used"
            )
        return _PRIMITIVES[kind]
    name = kind["type"]
    if isinstance(name, (dict, list)):
        return _type_of(name, named)
    if name == "record":
        return _record_type(kind, named)
    if name == "array":
        return {"type": "array", "elementType": _type_of(kind["items"], named), "containsNull": True}
    if name == "map":
        inner = _type_of(kind["values"], named)
        return {"type": "map", "keyType": "string", "valueType": inner, "valueContainsNull": True}
    logical = kind.get("logicalType")
    if logical == "decimal":
        found: Any = f"decimal({kind['precision']},{kind.get('scale', 0)})"
    else:
        found = _LOGICAL.get(logical) or _type_of(name if isinstance(name, str) else name["type"], named)
    if "name" in kind:
        _remember(kind, found, named)
    return found


def _record_type(kind: Mapping[str, Any], named: dict[str, Any]) -> dict[str, Any]:
    fields = [
        {"name": field["name"], "type": _type_of(field["type"], named), "nullable": True, "metadata": {}}
        for field in kind["fields"]
    ]
    found = {"type": "struct", "fields": fields}
    _remember(kind, found, named)
    return found


def _remember(kind: Mapping[str, Any], found: Any, named: dict[str, Any]) -> None:
    named[kind["name"]] = found
    if kind.get("namespace"):
        named[f"{kind['namespace']}.{kind['name']}"] = found


def _union_type(kinds: list[Any], named: dict[str, Any]) -> Any:
    found = [_type_of(each, named) for each in kinds if each != "null"]
    if len(found) == 1:
        return found[0]
    if set(map(str, found)) <= {"integer", "long"}:
        return "long"
    if set(map(str, found)) <= {"integer", "long", "float", "double"}:
        return "double"
    raise ConfigError(f"the Avro union {json.dumps(kinds)} has no Spark type: use one type and null")


def avro_reader(avro_schema: str, framing: str) -> Callable[[bytes], dict[str, Any]]:
    """Return a function that decodes a message body; it can be pickled and may raise any exception."""
    return _Reader(avro_schema, framing)


class _Reader:
    def __init__(self, avro_schema: str, framing: str) -> None:
        self._text = avro_schema
        self._framing = framing
        self._schema: Any = None

    def __getstate__(self) -> tuple[str, str]:
        return self._text, self._framing

    def __setstate__(self, state: tuple[str, str]) -> None:
        self._text, self._framing = state
        self._schema = None

    def __call__(self, value: bytes) -> dict[str, Any]:
        if self._schema is None:
            self._schema = _fastavro_schema(self._text)
        stream = io.BytesIO(unframed(value, self._framing, self._schema))
        record = _fastavro().schemaless_reader(stream, self._schema, None)
        if rest := stream.read():
            raise ValueError(f"{len(rest)} bytes are left after the record")
        if not isinstance(record, dict):
            raise ValueError("the value is not a record")
        return record


def unframed(value: bytes, framing: str, schema: Any) -> bytes:
    """Return the record without its prefix; raises ValueError if the prefix is wrong."""
    if framing == "single-object":
        if value[:2] != _SINGLE_OBJECT:
            raise ValueError("the two marker bytes of the single-object encoding are missing")
        canonical = _fastavro().schema.to_parsing_canonical_form(schema)
        ours = bytes.fromhex(_fastavro().schema.fingerprint(canonical, "CRC-64-AVRO"))
        if value[2:_SINGLE_OBJECT_LENGTH] not in (ours, ours[::-1]):
            raise ValueError(f"the record was written with another schema, fingerprint {value[2:10].hex()}")
        return value[_SINGLE_OBJECT_LENGTH:]
    if framing == "confluent":
        if value[:1] != b"\0" or len(value) < _REGISTRY_LENGTH:
            raise ValueError("the zero byte and the schema number at the start are missing")
        return value[_REGISTRY_LENGTH:]
    return value


def _fastavro() -> Any:
    try:
        import_module("fastavro.schema")
        return import_module("fastavro")
    except ImportError:
        raise ConfigError("format avro requires fastavro: pip install 'nsqx[pipeline]'") from None


def _fastavro_schema(text: str) -> Any:
    fastavro = _fastavro()
    try:
        return fastavro.parse_schema(json.loads(text))
    except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
        raise ConfigError(f"the Avro schema cannot be used: {error!r}") from None
