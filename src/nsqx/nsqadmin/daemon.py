"""The nsqadmin process: builds its parts, serves, and shuts down."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from nsqx.errors import ConfigError
from nsqx.net.address import TCPAddress, parse_address
from nsqx.net.listen import listen_on
from nsqx.nsqadmin.access import Access
from nsqx.nsqadmin.api import ActionAPI, ClusterQueryAPI
from nsqx.nsqadmin.app import Handlers, build_app
from nsqx.nsqadmin.audit import Audit
from nsqx.nsqadmin.cluster import ClusterClient, http_credentials, http_session
from nsqx.nsqadmin.config_api import ConfigAPI
from nsqx.nsqadmin.graphite import GraphiteAPI
from nsqx.nsqadmin.inventory_api import InventoryAPI
from nsqx.nsqadmin.live import LiveAPI
from nsqx.nsqadmin.messages import MessageAPI
from nsqx.nsqadmin.operations import OperationAPI
from nsqx.nsqadmin.options import history_points, validate
from nsqx.nsqadmin.page import Page
from nsqx.nsqadmin.poller import Poller
from nsqx.nsqadmin.server import Server
from nsqx.nsqadmin.single_flight import SingleFlight
from nsqx.nsqadmin.sse import Viewers
from nsqx.nsqadmin.stored_messages import StoredMessageAPI
from nsqx.nsqadmin.topic_logs import TopicLogAPI
from nsqx.version import version_line

if TYPE_CHECKING:
    from nsqx.log import Log
    from nsqx.nsqadmin.options import NsqadminOptions

# Limits of concurrent requests to daemons: for API requests, and for the poller.
_MAX_API_REQUESTS = 64
_MAX_POLL_REQUESTS = 8
_MAX_VIEWERS = 500
_MAX_TAILS = 20


class NsqadminDaemon:
    """One nsqadmin. ``start`` it in a running event loop, ``stop`` it once."""

    def __init__(self, options: NsqadminOptions, log: Log) -> None:
        """Raises ConfigError if the options are invalid."""
        validate(options)
        self._options = options
        self._log = log
        credentials = http_credentials(options)
        http = http_session(options, credentials, _MAX_API_REQUESTS)
        cluster = ClusterClient(options, http, log)
        access = self._access = Access(options, log)
        self._audit = Audit(options, http, log)
        self.poller: Poller | None = None
        if options.poll_interval:
            poll_http = http_session(options, credentials, _MAX_POLL_REQUESTS)
            self.poller = Poller(options, poll_http, log, history_points(options))
        single_flight = SingleFlight(self.poller.wake) if self.poller is not None else SingleFlight()
        self._viewers = Viewers(_MAX_VIEWERS)
        self._tails = Viewers(_MAX_TAILS)
        self._page = Page(options)
        queries = ClusterQueryAPI(cluster, single_flight, log)
        handlers = Handlers(
            queries,
            ActionAPI(cluster, single_flight, self._audit, log),
            OperationAPI(cluster, single_flight, self._audit),
            LiveAPI(self.poller, queries, self._viewers),
            InventoryAPI(self.poller, self._audit),
            MessageAPI(options, cluster, single_flight, self._tails, self._audit),
            TopicLogAPI(cluster, single_flight, self._audit),
            StoredMessageAPI(options, cluster, single_flight, self._audit),
            GraphiteAPI(options, http, log),
            ConfigAPI(options, access, single_flight, self._audit, log),
            self._page,
        )
        self._server = Server(build_app(options, handlers, access, self._audit, log), log)

    @property
    def http_port(self) -> int:
        """The port of the listener; valid once started."""
        return self._server.port

    async def start(self) -> None:
        """Start serving; on an unusable host or address, close everything opened so far and raise ConfigError."""
        options = self._options
        await self._resolve("lookupd-http-address", options.nsqlookupd_http_addresses)
        await self._resolve("nsqd-http-address", options.nsqd_http_addresses)
        self._log.info(version_line("nsqadmin"))
        listening = await listen_on(options.http_address)
        self._access.serve_on(listening)
        try:
            self._audit.start()
            if self.poller is not None:
                self.poller.start()
            await self._server.start(listening)
            if not self._page.is_built:
                self._log.warn("the page is not built (make ui, needs npm): only the API is served")
        except BaseException:
            listening.close()
            await self.stop()
            raise
        if options.admin_users:
            networks = ", ".join(options.trusted_proxies) or "loopback"
            self._log.info("%s is accepted from %s (--trusted-proxy)", options.acl_http_header, networks)

    async def stop(self) -> None:
        """Stop serving: end the streams, and finish pending answers and notifications."""
        self._viewers.close()
        self._tails.close()
        if self.poller is not None:
            await self.poller.stop()
        await self._server.stop()
        await self._audit.stop()

    async def _resolve(self, flag: str, addresses: list[str]) -> None:
        """Raise ConfigError unless every host name resolves."""
        loop = asyncio.get_running_loop()
        for text in addresses:
            address = parse_address(text)
            assert isinstance(address, TCPAddress), "validated before"
            try:
                await loop.getaddrinfo(address.host or "localhost", address.port, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError):
                reason = f"lookup {address.host}: no such host"
                raise ConfigError(f"failed to resolve --{flag} ({text}) - {reason}") from None
