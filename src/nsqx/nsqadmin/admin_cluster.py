"""One cluster of an nsqadmin: its clients, poller, history, alerts, access rules and audit, and its routes.

An nsqadmin serves one cluster, or several, each below its own path. They share nothing except the listener.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nsqx.cluster.http import HTTPSession
from nsqx.errors import ConfigError
from nsqx.net.address import TCPAddress, parse_address
from nsqx.nsqadmin.access import Access
from nsqx.nsqadmin.alert_rules import AlertRules
from nsqx.nsqadmin.alert_webhook import AlertWebhook
from nsqx.nsqadmin.alerting import AlertAPI, Alerting
from nsqx.nsqadmin.api import ActionAPI, ClusterQueryAPI
from nsqx.nsqadmin.app import Handlers, build_app
from nsqx.nsqadmin.audit import Audit
from nsqx.nsqadmin.cluster import ClusterClient, http_credentials, http_session
from nsqx.nsqadmin.config_api import ConfigAPI
from nsqx.nsqadmin.graphite import GraphiteAPI
from nsqx.nsqadmin.history_keeper import HistoryKeeper
from nsqx.nsqadmin.inventory_api import InventoryAPI
from nsqx.nsqadmin.inventory_file import beside, state_path
from nsqx.nsqadmin.lists_api import ListsAPI
from nsqx.nsqadmin.live import LiveAPI
from nsqx.nsqadmin.messages import MessageAPI
from nsqx.nsqadmin.operations import OperationAPI
from nsqx.nsqadmin.options import history_points, page_url
from nsqx.nsqadmin.page import Page
from nsqx.nsqadmin.poller import Poller
from nsqx.nsqadmin.single_flight import SingleFlight
from nsqx.nsqadmin.sse import Viewers
from nsqx.nsqadmin.stored_messages import StoredMessageAPI
from nsqx.nsqadmin.topic_logs import TopicLogAPI
from nsqx.units import NS_PER_S

if TYPE_CHECKING:
    from nsqx.log import Log
    from nsqx.net.listen import Listening
    from nsqx.nsqadmin.cluster_options import ClusterLink
    from nsqx.nsqadmin.options import NsqadminOptions

# Limits of concurrent requests to daemons: for API requests, and for the poller.
_MAX_API_REQUESTS = 64
_MAX_POLL_REQUESTS = 8
_MAX_VIEWERS = 500
_MAX_TAILS = 20
_WEBHOOK_TIMEOUT_S = 10.0


class AdminCluster:
    """One cluster. ``start`` it in a running event loop, then ``stop`` and ``stop_audit`` once."""

    def __init__(
        self,
        options: NsqadminOptions,
        log: Log,
        port: Callable[[], int],
        clusters: Sequence[ClusterLink] = (),
    ) -> None:
        """``options`` are valid. ``port`` returns that of the listener, ``clusters`` are all of this nsqadmin."""
        self.options = options
        self.access = Access(options, log)
        self.poller: Poller | None = None
        self._port = port
        self._log = log
        credentials = http_credentials(options)
        http = http_session(options, credentials, _MAX_API_REQUESTS)
        cluster = ClusterClient(options, http, log)
        access = self.access
        self._audit = Audit(options, http, log)
        self._alerting: Alerting | None = None
        self._keeper: HistoryKeeper | None = None
        if options.poll_interval:
            poll_http = http_session(options, credentials, _MAX_POLL_REQUESTS)
            self.poller = Poller(options, poll_http, log, history_points(options))
            self._alerting = self._make_alerting(self.poller)
            window_s = options.history_window / NS_PER_S
            self._keeper = HistoryKeeper(self.poller, window_s, beside(state_path(options), "history"), log)
        single_flight = SingleFlight(self.poller.wake) if self.poller is not None else SingleFlight()
        self._viewers = Viewers(_MAX_VIEWERS)
        self._tails = Viewers(_MAX_TAILS)
        self.page = Page(options)
        queries = ClusterQueryAPI(cluster, single_flight, log)
        handlers = Handlers(
            queries,
            ActionAPI(cluster, single_flight, self._audit, log),
            OperationAPI(cluster, single_flight, self._audit),
            LiveAPI(self.poller, queries, self._viewers, self._alerting, self._keeper),
            AlertAPI(self._alerting),
            ListsAPI(self.poller, cluster, single_flight),
            InventoryAPI(self.poller, self._audit),
            MessageAPI(options, cluster, single_flight, self._tails, self._audit),
            TopicLogAPI(cluster, single_flight, self._audit),
            StoredMessageAPI(options, cluster, single_flight, self._audit),
            GraphiteAPI(options, http, log),
            ConfigAPI(options, access, single_flight, self._audit, log, clusters),
            self.page,
        )
        self.app = build_app(options, handlers, access, self._audit, log)

    async def resolve(self) -> None:
        """Raise ConfigError unless the name of every host resolves."""
        await self._resolve("lookupd-http-address", self.options.nsqlookupd_http_addresses)
        await self._resolve("nsqd-http-address", self.options.nsqd_http_addresses)

    async def start(self, listening: Listening) -> None:
        """Start polling."""
        self.access.serve_on(listening)
        self._audit.start()
        if self._alerting is not None:
            self._alerting.start()
        if self._keeper is not None:
            await self._keeper.start()
        if self.poller is not None:
            self.poller.start()

    async def stop(self) -> None:
        """End the streams, stop polling and save."""
        self._viewers.close()
        self._tails.close()
        if self.poller is not None:
            await self.poller.stop()
        if self._keeper is not None:
            await self._keeper.stop()
        if self._alerting is not None:
            await self._alerting.stop()

    async def stop_audit(self) -> None:
        """Send the queued notifications, after the last request."""
        await self._audit.stop()

    def _make_alerting(self, poller: Poller) -> Alerting:
        options = self.options
        webhook = None
        if options.alert_webhook:
            http = HTTPSession(connect_timeout_s=_WEBHOOK_TIMEOUT_S, request_timeout_s=_WEBHOOK_TIMEOUT_S)
            webhook = AlertWebhook(
                options.alert_webhook,
                lambda: page_url(options, self._port()),
                http,
                self._log,
                cluster=options.cluster_name,
            )
        return Alerting(poller, AlertRules(options.alert), beside(state_path(options), "alerts"), webhook, self._log)

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
