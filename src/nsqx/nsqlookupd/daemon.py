"""The nsqlookupd process: opens the listeners, serves, and shuts down. Nothing is stored on disk."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import TYPE_CHECKING

from nsqx.errors import ConfigError
from nsqx.net.access import ADMIN, READ, access_rules
from nsqx.net.cross_origin import HostRule, head_check
from nsqx.net.gc_tuning import keep_collections_short
from nsqx.net.http_server import HTTPServer
from nsqx.net.listen import BACKLOG, Listening, listen_on
from nsqx.net.tls_server import load_certificate, server_context, trusting_context
from nsqx.nsqlookupd.connection import LookupdConnection
from nsqx.nsqlookupd.http import build_router, route_group
from nsqx.nsqlookupd.lookupd import Lookupd
from nsqx.nsqlookupd.options import validate
from nsqx.version import NSQ_VERSION, version_line
from nsqx.wire.lookup import Introduction, encode_introduction

if TYPE_CHECKING:
    from nsqx.log import Log
    from nsqx.net.cross_origin import HeadCheck
    from nsqx.nsqlookupd.options import NsqlookupdOptions

_STOP_S = 1.0
_TLS_1_2 = 0x0303


class NsqlookupdDaemon:
    """One nsqlookupd. ``start`` it in a running event loop, ``stop`` it once.

    If it ``owns_process``, it tunes the garbage collector.
    """

    def __init__(self, options: NsqlookupdOptions, log: Log, *, owns_process: bool = True) -> None:
        """Raises ConfigError if the options are invalid."""
        validate(options)
        self._options = options
        self._log = log
        self._owns_process = owns_process
        self.lookupd = Lookupd(options, log)
        self._tcp_listening: Listening | None = None
        self._tcp_server: asyncio.Server | None = None
        if options.tls_root_ca_file:
            trusting_context(options.tls_root_ca_file)  # an invalid file is an error even if HTTPS is not used
        self._tls_context = server_context(options.tls_cert, options.tls_key, _TLS_1_2) if options.tls_cert else None
        token_files = {READ: options.http_read_token_file, ADMIN: options.http_admin_token_file}
        rules = self._access_rules = access_rules(token_files, options.http_client_cert_groups, route_group)
        gate = rules.refusal if rules is not None else None
        router = build_router(self.lookupd)
        self._http_server = HTTPServer(router, log, gate=gate)
        self._https_server = HTTPServer(router, log, name="HTTPS", gate=gate)
        self._https_context = _https_context(options) if options.https_address else None

    @property
    def tcp_port(self) -> int:
        """The port of the TCP listener; valid once started."""
        return self._tcp_listening.port if self._tcp_listening is not None else 0

    @property
    def http_port(self) -> int:
        """The port of the HTTP listener; valid once started."""
        return self._http_server.port

    async def start(self) -> None:
        """Start serving; on an unusable address, close everything opened so far and raise ConfigError."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise
        if self._owns_process:
            keep_collections_short()

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        options = self._options
        self._log.info(version_line("nsqlookupd"))
        listening = self._tcp_listening = await listen_on(options.tcp_address)
        http_listening = await listen_on(options.http_address)
        await self._http_server.serve(http_listening, check=self._browser_check(http_listening))
        if self._https_context is not None:
            https_listening = await listen_on(options.https_address)
            if self._access_rules is not None:
                self._access_rules.serve_https_on(https_listening.port)
            check = self._browser_check(https_listening)
            await self._https_server.serve(https_listening, self._https_context, check)
        self.lookupd.introduction = encode_introduction(
            Introduction(
                broadcast_address=options.broadcast_address,
                hostname=socket.gethostname(),
                http_port=self.http_port,
                tcp_port=self.tcp_port,
                version=NSQ_VERSION,
            )
        )
        self._tcp_server = await loop.create_server(
            lambda: LookupdConnection(self.lookupd, loop), sock=listening.socket, backlog=BACKLOG, ssl=self._tls_context
        )
        self._log.info("TCP: listening on %s", listening.address)

    def _browser_check(self, listening: Listening) -> HeadCheck | None:
        options = self._options
        if not options.http_browser_checks:
            return None
        rule = HostRule(listening, [options.broadcast_address], options.allowed_hosts)
        return head_check(rule, route_group)

    async def stop(self) -> None:
        """Stop serving; answers have one second to be sent."""
        if self._tcp_server is not None:
            self._tcp_server.close()
            await self._close_connections()
            await self._tcp_server.wait_closed()
        if self._tcp_listening is not None:
            self._tcp_listening.close()
            if self._tcp_server is not None:
                self._log.info("TCP: closing %s", self._tcp_listening.address)
        await self._http_server.close(_STOP_S)
        await self._https_server.close(_STOP_S)

    def reload_certificate(self) -> None:
        """Read the certificate again, for later connections; keep the old one if the file is invalid."""
        try:
            for context in (self._tls_context, self._https_context):
                if context is not None:
                    load_certificate(context, self._options.tls_cert, self._options.tls_key)
        except ConfigError as error:
            self._log.error("keeping the old certificate - %s", error)

    async def _close_connections(self) -> None:
        connections = list(self.lookupd.connections)
        for connection in connections:
            connection.close()
        if not connections:
            return
        _, left = await asyncio.wait([connection.gone for connection in connections], timeout=_STOP_S)
        for connection in connections:
            if connection.gone in left:
                connection.abort()
        if left:
            await asyncio.wait(left, timeout=_STOP_S)


def _https_context(options: NsqlookupdOptions) -> ssl.SSLContext:
    """Return the context for HTTPS; it requests client certificates if a group of routes needs them."""
    policy = ssl.CERT_OPTIONAL if options.http_client_cert_groups else ssl.CERT_NONE
    return server_context(options.tls_cert, options.tls_key, _TLS_1_2, policy, client_ca_file=options.tls_root_ca_file)
