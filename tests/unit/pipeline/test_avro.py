"""Avro schemas are converted to Spark schemas, and Avro messages to records."""

import io
import json
import pickle

import pytest

fastavro = pytest.importorskip("fastavro", reason="fastavro is not installed: pip install 'nsqx[pipeline]'")

from nsqx.errors import ConfigError  # noqa: E402
from nsqx.pipeline.avro import avro_reader, spark_schema_json  # noqa: E402


def record(*fields):
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields]}


def types_of(*fields):
    schema = spark_schema_json(json.dumps(record(*fields)))
    return {field["name"]: field["type"] for field in schema["fields"]}


def test_avro_types_are_converted_to_spark_types():
    assert types_of(
        ("a", "int"),
        ("b", ["null", "long"]),
        ("c", {"type": "long", "logicalType": "timestamp-micros"}),
        ("d", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
        ("e", {"type": "enum", "name": "E", "symbols": ["X"]}),
        ("f", "E"),
        ("g", {"type": "array", "items": "double"}),
        ("h", {"type": "map", "values": ["null", "string"]}),
        ("i", ["int", "double"]),
        ("j", {"type": "string", "logicalType": "uuid"}),
    ) == {
        "a": "integer",
        "b": "long",
        "c": "timestamp",
        "d": "decimal(9,2)",
        "e": "string",
        "f": "string",
        "g": {"type": "array", "elementType": "double", "containsNull": True},
        "h": {"type": "map", "keyType": "string", "valueType": "string", "valueContainsNull": True},
        "i": "double",
        "j": "string",
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "is not valid JSON"),
        ('"int"', "must be a record"),
        (json.dumps(record(("a", ["int", "string"]))), "has no Spark type"),
        (json.dumps(record(("a", "Unknown"))), "cannot be used"),
        (json.dumps(record(("a", ["null", "R"]))), "recursive"),
    ],
)
def test_invalid_schemas_are_rejected(text, expected):
    with pytest.raises(ConfigError, match=expected):
        spark_schema_json(text)


SCHEMA = record(("a", "int"), ("b", "string"))


def packed(**values):
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, SCHEMA, values)
    return stream.getvalue()


def test_records_are_read_with_every_framing():
    text = json.dumps(SCHEMA)
    body = packed(a=1, b="x")
    canonical = fastavro.schema.to_parsing_canonical_form(fastavro.parse_schema(SCHEMA))
    fingerprint = bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))
    for framing, header in (
        ("none", b""),
        ("single-object", b"\xc3\x01" + fingerprint),
        ("confluent", b"\0\0\0\0\x07"),
    ):
        read = pickle.loads(pickle.dumps(avro_reader(text, framing)))
        assert read(header + body) == {"a": 1, "b": "x"}


@pytest.mark.parametrize(
    ("framing", "value", "expected"),
    [
        ("none", b"\x02", None),
        ("none", packed(a=1, b="x") + b"rest", "4 bytes are left after the record"),
        ("single-object", packed(a=1, b="x"), "marker bytes of the single-object encoding are missing"),
        ("single-object", b"\xc3\x01" + b"\0" * 8 + packed(a=1, b="x"), "another schema"),
        ("confluent", b"\x01" + packed(a=1, b="x"), "the zero byte and the schema number at the start are missing"),
    ],
)
def test_invalid_records_are_rejected(framing, value, expected):
    with pytest.raises(Exception, match=expected):
        avro_reader(json.dumps(SCHEMA), framing)(value)
