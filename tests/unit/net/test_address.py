"""Addresses are parsed and formatted like Go's net.SplitHostPort and net.JoinHostPort."""

import pytest

from nsqx.errors import ConfigError
from nsqx.net import address
from nsqx.net.address import TCPAddress, UnixAddress, format_host_port, parse_address, parse_listen_address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:4150", "127.0.0.1", 4150),
        (":4150", "", 4150),
        ("localhost:0", "localhost", 0),
        ("[::1]:4150", "::1", 4150),
        ("[::1%lo0]:80", "::1%lo0", 80),
        ("[::]:0", "::", 0),
        ("[host]:1", "host", 1),
        ("[]:1", "", 1),
        ("host:", "host", 0),
        (":", "", 0),
        ("[::1]:", "::1", 0),
        ("host:65535", "host", 65535),
        ("host:+80", "host", 80),
        ("host:080", "host", 80),
        ("host:-0", "host", 0),
    ],
)
def test_host_and_port_are_parsed(text, host, port):
    assert parse_address(text) == TCPAddress(host, port)


@pytest.mark.parametrize(
    "text",
    [
        "/var/run/nsqd.sock",
        "nsqd.sock",
        "localhost",
        "1:2:3",
        "::1:80",
        "[::1]",
        "[::1]80",
        "[::1]:80:90",
        "a[b]:1",
        "[a]b:1",
        "a]:1",
        "[a:1",
        "[[::1]]:1",
    ],
)
def test_any_other_text_is_a_socket_path(text):
    parsed = parse_address(text)
    assert parsed == UnixAddress(text)
    assert parsed.socket_name == text


def test_an_at_sign_starts_an_abstract_socket_name():
    assert UnixAddress("@nsqd").socket_name == "\0nsqd"


def test_a_service_name_is_a_port(monkeypatch):
    asked = []

    def getservbyname(name, protocol):
        asked.append((name, protocol))
        return 80

    monkeypatch.setattr(address.socket, "getservbyname", getservbyname)
    assert parse_address("host:HTTP") == TCPAddress("host", 80)
    assert asked == [("http", "tcp")]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("host:65536", 'address "host:65536": invalid port 65536'),
        ("host:-1", 'address "host:-1": invalid port -1'),
        ("host:no-such-service", 'address "host:no-such-service": unknown port no-such-service'),
        ("host:0x50", 'address "host:0x50": unknown port 0x50'),
        ("host:8_0", 'address "host:8_0": unknown port 8_0'),
        ("host:\u0663", 'address "host:\u0663": unknown port \u0663'),
        ("host:" + "9" * 5000, None),
        ("host:a\0b", None),
        ("host:\udc80", None),
        ("", 'address "": neither host:port nor the path of a unix socket'),
        ("a\0b", 'address "a\\x00b": neither host:port nor the path of a unix socket'),
    ],
)
def test_an_invalid_address_is_an_error_of_one_line(text, error):
    with pytest.raises(ConfigError) as caught:
        parse_address(text)
    assert "\n" not in str(caught.value)
    assert error is None or str(caught.value) == error


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("127.0.0.1", "127.0.0.1:80"),
        ("::1", "[::1]:80"),
        ("", ":80"),
        ("fe80::1%eth0", "[fe80::1%eth0]:80"),
        ("host", "host:80"),
        ("a%b", "a%b:80"),
    ],
)
def test_an_ipv6_host_is_bracketed(host, text):
    assert format_host_port(host, 80) == text
    assert str(TCPAddress(host, 80)) == text


def test_a_unix_address_shows_its_path():
    assert str(UnixAddress("/run/nsqd.sock")) == "/run/nsqd.sock"


def test_an_empty_listen_address_leaves_the_name_to_the_system():
    assert parse_listen_address("") == UnixAddress("")
