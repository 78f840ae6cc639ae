"""Requests that pages of other sites make browsers send are rejected: forged ones and rebound names. Others pass."""

import json
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from daemons import Daemon, Fleet, program_command

EVIL = "http://evil.example"
CROSS_SITE = [
    pytest.param({"Origin": EVIL, "Sec-Fetch-Site": "cross-site"}, id="cross-site"),
    pytest.param({"Origin": "http://127.0.0.1:3000", "Sec-Fetch-Site": "same-site"}, id="same-site"),
    pytest.param({"Sec-Fetch-Site": "cross-site"}, id="no-origin"),
    pytest.param({"Origin": EVIL}, id="old-browser"),
    pytest.param({"Origin": "null"}, id="sandboxed-frame"),
    pytest.param({"Origin": "http://127.0.0.1:1"}, id="other-port"),
]
PROGRAMS = [
    pytest.param({}, id="curl"),
    pytest.param({"User-Agent": "Prometheus/2.53.0", "Accept": "text/plain"}, id="prometheus"),
    pytest.param({"Sec-Fetch-Site": "none"}, id="address-bar"),
]
NSQD_CHANGES = [
    "/topic/create?topic=t",
    "/topic/delete?topic=kept",
    "/topic/empty?topic=kept",
    "/topic/pause?topic=kept",
    "/channel/create?topic=kept&channel=c",
    "/pub?topic=t",
    "/mpub?topic=t",
    "/debug/freememory",
]
LOOKUPD_CHANGES = [
    "/topic/create?topic=t",
    "/topic/delete?topic=kept",
    "/topic/tombstone?topic=kept&node=127.0.0.1:4151",
    "/channel/create?topic=t&channel=c",
]


@pytest.fixture(scope="module")
def fleet_of_module():
    fleet = Fleet()
    yield fleet
    fleet.close()


@pytest.fixture(scope="module")
def nsqd(fleet_of_module: Fleet) -> Daemon:
    daemon = fleet_of_module.nsqd("nsqx", "--broadcast-address=broker.example")
    daemon.post("/topic/create", topic="kept")
    return daemon


@pytest.fixture(scope="module")
def nsqlookupd(fleet_of_module: Fleet) -> Daemon:
    daemon = fleet_of_module.nsqlookupd("nsqx", "--broadcast-address=directory.example")
    daemon.post("/topic/create", topic="kept")
    return daemon


@pytest.fixture(scope="module")
def nsqadmin(fleet_of_module: Fleet, nsqd: Daemon) -> Daemon:
    return fleet_of_module.nsqadmin("nsqx", f"--nsqd-http-address={nsqd.http_address}")


def refusal(daemon: Daemon, method: str, target: str, headers: Mapping[str, str]) -> str:
    """Return the message of a 403."""
    answer = daemon.request(method, target, b"body" if method != "GET" else None, headers)
    assert answer.status == 403, answer
    return answer.json()["message"]


@pytest.mark.parametrize("headers", CROSS_SITE)
def test_nsqd_rejects_changes_from_pages_of_other_sites(nsqd: Daemon, headers: dict[str, str]) -> None:
    for target in NSQD_CHANGES:
        assert "--http-browser-checks=false" in refusal(nsqd, "POST", target, headers), target
    assert "--http-browser-checks=false" in refusal(nsqd, "PUT", "/config/log_level", headers)
    assert [topic["topic_name"] for topic in nsqd.stats()["topics"]] == ["kept"]
    assert nsqd.topic_stats("kept")["paused"] is False


@pytest.mark.parametrize("headers", CROSS_SITE)
def test_nsqlookupd_rejects_changes_from_pages_of_other_sites(nsqlookupd: Daemon, headers: dict[str, str]) -> None:
    for target in LOOKUPD_CHANGES:
        assert "--http-browser-checks=false" in refusal(nsqlookupd, "POST", target, headers), target
    assert nsqlookupd.request("GET", "/topics").json() == {"topics": ["kept"]}


@pytest.mark.parametrize("headers", PROGRAMS)
def test_requests_of_programs_and_of_the_address_bar_pass(
    nsqd: Daemon, nsqlookupd: Daemon, headers: dict[str, str]
) -> None:
    for daemon in (nsqd, nsqlookupd):
        assert daemon.request("POST", "/topic/create?topic=kept", b"", headers).status == 200
        assert daemon.request("GET", "/metrics", None, headers).status == 200


def test_a_page_of_the_daemon_itself_passes(nsqd: Daemon) -> None:
    origin = f"http://{nsqd.http_address}"
    for headers in ({"Origin": origin}, {"Origin": origin, "Sec-Fetch-Site": "same-origin"}):
        assert nsqd.request("POST", "/topic/create?topic=kept", b"", headers).status == 200


def test_links_of_other_sites_may_lead_to_read_routes(nsqd: Daemon) -> None:
    for target in ("/stats", "/ping", "/info"):
        assert nsqd.request("GET", target, None, {"Sec-Fetch-Site": "cross-site"}).status == 200, target


def test_a_flag_restores_the_behaviour_of_go(fleet: Fleet) -> None:
    headers = {"Origin": EVIL, "Sec-Fetch-Site": "cross-site", "Host": "evil.example"}
    for daemon in (
        fleet.nsqd("nsqx", "--http-browser-checks=false"),
        fleet.nsqlookupd("nsqx", "--http-browser-checks=false"),
    ):
        assert daemon.request("POST", "/topic/create?topic=t", b"", headers).status == 200


# A name that resolves to loopback: for the browser the page and the daemon have the same origin.


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:4151", "localhost.evil.example", "127.0.0.1.evil.example"]
)
def test_a_loopback_listener_rejects_other_names(nsqd: Daemon, nsqlookupd: Daemon, nsqadmin: Daemon, host: str) -> None:
    same_origin = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
    for daemon, method, target in (
        (nsqd, "GET", "/stats"),
        (nsqd, "POST", "/topic/delete?topic=kept"),
        (nsqlookupd, "GET", "/nodes"),
        (nsqlookupd, "POST", "/topic/delete?topic=kept"),
        (nsqadmin, "GET", "/"),
        (nsqadmin, "GET", "/api/topics"),
        (nsqadmin, "DELETE", "/api/topics/kept"),
    ):
        assert "--allowed-host" in refusal(daemon, method, target, same_origin), (target, host)
    assert nsqd.topic_stats("kept") is not None


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:80", "localhost.:4151", "127.0.0.1", "127.8.9.10:99", "[::1]:4151"]
)
def test_a_loopback_listener_accepts_its_own_names(
    nsqd: Daemon, nsqlookupd: Daemon, nsqadmin: Daemon, host: str
) -> None:
    for daemon in (nsqd, nsqlookupd, nsqadmin):
        assert daemon.request("GET", "/ping", None, {"Host": host}).status == 200


def test_a_daemon_accepts_its_broadcast_address(nsqd: Daemon, nsqlookupd: Daemon) -> None:
    assert nsqd.request("GET", "/stats", None, {"Host": "broker.example:4151"}).status == 200
    assert nsqlookupd.request("GET", "/nodes", None, {"Host": "directory.example:4161"}).status == 200


def test_a_flag_allows_the_names_of_a_proxy(fleet: Fleet, nsqd: Daemon) -> None:
    flags = ("--allowed-host=Queue.Example", "--allowed-host=spare.example")
    origin = ("--allowed-origin=https://origin.example",)
    for daemon, hosts in (
        (fleet.nsqd("nsqx", *flags), ("queue.example", "spare.example:81")),
        (fleet.nsqlookupd("nsqx", *flags), ("queue.example", "spare.example:81")),
        (
            fleet.nsqadmin("nsqx", f"--nsqd-http-address={nsqd.http_address}", *flags, *origin),
            ("queue.example", "spare.example:81", "origin.example"),
        ),
    ):
        for host in hosts:
            assert daemon.request("GET", "/ping", None, {"Host": host}).status == 200, host
        refusal(daemon, "GET", "/ping", {"Host": "evil.example"})


def test_a_star_allows_every_name(fleet: Fleet, nsqd: Daemon) -> None:
    admin = fleet.nsqadmin("nsqx", f"--nsqd-http-address={nsqd.http_address}", "--allowed-host=*")
    assert admin.request("GET", "/ping", None, {"Host": "any.example"}).status == 200


def test_other_listeners_check_names_only_with_the_flag(fleet: Fleet) -> None:
    open_to_all = fleet.nsqd("nsqx", "--http-address=0.0.0.0:0")
    named = fleet.nsqd("nsqx", "--http-address=0.0.0.0:0", "--allowed-host=queue.example")
    assert open_to_all.request("GET", "/stats", None, {"Host": "any.example"}).status == 200
    refusal(named, "GET", "/stats", {"Host": "any.example"})
    for host in ("queue.example", "127.0.0.1", "192.0.2.7:4151"):
        assert named.request("GET", "/stats", None, {"Host": host}).status == 200, host


def test_a_request_without_a_host_passes(nsqd: Daemon) -> None:
    with socket.create_connection(("127.0.0.1", nsqd.http_port), timeout=20) as client:
        client.sendall(b"GET /ping HTTP/1.0\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.0 200")


@pytest.mark.parametrize("program", ["nsqd", "nsqlookupd", "nsqadmin"])
def test_an_invalid_allowed_host_is_an_error(program: str, tmp_path: Path) -> None:
    flags = {"nsqd": [f"--data-path={tmp_path}"], "nsqlookupd": [], "nsqadmin": ["--nsqd-http-address=127.0.0.1:1"]}
    command = [*program_command("nsqx", program), *flags[program], "--allowed-host=http://queue.example/"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert ended.returncode == 1
    assert "--allowed-host (http://queue.example/)" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_rejection_is_json_and_logged(nsqd: Daemon) -> None:
    answer = nsqd.request("POST", "/topic/create?topic=logged", b"", {"Origin": EVIL})
    assert json.loads(answer.body)["message"].startswith("CROSS_ORIGIN")
    nsqd.wait_for_log(r"403 POST /topic/create\?topic=logged")
