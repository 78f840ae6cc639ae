"""IDENTIFY: requested settings that are granted or refused."""

import json

import pytest
from conversation import SessionClient

from broker_bench import MS
from nsqx.version import VERSION
from rawclient import ERROR, OK, RESPONSE, Frame, identify, sized, sub


def answer(talk, **fields):
    (frame,) = talk.send(identify(feature_negotiation=True, **fields))
    assert frame.type == RESPONSE, frame
    return json.loads(frame.data)


def test_the_answer_byte_for_byte(talk):
    (frame,) = talk.send(identify(feature_negotiation=True))
    assert frame.data == (
        b'{"max_rdy_count":2500,"version":"1.3.0","max_msg_timeout":900000,"msg_timeout":60000,"tls_v1":false,'
        b'"deflate":false,"deflate_level":6,"max_deflate_level":6,"snappy":false,"sample_rate":0,"auth_required":false,'
        b'"output_buffer_size":16384,"output_buffer_timeout":250,"topology_region":"","topology_zone":"","nsqx_version":"%s"}'
        % VERSION.encode()
    )


@pytest.mark.parametrize("body", [b"{}", b"null", b'{"feature_negotiation":false}', b'{"feature_negotiation":null}'])
def test_without_negotiation_the_answer_is_ok(talk, body):
    assert talk.send(b"IDENTIFY\n" + sized(body)) == [OK]


def test_the_identity_of_the_client_is_stored(talk):
    assert (talk.client.client_id, talk.client.hostname) == ("127.0.0.1", "127.0.0.1")
    talk.send(identify(client_id="me", hostname="here", user_agent="test/1", topology_zone="z", topology_region="r"))
    client = talk.client
    assert (client.client_id, client.hostname, client.user_agent) == ("me", "here", "test/1")
    assert (client.topology_zone, client.topology_region) == ("z", "r")


def test_an_empty_identity_overwrites_the_address(talk):
    talk.send(identify())
    assert (talk.client.client_id, talk.client.hostname) == ("", "")


@pytest.mark.parametrize(
    ("field", "value", "key", "granted"),
    [
        ("msg_timeout", 0, "msg_timeout", 60_000),
        ("msg_timeout", 1000, "msg_timeout", 1000),
        ("msg_timeout", 900_000, "msg_timeout", 900_000),
        ("sample_rate", 0, "sample_rate", 0),
        ("sample_rate", 99, "sample_rate", 99),
        ("output_buffer_size", 0, "output_buffer_size", 16384),
        ("output_buffer_size", 64, "output_buffer_size", 64),
        ("output_buffer_size", 65536, "output_buffer_size", 65536),
        ("output_buffer_size", -1, "output_buffer_size", 1),
        ("output_buffer_size", -1, "output_buffer_timeout", 0),
        ("output_buffer_timeout", 0, "output_buffer_timeout", 250),
        ("output_buffer_timeout", 25, "output_buffer_timeout", 25),
        ("output_buffer_timeout", 30_000, "output_buffer_timeout", 30_000),
        ("output_buffer_timeout", -1, "output_buffer_timeout", 0),
        ("deflate_level", 3, "deflate_level", 6),
    ],
)
def test_valid_settings_are_granted(talk, field, value, key, granted):
    assert answer(talk, **{field: value})[key] == granted


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("heartbeat_interval", 999, "heartbeat interval (999) is invalid"),
        ("heartbeat_interval", 60_001, "heartbeat interval (60001) is invalid"),
        ("heartbeat_interval", -2, "heartbeat interval (-2) is invalid"),
        ("output_buffer_timeout", 24, "output buffer timeout (24) is invalid"),
        ("output_buffer_timeout", 30_001, "output buffer timeout (30001) is invalid"),
        ("output_buffer_timeout", -2, "output buffer timeout (-2) is invalid"),
        ("output_buffer_size", 63, "output buffer size (63) is invalid"),
        ("output_buffer_size", 65_537, "output buffer size (65537) is invalid"),
        ("output_buffer_size", -2, "output buffer size (-2) is invalid"),
        ("sample_rate", 100, "sample rate (100) is invalid"),
        ("sample_rate", -1, "sample rate (-1) is invalid"),
        ("msg_timeout", 999, "msg timeout (999) is invalid"),
        ("msg_timeout", 900_001, "msg timeout (900001) is invalid"),
        ("msg_timeout", -1, "msg timeout (-1) is invalid"),
    ],
)
@pytest.mark.parametrize("feature_negotiation", [False, True])
def test_invalid_settings_are_refused(talk, field, value, text, feature_negotiation):
    sent = identify(feature_negotiation=feature_negotiation, **{field: value})
    assert talk.send(sent) == [Frame(ERROR, f"E_BAD_BODY IDENTIFY {text}".encode())]
    assert talk.is_closed


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"client_id":1}', b'{"msg_timeout":1e3}', b'{"msg_timeout":1000.0}', b'{"snappy":1}', b"x"]
)
def test_invalid_bodies_are_refused(talk, body):
    assert talk.send(b"IDENTIFY\n" + sized(body)) == [
        Frame(ERROR, b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
    ]
    assert talk.is_closed


@pytest.mark.parametrize(
    ("asked_ms", "interval_ns"), [(0, 30_000 * MS), (-1, 0), (1000, 1000 * MS), (60_000, 60_000 * MS)]
)
def test_heartbeat_intervals(talk, asked_ms, interval_ns):
    talk.send(identify(heartbeat_interval=asked_ms))
    assert talk.client.heartbeat_interval_ns == interval_ns


def test_the_limits_come_from_the_options(make_bench):
    bench = make_bench(
        max_heartbeat_interval=2000 * MS,
        max_msg_timeout=3000 * MS,
        msg_timeout=1500 * MS,
        max_output_buffer_size=100,
        min_output_buffer_timeout=1 * MS,
        max_output_buffer_timeout=7 * MS,
        output_buffer_timeout=5 * MS,
        max_rdy_count=9,
        max_deflate_level=2,
        topology_region="r",
        topology_zone="z",
    )
    granted = answer(SessionClient(bench))
    assert (granted["max_msg_timeout"], granted["msg_timeout"], granted["max_rdy_count"]) == (3000, 1500, 9)
    assert (granted["output_buffer_timeout"], granted["deflate_level"], granted["max_deflate_level"]) == (5, 2, 2)
    assert (granted["topology_region"], granted["topology_zone"]) == ("r", "z")
    for field, value in (
        ("heartbeat_interval", 2001),
        ("msg_timeout", 3001),
        ("output_buffer_size", 101),
        ("output_buffer_timeout", 8),
    ):
        (frame,) = SessionClient(bench).send(identify(**{field: value}))
        assert (frame.type, b"(%d) is invalid" % value in frame.data) == (ERROR, True)
        (frame,) = SessionClient(bench).send(identify(**{field: value - 1}))
        assert frame == OK


def test_identify_can_be_repeated_before_sub(talk):
    assert talk.send(identify(client_id="one")) == [OK]
    assert answer(talk, client_id="two", msg_timeout=5000)["msg_timeout"] == 5000
    assert talk.client.client_id == "two"
    assert talk.send(sub("t", "c")) == [OK]


def test_requesting_an_unavailable_feature_is_not_an_error(talk):
    offered = talk.bench.broker.upgrades
    offered.tls = offered.snappy = offered.deflate = False
    granted = answer(talk, tls_v1=True, snappy=True, deflate=True, deflate_level=9)
    assert [granted[key] for key in ("tls_v1", "snappy", "deflate", "deflate_level")] == [False, False, False, 6]


def test_two_compressions_at_once_are_refused(talk):
    offered = talk.bench.broker.upgrades
    offered.snappy = offered.deflate = True
    assert talk.send(identify(feature_negotiation=True, snappy=True, deflate=True)) == [
        Frame(ERROR, b"E_IDENTIFY_FAILED cannot enable both deflate and snappy compression"),
    ]
    assert talk.is_closed


def test_without_negotiation_nothing_is_upgraded_and_nothing_refused(talk):
    offered = talk.bench.broker.upgrades
    offered.snappy = offered.deflate = True
    assert talk.send(identify(snappy=True, deflate=True)) == [OK]
    assert (talk.client.snappy, talk.client.deflate) == (False, False)
