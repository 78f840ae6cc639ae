"""Wrong tokens and secrets are limited per address. A correct token or secret continues to work."""

import http.client
import re
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from daemons import Daemon, Fleet, program_command
from rawclient import RawClient, auth

TOKEN = "right-token-0123456789"
MANY = 40
RIGHTS = """
ttl = 60

[[token]]
secret = "letmein"

[[token.authorization]]
topic = ".*"
channels = [".*"]
permissions = ["subscribe", "publish"]
"""


def connect(daemon: Daemon, source: str = "127.0.0.1") -> "closing[http.client.HTTPConnection]":
    connection = http.client.HTTPConnection("127.0.0.1", daemon.http_port, timeout=20, source_address=(source, 0))
    return closing(connection)


def status(
    connection: http.client.HTTPConnection, method: str, target: str, token: str | None, body: bytes = b""
) -> tuple[int, str | None]:
    """Send a request. Return the status and the Retry-After header."""
    connection.request(method, target, body, {} if token is None else {"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    answer.read()
    return answer.status, answer.getheader("Retry-After")


@pytest.fixture
def secured_daemon(request: pytest.FixtureRequest, fleet: Fleet, tmp_path: Path) -> tuple[Daemon, str, str]:
    """A daemon that requires a token, and the method and path of a request that needs the token."""
    (tmp_path / "token").write_text(TOKEN)
    if request.param == "nsqadmin":
        flags = ["--nsqd-http-address=127.0.0.1:1", f"--auth-token-file={tmp_path / 'token'}", "--poll-interval=0"]
        return fleet.nsqadmin("nsqx", *flags), "GET", "/api/activity"
    flag = f"--http-admin-token-file={tmp_path / 'token'}"
    return getattr(fleet, request.param)("nsqx", flag), "POST", "/topic/create?topic=t"


@pytest.mark.parametrize("secured_daemon", ["nsqd", "nsqlookupd", "nsqadmin"], indirect=True)
def test_wrong_tokens_are_limited_for_each_address(secured_daemon: tuple[Daemon, str, str]) -> None:
    daemon, *request_line = secured_daemon
    with connect(daemon) as connection, connect(daemon, "127.0.0.2") as elsewhere:
        assert status(connection, *request_line, TOKEN) == (200, None)
        answers = [status(connection, *request_line, f"wrong-token-{number:010d}") for number in range(MANY)]
        assert answers[:5] == [(401, None)] * 5
        assert (429, "1") in answers
        assert status(connection, *request_line, TOKEN) == (200, None), (
            "a token that was accepted before is still accepted"
        )
        assert status(connection, *request_line, None)[0] == 401, "a request without a token is not limited"
        assert status(elsewhere, *request_line, TOKEN) == (200, None), "another address is not limited"
        assert status(connection, "GET", "/ping", None) == (200, None)


def test_no_token_is_checked_while_the_address_is_limited(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    nsqd = fleet.nsqd("nsqx", f"--http-read-token-file={tmp_path / 'token'}")
    tokens = [*(f"wrong-{number}" for number in range(MANY)), TOKEN]
    requests = "".join(
        f"GET /info HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {each}\r\n\r\n" for each in tokens
    )
    with socket.create_connection(("127.0.0.1", nsqd.http_port), timeout=20) as client:
        client.sendall(requests.encode())
        answered = b""
        while answered.count(b"HTTP/1.1 ") < len(tokens):
            answered += client.recv(65536)
    # All requests arrive at once, so the address is still limited when the correct token is reached.
    assert re.findall(rb"HTTP/1\.1 (\d+)", answered)[-1] == b"429"


def test_logins_on_nsqadmins_page_are_limited(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    flags = ["--nsqd-http-address=127.0.0.1:1", f"--auth-token-file={tmp_path / 'token'}", "--poll-interval=0"]
    admin = fleet.nsqadmin("nsqx", *flags)
    with connect(admin) as connection:
        answers = [status(connection, "POST", "/api/login", None, b'{"token":"guess"}')[0] for _ in range(MANY)]
        assert set(answers) == {401, 429}
        # The limit applies per X-Forwarded-For address if a proxy on this machine forwards the requests.
        connection.request("POST", "/api/login", b'{"token":"%b"}' % TOKEN.encode(), {"X-Forwarded-For": "192.0.2.7"})
        assert connection.getresponse().status == 200
    assert "guess" not in admin.log


@pytest.fixture
def auth_server(tmp_path: Path) -> Iterator[Daemon]:
    (tmp_path / "rights.toml").write_text(RIGHTS)
    command = [
        *program_command("nsqx", "auth-server"),
        f"--config={tmp_path}/rights.toml",
        "--http-address=127.0.0.1:0",
    ]
    with Daemon(command, listeners=("HTTP",)) as daemon:
        yield daemon


def log_in(nsqd: Daemon, secret: bytes) -> bytes:
    with RawClient(nsqd.tcp_address) as client:
        client.send(auth(secret))
        return client.read_frame().data


def test_wrong_secrets_are_limited_for_each_address(fleet: Fleet, auth_server: Daemon) -> None:
    nsqd = fleet.nsqd("nsqx", f"--auth-http-address={auth_server.http_address}")
    assert b"permission_count" in log_in(nsqd, b"letmein")
    answers = [log_in(nsqd, b"guess%d" % number) for number in range(MANY)]
    assert answers[:5] == [b"E_AUTH_FAILED AUTH failed"] * 5
    assert b"E_AUTH_FAILED AUTH failed, too many wrong secrets from this address" in answers
    assert b"permission_count" in log_in(nsqd, b"letmein"), "a secret that was accepted before is still accepted"
    assert "guess" not in nsqd.log


def test_concurrent_wrong_secrets_are_limited(fleet: Fleet, auth_server: Daemon) -> None:
    nsqd = fleet.nsqd("nsqx", f"--auth-http-address={auth_server.http_address}")
    log_in(nsqd, b"guess")
    clients = [RawClient(nsqd.tcp_address) for _ in range(3 * MANY)]
    for number, client in enumerate(clients):
        client.send(auth(b"guess%d" % number))
    answers = [client.read_frame().data for client in clients]
    for client in clients:
        client.close()
    assert sum(b"too many" in answer for answer in answers) > MANY
