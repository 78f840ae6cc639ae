"""Codecs: what they accept, what they return, and the reasons for what they refuse."""

import dataclasses
import subprocess
import sys
from datetime import date
from typing import Any, TypedDict

import pytest

from nsqx import ConfigError, InvalidBody, InvalidMessage
from nsqx.client.codecs import decoded, encoded
from nsqx.codecs import BYTES, JSON, TEXT, JSONCodec, MsgspecCodec, PydanticCodec, codec_of

msgspec = pytest.importorskip("msgspec", reason="msgspec missing: pip install msgspec")
pydantic = pytest.importorskip("pydantic", reason="pydantic missing: pip install pydantic")


class Struct(msgspec.Struct):
    id: int
    name: str = "none"


class Model(pydantic.BaseModel):
    id: int
    name: str = "none"


@dataclasses.dataclass
class Plain:
    id: int
    name: str = "none"


class Typed(TypedDict):
    id: int


ROUND_TRIPS = [
    (bytes, b"\xff"),
    (str, "Grüße"),
    (dict, {"id": 1}),
    (list, [1, None]),
    (Any, 3.5),
    (Struct, Struct(1, "Ada")),
    (Model, Model(id=1, name="Ada")),
    (Plain, Plain(1, "Ada")),
    (Typed, {"id": 1}),
    (list[Struct], [Struct(1), Struct(2)]),
    (int | None, None),
]


@pytest.mark.parametrize(("kind", "value"), ROUND_TRIPS)
def test_a_value_comes_back(kind, value):
    codec = codec_of(kind)
    body = codec.encode(value)
    assert isinstance(body, bytes)
    assert codec.decode(body) == value


@pytest.mark.parametrize("codec", [MsgspecCodec(Plain), MsgspecCodec(Plain, "msgpack"), PydanticCodec(Plain)])
def test_every_schema_codec_takes_dataclasses(codec):
    assert codec.decode(codec.encode(Plain(1, "Ada"))) == Plain(1, "Ada")


def test_the_forms_of_msgspec_are_different():
    assert MsgspecCodec(Struct).encode(Struct(1)) == b'{"id":1,"name":"none"}'
    assert MsgspecCodec(Struct, "msgpack").encode(Struct(1)) == msgspec.msgpack.encode(Struct(1))


def test_a_type_selects_its_codec():
    assert codec_of(bytes) is BYTES
    assert codec_of(str) is TEXT
    assert codec_of(Any) is JSON
    assert isinstance(codec_of(dict), JSONCodec)
    assert isinstance(codec_of(Struct), MsgspecCodec)
    assert isinstance(codec_of(Plain), MsgspecCodec)
    assert isinstance(codec_of(Model), PydanticCodec)
    assert codec_of(JSON) is JSON


@pytest.mark.parametrize(
    ("kind", "body", "reason"),
    [
        (str, b"a\xff", "the body is not UTF-8: invalid start byte at byte 1"),
        (Any, b"{", "the body is not JSON: "),
        (dict, b"[]", "the body is a JSON list, not a dict"),
        (list, b"{}", "the body is a JSON dict, not a list"),
        (Struct, b"{}", r"the body is not a valid Struct: Object missing required field `id`"),
        (Struct, b'{"id": "x"}', r"the body is not a valid Struct: Expected `int`, got `str` - at `\$.id`"),
        (Struct, b"{", "the body is not a valid Struct: "),
        (Struct, b'{"id": 1, "name": "\xff"}', "the body is not a valid Struct: "),
        (Model, b"{}", "the body is not a valid Model: id: Field required$"),
        (
            Model,
            b'{"id": "x", "name": 1}',
            "not a valid Model: id: Input should be .*; name: Input should be",
        ),
        (Model, b"{", "the body is not a valid Model: Invalid JSON: "),
        (list[Model], b"[" + b"{}," * 7 + b"{}]", "0.id: Field required; .*4.id: Field required and 3 more$"),
    ],
)
def test_an_invalid_body_has_a_reason_in_one_line(kind, body, reason):
    codec = PydanticCodec(kind) if kind == list[Model] else codec_of(kind)
    with pytest.raises(InvalidBody, match=reason) as caught:
        codec.decode(body)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        (bytes, "text", "the value must be bytes, not str"),
        (str, b"bytes", "the value must be str, not bytes"),
        (Any, object(), "the value cannot be encoded as JSON: "),
        (Struct, {"id": 1}, "the value must be Struct, not dict"),
        (Struct, Struct(object()), "the value cannot be encoded: "),
        (Model, Struct(1), "the value must be Model, not Struct"),
        (Model, Model.model_construct(id="x"), "the value cannot be encoded: "),
    ],
)
def test_an_invalid_value_has_a_reason(kind, value, reason):
    with pytest.raises(InvalidMessage, match=f"publish to t: {reason}"):
        encoded(codec_of(kind), "t", value)


def test_orjson_encodes_what_it_decodes_as_text():
    assert JSON.decode(JSON.encode({"day": date(2026, 11, 19)})) == {"day": "2026-11-19"}


class Broken:
    def encode(self, value):
        raise KeyError("sku")

    def decode(self, body):
        raise KeyError("sku")


def test_the_errors_of_other_codecs_are_wrapped():
    codec = codec_of(Broken())
    with pytest.raises(InvalidBody, match="the body cannot be decoded: KeyError: 'sku'"):
        decoded(codec, b"x")
    with pytest.raises(InvalidMessage, match="publish to t: the value cannot be encoded: 'sku'"):
        encoded(codec, "t", 1)


@pytest.mark.parametrize("wanted", [None, 3, "json"])
def test_what_is_neither_a_type_nor_a_codec_is_rejected(wanted):
    with pytest.raises(ConfigError, match="must be a type, or have the methods encode and decode"):
        codec_of(wanted)


@pytest.mark.parametrize("wanted", [JSONCodec, MsgspecCodec, Broken])
def test_a_class_of_codecs_is_rejected(wanted):
    with pytest.raises(ConfigError, match=rf"codec {wanted.__name__}: pass an object, such as {wanted.__name__}\("):
        codec_of(wanted)


def test_text_that_is_not_unicode_is_rejected():
    with pytest.raises(InvalidMessage, match="the text is not valid Unicode: surrogates not allowed at 1"):
        codec_of(str).encode("a\ud800")


def test_an_unknown_form_is_rejected():
    with pytest.raises(ConfigError, match="form 'xml': must be json or msgpack"):
        MsgspecCodec(Struct, "xml")


def test_without_the_packages_a_schema_is_rejected_and_json_works():
    program = """
import sys
sys.modules["msgspec"] = sys.modules["pydantic"] = None
from dataclasses import dataclass
from nsqx import ConfigError
from nsqx.codecs import MsgspecCodec, codec_of

@dataclass
class Order:
    id: int

assert codec_of(dict).decode(b'{}') == {}
for make in (codec_of, MsgspecCodec):
    try:
        make(Order)
    except ConfigError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "a codec for Order needs msgspec or pydantic: pip install 'nsqx[msgspec]'",
        "this codec needs the package msgspec: pip install 'nsqx[msgspec]'",
    ]
