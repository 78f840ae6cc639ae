"""Every daemon answers paths with unusual escapes, and never with an internal error."""

import http.client
from collections.abc import Iterator
from contextlib import closing

import pytest

from daemons import Daemon, Fleet

UNUSUAL = [
    *(f"%{byte:02x}" for byte in (*range(0x21), 0x7F, 0x80, 0xC3, 0xFF)),
    "%c0%af",  # an overlong encoding of a slash
    "%ed%a0%80",  # half of a surrogate pair
    "%ef%bf%bf",
    "%f4%90%80%80",  # above the last code point
    "%2e",
    "%2e%2e",
    "..%2f..%2f..%2fetc%2fpasswd",
    "%2fetc%2fpasswd",
    "index.html%00.js",
    "%00%00",
    "%25",
    "%5c",
    "a%0d%0aSet-Cookie:%20x=1",
    "n" * 5000,
    "%e6%9d%8e" * 200,
]
ADMIN_ROUTES = [
    "/static/{}",
    "/fonts/{}",
    "/assets/{}",
    "/topics/{}",
    "/nodes/{}",
    "/api/topics/{}",
    "/api/topics/t/{}",
    "/api/nodes/{}",
    "/api/history/topics/{}",
    "/api/history/topics/t/{}",
    "/config/{}",
    "/{}",
]
NSQD_ROUTES = ["/config/{}", "/{}", "/stats?topic={}", "/stats?format=json&channel={}", "/debug/pprof/{}"]
LOOKUPD_ROUTES = ["/{}", "/lookup?topic={}", "/channels?topic={}", "/debug{}"]


@pytest.fixture(scope="module")
def daemons() -> Iterator[dict[str, Daemon]]:
    fleet = Fleet()
    nsqd = fleet.nsqd("nsqx", "--enable-debug-endpoints")
    yield {
        "nsqd": nsqd,
        "nsqlookupd": fleet.nsqlookupd("nsqx"),
        "nsqadmin": fleet.nsqadmin("nsqx", f"--nsqd-http-address={nsqd.http_address}"),
    }
    fleet.close()


@pytest.mark.parametrize(
    ("name", "route"),
    [("nsqadmin", route) for route in ADMIN_ROUTES]
    + [("nsqd", route) for route in NSQD_ROUTES]
    + [("nsqlookupd", route) for route in LOOKUPD_ROUTES],
)
def test_unusual_escapes_get_no_internal_error(daemons: dict[str, Daemon], name: str, route: str) -> None:
    daemon = daemons[name]
    with closing(http.client.HTTPConnection(daemon.http_address, timeout=20)) as connection:
        for escape in UNUSUAL:
            connection.request("GET", route.format(escape))
            answer = connection.getresponse()
            body = answer.read()
            assert answer.status < 500 or answer.status == 502, (escape, answer.status, body)
            assert b"root:" not in body
            assert answer.getheader("Set-Cookie") is None
    assert "panic" not in daemon.log
    assert "Traceback" not in daemon.log


def test_a_zero_byte_in_the_name_of_an_asset_is_not_found(daemons: dict[str, Daemon]) -> None:
    for route in ("/static/%00", "/assets/%00", "/fonts/a%00b"):
        assert daemons["nsqadmin"].request("GET", route).status == 404
