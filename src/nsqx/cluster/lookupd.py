"""Questions to nsqlookupd over HTTP."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from nsqx.cluster.credentials import NSQLOOKUPD
from nsqx.cluster.daemon import DaemonClient
from nsqx.cluster.json_fields import objects, strings
from nsqx.cluster.node import Node
from nsqx.errors import ConfigError, RequestFailed


class LookupdClient(DaemonClient):
    """Asks one nsqlookupd. Every method raises RequestFailed."""

    kind = NSQLOOKUPD

    async def topics(self) -> list[str]:
        return strings(await self.get("/topics"), "topics")

    async def channels(self, topic: str) -> list[str]:
        return strings(await self.get("/channels", topic=topic), "channels")

    async def nodes(self) -> list[Node]:
        """Return all nsqds."""
        return _nodes(await self.get("/nodes"))

    async def lookup(self, topic: str, *, must_exist: bool = False) -> list[Node]:
        """Return the nsqds that have ``topic``; none if nsqlookupd does not know it, unless it ``must_exist``."""
        try:
            return _nodes(await self.get("/lookup", topic=topic))
        except RequestFailed as error:
            if must_exist or error.status != 404 or "TOPIC_NOT_FOUND" not in error.reason:
                raise
            return []


def _nodes(document: Any) -> list[Node]:
    nodes = [Node.decode(each) for each in objects(document, "producers") or ()]
    if "producers" not in document or not all(node.broadcast_address for node in nodes):
        raise RequestFailed("the answer is not from nsqlookupd")
    return nodes


def check_lookupd_address(address: object) -> None:
    """Raise ConfigError unless ``address`` is host:port or an http(s) URL with a port."""
    if not isinstance(address, str):
        raise ConfigError(f"nsqlookupd address {address!r}: must be a string such as 127.0.0.1:4161")
    try:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"nsqlookupd address {address!r}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"nsqlookupd address {address!r}: use host:port or an http or https URL")
    if not port:
        raise ConfigError(
            f"nsqlookupd address {address!r}: the port is missing; nsqlookupd's default HTTP port is 4161"
        )
