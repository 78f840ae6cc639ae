"""Options of producers and consumers have go-nsq's names, defaults and ranges."""

import ssl
from dataclasses import fields
from datetime import timedelta

import pytest

from nsqx.client.handshake import check_address, identify_fields
from nsqx.client.options import OptionKeywords, Options, read_option_flags, seconds_of
from nsqx.errors import ConfigError
from nsqx.version import VERSION

DEFAULTS = {
    "local_addr": "",
    "lookupd_authorization": True,
    "dial_timeout": 1,
    "read_timeout": 60,
    "write_timeout": 1,
    "lookupd_poll_interval": 60,
    "lookupd_poll_jitter": 0.3,
    "lookupd_poll_timeout": 60,
    "max_requeue_delay": 900,
    "default_requeue_delay": 90,
    "backoff_strategy": "exponential",
    "max_backoff_duration": 120,
    "backoff_multiplier": 1,
    "max_attempts": 5,
    "low_rdy_idle_timeout": 10,
    "low_rdy_timeout": 30,
    "rdy_redistribute_interval": 5,
    "user_agent": f"nsqx/{VERSION}",
    "topology_region": "",
    "topology_zone": "",
    "heartbeat_interval": 30,
    "sample_rate": 0,
    "tls_v1": False,
    "tls_root_ca_file": "",
    "tls_insecure_skip_verify": False,
    "tls_cert": "",
    "tls_key": "",
    "tls_min_version": "",
    "tls_context": None,
    "deflate": False,
    "deflate_level": 6,
    "snappy": False,
    "output_buffer_size": 16384,
    "output_buffer_timeout": 0.25,
    "max_in_flight": 1,
    "msg_timeout": 0,
    "max_msg_size": 0,
    "auth_secret": "",
    "nsqd_http_token_file": "",
    "lookupd_http_token_file": "",
}


def test_the_defaults_are_those_of_go_nsq():
    options = Options.of({"hostname": "host.example"})
    assert {name: getattr(options, name) for name in DEFAULTS} == DEFAULTS
    assert (options.client_id, options.hostname) == ("host", "host.example")
    assert {each.name for each in fields(Options)} == {*DEFAULTS, "client_id", "hostname"}


def test_every_option_is_a_keyword():
    assert set(OptionKeywords.__annotations__) == {each.name for each in fields(Options)}


@pytest.mark.parametrize("value", [90, 90.0, "90s", "1m30s", "90000ms", timedelta(seconds=90)])
def test_a_duration_is_converted_to_seconds(value):
    assert Options.of({"max_requeue_delay": value}).max_requeue_delay == 90.0


@pytest.mark.parametrize("name", ["heartbeat_interval", "output_buffer_size", "output_buffer_timeout"])
def test_minus_one_turns_an_option_off(name):
    options = Options.of({name: -1})
    assert getattr(options, name) == -1
    assert identify_fields(options)[name] == -1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"nope": 1}, "invalid option nope"),
        ({"max_inflight": 1}, "invalid option max_inflight: did you mean max_in_flight?"),
        ({"nsqd_tcp_address": "a:1"}, "invalid option nsqd_tcp_address: did you mean nsqd_tcp_addresses?"),
        ({"read_timeout": "5m1s"}, "option read_timeout: 5m1s is out of range, must be 100ms to 5m0s"),
        ({"write_timeout": 0.05}, "option write_timeout: 50ms is out of range, must be 100ms to 5m0s"),
        ({"dial_timeout": -1}, "option dial_timeout: -1s is out of range, must be at least 0s"),
        ({"max_attempts": -1}, "option max_attempts: -1 is out of range, must be at least 0"),
        (
            {"local_addr": "192.0.2.1"},
            "option local_addr: '192.0.2.1' has no port: use host:port, such as 192.0.2.1:0",
        ),
        ({"local_addr": "192.0.2.1:x"}, 'option local_addr: address "192.0.2.1:x": unknown port x'),
        ({"max_attempts": "5"}, "option max_attempts: must be an integer, not '5'"),
        ({"max_in_flight": True}, "option max_in_flight: must be an integer, not True"),
        ({"max_in_flight": -1}, "option max_in_flight: -1 is out of range, must be at least 0"),
        ({"lookupd_poll_jitter": 1.5}, "option lookupd_poll_jitter: 1.5 is out of range, must be 0.0 to 1.0"),
        ({"tls_v1": 1}, "option tls_v1: must be True or False, not 1"),
        ({"client_id": 5}, "option client_id: must be a string, not 5"),
        ({"backoff_strategy": "no"}, "option backoff_strategy: 'no' is not one of exponential, full_jitter"),
        ({"msg_timeout": "soon"}, "option msg_timeout: 'soon' is not a duration such as 250ms or 1m30s"),
        ({"msg_timeout": None}, "option msg_timeout: must be seconds or a duration such as 250ms, not None"),
        ({"msg_timeout": float("nan")}, "option msg_timeout: must be seconds or a duration such as 250ms, not nan"),
        ({"deflate": True, "snappy": True}, "options deflate and snappy: nsqd allows only one compression at a time"),
        ({"tls_cert": "x"}, "options tls_cert and tls_key: both are required"),
        ({"tls_root_ca_file": "/no/such"}, "option tls_root_ca_file: file /no/such does not exist"),
        ({"tls_context": 1}, "option tls_context: must be an ssl.SSLContext, not 1"),
        (
            {"heartbeat_interval": "61s"},
            "option heartbeat_interval: 1m1s must not exceed read_timeout 1m0s, or idle connections would be closed",
        ),
    ],
)
def test_an_error_names_the_invalid_option(options, text):
    with pytest.raises(ConfigError) as caught:
        Options.of(options)
    assert str(caught.value) == text


def test_options_are_read_from_flags():
    flags = ["max_in_flight,5", "read-timeout,2m", "heartbeat_interval,1500", "tls_v1", "snappy,false", "client_id,a,b"]
    assert read_option_flags(flags) == {
        "max_in_flight": 5,
        "read_timeout": 120.0,
        "heartbeat_interval": 1.5,
        "tls_v1": True,
        "snappy": False,
        "client_id": "a,b",
    }


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("nope,1", "invalid option nope"),
        ("max_in_flight,many", "option max_in_flight: 'many' is not a number"),
        ("max_in_flight", "option max_in_flight: 'true' is not a number"),
        ("lookupd_poll_jitter,x", "option lookupd_poll_jitter: 'x' is not a number"),
        ("tls_v1,perhaps", "option tls_v1: 'perhaps' is neither true nor false"),
        ("deflate_level,10", "option deflate_level: 10 is out of range, must be 1 to 9"),
        ("msg_timeout,1x", "option msg_timeout: '1x' is not a duration such as 250ms or 1m30s"),
    ],
)
def test_an_invalid_flag_is_rejected(flag, text):
    with pytest.raises(ConfigError) as caught:
        read_option_flags([flag])
    assert str(caught.value) == text


def test_identify_contains_the_options():
    given = {
        "client_id": "me",
        "hostname": "host",
        "user_agent": "agent/1",
        "heartbeat_interval": "5s",
        "output_buffer_size": 100,
        "output_buffer_timeout": "30ms",
        "snappy": True,
        "sample_rate": 20,
        "msg_timeout": "90s",
        "topology_region": "r",
        "topology_zone": "z",
    }
    assert identify_fields(Options.of(given)) == {
        "client_id": "me",
        "hostname": "host",
        "user_agent": "agent/1",
        "feature_negotiation": True,
        "heartbeat_interval": 5000,
        "output_buffer_size": 100,
        "output_buffer_timeout": 30,
        "tls_v1": False,
        "snappy": True,
        "deflate": False,
        "deflate_level": 6,
        "sample_rate": 20,
        "msg_timeout": 90_000,
        "topology_region": "r",
        "topology_zone": "z",
    }


def test_a_tls_context_can_be_passed():
    context = ssl.create_default_context()
    assert Options.of({"tls_context": context}).tls_context is context


@pytest.mark.parametrize("address", ["127.0.0.1:4150", "[::1]:4150", "host:4150", "/tmp/nsqd.sock", "@nsqd"])
def test_a_valid_address_is_accepted(address):
    assert check_address(address) == address


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("127.0.0.1", "address '127.0.0.1': the port is missing; nsqd's default TCP port is 4150"),
        ("127.0.0.1:", "address '127.0.0.1:': the port is missing; nsqd's default TCP port is 4150"),
        ("http://host:4151", "address 'http://host:4151': use host:port without http://"),
        ("host:99999", 'address "host:99999": invalid port 99999'),
        (4150, "address 4150: must be a string such as 127.0.0.1:4150"),
    ],
)
def test_an_invalid_address_is_rejected(address, text):
    with pytest.raises(ConfigError) as caught:
        check_address(address)
    assert str(caught.value) == text


def test_an_error_names_the_duration_argument():
    assert seconds_of("delay", "10ms") == 0.01
    with pytest.raises(ConfigError, match="option delay: 'x' is not a duration"):
        seconds_of("delay", "x")


def test_values_of_go_nsq_are_accepted():
    found = read_option_flags(
        ["max_attempts,70000", "heartbeat_interval,0s", "local_addr,127.0.0.1:0", "skip_lookupd_authorization,false"]
    )
    assert found == {
        "max_attempts": 65535,
        "heartbeat_interval": 0.0,
        "local_addr": "127.0.0.1:0",
        "lookupd_authorization": False,
    }
    # As in go-nsq, the value means the opposite of the name.
    assert read_option_flags(["skip_lookupd_authorization"]) == {"lookupd_authorization": True}
