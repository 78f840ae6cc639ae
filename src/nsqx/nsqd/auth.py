"""AUTH with auth servers: queries them over HTTP and caches their grants until the grants expire.

Secrets are never logged. When the grants of a subscriber expire, the auth server is queried again. The subscriber is
disconnected if it has lost the right to subscribe or the secret is no longer valid. If no server answers, the
subscriber stays connected and the query is repeated soon. Until then its commands are refused, as in Go nsqd.
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
    from nsqx.nsqd.authorizer import AuthCallback, RefusalCallback, RevokedCallback
    from nsqx.nsqd.client import Client
    from nsqx.nsqd.options import NsqdOptions

_MAX_ANSWER_SIZE = 4 * 1024 * 1024
_RETRY_S = 5.0
_MAX_SUSPECT_QUERIES = 10
_REFUSALS = (401, 403)
_FAILED = ("E_AUTH_FAILED", "AUTH failed")


class NoAnswer(NSQError):
    """No auth server returned a usable answer. The text is for the log and contains no secret."""


class SecretRefused(NoAnswer):
    """An auth server rejected the secret."""


@dataclass(slots=True)
class CachedGrants:
    """The secret of a client, the rights granted for it, and when the grant expires."""

    secret: str
    grants: Grants
    expires_at_s: float


class _QueryLimit:
    """Limits the concurrent queries for one client address; ``users`` counts the clients that use this object."""

    __slots__ = ("semaphore", "users")

    def __init__(self) -> None:
        self.semaphore = asyncio.Semaphore(_MAX_SUSPECT_QUERIES)
        self.users = 0


class HTTPAuthorizer:
    """Queries the auth servers one after the other, starting with a random one."""

    is_enabled = True

    def __init__(self, options: NsqdOptions, log: Log, ssl_context: ssl.SSLContext | None) -> None:
        self._options = options
        self._log = log
        self._ssl_context = ssl_context
        self._loop = asyncio.get_running_loop()
        # Keyed by client id: connected clients that have sent AUTH, their grants, and the tasks that renew them.
        self._connected: set[int] = set()
        self._cached_grants: dict[int, CachedGrants] = {}
        self._watches: dict[int, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._login_limit = LoginLimit()
        self._query_limits: dict[str, _QueryLimit] = {}

    # For sessions

    def authenticate(self, client: Client, secret: bytes, done: AuthCallback) -> None:
        """Query the auth servers for the rights that ``secret`` grants."""
        self._connected.add(client.id)
        self._start(self._authenticate(client, secret.decode("utf-8", "replace"), done))

    async def _authenticate(self, client: Client, secret: str, done: AuthCallback) -> None:
        if self._login_limit.suspects(client.remote_host, secret.encode()):
            # Otherwise many concurrent guesses would pass the limit before the first one is known to be wrong.
            async with self._limited_queries(client.remote_host):
                await self._authenticate_now(client, secret, done)
        else:
            await self._authenticate_now(client, secret, done)

    @asynccontextmanager
    async def _limited_queries(self, address: str) -> AsyncIterator[None]:
        """Limit the number of concurrent queries for the clients of one address."""
        limit = self._query_limits.setdefault(address, _QueryLimit())
        limit.users += 1
        try:
            async with limit.semaphore:
                yield
        finally:
            limit.users -= 1
            if not limit.users:
                del self._query_limits[address]

    async def _authenticate_now(self, client: Client, secret: str, done: AuthCallback) -> None:
        address, encoded = client.remote_host, secret.encode()
        if client.id not in self._connected:
            return
        if not self._login_limit.allows(address, encoded, self._loop.time()):
            self._log.warn("PROTOCOL(V2): [%s] AUTH refused, too many wrong secrets", client.remote_address)
            done(ProtocolError("E_AUTH_FAILED", "AUTH failed, too many wrong secrets from this address"))
            return
        try:
            cached = await self._query_any(client, secret)
        except NoAnswer as error:
            if isinstance(error, SecretRefused):
                self._login_limit.wrong(address, self._loop.time())
            self._log.warn("PROTOCOL(V2): [%s] AUTH failed %s", client.remote_address, error)
            done(ProtocolError(*_FAILED))
            return
        if client.id not in self._connected:
            return
        grants = cached.grants
        if not grants.entries:
            self._login_limit.wrong(address, self._loop.time())
            done(ProtocolError("E_UNAUTHORIZED", "AUTH no authorizations found"))
            return
        self._login_limit.right(address, encoded)
        self._cached_grants[client.id] = cached
        client.authed = True
        client.auth_identity, client.auth_identity_url = grants.identity, grants.identity_url
        answer = {
            "identity": grants.identity,
            "identity_url": grants.identity_url,
            "permission_count": len(grants.entries),
        }
        done(orjson.dumps(answer))

    def is_current(self, client: Client) -> bool:
        """True if the grants have not expired, or if the client has none (``check`` refuses it then)."""
        cached = self._cached_grants.get(client.id)
        return cached is None or self._loop.time() < cached.expires_at_s

    def refresh(self, client: Client, done: RefusalCallback) -> None:
        """Query the auth servers again with the same secret."""
        self._start(self._refresh(client, done))

    async def _refresh(self, client: Client, done: RefusalCallback) -> None:
        try:
            cached = await self._query_any(client, self._cached_grants[client.id].secret)
        except NoAnswer as error:
            self._log.warn("PROTOCOL(V2): [%s] AUTH failed %s", client.remote_address, error)
            done(ProtocolError(*_FAILED))
            return
        if client.id in self._connected:
            self._cached_grants[client.id] = cached
            done(None)

    def check(self, client: Client, command: str, topic_name: str, channel_name: str) -> None:
        """Decide from the cached grants."""
        cached = self._cached_grants.get(client.id)
        if cached is None or not cached.grants.entries:
            raise ProtocolError("E_AUTH_FIRST", f"AUTH required before {command}")
        if not cached.grants.allow(topic_name, channel_name):
            raise _unauthorized(command, topic_name, channel_name)

    def watch(self, client: Client, topic_name: str, channel_name: str, revoked: RevokedCallback) -> None:
        """Query again each time the grants expire, until the client disconnects."""
        self._watches[client.id] = self._start(self._watch(client, topic_name, channel_name, revoked))

    async def _watch(self, client: Client, topic_name: str, channel_name: str, revoked: RevokedCallback) -> None:
        while True:
            cached = self._cached_grants[client.id]
            await asyncio.sleep(max(0.0, cached.expires_at_s - self._loop.time()))
            if not self.is_current(client):
                try:
                    self._cached_grants[client.id] = await self._query_any(client, cached.secret)
                except SecretRefused as error:
                    self._log.warn("[%s] the right to SUB was withdrawn - %s", client.remote_address, error)
                    revoked(ProtocolError(*_FAILED))
                    return
                except NoAnswer as error:
                    self._log.warn("[%s] the right to SUB cannot be confirmed - %s", client.remote_address, error)
                    await asyncio.sleep(_RETRY_S)
                    continue
            if not self._cached_grants[client.id].grants.allow(topic_name, channel_name):
                revoked(_unauthorized("SUB", topic_name, channel_name))
                return

    def forget(self, client: Client) -> None:
        """Forget a client that has disconnected."""
        self._connected.discard(client.id)
        self._cached_grants.pop(client.id, None)
        watch = self._watches.pop(client.id, None)
        if watch is not None:
            watch.cancel()

    async def close(self) -> None:
        """Cancel all open queries."""
        for task in self._tasks:
            task.cancel()
        await self.settled()

    async def settled(self) -> None:
        """Wait until no query is open and no subscriber is watched."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Queries to auth servers

    async def _query_any(self, client: Client, secret: str) -> CachedGrants:
        servers = self._options.auth_http_addresses
        start = random.randrange(len(servers))
        failures = []
        failure: type[NoAnswer] = NoAnswer
        for server in servers[start:] + servers[:start]:
            try:
                grants = await self._query(server, client, secret)
            except (http_client.HTTPRequestFailed, InvalidGrants, NoAnswer) as error:
                if isinstance(error, SecretRefused):
                    failure = SecretRefused
                failures.append(f"failed to auth against {server} - {_redacted(secret, str(error))}")
                continue
            return CachedGrants(secret, grants, self._loop.time() + grants.ttl_s)
        raise failure("; ".join(failures))

    async def _query(self, server: str, client: Client, secret: str) -> Grants:
        parameters = {
            "common_name": client.tls_common_name,
            "remote_ip": client.remote_host,
            "secret": secret,
            "tls": "true" if client.tls else "false",
        }
        url = server if "://" in server else f"http://{server}/auth"
        headers = {"Accept": NSQ_MEDIA_TYPE}
        method, body = "GET", b""
        if self._options.auth_http_request_method == "post":
            method, body = "POST", orjson.dumps({key: [value] for key, value in parameters.items()})
            headers["Content-Type"] = "application/json"
        else:
            url = f"{url}?{urlencode(parameters)}"
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


def _redacted(secret: str, text: str) -> str:
    """Remove the secret from ``text`` for the log: an error can contain the query or the server's reply to it."""
    for spelling in (secret, quote_plus(secret), percent_encoded(secret)):
        text = text.replace(spelling, "***")
    return text


def _unauthorized(command: str, topic_name: str, channel_name: str) -> ProtocolError:
    return ProtocolError("E_UNAUTHORIZED", f"AUTH failed for {command} on {quote(topic_name)} {quote(channel_name)}")
