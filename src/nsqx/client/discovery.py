"""Queries to nsqlookupd for the addresses of nsqds."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from nsqx.cluster.credentials import NSQD, NSQLOOKUPD, Credentials, HTTPClientTLS, read_tokens
from nsqx.cluster.http import HTTPSession, RequestFailed
from nsqx.cluster.lookupd import LookupdClient, check_lookupd_address
from nsqx.errors import LookupFailed

if TYPE_CHECKING:
    from nsqx.client.options import Options
    from nsqx.cluster.node import Node

_MAX_TRIES = 3


def http_credentials(options: Options) -> Credentials:
    """Return the tokens and certificates for the HTTP APIs of the daemons; raises ConfigError.

    Without a token for nsqlookupd the auth secret is used, as in go-nsq, unless ``lookupd_authorization`` is off.
    """
    tokens = read_tokens(
        {NSQD: options.nsqd_http_token_file, NSQLOOKUPD: options.lookupd_http_token_file},
        {NSQD: "option nsqd_http_token_file", NSQLOOKUPD: "option lookupd_http_token_file"},
    )
    if options.lookupd_authorization:
        tokens[NSQLOOKUPD] = tokens[NSQLOOKUPD] or options.auth_secret
    files = HTTPClientTLS(options.tls_root_ca_file, options.tls_insecure_skip_verify, options.tls_cert, options.tls_key)
    return Credentials(tokens, options.tls_context or files.context())


class Discovery:
    """Queries the nsqlookupds in turn. If one fails, the next one is tried, up to three."""

    def __init__(self, addresses: Iterable[str], options: Options) -> None:
        self.addresses = list(dict.fromkeys(addresses))
        for address in self.addresses:
            check_lookupd_address(address)
        credentials = http_credentials(options) if self.addresses else Credentials()
        timeout_s = options.lookupd_poll_timeout
        http = HTTPSession(credentials, connect_timeout_s=timeout_s, request_timeout_s=timeout_s)
        self._lookupds = LookupdClient.at(http, self.addresses)
        self._next = random.randrange(len(self.addresses)) if self.addresses else 0

    async def producers_of(self, topic: str) -> list[str]:
        """Return the TCP addresses of the nsqds that have ``topic``; raises LookupFailed."""
        return await self._ask(lambda lookupd: lookupd.lookup(topic))

    async def nodes(self) -> list[str]:
        """Return the TCP addresses of all nsqds; raises LookupFailed."""
        return await self._ask(LookupdClient.nodes)

    async def _ask(self, ask: Callable[[LookupdClient], Awaitable[list[Node]]]) -> list[str]:
        failures: list[str] = []
        for _ in range(min(_MAX_TRIES, len(self._lookupds))):
            lookupd = self._lookupds[self._next]
            self._next = (self._next + 1) % len(self._lookupds)
            try:
                return [node.tcp_address for node in await ask(lookupd)]
            except RequestFailed as error:
                failures.append(f"{lookupd}: {error.reason}")
        raise LookupFailed("; ".join(failures))
