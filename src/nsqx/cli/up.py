"""nsqx up: runs nsqlookupd, nsqd and nsqadmin in one process, with one data directory, on the standard ports."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from nsqx.cli.command_line import parse_words
from nsqx.cli.run_daemon import RunnableDaemon, log_exceptions, run_in_loop, stop_event
from nsqx.errors import ConfigError, MessagesLost, NSQError
from nsqx.flags import BOOL, INT, LOG_LEVEL, STRING, Flag, UsageError, VersionRequested, read_options
from nsqx.log import WARN, Log
from nsqx.net.address import format_host_port
from nsqx.nsqadmin import daemon as nsqadmin
from nsqx.nsqadmin.options import NsqadminOptions as AdminOptions
from nsqx.nsqd import daemon as nsqd
from nsqx.nsqd.options import NODE_ID_LIMIT, default_node_id
from nsqx.nsqd.options import NsqdOptions as NSQDOptions
from nsqx.nsqd.topic_settings import LOG, STORES
from nsqx.nsqlookupd import daemon as nsqlookupd
from nsqx.nsqlookupd.options import NsqlookupdOptions as LookupdOptions
from nsqx.version import own_version_line

PROGRAM = "nsqx up"
_LOOKUPD_PORT = 4160
_NSQD_PORT = 4150
_NSQADMIN_PORT = 4171
# The distance between the ports of two nsqds: 4150, 4250, 4350.
_NODE_STRIDE = 100
_MAX_NODES = 50
_REGISTERED_S = 5.0


@dataclass(slots=True)
class UpOptions:
    """The options of nsqx up."""

    data_path: str = "nsqx-data"
    nodes: int = 1
    host: str = "127.0.0.1"
    log_level: int = WARN
    mem_queue_size: int = 10_000
    store: str = LOG


FLAGS: tuple[Flag, ...] = (
    Flag("version", BOOL, False, "print the version and exit", in_config=False),
    Flag("config", STRING, "", "path of a TOML configuration file", in_config=False),
    Flag("data-path", STRING, UpOptions().data_path, "directory for all data; created if it does not exist"),
    Flag("nodes", INT, 1, "number of nsqds to run; the second listens on 4250 and 4251, and so on"),
    Flag("host", STRING, UpOptions().host, "address to listen on and to register at nsqlookupd"),
    Flag("log-level", LOG_LEVEL, UpOptions().log_level, "least severe level that is logged"),
    Flag("mem-queue-size", INT, 10_000, "number of messages that each classic topic and channel keeps in memory"),
    Flag("store", STRING, UpOptions().store, f"store of the topics: {' or '.join(STORES)}"),
)


@dataclass(slots=True)
class Part:
    """One daemon of the cluster, with its name and addresses."""

    name: str
    tcp_address: str
    http_address: str
    daemon: RunnableDaemon


def _read(argv: Sequence[str]) -> dict[str, Any]:
    return read_options(FLAGS, argv, PROGRAM, sys.stderr, parse_line=parse_words)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a cluster until SIGINT or SIGTERM; return the exit code."""
    try:
        options = UpOptions(**_read(sys.argv[1:] if argv is None else argv))
        if not 1 <= options.nodes <= _MAX_NODES:
            raise ConfigError(f"invalid --nodes {options.nodes}: use 1 to {_MAX_NODES}")
    except UsageError as error:
        return error.show()
    except VersionRequested:
        print(own_version_line("NSQ"))
        return 0
    except NSQError as error:
        print(f"nsqx up: {error}", file=sys.stderr)
        return 1
    return run_in_loop(_run(options, sys.stdout))


async def _run(options: UpOptions, out: TextIO) -> int:
    stopped = stop_event()
    log_exceptions(Log("[nsqx] ", options.log_level))
    started: list[Part] = []
    try:
        for part in _parts(options):
            await part.daemon.start()
            started.append(part)
        await _registered(started)
    except (NSQError, OSError) as error:
        print(f"nsqx up: {_explain(error)}", file=sys.stderr)
        await _stop(started)
        return 1
    print(_summary(options, started), file=out, flush=True)
    await stopped.wait()
    print("stopping", file=out, flush=True)
    return await _stop(started)


async def _registered(started: list[Part]) -> None:
    """Wait until every nsqd is registered at nsqlookupd, so consumers find them at once."""
    lookups = [part.daemon.broker.lookup for part in started if isinstance(part.daemon, nsqd.NsqdDaemon)]
    try:
        async with asyncio.timeout(_REGISTERED_S):
            await asyncio.gather(*(lookup.settled() for lookup in lookups if lookup is not None))
    except TimeoutError:
        pass


async def _stop(started: list[Part]) -> int:
    """Stop all daemons; return the exit code."""
    code = 0
    for part in reversed(started):
        try:
            await part.daemon.stop()
        except MessagesLost as error:
            print(f"nsqx up: {error}", file=sys.stderr)
            code = 1
    return code


def _parts(options: UpOptions) -> list[Part]:
    """Return the daemons in the order in which they start."""
    lookupd_tcp = format_host_port(options.host, _LOOKUPD_PORT)
    lookupd_http = format_host_port(options.host, _LOOKUPD_PORT + 1)
    lookupd_options = LookupdOptions(
        tcp_address=lookupd_tcp, http_address=lookupd_http, broadcast_address=options.host, log_level=options.log_level
    )
    lookupd_log = Log("[nsqlookupd] ", options.log_level)
    parts = [Part("nsqlookupd", lookupd_tcp, lookupd_http, nsqlookupd.NsqlookupdDaemon(lookupd_options, lookupd_log))]
    for index in range(options.nodes):
        parts.append(_nsqd_part(options, index, lookupd_tcp))
    parts.append(_nsqadmin_part(options, lookupd_http))
    return parts


def _nsqadmin_part(options: UpOptions, lookupd_http: str) -> Part:
    http_address = format_host_port(options.host, _NSQADMIN_PORT)
    admin_options = AdminOptions(
        http_address=http_address,
        nsqlookupd_http_addresses=[lookupd_http],
        state_file=os.path.join(options.data_path, "nsqadmin-nodes.json"),
        log_level=options.log_level,
    )
    return Part(
        "nsqadmin", "", http_address, nsqadmin.NsqadminDaemon(admin_options, Log("[nsqadmin] ", options.log_level))
    )


def _nsqd_part(options: UpOptions, index: int, lookupd_tcp: str) -> Part:
    name = "nsqd" if options.nodes == 1 else f"nsqd-{index + 1}"
    port = _NSQD_PORT + index * _NODE_STRIDE
    tcp_address = format_host_port(options.host, port)
    http_address = format_host_port(options.host, port + 1)
    data_path = os.path.join(options.data_path, f"nsqd-{index + 1}")
    try:
        os.makedirs(data_path, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot create {data_path} - {error.strerror}; use another --data-path") from None
    nsqd_options = NSQDOptions(
        id=(default_node_id(options.host) + index) % NODE_ID_LIMIT,
        tcp_address=tcp_address,
        http_address=http_address,
        broadcast_address=options.host,
        data_path=data_path,
        mem_queue_size=options.mem_queue_size,
        store=options.store,
        nsqlookupd_tcp_addresses=[lookupd_tcp],
        log_level=options.log_level,
    )
    return Part(name, tcp_address, http_address, nsqd.NsqdDaemon(nsqd_options, Log(f"[{name}] ", options.log_level)))


def _explain(error: Exception) -> str:
    text = str(error)
    if "in use" in text and "listen" in text:
        return f"{text}; stop the process that listens there, or use another --host"
    if "flock" in text:
        return f"{text}; stop the other nsqd, or use another --data-path"
    return text


def _summary(options: UpOptions, parts: list[Part]) -> str:
    lines = []
    for part in parts:
        tcp = f"tcp {part.tcp_address}" if part.tcp_address else ""
        lines.append(f"{part.name:<12}{tcp:<26}http://{part.http_address}")
    return "\n".join([*lines, f"data in {os.path.abspath(options.data_path)}; Ctrl-C stops everything"])


if __name__ == "__main__":
    sys.exit(main())
