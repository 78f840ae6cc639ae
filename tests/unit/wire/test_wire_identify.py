"""IDENTIFY bodies, decoded as Go's JSON decoder decodes them."""

import dataclasses
import json

import pytest

from nsqx.wire.gojson import InvalidJSON
from nsqx.wire.identify import IdentifyRequest, decode_identify

EVERYTHING = {
    "client_id": "c",
    "hostname": "h",
    "heartbeat_interval": 1000,
    "output_buffer_size": 64,
    "output_buffer_timeout": 25,
    "feature_negotiation": True,
    "tls_v1": True,
    "deflate": True,
    "deflate_level": 3,
    "snappy": True,
    "sample_rate": 7,
    "user_agent": "u",
    "msg_timeout": 2000,
    "topology_region": "r",
    "topology_zone": "z",
}
STRINGS = [key for key, value in EVERYTHING.items() if type(value) is str]
INTEGERS = [key for key, value in EVERYTHING.items() if type(value) is int]
BOOLEANS = [key for key, value in EVERYTHING.items() if type(value) is bool]


def changed_fields(body):
    """Return the fields that differ from an empty request."""
    request = decode_identify(body)
    return {
        field.name: getattr(request, field.name)
        for field in dataclasses.fields(request)
        if getattr(request, field.name) != field.default
    }


def test_every_field_is_decoded():
    assert changed_fields(json.dumps(EVERYTHING).encode()) == EVERYTHING


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{}", {}),
        (b"null", {}),
        (b" \t\r\n{ } \n", {}),
        (b'{"short_id":"a","long_id":[1,{"x":1.5}],"":{}}', {}),
        (b'{"client_id":"a","client_id":"b"}', {"client_id": "b"}),
        (b'{"client_id":"a","CLIENT_ID":"b"}', {"client_id": "b"}),
        (b'{"Client_Id":"a"}', {"client_id": "a"}),
        (b'{"HEARTBEAT_INTERVAL":-1}', {"heartbeat_interval": -1}),
        ('{"ho\u017ftname":"long s"}'.encode(), {"hostname": "long s"}),
        (b'{"client_id":"a","client_id":null}', {"client_id": "a"}),
        (b'{"msg_timeout":-0}', {}),
        (b'{"msg_timeout":9223372036854775807}', {"msg_timeout": 2**63 - 1}),
        (b'{"msg_timeout":-9223372036854775808}', {"msg_timeout": -(2**63)}),
        (b'{"sample_rate":2147483647}', {"sample_rate": 2**31 - 1}),
        (b'{"client_id":"\\u00e9\\n\\u0000"}', {"client_id": "\u00e9\n\x00"}),
        (b'{"client_id":"\\ud83d\\ude00"}', {"client_id": "\U0001f600"}),
        (b'{"client_id":"\\ud83d"}', {"client_id": "\ufffd"}),
        (b'{"client_id":"\xff"}', {"client_id": "\ufffd"}),
    ],
)
def test_bodies_that_go_accepts_are_accepted(body, expected):
    assert changed_fields(body) == expected


@pytest.mark.parametrize("key", EVERYTHING)
def test_null_is_ignored(key):
    assert decode_identify(b'{"%s":null}' % key.encode()) == IdentifyRequest()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b"{}x",
        b"{} {}",
        b"[]",
        b'"text"',
        b"1",
        b"true",
        b"{'client_id':'a'}",
        b'{"client_id":"a",}',
        b'{"client_id":"a" "hostname":"b"}',
        b'{"client_id":"a\nb"}',
        b'{"client_id":"a\\x"}',
        b'{client_id:"a"}',
        b'{"unknown":NaN}',
        b'{"unknown":Infinity}',
        b'{"unknown":-Infinity}',
        b'{"msg_timeout":01}',
        b'{"msg_timeout":+1}',
        b'{"msg_timeout":0x10}',
        b'{"msg_timeout":9223372036854775808}',
        b'{"msg_timeout":-9223372036854775809}',
        b'{"sample_rate":2147483648}',
        b'{"sample_rate":-2147483649}',
        b'{"sample_rate":"x","sample_rate":1}',
        b"\xef\xbb\xbf{}",
        b"[" * 20_000,
    ],
)
def test_bodies_that_go_refuses_are_refused(body):
    with pytest.raises(InvalidJSON):
        decode_identify(body)


@pytest.mark.parametrize("key", STRINGS)
@pytest.mark.parametrize("value", [b"1", b"true", b"{}", b"[]", b'["a"]', b"1.5"])
def test_string_fields_accept_only_strings(key, value):
    with pytest.raises(InvalidJSON):
        decode_identify(b'{"%s":%s}' % (key.encode(), value))


@pytest.mark.parametrize("key", INTEGERS)
@pytest.mark.parametrize("value", [b"1.0", b"1.5", b"1e3", b"1E3", b'"1"', b"true", b"false", b"[]", b"{}"])
def test_integer_fields_accept_no_fraction_no_exponent_and_no_other_type(key, value):
    with pytest.raises(InvalidJSON):
        decode_identify(b'{"%s":%s}' % (key.encode(), value))


@pytest.mark.parametrize("key", BOOLEANS)
@pytest.mark.parametrize("value", [b"0", b"1", b'"true"', b"[]", b"{}"])
def test_boolean_fields_accept_only_booleans(key, value):
    with pytest.raises(InvalidJSON):
        decode_identify(b'{"%s":%s}' % (key.encode(), value))
