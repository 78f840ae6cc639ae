"""AUTH by auth servers: asks them over HTTP and keeps what they grant until it is out of date.

Secrets are never logged. A subscriber's right is asked for again whenever its grants run out: if it is gone, or the
secret is not known any more, so is the subscriber. If no server has an answer then, the subscriber stays and the
question is put again soon; commands of clients whose grants have run out are refused meanwhile, as in Go nsqd.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote as percent_encoded
from urllib.parse import quote_plus, urlencode

import orjson

from nsqx.errors import NSQError, ProtocolError
from nsqx.gotext import quote
from nsqx.net import http_client
from nsqx.net.login_limit import LoginLimit
from nsqx.nsqd.grants import Grants, InvalidGrants, decode_grants
from nsqx.units import NS_PER_S
from nsqx.wire.http_headers import NSQ_MEDIA_TYPE

if TYPE_CHECKING:
    from nsqx.log import Log
    from nsqx.nsqd.authorizer import Authenticated, Refused
    from nsqx.nsqd.client import Client
    from nsqx.nsqd.options import NsqdOptions

_MAX_ANSWER_SIZE = 4 * 1024 * 1024
_ASK_AGAIN_S = 5.0
_MAX_QUESTIONS_OF_SUSPECT = 10
_REFUSALS = (401, 403)
_FAILED = ("E_AUTH_FAILED", "AUTH failed")


class NoAnswer(NSQError):
    """No auth server gave a usable answer; the text, which names no secret, is for the log."""


class SecretRefused(NoAnswer):
    """A server answered that it grants nothing for this secret."""


@dataclass(slots=True)
class Standing:
    """A client's secret, what it was granted, and until when that holds."""

    secret: str
    grants: Grants
    expires_at_s: float


class _QueryTurns:
    """How many questions for one address may be open, and how many clients want one."""

    __slots__ = ("free", "users")

    def __init__(self) -> None:
        self.free = asyncio.Semaphore(_MAX_QUESTIONS_OF_SUSPECT)
        self.users = 0


class HTTPAuthorizer:
    """Asks auth servers in turn, from a random one on."""

    is_enabled = True

    def __init__(self, options: NsqdOptions, log: Log, ssl_context: ssl.SSLContext | None) -> None:
        self._options = options
        self._log = log
        self._ssl_context = ssl_context
        self._loop = asyncio.get_running_loop()
        # By client id: who has said a secret and is still there, what is known of them, who watches over them.
        self._present: set[int] = set()
        self._standings: dict[int, Standing] = {}
        self._watches: dict[int, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._limit = LoginLimit()
        self._turns: dict[str, _QueryTurns] = {}

    # What sessions ask

    def authenticate(self, client: Client, secret: bytes, done: Authenticated) -> None:
        """Ask what the bearer of ``secret`` may do."""
        self._present.add(client.id)
        self._start(self._authenticate(client, secret.decode("utf-8", "replace"), done))

    async def _authenticate(self, client: Client, secret: str, done: Authenticated) -> None:
        if self._limit.suspects(client.remote_host, secret.encode()):
            # Guesses made at the same time would all be let through before the first turns out wrong.
            async with self._turn_of(client.remote_host):
                await self._authenticate_at_once(client, secret, done)
        else:
            await self._authenticate_at_once(client, secret, done)

    @asynccontextmanager
    async def _turn_of(self, address: str) -> AsyncIterator[None]:
        """Let few questions for the clients of one address be open at a time."""
        turns = self._turns.setdefault(address, _QueryTurns())
        turns.users += 1
        try:
            async with turns.free:
                yield
        finally:
            turns.users -= 1
            if not turns.users:
                del self._turns[address]

    async def _authenticate_at_once(self, client: Client, secret: str, done: Authenticated) -> None:
        address, encoded = client.remote_host, secret.encode()
        if client.id not in self._present:
            return
        if not self._limit.allows(address, encoded, self._loop.time()):
            self._log.warn("PROTOCOL(V2): [%s] AUTH refused, too many wrong secrets", client.remote_address)
            done(ProtocolError("E_AUTH_FAILED", "AUTH failed, too many wrong secrets from this address"))
            return
        try:
            standing = await self._ask_any(client, secret)
        except NoAnswer as error:
            if isinstance(error, SecretRefused):
                self._limit.wrong(address, self._loop.time())
            self._log.warn("PROTOCOL(V2): [%s] AUTH failed %s", client.remote_address, error)
            done(ProtocolError(*_FAILED))
            return
        if client.id not in self._present:
            return
        grants = standing.grants
        if not grants.entries:
            self._limit.wrong(address, self._loop.time())
            done(ProtocolError("E_UNAUTHORIZED", "AUTH no authorizations found"))
            return
        self._limit.right(address, encoded)
        self._standings[client.id] = standing
        client.authed = True
        client.auth_identity, client.auth_identity_url = grants.identity, grants.identity_url
        answer = {
            "identity": grants.identity,
            "identity_url": grants.identity_url,
            "permission_count": len(grants.entries),
        }
        done(orjson.dumps(answer))

    def is_current(self, client: Client) -> bool:
        """True if it is not known at all, which ``check`` refuses, or known recently enough."""
        standing = self._standings.get(client.id)
        return standing is None or self._loop.time() < standing.expires_at_s

    def refresh(self, client: Client, done: Refused) -> None:
        """Ask again with the same secret."""
        self._start(self._refresh(client, done))

    async def _refresh(self, client: Client, done: Refused) -> None:
        try:
            standing = await self._ask_any(client, self._standings[client.id].secret)
        except NoAnswer as error:
            self._log.warn("PROTOCOL(V2): [%s] AUTH failed %s", client.remote_address, error)
            done(ProtocolError(*_FAILED))
            return
        if client.id in self._present:
            self._standings[client.id] = standing
            done(None)

    def check(self, client: Client, command: str, topic_name: str, channel_name: str) -> None:
        """Decide by what was granted."""
        standing = self._standings.get(client.id)
        if standing is None or not standing.grants.entries:
            raise ProtocolError("E_AUTH_FIRST", f"AUTH required before {command}")
        if not standing.grants.allow(topic_name, channel_name):
            raise _unauthorized(command, topic_name, channel_name)

    def watch(self, client: Client, topic_name: str, channel_name: str, revoked: Refused) -> None:
        """Ask again whenever the grants run out, for as long as the client is there."""
        self._watches[client.id] = self._start(self._watch(client, topic_name, channel_name, revoked))

    async def _watch(self, client: Client, topic_name: str, channel_name: str, revoked: Refused) -> None:
        while True:
            standing = self._standings[client.id]
            await asyncio.sleep(max(0.0, standing.expires_at_s - self._loop.time()))
            if not self.is_current(client):
                try:
                    self._standings[client.id] = await self._ask_any(client, standing.secret)
                except SecretRefused as error:
                    self._log.warn("[%s] its right to SUB is gone - %s", client.remote_address, error)
                    revoked(ProtocolError(*_FAILED))
                    return
                except NoAnswer as error:
                    self._log.warn("[%s] its right to SUB cannot be confirmed - %s", client.remote_address, error)
                    await asyncio.sleep(_ASK_AGAIN_S)
                    continue
            if not self._standings[client.id].grants.allow(topic_name, channel_name):
                revoked(_unauthorized("SUB", topic_name, channel_name))
                return

    def forget(self, client: Client) -> None:
        """The client is gone."""
        self._present.discard(client.id)
        self._standings.pop(client.id, None)
        watch = self._watches.pop(client.id, None)
        if watch is not None:
            watch.cancel()

    async def close(self) -> None:
        """Drop every question that is still open."""
        for task in self._tasks:
            task.cancel()
        await self.settled()

    async def settled(self) -> None:
        """Wait until no question is open and nobody is watched over."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # What auth servers are asked

    async def _ask_any(self, client: Client, secret: str) -> Standing:
        servers = self._options.auth_http_addresses
        start = random.randrange(len(servers))
        failures = []
        failure: type[NoAnswer] = NoAnswer
        for server in servers[start:] + servers[:start]:
            try:
                grants = await self._ask(server, client, secret)
            except (http_client.HTTPRequestFailed, InvalidGrants, NoAnswer) as error:
                if isinstance(error, SecretRefused):
                    failure = SecretRefused
                failures.append(f"failed to auth against {server} - {_without(secret, str(error))}")
                continue
            return Standing(secret, grants, self._loop.time() + grants.ttl_s)
        raise failure("; ".join(failures))

    async def _ask(self, server: str, client: Client, secret: str) -> Grants:
        question = {
            "common_name": client.tls_common_name,
            "remote_ip": client.remote_host,
            "secret": secret,
            "tls": "true" if client.tls else "false",
        }
        url = server if "://" in server else f"http://{server}/auth"
        headers = {"Accept": NSQ_MEDIA_TYPE}
        method, body = "GET", b""
        if self._options.auth_http_request_method == "post":
            method, body = "POST", orjson.dumps({key: [value] for key, value in question.items()})
            headers["Content-Type"] = "application/json"
        else:
            url = f"{url}?{urlencode(question)}"
        try:
            answer = await http_client.request(
                method,
                url,
                body=body,
                headers=headers,
                connect_timeout_s=self._options.http_client_connect_timeout / NS_PER_S,
                request_timeout_s=self._options.http_client_request_timeout / NS_PER_S,
                ssl_context=self._ssl_context,
                max_body_size=_MAX_ANSWER_SIZE,
            )
        except http_client.HTTPRequestFailed as error:
            raise NoAnswer(str(error).replace(url, server)) from None
        if answer.status in _REFUSALS:
            raise SecretRefused(f"got response {answer.status}")
        if answer.status != 200:
            raise NoAnswer(f"got response {answer.status}")
        return decode_grants(answer.body)


def _without(secret: str, text: str) -> str:
    """``text`` for the log: it may hold what was asked, or what the server made of it."""
    for spelling in (secret, quote_plus(secret), percent_encoded(secret)):
        text = text.replace(spelling, "***")
    return text


def _unauthorized(command: str, topic_name: str, channel_name: str) -> ProtocolError:
    return ProtocolError("E_UNAUTHORIZED", f"AUTH failed for {command} on {quote(topic_name)} {quote(channel_name)}")
