"""nsqd as a process: locks the data directory, opens the listeners, restores the topics, serves, and shuts down.

Start, as in Go nsqd: lock, listen, load nsqd.dat, save it, serve. Stop: close listeners and connections, save
nsqd.dat, write every message to disk, unlock.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import ssl
from typing import TYPE_CHECKING

from nsqx.cluster.credentials import NSQD, NSQLOOKUPD, Credentials, read_tokens
from nsqx.errors import ConfigError, DataPathLocked, MessagesLost, MetadataError
from nsqx.flags import TLS_NOT_REQUIRED, TLS_REQUIRED
from nsqx.net.access import ADMIN, CONSUME, PUBLISH, READ, access_rules
from nsqx.net.cross_origin import HostRule, head_check
from nsqx.net.gc_tuning import keep_collections_short
from nsqx.net.http_server import HTTPServer
from nsqx.net.listen import BACKLOG, Listening, listen_on
from nsqx.net.malloc_tuning import keep_freed_memory
from nsqx.net.tls_server import any_certificate_context, load_certificate, server_context, trusting_context
from nsqx.nsqd.auth import HTTPAuthorizer
from nsqx.nsqd.broker import Broker
from nsqx.nsqd.broker_id import load_broker_id
from nsqx.nsqd.clock import LoopClock
from nsqx.nsqd.connection import ClientConnection
from nsqx.nsqd.cpu_quota import usable_cpus
from nsqx.nsqd.disk_reserve import DiskReserve
from nsqx.nsqd.http import build_router, refuse_without_tls, route_group
from nsqx.nsqd.lookup import Lookup
from nsqx.nsqd.memory import MemoryMonitor
from nsqx.nsqd.metadata import encode_metadata, load_metadata, metadata_path
from nsqx.nsqd.options import NsqdOptions, expand_statsd_prefix, validate
from nsqx.nsqd.statsd import StatsdPusher
from nsqx.queues.files import replace_file
from nsqx.units import NS_PER_S
from nsqx.version import version_line

if TYPE_CHECKING:
    from nsqx.log import Log
    from nsqx.net.cross_origin import HeadCheck
    from nsqx.net.requests import Gate
    from nsqx.nsqd.clock import Clock

# How long the exit waits for the removal of files of deleted and emptied queues. The next start removes the others.
_REMOVAL_WAIT_S = 1.0
# The delay between attempts to write to a full disk at exit.
_RETRY_WRITE_S = 0.1


class NsqdDaemon:
    """One nsqd. Call ``start`` in a running event loop and ``stop`` once.

    If it ``owns_process``, it tunes the garbage collector and the allocator, and polls instead of waiting for a moment.
    """

    def __init__(
        self, options: NsqdOptions, log: Log, clock: Clock | None = None, *, owns_process: bool = True
    ) -> None:
        """Raise ConfigError if the options are invalid."""
        validate(options)
        self._options = options
        self._tls_context = _tls_context(options)
        self._tls_contexts = [self._tls_context] if self._tls_context is not None else []
        self._log = log
        self._owns_process = owns_process
        if options.tls_client_auth_policy == "require":
            log.warn("TLS: --tls-client-auth-policy=require takes any client certificate, use require-verify to check")
        loop = asyncio.get_running_loop()
        self.broker = Broker(options, log, clock or LoopClock(loop), loop.call_soon)
        if options.auth_http_addresses:
            self.broker.authorizer = HTTPAuthorizer(options, log, trusting_context(options.tls_root_ca_file))
        self.broker.tls_context = self._tls_context
        self.broker.upgrades.tls = self._tls_context is not None
        if options.lookupd_tls:
            self.broker.lookup_tls_context = trusting_context(options.tls_root_ca_file)
        self.broker.lookup_credentials = _lookup_credentials(options)
        if options.tls_cert and self.broker.lookup_credentials.ssl_context is not None:
            self._tls_contexts.append(self.broker.lookup_credentials.ssl_context)
        token_files = {
            PUBLISH: options.http_publish_token_file,
            READ: options.http_read_token_file,
            CONSUME: options.http_consume_token_file,
            ADMIN: options.http_admin_token_file,
        }
        self._access_rules = access_rules(token_files, options.http_client_cert_groups, route_group)
        self.broker.is_tls_required = options.tls_required != TLS_NOT_REQUIRED
        self._memory = MemoryMonitor()
        self._lock = -1
        self._reserve = DiskReserve()
        self._tcp_listening: Listening | None = None
        self._tcp_server: asyncio.Server | None = None
        self._http_listening: Listening | None = None
        self._https_listening: Listening | None = None
        self._http_servers: list[HTTPServer] = []
        self._statsd: StatsdPusher | None = None
        self._statsd_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start serving; raises NSQError or OSError after undoing the steps that were done."""
        try:
            self._lock = lock_data_path(self.broker.data_path)
            self._memory.start()
            await self._listen()
            self.broker.restore(load_metadata(self.broker.data_path))
            self._save_first_metadata()
            self._load_broker_id()
            self._take_reserve()
            await self._serve()
        except BaseException:
            await self._release()
            raise
        if self._owns_process:
            keep_collections_short()
            keep_freed_memory()

    def _load_broker_id(self) -> None:
        try:
            self.broker.broker_id = load_broker_id(self.broker.data_path)
        except OSError as error:
            self._log.warn("cannot store a broker id, clients identify this nsqd by its address - %s", error)

    def _take_reserve(self) -> None:
        size = self._options.shutdown_reserve
        if size == 0:
            return
        try:
            self._reserve.take(self.broker.data_path, size)
        except OSError as error:
            self._log.warn("cannot reserve %d bytes of disk space for the exit - %s", size, error.strerror or error)

    def _save_first_metadata(self) -> None:
        """Save nsqd.dat, to find out at the start whether the directory can be written."""
        broker = self.broker
        path = metadata_path(broker.data_path)
        self._log.info("NSQ: persisting topic/channel metadata to %s", path)
        try:
            replace_file(path, encode_metadata(broker.topics.values()))
        except OSError as error:
            raise MetadataError(f"failed to persist metadata - {error}") from None

    async def _listen(self) -> None:
        options, broker = self._options, self.broker
        self._log.info(version_line("nsqd"))
        self._log.info("ID: %d", options.id)
        self._tcp_listening = await listen_on(options.tcp_address)
        broker.tcp_port = self._tcp_listening.port
        if options.http_address:
            self._http_listening = await listen_on(options.http_address)
            broker.http_port = self._http_listening.port
        if self._tls_context is not None and options.https_address:
            self._https_listening = await listen_on(options.https_address)
        if options.broadcast_tcp_port == 0:
            options.broadcast_tcp_port = max(0, broker.tcp_port)
        if options.broadcast_http_port == 0:
            options.broadcast_http_port = max(0, broker.http_port)
        options.statsd_prefix = expand_statsd_prefix(options, options.broadcast_http_port)

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        listening = self._tcp_listening
        assert listening is not None
        create = loop.create_unix_server if listening.path else loop.create_server
        self._tcp_server = await create(
            lambda: ClientConnection(self.broker, loop),  # type: ignore[arg-type, return-value]
            sock=listening.socket,
            backlog=BACKLOG,
        )
        self._log.info("TCP: listening on %s", listening.address)
        await self._serve_http()
        if self._owns_process and usable_cpus() > 1 and hasattr(os, "sched_yield"):
            self.broker.turn.busy_poll.start(loop.call_soon, self.broker.clock.now_ns, os.sched_yield)
        self.broker.lookup = Lookup(self.broker)
        self.broker.lookup.set_addresses(self._options.nsqlookupd_tcp_addresses)
        if self._options.statsd_address:
            self._statsd = StatsdPusher(self.broker, self._memory)
            self._statsd_task = loop.create_task(self._statsd.run())

    async def _serve_http(self) -> None:
        router = build_router(self.broker, self._memory)
        if self._http_listening is not None:
            gate = self._access_gate()
            if self._options.tls_required == TLS_REQUIRED:
                gate = refuse_without_tls(self._https_listening.port if self._https_listening is not None else 0)
            server = HTTPServer(router, self._log, gate=gate)
            self._http_servers.append(server)
            await server.serve(self._http_listening, check=self._browser_check(self._http_listening))
        if self._https_listening is not None:
            server = HTTPServer(router, self._log, name="HTTPS", gate=self._access_gate())
            self._http_servers.append(server)
            check = self._browser_check(self._https_listening)
            await server.serve(self._https_listening, self._https_context(), check)

    def _access_gate(self) -> Gate | None:
        rules = self._access_rules
        if rules is None:
            return None
        if self._https_listening is not None:
            rules.serve_https_on(self._https_listening.port)
        return rules.refusal

    def _browser_check(self, listening: Listening) -> HeadCheck | None:
        options = self._options
        if not options.http_browser_checks:
            return None
        rule = HostRule(listening, [options.broadcast_address], options.allowed_hosts)
        return head_check(rule, route_group)

    def _https_context(self) -> ssl.SSLContext | None:
        """Return the TLS context of the TCP port, or one that requests client certificates if routes need them."""
        context = self._tls_context
        wants_certificates = bool(self._options.http_client_cert_groups)
        if wants_certificates and not self._options.tls_client_auth_policy:
            context = _tls_context(self._options, requests_certificate=True)
            assert context is not None
            self._tls_contexts.append(context)
        return context

    def reload_certificate(self) -> None:
        """Reload the certificate for new connections; if that fails, keep the old one and log the error."""
        try:
            for context in self._tls_contexts:
                load_certificate(context, self._options.tls_cert, self._options.tls_key)
        except ConfigError as error:
            self._log.error("keeping the old certificate - %s", error)
        else:
            self._log.info("TLS: certificate reloaded from %s", self._options.tls_cert)

    async def stop(self) -> None:
        """Stop serving, write everything to disk, and release the data directory.

        Raises MessagesLost at the end if messages could not be written within --shutdown-timeout.
        """
        timeout_s = self._options.shutdown_timeout / NS_PER_S
        broker = self.broker
        broker.exiting = True
        if self._tcp_server is not None:
            self._log.info("TCP: closing %s", self._tcp_listening.address if self._tcp_listening else "")
            self._tcp_server.close()
        broker.turn.busy_poll.stop()
        broker.drain.stop()
        for connection in list(broker.connections):
            connection.close()
        broker.stop_fetching()
        for server in self._http_servers:
            await server.close(min(1.0, timeout_s))
        await self._stop_statsd()
        await broker.authorizer.close()
        if broker.lookup is not None:
            await broker.lookup.close()
        self._reserve.release()
        await broker.save_metadata(is_urgent=True)
        await broker.close_disk_threads()
        self._log.info("NSQ: closing topics")
        broker.spill_topics()
        await self._write_spilled(timeout_s)
        lost = broker.close_topics()
        await self._release()
        self._log.info("NSQ: bye")
        if lost:
            raise MessagesLost(lost, broker.data_path)

    async def _write_spilled(self, timeout_s: float) -> None:
        """Write the messages of all topics; wait for free space if the disk is full."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        is_first = True
        while not self.broker.write_spilled() and loop.time() < deadline_s:
            if is_first:
                self._log.error("NSQ: the disk cannot be written, trying again for up to %g s", timeout_s)
                is_first = False
            await asyncio.sleep(_RETRY_WRITE_S)

    async def _stop_statsd(self) -> None:
        if self._statsd is not None and self._statsd_task is not None:
            self._statsd.stop()
            await self._statsd_task

    async def _release(self) -> None:
        for connection in list(self.broker.connections):
            connection.abort()
        if self._tcp_server is not None:
            self._tcp_server.close()
        for listening in (self._tcp_listening, self._http_listening, self._https_listening):
            if listening is not None:
                listening.close()
        for server in self._http_servers:
            await server.close(0)
        await self.broker.close_disk_threads()
        await asyncio.get_running_loop().run_in_executor(None, self.broker.classic_files.remover.close, _REMOVAL_WAIT_S)
        self._memory.stop()
        self._reserve.release()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def lock_data_path(path: str) -> int:
    """Lock a directory against any other nsqd, including Go's; return the descriptor that holds the lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"failed to lock data-path: open {path}: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise DataPathLocked(
            f"failed to lock data-path: cannot flock directory {path} - {error.strerror} "
            "(possibly in use by another instance of nsqd)"
        ) from None
    return descriptor


def _lookup_credentials(options: NsqdOptions) -> Credentials:
    """Return the credentials for nsqlookupd's HTTP API: a token, and for HTTPS this nsqd's own certificate."""
    flags = {NSQD: "", NSQLOOKUPD: "--lookupd-http-token-file"}
    tokens = read_tokens({NSQLOOKUPD: options.lookupd_http_token_file}, flags)
    if not options.tls_root_ca_file and not options.tls_cert:
        return Credentials(tokens)
    context = trusting_context(options.tls_root_ca_file)
    if options.tls_cert:
        load_certificate(context, options.tls_cert, options.tls_key)
    return Credentials(tokens, context)


def _tls_context(options: NsqdOptions, *, requests_certificate: bool = False) -> ssl.SSLContext | None:
    if not options.tls_cert:
        return None
    if options.tls_client_auth_policy == "require":
        return any_certificate_context(
            options.tls_cert, options.tls_key, options.tls_min_version, client_ca_file=options.tls_root_ca_file
        )
    policy = ssl.CERT_OPTIONAL if requests_certificate else ssl.CERT_NONE
    if options.tls_client_auth_policy == "require-verify":
        policy = ssl.CERT_REQUIRED
    return server_context(
        options.tls_cert, options.tls_key, options.tls_min_version, policy, client_ca_file=options.tls_root_ca_file
    )
