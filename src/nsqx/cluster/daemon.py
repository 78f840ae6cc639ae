"""The requests that nsqd and nsqlookupd have in common: a client for the HTTP API of one daemon."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from nsqx.cluster.http import decode
from nsqx.errors import RequestFailed

if TYPE_CHECKING:
    from nsqx.cluster.http import HTTPSession


Query = Mapping[str, str | list[str]]


class Change(NamedTuple):
    """A change of a topic, or of one of its channels if ``channel`` is given."""

    action: str
    """create, delete, pause, unpause or empty; at nsqlookupd create, delete or tombstone."""
    topic: str
    channel: str = ""
    node: str = ""
    """For tombstone: the HTTP address of the nsqd whose topic is hidden from consumers."""


class DaemonClient:
    """Asks one daemon. Its address is host:port or an http(s) URL. Every method raises RequestFailed."""

    kind: ClassVar[str]

    def __init__(self, http: HTTPSession, address: str) -> None:
        self.address = address
        self._http = http

    def __str__(self) -> str:
        return f"{self.kind} {self.address}"

    @classmethod
    def at(cls, http: HTTPSession, addresses: Iterable[str]) -> list[Self]:
        """Return a client for each address."""
        return [cls(http, address) for address in addresses]

    async def get(self, path: str, **query: str) -> Any:
        """Return the JSON document at ``path``."""
        return decode(await self._ask("GET", path, query))

    async def ping(self) -> None:
        """Return if the daemon runs. Needs no token."""
        await self._ask("GET", "/ping", {})

    async def apply(self, change: Change) -> None:
        subject = "channel" if change.channel else "topic"
        query = {"topic": change.topic, "channel": change.channel, "node": change.node}
        given = {name: value for name, value in query.items() if value}
        await self._ask("POST", f"/{subject}/{change.action}", given)

    async def _ask(self, method: str, path: str, query: Query, body: bytes = b"") -> bytes:
        """Return the body of the answer."""
        return await self._http.ask(self.kind, method, daemon_url(self.address, path, query), body)


def daemon_url(address: str, path: str, query: Query) -> str:
    """Return the URL of a request; raises RequestFailed.

    ``address`` is host:port or an http(s) URL. A path in the URL replaces ``path``. A parameter with a list of values
    is repeated.
    """
    try:
        parts = urlsplit(address if "://" in address else f"http://{address}")
    except ValueError as error:
        raise RequestFailed(f"invalid address {address}: {error}") from None
    asked = urlencode([*parse_qsl(parts.query, keep_blank_values=True), *query.items()], doseq=True)
    return urlunsplit(parts._replace(path=path if parts.path in ("", "/") else parts.path, query=asked))
