"""Failed HTTPS handshakes are logged and answered with an alert; successful ones carry any request."""

import http.client
import re
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from certificates import Authority
from daemons import IMPLEMENTATIONS, Daemon, Fleet

ALERT = b"\x15\x03"
HANDSHAKE_ERROR = r"WARNING: http: TLS handshake error from 127\.0\.0\.1:\d+: "


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(params=IMPLEMENTATIONS)
def nsqd(request: pytest.FixtureRequest, fleet: Fleet, authority: Authority) -> Daemon:
    server = authority.sign("server")
    return fleet.nsqd(request.param, f"--tls-cert={server.cert}", f"--tls-key={server.key}")


def https_address(daemon: Daemon) -> tuple[str, int]:
    return "127.0.0.1", int(daemon.addresses["HTTPS"].rpartition(":")[2])


def exchange(daemon: Daemon, data: bytes) -> bytes:
    """Send ``data`` and return everything received until the connection is closed."""
    with socket.create_connection(https_address(daemon), timeout=10) as connection:
        connection.sendall(data)
        received = b""
        while piece := connection.recv(65536):
            received += piece
        return received


def ask(connection: http.client.HTTPSConnection, path: str) -> bytes:
    connection.request("GET", path)
    return connection.getresponse().read()


def test_invalid_tls_is_answered_with_an_alert(nsqd: Daemon) -> None:
    # A handshake record whose content is not a ClientHello.
    assert exchange(nsqd, b"\x16\x03\x01\x00\x10" + b"x" * 16).startswith(ALERT)
    nsqd.wait_for_log(HANDSHAKE_ERROR + r"\S")


def test_an_unencrypted_request_is_answered_with_400(nsqd: Daemon) -> None:
    answer = exchange(nsqd, b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert answer == b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
    nsqd.wait_for_log(HANDSHAKE_ERROR + "client sent an HTTP request to an HTTPS server")


def test_a_disconnection_during_the_handshake_is_logged(nsqd: Daemon) -> None:
    with socket.create_connection(https_address(nsqd), timeout=10):
        pass
    nsqd.wait_for_log(HANDSHAKE_ERROR + "EOF")


def test_a_client_that_rejects_the_certificate_is_logged(nsqd: Daemon) -> None:
    connection = http.client.HTTPSConnection(*https_address(nsqd), timeout=10, context=ssl.create_default_context())
    with pytest.raises(ssl.SSLCertVerificationError):
        connection.request("GET", "/ping")
    nsqd.wait_for_log(HANDSHAKE_ERROR + r"\S")


def test_a_client_without_a_required_certificate_gets_an_alert(fleet: Fleet, authority: Authority) -> None:
    server = authority.sign("server")
    nsqd = fleet.nsqd(
        "nsqx",
        f"--tls-cert={server.cert}",
        f"--tls-key={server.key}",
        f"--tls-root-ca-file={authority.cert}",
        "--tls-client-auth-policy=require-verify",
    )
    context = ssl.create_default_context(cafile=authority.cert)
    connection = http.client.HTTPSConnection(*https_address(nsqd), timeout=10, context=context)
    with pytest.raises(ssl.SSLError, match="(?i)alert certificate required"):
        ask(connection, "/ping")
    connection.close()
    nsqd.wait_for_log(HANDSHAKE_ERROR + "TLS: peer did not return a certificate")


@pytest.fixture
def connect(nsqd: Daemon, authority: Authority) -> Callable[[], http.client.HTTPSConnection]:
    context = ssl.create_default_context(cafile=authority.cert)
    return lambda: http.client.HTTPSConnection(*https_address(nsqd), timeout=20, context=context)


def test_several_requests_use_one_connection(connect: Callable[[], http.client.HTTPSConnection], topic: str) -> None:
    connection = connect()
    bodies = [b"x" * size for size in (1, 20_000, 1_000_000)]
    for body in bodies:
        connection.request("POST", f"/pub?topic={topic}", body)
        assert connection.getresponse().read() == b"OK"
    batch = b"\n".join([b"y" * 100] * 40_000)
    connection.request("POST", f"/mpub?topic={topic}", batch)
    assert connection.getresponse().read() == b"OK"
    connection.request("GET", f"/stats?format=json&topic={topic}")
    assert re.search(rb'"message_count":\s*40003', connection.getresponse().read())
    connection.close()


def test_the_server_sends_close_notify(nsqd: Daemon, authority: Authority) -> None:
    context = ssl.create_default_context(cafile=authority.cert)
    with socket.create_connection(https_address(nsqd), timeout=10) as plain:
        connection = context.wrap_socket(plain, server_hostname="localhost", suppress_ragged_eofs=False)
        connection.sendall(b"GET /ping HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        received = b""
        while piece := connection.recv(65536):  # raises if the connection ends without close_notify
            received += piece
        assert received.endswith(b"OK")
        connection.close()


def test_close_notify_is_answered_with_close_notify(nsqd: Daemon, authority: Authority) -> None:
    context = ssl.create_default_context(cafile=authority.cert)
    with socket.create_connection(https_address(nsqd), timeout=10) as plain:
        connection = context.wrap_socket(plain, server_hostname="localhost")
        connection.sendall(b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(65536)
        connection.unwrap().close()


def test_silent_clients_do_not_delay_the_exit(fleet: Fleet, authority: Authority, tmp_path: Path) -> None:
    server = authority.sign("server")
    nsqd = fleet.nsqd("nsqx", f"--tls-cert={server.cert}", f"--tls-key={server.key}", data_path=tmp_path)
    with socket.create_connection(https_address(nsqd), timeout=10) as silent:
        silent.sendall(b"\x16\x03")
        assert nsqd.stop(timeout_s=5) == 0
