"""nsqd's options: names, defaults, flags, limits, and the answer of GET /config.

An attribute of ``NsqdOptions`` has the name of its key in the configuration file. Durations are integers in
nanoseconds. This module opens no socket, and no file except the configuration file.
"""

import math
import socket
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import md5
from typing import Any, TextIO

from nsqx import log
from nsqx.errors import ConfigError
from nsqx.flags import (
    BOOL,
    DAEMON_FLAGS,
    DURATION,
    FLOATS,
    INT,
    LOG_LEVEL,
    STRING,
    STRINGS,
    TABLES,
    TLS_NOT_REQUIRED,
    TLS_REQUIRED,
    TLS_REQUIREMENT,
    TLS_VERSION,
    TLS_VERSIONS,
    Flag,
    OptionTable,
    read_options,
)
from nsqx.gotext import format_float, quote
from nsqx.net.address import MAX_PORT, UnixAddress, format_host_port, parse_listen_address
from nsqx.net.cross_origin import check_host_names
from nsqx.nsqd.topic_settings import (
    AUTO,
    CHANNEL_STARTS,
    CLASSIC,
    DURABILITIES,
    FSYNC,
    FULL_POLICIES,
    MAX_ATTEMPTS_LIMIT,
    REFUSE,
    STORES,
    TopicRules,
)
from nsqx.units import NS_PER_MS, NS_PER_S

TOPOLOGY_AWARE_CONSUMPTION = "topology-aware-consumption"
EXPERIMENTS = (TOPOLOGY_AWARE_CONSUMPTION,)

NODE_ID_LIMIT = 1024
# --sync-every=-1 and lower: a number of operations that is never reached.
NO_SYNC_BY_COUNT = 1 << 40

# A record on disk is the message with its 26-byte header, after a signed 32-bit length.
MAX_MSG_SIZE_LIMIT = (1 << 31) - 1 - 26

MAX_UDP_PAYLOAD_SIZE = 65507

_MINUTE = 60 * NS_PER_S
_MIB = 1024 * 1024


def default_node_id(hostname: str) -> int:
    """Return the node id for a host without --node-id: a hash of its name."""
    digest = md5(hostname.encode("utf-8", "surrogateescape"), usedforsecurity=False).digest()
    return zlib.crc32(digest) % NODE_ID_LIMIT


@dataclass(slots=True)
class NsqdOptions:
    """Every setting of one nsqd, with NSQ's defaults unless noted."""

    id: int = field(default_factory=lambda: default_node_id(socket.gethostname()))
    log_level: int = log.INFO
    log_prefix: str = "[nsqd] "

    tcp_address: str = "0.0.0.0:4150"
    http_address: str = "0.0.0.0:4151"
    https_address: str = "0.0.0.0:4152"
    broadcast_address: str = field(default_factory=lambda: socket.gethostname())
    broadcast_tcp_port: int = 0
    broadcast_http_port: int = 0
    nsqlookupd_tcp_addresses: list[str] = field(default_factory=list)
    auth_http_addresses: list[str] = field(default_factory=list)
    auth_http_request_method: str = "get"
    http_client_connect_timeout: int = 2 * NS_PER_S
    http_client_request_timeout: int = 5 * NS_PER_S
    topology_region: str = ""
    topology_zone: str = ""

    data_path: str = ""
    mem_queue_size: int = 10_000
    max_bytes_per_file: int = 100 * 1024 * 1024
    sync_every: int = 2_500
    sync_timeout: int = 2 * NS_PER_S

    queue_scan_selection_count: int = 20
    queue_scan_worker_pool_max: int = 4

    msg_timeout: int = 1 * _MINUTE
    max_msg_timeout: int = 15 * _MINUTE
    max_msg_size: int = 1024 * 1024
    max_body_size: int = 5 * 1024 * 1024
    max_req_timeout: int = 60 * _MINUTE

    max_heartbeat_interval: int = 1 * _MINUTE
    max_rdy_count: int = 2_500
    max_output_buffer_size: int = 64 * 1024
    max_output_buffer_timeout: int = 30 * NS_PER_S
    min_output_buffer_timeout: int = 25 * NS_PER_MS
    output_buffer_timeout: int = 250 * NS_PER_MS
    max_channel_consumers: int = 0

    statsd_address: str = ""
    statsd_prefix: str = "nsq.%s"
    statsd_interval: int = 1 * _MINUTE
    statsd_mem_stats: bool = True
    statsd_udp_packet_size: int = 508
    statsd_exclude_ephemeral: bool = False

    e2e_processing_latency_window_time: int = 10 * _MINUTE
    e2e_processing_latency_percentiles: list[float] = field(default_factory=list)

    tls_cert: str = ""
    tls_key: str = ""
    tls_client_auth_policy: str = ""
    tls_root_ca_file: str = ""
    tls_required: int = TLS_NOT_REQUIRED
    tls_min_version: int = TLS_VERSIONS["tls1.2"]  # Go nsqd: tls1.0, which is insecure

    deflate: bool = True
    max_deflate_level: int = 6
    snappy: bool = True

    enable_experiment: list[str] = field(default_factory=list)

    enable_debug_endpoints: bool = False
    metrics_per_client: bool = False
    shutdown_timeout: int = 10 * NS_PER_S
    shutdown_reserve: int = 16 * 1024 * 1024
    max_connections: int = 0
    max_connections_per_ip: int = 0
    mem_queue_bytes: int = 0
    lookupd_tls: bool = False
    lookupd_http_token_file: str = ""
    http_publish_token_file: str = ""
    http_read_token_file: str = ""
    http_consume_token_file: str = ""
    http_admin_token_file: str = ""
    http_client_cert_groups: list[str] = field(default_factory=list)
    http_browser_checks: bool = True
    allowed_hosts: list[str] = field(default_factory=list)

    store: str = CLASSIC
    store_rules: list[str] = field(default_factory=list)
    durability: str = FSYNC
    log_memory: int = 128 * _MIB
    commit_bytes: int = 64 * _MIB
    min_free_disk: int = 256 * _MIB
    log_retain_age: int = 0
    log_retain_bytes: int = 0
    log_max_age: int = 0
    log_max_bytes: int = 0
    log_when_full: str = REFUSE
    log_message_ttl: int = 0
    max_attempts: int = 0
    dead_letter_suffix: str = ".dead"
    channel_start: str = AUTO
    dedup_producers: int = 10_000
    dedup_age: int = 168 * 60 * _MINUTE
    ledger_age: int = 2160 * 60 * _MINUTE
    max_transaction_bytes: int = 256 * _MIB
    topic: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        # A policy for client certificates requires TLS, otherwise clients could connect without a certificate.
        if self.tls_client_auth_policy and self.tls_required == TLS_NOT_REQUIRED:
            self.tls_required = TLS_REQUIRED


_option = OptionTable(NsqdOptions()).option


FLAGS: tuple[Flag, ...] = (
    *DAEMON_FLAGS,
    Flag("worker-id", BOOL, False, "[deprecated] no effect; see -node-id", in_config=False),
    _option("log-level", LOG_LEVEL, "least severe level that is logged: debug, info, warn, error or fatal"),
    _option("log-prefix", STRING, "text at the start of every log line"),
    _option("node-id", INT, "this node's share of message ids, in [0,1024); a hash of the hostname if not given", "id"),
    _option("tcp-address", STRING, "where TCP clients connect: host:port, or the path of a unix socket"),
    _option(
        "http-address", STRING, "where HTTP clients connect: host:port, the path of a unix socket, or empty for none"
    ),
    _option("https-address", STRING, "where HTTPS clients connect: host:port, or empty for none; needs -tls-cert"),
    _option("broadcast-address", STRING, "host that nsqlookupd tells consumers to connect to"),
    _option("broadcast-tcp-port", INT, "TCP port registered with nsqlookupd; 0 is the port listened on"),
    _option("broadcast-http-port", INT, "HTTP port registered with nsqlookupd; 0 is the port listened on"),
    _option(
        "lookupd-tcp-address",
        STRINGS,
        "TCP address of an nsqlookupd to register with (may be repeated)",
        "nsqlookupd_tcp_addresses",
    ),
    _option(
        "auth-http-address",
        STRINGS,
        "auth server that clients' secrets are checked with, host:port or a URL (may be repeated)",
        "auth_http_addresses",
    ),
    _option("auth-http-request-method", STRING, "HTTP method of requests to the auth server: get or post"),
    _option("http-client-connect-timeout", DURATION, "timeout for connections of the HTTP client; 0 is no limit"),
    _option("http-client-request-timeout", DURATION, "timeout for requests of the HTTP client; 0 is no limit"),
    _option("topology-region", STRING, "region this node runs in"),
    _option("topology-zone", STRING, "zone this node runs in"),
    _option("data-path", STRING, "directory of messages on disk and of nsqd.dat; the working directory if empty"),
    _option("mem-queue-size", INT, "messages kept in memory per topic and per channel; the others go to disk"),
    _option("max-bytes-per-file", INT, "size at which a disk queue starts its next file"),
    _option("sync-every", INT, "reads and writes of a disk queue between two syncs to disk"),
    _option("sync-timeout", DURATION, "longest time between two syncs of a disk queue in use"),
    _option("queue-scan-worker-pool-max", INT, "accepted for compatibility; deadlines are exact and need no scan"),
    _option("queue-scan-selection-count", INT, "accepted for compatibility; deadlines are exact and need no scan"),
    _option("msg-timeout", DURATION, "time a consumer has for a message before it is requeued"),
    _option("max-msg-timeout", DURATION, "longest message timeout that a client may ask for or reach by TOUCH"),
    _option("max-msg-size", INT, "largest message, in bytes"),
    _option("max-body-size", INT, "largest body of a command, in bytes"),
    _option("max-req-timeout", DURATION, "longest delay of a requeued or deferred message"),
    _option("max-heartbeat-interval", DURATION, "longest heartbeat interval that a client may ask for"),
    _option("max-rdy-count", INT, "largest RDY count of a client"),
    _option("max-output-buffer-size", INT, "largest output buffer that a client may ask for, in bytes"),
    _option("max-output-buffer-timeout", DURATION, "longest output buffer timeout that a client may ask for"),
    _option("min-output-buffer-timeout", DURATION, "shortest output buffer timeout that a client may ask for"),
    _option(
        "output-buffer-timeout", DURATION, "time after which buffered output is sent to a client that asks for none"
    ),
    _option("max-channel-consumers", INT, "most consumers of one channel; 0 is no limit"),
    _option("statsd-address", STRING, "UDP address of a statsd daemon, host:port; empty for none"),
    _option("statsd-prefix", STRING, "start of every statsd name; %s stands for this host and its HTTP port"),
    _option("statsd-interval", DURATION, "time between two pushes to statsd"),
    _option("statsd-mem-stats", BOOL, "push memory statistics to statsd too"),
    _option("statsd-udp-packet-size", INT, "largest packet sent to statsd, in bytes"),
    _option("statsd-exclude-ephemeral", BOOL, "leave #ephemeral topics and channels out of statsd"),
    _option(
        "e2e-processing-latency-percentile",
        FLOATS,
        "latency quantiles to keep, each in (0,1], separated by commas (may be repeated)",
        "e2e_processing_latency_percentiles",
    ),
    _option("e2e-processing-latency-window-time", DURATION, "how far back the latency quantiles look"),
    _option("tls-cert", STRING, "path of the server's certificate"),
    _option("tls-key", STRING, "path of the certificate's private key"),
    _option("tls-client-auth-policy", STRING, "requirement for client certificates: require or require-verify"),
    _option("tls-root-ca-file", STRING, "path of the certificate authorities that are trusted"),
    _option(
        "tls-required", TLS_REQUIREMENT, "refuse clients without TLS: true, false, or tcp-https to leave HTTP plain"
    ),
    _option("tls-min-version", TLS_VERSION, "oldest TLS version spoken: tls1.0, tls1.1, tls1.2 or tls1.3"),
    _option("deflate", BOOL, "let clients ask for deflate compression"),
    _option("max-deflate-level", INT, "highest deflate level that a client may ask for; higher costs more CPU"),
    _option("snappy", BOOL, "let clients ask for snappy compression"),
    _option("enable-experiment", STRINGS, f"turn on an experiment: {', '.join(EXPERIMENTS)} (may be repeated)"),
    _option("enable-debug-endpoints", BOOL, "serve /debug/pprof over HTTP (nsqx only)"),
    _option("metrics-per-client", BOOL, "give each client its own Prometheus series (nsqx only)"),
    _option("shutdown-timeout", DURATION, "longest time that open work or a full disk may delay exit (nsqx only)"),
    _option("shutdown-reserve", INT, "bytes of disk kept free for writing messages at exit, 0 for none (nsqx only)"),
    _option("max-connections", INT, "most TCP clients at once, 0 for no limit (nsqx only)"),
    _option("max-connections-per-ip", INT, "most TCP clients at once from one address, 0 for no limit (nsqx only)"),
    _option("mem-queue-bytes", INT, "bytes that a topic or channel keeps in memory, 0 for no limit (nsqx only)"),
    _option("lookupd-tls", BOOL, "speak TLS to nsqlookupd, trusting -tls-root-ca-file (nsqx only)"),
    _option(
        "lookupd-http-token-file",
        STRING,
        "file with the bearer token for nsqlookupd's HTTP API, to query the channels of new topics (nsqx only)",
    ),
    _option("http-publish-token-file", STRING, "file of tokens, one per line, for /pub and /mpub (nsqx only)"),
    _option("http-read-token-file", STRING, "file of tokens, one per line, for /stats and other reads (nsqx only)"),
    _option(
        "http-consume-token-file",
        STRING,
        "file of tokens, one per line, for reads of messages; without it they need an admin token if there is one"
        " (nsqx only)",
    ),
    _option("http-admin-token-file", STRING, "file of tokens, one per line, for all changes (nsqx only)"),
    _option(
        "http-client-cert-group",
        STRINGS,
        "group of routes that needs a client certificate: publish, read, consume or admin (nsqx only, may be repeated)",
        "http_client_cert_groups",
    ),
    _option("http-browser-checks", BOOL, "refuse HTTP requests that pages of other sites send (nsqx only)"),
    _option(
        "allowed-host",
        STRINGS,
        "additional name in the Host header that is accepted over HTTP, * for any (nsqx only, may be repeated)",
        "allowed_hosts",
    ),
    _option("store", STRING, f"store of topics that no rule matches: {' or '.join(STORES)} (nsqx only)"),
    _option(
        "store-rule",
        STRINGS,
        "store of topics by name as `GLOB=STORE`, for example orders*=log; the first match decides"
        " (nsqx only, may be repeated)",
        "store_rules",
    ),
    _option(
        "durability",
        STRING,
        f"a publish to a log topic is answered after this: {' or '.join(DURABILITIES)} (nsqx only)",
    ),
    _option("log-memory", INT, "bytes of messages of all log topics kept in memory (nsqx only)"),
    _option("commit-bytes", INT, "size of each of the two commit files of the log topics, in bytes (nsqx only)"),
    _option(
        "min-free-disk", INT, "bytes of free disk below which log topics refuse to publish, 0 for none (nsqx only)"
    ),
    _option("log-retain-age", DURATION, "finished messages of a log topic are kept at least so long (nsqx only)"),
    _option("log-retain-bytes", INT, "so many bytes of a log topic are kept at least, finished or not (nsqx only)"),
    _option("log-max-age", DURATION, "older messages of a log topic are dropped, 0 for none (nsqx only)"),
    _option("log-max-bytes", INT, "largest size of the log of a topic, 0 for no limit (nsqx only)"),
    _option(
        "log-when-full",
        STRING,
        f"a publish to a log topic of this size does this: {' or '.join(FULL_POLICIES)} (nsqx only)",
    ),
    _option("log-message-ttl", DURATION, "older messages of a log topic are not delivered, 0 for no limit (nsqx only)"),
    _option(
        "max-attempts",
        INT,
        "deliveries after which a message goes to the dead-letter topic, 0 for no limit (nsqx only)",
    ),
    _option(
        "dead-letter-suffix",
        STRING,
        "the name of a topic and this suffix name its dead-letter topic; empty for none (nsqx only)",
    ),
    _option(
        "channel-start",
        STRING,
        f"first message of a new channel of a log topic: {', '.join(CHANNEL_STARTS)} (nsqx only)",
    ),
    _option("dedup-producers", INT, "named producers that a log topic remembers (nsqx only)"),
    _option("dedup-age", DURATION, "time that a log topic remembers a named producer (nsqx only)"),
    _option("ledger-age", DURATION, "time that the last batch of a query is remembered (nsqx only)"),
    _option("max-transaction-bytes", INT, "maximum size of the batch of a query, held in memory (nsqx only)"),
)

# The settings of topics by name. See topic_settings.
_TOPIC_TABLES = _option("topic", TABLES, "")

_OPTION_FLAGS = {flag.key: flag for flag in (*FLAGS, _TOPIC_TABLES) if flag.in_config}


def options_from_argv(argv: Sequence[str], stderr: TextIO) -> NsqdOptions:
    """Read the options from argv (without the program name) and its configuration file; they are not yet validated.

    Raises UsageError, VersionRequested or ConfigError. Harmless mistakes are logged to ``stderr``.
    """
    return NsqdOptions(**read_options(FLAGS, argv, "nsqd", stderr, (_TOPIC_TABLES,)))


# Go nsqd accepts any number here, and then crashes, stalls or misleads others. Here such a value prevents the start.
_LEAST = {
    "broadcast_tcp_port": 0,
    "broadcast_http_port": 0,
    "http_client_connect_timeout": 0,
    "http_client_request_timeout": 0,
    "mem_queue_size": 0,
    "max_bytes_per_file": 0,
    "sync_timeout": 1,
    "queue_scan_selection_count": 0,
    "queue_scan_worker_pool_max": 0,
    "msg_timeout": 1,
    "max_msg_timeout": 0,
    "max_msg_size": 1,
    "max_body_size": 1,
    "max_req_timeout": 0,
    "max_heartbeat_interval": 0,
    "max_rdy_count": 0,
    "max_output_buffer_size": 0,
    "max_output_buffer_timeout": 0,
    "min_output_buffer_timeout": 0,
    "output_buffer_timeout": 1,
    "max_channel_consumers": 0,
    "statsd_udp_packet_size": 1,
    "shutdown_timeout": 0,
    "shutdown_reserve": 0,
    "max_connections": 0,
    "max_connections_per_ip": 0,
    "mem_queue_bytes": 0,
    "log_memory": _MIB,
    "commit_bytes": _MIB,
    "min_free_disk": 0,
    "log_retain_age": 0,
    "log_retain_bytes": 0,
    "log_max_age": 0,
    "log_max_bytes": 0,
    "log_message_ttl": 0,
    "max_attempts": 0,
    "dedup_producers": 1,
    "dedup_age": 1,
    "ledger_age": 1,
    "max_transaction_bytes": 1,
}

_MOST = {
    "broadcast_tcp_port": MAX_PORT,
    "broadcast_http_port": MAX_PORT,
    "max_msg_size": MAX_MSG_SIZE_LIMIT,
    "statsd_udp_packet_size": MAX_UDP_PAYLOAD_SIZE,
    "max_attempts": MAX_ATTEMPTS_LIMIT,
    "max_transaction_bytes": 2048 * _MIB,
}


def validate(options: NsqdOptions) -> None:
    """Raise ConfigError if the options are invalid, with nsqd's wording where nsqd has the same check."""
    if options.sync_every < 0:
        # As in Go, no number of operations causes a sync, only --sync-timeout does.
        options.sync_every = NO_SYNC_BY_COUNT
    if not 1 <= options.max_deflate_level <= 9:
        raise ConfigError("--max-deflate-level must be [1,9]")
    if not 0 <= options.id < NODE_ID_LIMIT:
        raise ConfigError(f"--node-id must be [0,{NODE_ID_LIMIT})")
    _validate_tls(options)
    if options.auth_http_request_method not in ("get", "post"):
        raise ConfigError("--auth-http-request-method must be post or get")
    for percentile in options.e2e_processing_latency_percentiles:
        if math.isnan(percentile) or not 0 < percentile <= 1:
            raise ConfigError(f"invalid E2E processing latency percentile: {format_float(percentile)}")
    for experiment in options.enable_experiment:
        if experiment not in EXPERIMENTS:
            raise ConfigError(f"unknown experiment {quote(experiment)} (known: {', '.join(EXPERIMENTS)})")
    _validate_ranges(options)
    TopicRules(options)
    _validate_addresses(options)


def _validate_tls(options: NsqdOptions) -> None:
    if options.tls_required != TLS_NOT_REQUIRED and not options.tls_cert and not options.tls_key:
        raise ConfigError("cannot require TLS client connections without TLS key and cert")
    if bool(options.tls_cert) != bool(options.tls_key):
        raise ConfigError("--tls-cert and --tls-key must be given together")
    if options.tls_client_auth_policy not in ("", "require", "require-verify"):
        raise ConfigError("--tls-client-auth-policy must be require or require-verify")


def _validate_ranges(options: NsqdOptions) -> None:
    least = dict(_LEAST)
    if options.statsd_address:
        least["statsd_interval"] = 1
    if options.e2e_processing_latency_percentiles:
        least["e2e_processing_latency_window_time"] = 1
    for key, lowest in least.items():
        value = getattr(options, key)
        name = f"--{_OPTION_FLAGS[key].name}"
        if value < lowest:
            limits = {0: "must not be negative", 1: "must be positive"}
            raise ConfigError(f"{name} {limits.get(lowest, f'must be at least {lowest}')}")
        if key in _MOST and value > _MOST[key]:
            raise ConfigError(f"{name} must be at most {_MOST[key]}")


def _validate_addresses(options: NsqdOptions) -> None:
    check_host_names(options.allowed_hosts)
    parse_listen_address(options.tcp_address)
    if options.http_address:
        parse_listen_address(options.http_address)
    if options.tls_cert and options.https_address:
        address = parse_listen_address(options.https_address)
        if isinstance(address, UnixAddress):
            raise ConfigError(f"listen ({options.https_address}) failed - HTTPS needs host:port")


def expand_statsd_prefix(options: NsqdOptions, http_port: int) -> str:
    """Return the prefix of every statsd name, with the broadcast HTTP port; empty if the option is empty."""
    if not options.statsd_prefix:
        return ""
    host = format_host_port(options.broadcast_address, http_port).replace(".", "_").replace(":", "_")
    prefix = options.statsd_prefix.replace("%s", host)
    return prefix if prefix.endswith(".") else prefix + "."


def config_value(options: NsqdOptions, key: str) -> object:
    """Return the answer of GET /config/<key>: a string is sent as it is, other values as JSON. Raises KeyError."""
    if key not in _OPTION_FLAGS:
        raise KeyError(key)
    value: object = getattr(options, key)
    if key == "e2e_processing_latency_percentiles":
        # Go's JSON writes 1.0 as 1.
        return [1 if number == 1 else number for number in options.e2e_processing_latency_percentiles]
    return value
