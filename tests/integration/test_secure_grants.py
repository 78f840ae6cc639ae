"""Answers of auth servers, valid or not: how patterns match, and that no answer makes nsqd log a secret or hang."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from daemons import Fleet
from nsqx.errors import ProtocolError
from nsqx.log import INFO, Log
from nsqx.nsqd.auth import HTTPAuthorizer
from nsqx.nsqd.grants import Grants, InvalidGrants, decode_grants
from nsqx.nsqd.options import NsqdOptions
from rawclient import RawClient

SECRET = "open sesame & more"


def grants_of(**entry: Any) -> Grants:
    whole = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"], **entry}
    return decode_grants(json.dumps({"ttl": 60, "authorizations": [whole]}).encode())


# Patterns


def test_patterns_match_anywhere_unless_anchored() -> None:
    assert grants_of(topic="pay").allow("payroll", "")
    assert not grants_of(topic="^pay$").allow("payroll", "")
    assert grants_of(topic="^pay$").allow("pay", "")


def test_publishing_needs_a_channel_pattern_that_matches_the_empty_name() -> None:
    assert not grants_of(channels=["^ch$"]).allow("t", "")
    assert grants_of(channels=["^ch$"]).allow("t", "ch")
    assert grants_of(channels=["^ch$", "^$"]).allow("t", "")


def test_each_permission_is_separate() -> None:
    assert not grants_of(permissions=["publish"]).allow("t", "ch")
    assert not grants_of(permissions=["subscribe"]).allow("t", "")


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "(.*a){20}$"])
def test_catastrophic_patterns_run_in_linear_time(pattern: str) -> None:
    assert not grants_of(topic=f"^{pattern}").allow("a" * 63 + "b", "")


@pytest.mark.parametrize("pattern", ["(", r"(a)\1", "(?=a)", "((a{1000}){1000}){1000}", "[z-a]"])
def test_invalid_patterns_are_rejected(pattern: str) -> None:
    with pytest.raises(InvalidGrants, match="unable to compile topic"):
        grants_of(topic=pattern)
    with pytest.raises(InvalidGrants, match="unable to compile channel"):
        grants_of(channels=[pattern])


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]",
        b"null",
        b'"ttl"',
        b"{}",
        b'{"ttl":0}',
        b'{"ttl":-1}',
        b'{"ttl":true}',
        b'{"ttl":"60"}',
        b'{"ttl":60,"identity":7}',
        b'{"ttl":60,"authorizations":7}',
        b'{"ttl":60,"authorizations":[7]}',
        b'{"ttl":60,"authorizations":[{"permissions":["dance"]}]}',
        b'{"ttl":60,"authorizations":[{"topic":7}]}',
        b'{"ttl":60,"authorizations":[{"channels":[7]}]}',
        b'{"ttl":60,"authorizations":' + b"[" * 100_000,
    ],
)
def test_invalid_answers_are_rejected(answer: bytes) -> None:
    with pytest.raises(InvalidGrants):
        decode_grants(answer)


# Servers


def reply(connection: socket.socket, status: str, body: bytes) -> None:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)


def echo(connection: socket.socket, secret: str = SECRET) -> None:
    """Return the secret as a permission; nsqd logs that the permission is unknown."""
    permissions = [secret]
    reply(connection, "200 OK", json.dumps({"ttl": 60, "authorizations": [{"permissions": permissions}]}).encode())


BEHAVIOURS: dict[str, Callable[[socket.socket], object]] = {
    "says nothing": lambda connection: connection.recv(1),
    "hangs up": lambda connection: connection.close(),
    "stops halfway": lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"),
    "sends no HTTP": lambda connection: connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "answers 500": lambda connection: reply(connection, "500 Internal Server Error", SECRET.encode()),
    "redirects": lambda connection: reply(connection, f"302 Found\r\nLocation: /?{quote_plus(SECRET)}", b""),
    "echoes": echo,
    "echoes with another escaping": lambda connection: echo(connection, quote_plus(SECRET)),
    "echoes with a third escaping": lambda connection: echo(connection, quote(SECRET)),
    "never ends": lambda connection: [connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n"), flood(connection)],
}


def flood(connection: socket.socket) -> None:
    try:
        while True:
            connection.sendall(b" " * 65536)
    except OSError:
        pass


class Misbehaving:
    """An auth server that accepts one request after the other and answers each with ``behave``."""

    def __init__(self, behave: Callable[[socket.socket], object]) -> None:
        self._behave = behave
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(20)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(20)
                try:
                    connection.recv(65536)
                    self._behave(connection)
                except OSError:
                    pass


@pytest.fixture(params=BEHAVIOURS)
def misbehaving(request: pytest.FixtureRequest) -> Iterator[Misbehaving]:
    server = Misbehaving(BEHAVIOURS[request.param])
    yield server
    server.close()


@pytest.mark.parametrize("method", ["get", "post"])
def test_misbehaving_auth_servers_do_no_harm(fleet: Fleet, misbehaving: Misbehaving, method: str) -> None:
    nsqd = fleet.nsqd(
        "nsqx",
        f"--auth-http-address={misbehaving.address}",
        f"--auth-http-request-method={method}",
        "--http-client-request-timeout=500ms",
        "--log-level=debug",
    )
    with RawClient(nsqd.tcp_address) as client:
        assert client.auth(SECRET.encode()).data == b"E_AUTH_FAILED AUTH failed"
    assert nsqd.request("GET", "/ping").status == 200
    log = nsqd.wait_for_log(r"WARNING: PROTOCOL\(V2\): .* AUTH failed (.*)")[0] + nsqd.log
    assert not any(spelling in log for spelling in (SECRET, quote_plus(SECRET), "sesame"))
    assert "Traceback" not in log


# Clients that disconnect


class Asked:
    """An auth server in this event loop that holds back its answers."""

    def __init__(self) -> None:
        self.questions = asyncio.Queue[bytes]()
        self.may_answer = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.questions.put_nowait(await reader.readuntil(b"\r\n\r\n"))
        await self.may_answer.wait()
        entry = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}
        body = json.dumps({"ttl": 3600, "authorizations": [entry]}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        writer.close()


def fake_client() -> Any:
    return SimpleNamespace(id=7, remote_address="127.0.0.1:1", remote_host="127.0.0.1", tls=False, tls_common_name="")


@pytest.fixture
async def asked() -> AsyncIterator[tuple[Asked, HTTPAuthorizer]]:
    behaviour = Asked()
    server = await asyncio.start_server(behaviour, "127.0.0.1", 0)
    address = "{}:{}".format(*server.sockets[0].getsockname()[:2])
    authorizer = HTTPAuthorizer(NsqdOptions(auth_http_addresses=[address]), Log("", INFO), None)
    yield behaviour, authorizer
    await authorizer.close()
    server.close()


async def test_a_client_that_disconnects_before_the_answer_is_freed(asked: tuple[Asked, HTTPAuthorizer]) -> None:
    server, authorizer = asked
    client, answers = fake_client(), []
    authorizer.authenticate(client, SECRET.encode(), answers.append)
    await server.questions.get()
    authorizer.forget(client)
    server.may_answer.set()
    await authorizer.settled()
    assert answers == []
    with pytest.raises(ProtocolError, match="AUTH required"):
        authorizer.check(client, "PUB", "t", "")


async def test_the_grants_of_a_disconnected_subscriber_are_not_refreshed(asked: tuple[Asked, HTTPAuthorizer]) -> None:
    server, authorizer = asked
    server.may_answer.set()
    client, answers = fake_client(), []
    authorizer.authenticate(client, SECRET.encode(), answers.append)
    await authorizer.settled()
    assert b'"permission_count":1' in answers[0]
    authorizer.check(client, "SUB", "t", "ch")
    authorizer.watch(client, "t", "ch", answers.append)
    authorizer.forget(client)
    await authorizer.settled()  # although the grants are valid for an hour
    assert len(answers) == 1
