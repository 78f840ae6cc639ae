"""The nsqadmin process: builds its clusters, serves, and shuts down."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nsqx.net.listen import listen_on
from nsqx.nsqadmin.admin_cluster import AdminCluster
from nsqx.nsqadmin.cluster_options import ClusterPaths, all_clusters, cluster_links
from nsqx.nsqadmin.server import Server
from nsqx.version import version_line

if TYPE_CHECKING:
    from nsqx.log import Log
    from nsqx.nsqadmin.options import NsqadminOptions
    from nsqx.nsqadmin.poller import Poller


class NsqadminDaemon:
    """One nsqadmin. ``start`` it in a running event loop, ``stop`` it once."""

    def __init__(self, options: NsqadminOptions, log: Log) -> None:
        """Raises ConfigError if the options are invalid."""
        every = all_clusters(options)
        self._options = options
        self._log = log
        links = cluster_links(every)
        self._clusters = [
            AdminCluster(each, log if each is options else log.named(each.cluster_name), lambda: self.http_port, links)
            for each in every
        ]
        main, *others = self._clusters
        app = ClusterPaths(main.app, {each.options.base_path: each.app for each in others}) if others else main.app
        self._server = Server(app, log)

    @property
    def http_port(self) -> int:
        """The port of the listener; valid once started."""
        return self._server.port

    @property
    def poller(self) -> Poller | None:
        """The poller of the first cluster."""
        return self._clusters[0].poller

    async def start(self) -> None:
        """Start serving; on an unusable host or address, close everything opened so far and raise ConfigError."""
        options = self._options
        for each in self._clusters:
            await each.resolve()
        self._log.info(version_line("nsqadmin"))
        listening = await listen_on(options.http_address)
        try:
            for each in self._clusters:
                await each.start(listening)
            await self._server.start(listening)
            if not self._clusters[0].page.is_built:
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
        await asyncio.gather(*(each.stop() for each in self._clusters))
        await self._server.stop()
        await asyncio.gather(*(each.stop_audit() for each in self._clusters))
