"""nsqadmin's options: their names, defaults, flags and limits.

Each attribute of ``NsqadminOptions`` has the name of its key in the configuration file. Durations are integers of
nanoseconds. Opens no sockets and reads only the configuration file and the token files.
"""

import ipaddress
import posixpath
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TextIO
from urllib.parse import urlsplit

from nsqx import log
from nsqx.client.options import Options as ClientOptions
from nsqx.client.options import read_option_flags
from nsqx.cluster.credentials import NSQD, NSQLOOKUPD, TOKEN_VARIABLES
from nsqx.errors import ConfigError
from nsqx.flags import BOOL, DAEMON_FLAGS, DURATION, LOG_LEVEL, STRING, STRINGS, TABLES, Flag, OptionTable, read_options
from nsqx.net.address import TCPAddress, format_host_port, parse_address, parse_tcp_listen_address
from nsqx.net.cross_origin import check_host_names
from nsqx.nsqadmin.alert_rules import AlertRules
from nsqx.units import NS_PER_S

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_MIN_POLL_INTERVAL = NS_PER_S // 10
_MAX_HISTORY_POINTS = 12_000
_FINE_WINDOW = 3600 * NS_PER_S
_MAX_HISTORY_WINDOW = 744 * 3600 * NS_PER_S
# Shorter tokens could be guessed.
MIN_TOKEN_LENGTH = 16

# consumer_opts can contain an auth secret, the URL of a webhook a key, and a table of a cluster all of these.
_SECRETS = frozenset(
    ("auth_token", "view_token", "consume_token", "operate_token", "consumer_opts", "alert_webhook", "cluster")
)


@dataclass(slots=True)
class NsqadminOptions:
    """Every setting of one nsqadmin. The fields up to ``admin_users`` are NSQ's, with NSQ's defaults."""

    log_level: int = log.INFO
    log_prefix: str = "[nsqadmin] "
    http_address: str = "0.0.0.0:4171"
    base_path: str = "/"
    dev_static_dir: str = ""
    graphite_url: str = ""
    proxy_graphite: bool = False
    statsd_prefix: str = "nsq.%s"
    statsd_counter_format: str = "stats.counters.%s.count"
    statsd_gauge_format: str = "stats.gauges.%s"
    statsd_interval: int = 60 * NS_PER_S
    nsqlookupd_http_addresses: list[str] = field(default_factory=list)
    nsqd_http_addresses: list[str] = field(default_factory=list)
    http_client_connect_timeout: int = 2 * NS_PER_S
    http_client_request_timeout: int = 5 * NS_PER_S
    http_client_tls_insecure_skip_verify: bool = False
    http_client_tls_root_ca_file: str = ""
    http_client_tls_cert: str = ""
    http_client_tls_key: str = ""
    allow_config_from_cidr: str = "127.0.0.1/8"
    notification_http_endpoint: str = ""
    acl_http_header: str = "X-Forwarded-User"
    admin_users: list[str] = field(default_factory=list)

    poll_interval: int = 5 * NS_PER_S
    history_window: int = 24 * 3600 * NS_PER_S
    trusted_proxies: list[str] = field(default_factory=list)
    allowed_origins: list[str] = field(default_factory=list)
    allowed_hosts: list[str] = field(default_factory=list)
    nsqd_http_token_file: str = ""
    lookupd_http_token_file: str = ""
    auth_token: str = ""
    auth_token_file: str = ""
    view_token: str = ""
    view_token_file: str = ""
    consume_token: str = ""
    consume_token_file: str = ""
    operate_token: str = ""
    operate_token_file: str = ""
    audit_log: str = ""
    state_file: str = ""
    messages: bool = True
    consumer_opts: list[str] = field(default_factory=list)
    alert_webhook: str = ""
    external_url: str = ""
    manual_url: str = ""
    alert: list[dict[str, Any]] = field(default_factory=list)
    """Tables of the configuration file that change the rules of alerts."""
    cluster_name: str = ""
    cluster: list[dict[str, Any]] = field(default_factory=list)
    """Tables of the configuration file with further clusters."""


_option = OptionTable(NsqadminOptions()).option
_SHOWN = frozenset(each.name for each in fields(NsqadminOptions)) - _SECRETS


FLAGS: tuple[Flag, ...] = (
    *DAEMON_FLAGS,
    _option("log-level", LOG_LEVEL, "least severe level that is logged: debug, info, warn, error or fatal"),
    _option("log-prefix", STRING, "text at the start of every log line"),
    _option("http-address", STRING, "address for browsers: host:port"),
    _option("base-path", STRING, "path prefix of all URLs, if a proxy adds one"),
    _option("dev-static-dir", STRING, "directory of the page's files, instead of the built page (for development)"),
    _option("graphite-url", STRING, "URL of Graphite for the graphs of the page"),
    _option("proxy-graphite", BOOL, "fetch graphs from Graphite through nsqadmin"),
    _option("statsd-counter-format", STRING, "format of counter names in statsd; empty if statsd does not change them"),
    _option("statsd-gauge-format", STRING, "format of gauge names in statsd; empty if statsd does not change them"),
    _option("statsd-prefix", STRING, "prefix of the names that nsqd sends to statsd; %s stands for its address"),
    _option("statsd-interval", DURATION, "interval between two pushes of nsqd to statsd"),
    _option("notification-http-endpoint", STRING, "URL to which every administrative action is POSTed"),
    _option("http-client-connect-timeout", DURATION, "timeout for connecting to nsqd or nsqlookupd"),
    _option("http-client-request-timeout", DURATION, "timeout for a whole request to nsqd or nsqlookupd"),
    _option("http-client-tls-insecure-skip-verify", BOOL, "accept any certificate of nsqd and nsqlookupd"),
    _option(
        "http-client-tls-root-ca-file",
        STRING,
        "certificates of the authorities that sign the certificates of nsqd and nsqlookupd",
    ),
    _option("http-client-tls-cert", STRING, "client certificate for nsqd and nsqlookupd"),
    _option("http-client-tls-key", STRING, "key of that certificate"),
    _option("allow-config-from-cidr", STRING, "network whose clients may use /config; empty allows every client"),
    _option("acl-http-header", STRING, "header in which a proxy sends the user's name"),
    _option(
        "lookupd-http-address",
        STRINGS,
        "HTTP address of an nsqlookupd: host:port (may be repeated)",
        "nsqlookupd_http_addresses",
    ),
    _option(
        "nsqd-http-address", STRINGS, "HTTP address of an nsqd: host:port (may be repeated)", "nsqd_http_addresses"
    ),
    _option(
        "admin-user",
        STRINGS,
        "user who may make changes (may be repeated); if set, all other users may only view",
        "admin_users",
    ),
    _option("poll-interval", DURATION, "interval between polls of the cluster for the history; 0 disables the history"),
    _option("history-window", DURATION, "length of the history, at most 744h; it is stored beside -state-file"),
    _option(
        "trusted-proxy",
        STRINGS,
        "address or network of a proxy whose -acl-http-header is accepted (may be repeated); the default is loopback",
        "trusted_proxies",
    ),
    _option(
        "allowed-origin",
        STRINGS,
        "origin, such as https://admin.example.com, whose pages may make changes (may be repeated). Needed only if a"
        " proxy changes the Host header",
        "allowed_origins",
    ),
    _option(
        "allowed-host",
        STRINGS,
        "name accepted in the Host header besides this host's own and those of -allowed-origin; * accepts any (may be"
        " repeated). Needed if nsqadmin listens on loopback behind a proxy that keeps the browser's Host header",
        "allowed_hosts",
    ),
    _option(
        "nsqd-http-token-file",
        STRING,
        f"file with the bearer token for nsqd's HTTP; the default is the token in ${TOKEN_VARIABLES[NSQD]}",
    ),
    _option(
        "lookupd-http-token-file",
        STRING,
        f"file with the bearer token for nsqlookupd's HTTP; the default is the token in ${TOKEN_VARIABLES[NSQLOOKUPD]}",
    ),
    _option("auth-token", STRING, "token that every request must have"),
    _option("auth-token-file", STRING, "file with that token; it keeps the token off the command line"),
    _option("view-token", STRING, "token that allows viewing but no changes"),
    _option("view-token-file", STRING, "file with that token"),
    _option("consume-token", STRING, "token that allows viewing and reading messages but no changes"),
    _option("consume-token-file", STRING, "file with that token"),
    _option("operate-token", STRING, "token that allows viewing, reading messages and changes"),
    _option("operate-token-file", STRING, "file with that token"),
    _option("audit-log", STRING, "file to which every administrative action is appended as one line of JSON"),
    _option(
        "state-file",
        STRING,
        "file that stores the list of the cluster's nsqds across restarts; - disables it. The default is a file below"
        " $STATE_DIRECTORY, $XDG_STATE_HOME or ~/.local/state",
    ),
    _option("messages", BOOL, "allow the page to show the messages of a topic and to publish test messages"),
    _option(
        "consumer-opt",
        STRINGS,
        "option,value for the client that follows messages, such as tls_v1,true or auth_secret,SECRET (may be"
        " repeated)",
        "consumer_opts",
    ),
    _option("alert-webhook", STRING, "URL to which alerts are POSTed when they fire and when they are resolved"),
    _option(
        "external-url",
        STRING,
        "URL at which browsers reach the page, with the base path, for the links in these messages; the default has"
        " this host's name and -http-address",
    ),
    _option("manual-url", STRING, "URL of the manual, for the links of the page; without it there are none"),
)
_ALERT_TABLES = _option("alert", TABLES, "")
_CONFIG_ONLY = (_ALERT_TABLES, _option("cluster", TABLES, ""), _option("cluster-name", STRING, ""))
# The listener, the log and the page are common to all clusters.
_COMMON = frozenset(
    ("log_level", "log_prefix", "http_address", "base_path", "dev_static_dir", "cluster", "cluster_name")
)
CLUSTER_FLAGS = tuple(flag for flag in (*FLAGS, *_CONFIG_ONLY) if flag.in_config and flag.key not in _COMMON)
"""The options that a cluster can have of its own."""


def options_from_argv(argv: Sequence[str], stderr: TextIO) -> NsqadminOptions:
    """Parse argv, without the program's name, and the configuration file that it names; do not validate the values.

    Raises UsageError, VersionRequested or ConfigError; ignored settings are logged on ``stderr``.
    """
    return NsqadminOptions(**read_options(FLAGS, argv, "nsqadmin", stderr, _CONFIG_ONLY))


def config_value(options: NsqadminOptions, key: str) -> Any:
    """Return an option by its name in the configuration file; raise KeyError if it is unknown or secret."""
    if key not in _SHOWN:
        raise KeyError(key)
    return getattr(options, key)


def validate(options: NsqadminOptions) -> None:
    """Raise ConfigError if an option is invalid; normalize the base path and read the token files."""
    if not options.nsqd_http_addresses and not options.nsqlookupd_http_addresses:
        raise ConfigError("--nsqd-http-address or --lookupd-http-address required")
    if options.nsqd_http_addresses and options.nsqlookupd_http_addresses:
        raise ConfigError("use --nsqd-http-address or --lookupd-http-address not both")
    if options.http_client_tls_cert and not options.http_client_tls_key:
        raise ConfigError("--http-client-tls-key must be specified with --http-client-tls-cert")
    if options.http_client_tls_key and not options.http_client_tls_cert:
        raise ConfigError("--http-client-tls-cert must be specified with --http-client-tls-key")
    for name, addresses in (
        ("lookupd-http-address", options.nsqlookupd_http_addresses),
        ("nsqd-http-address", options.nsqd_http_addresses),
    ):
        for address in addresses:
            _check_upstream_address(name, address)
    if options.proxy_graphite and options.graphite_url:
        _check_graphite_url(options.graphite_url)
    if options.allow_config_from_cidr:
        config_network(options)
    # As in Go, an empty address means any free port on every interface.
    options.http_address = options.http_address or ":0"
    parse_tcp_listen_address(options.http_address)
    options.base_path = normalized_base_path(options.base_path)
    _check_durations(options)
    trusted_networks(options)
    for origin in options.allowed_origins:
        _check_origin(origin)
    check_host_names(options.allowed_hosts)
    for name in ("auth_token", "view_token", "consume_token", "operate_token"):
        _read_token(options, name)
    tail_options(options)
    AlertRules(options.alert)
    if (options.alert or options.alert_webhook) and not options.poll_interval:
        raise ConfigError("alerts need --poll-interval above 0")
    for name in ("alert-webhook", "external-url", "manual-url"):
        _check_http_url(name, getattr(options, name.replace("-", "_")))


def _check_http_url(name: str, text: str) -> None:
    if not text:
        return
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(f"invalid --{name}: use a URL such as https://host/path")


def page_url(options: NsqadminOptions, port: int) -> str:
    """Return the URL of the page without a slash at the end."""
    if options.external_url:
        return options.external_url.rstrip("/")
    address = parse_address(options.http_address)
    host = address.host if isinstance(address, TCPAddress) else ""
    if host in ("", "0.0.0.0", "::"):
        host = socket.gethostname()
    return f"http://{format_host_port(host, port)}{options.base_path.rstrip('/')}"


def _check_upstream_address(name: str, text: str) -> None:
    try:
        address = parse_address(text)
    except ConfigError as error:
        raise ConfigError(f"failed to resolve --{name} ({text}) - {error}") from None
    if not isinstance(address, TCPAddress):
        reason = f"address {text}: missing port in address"
        raise ConfigError(f"failed to resolve --{name} ({text}) - {reason}")


def _check_graphite_url(text: str) -> None:
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(f"failed to parse --graphite-url ({text}) - not an http address")


def normalized_base_path(text: str) -> str:
    """Return a path with a leading slash and no trailing one, except for ``/`` itself."""
    cleaned = posixpath.normpath("/" + text)
    return "/" + cleaned.lstrip("/")


def _check_durations(options: NsqadminOptions) -> None:
    for name in ("http-client-connect-timeout", "http-client-request-timeout"):
        if getattr(options, name.replace("-", "_")) < 0:
            raise ConfigError(f"--{name} must not be negative")
    if options.poll_interval == 0:
        return
    if options.poll_interval < _MIN_POLL_INTERVAL:
        raise ConfigError("--poll-interval must be 0 or at least 100ms")
    if options.history_window < options.poll_interval:
        raise ConfigError("--history-window must not be shorter than --poll-interval")
    if options.history_window > _MAX_HISTORY_WINDOW:
        raise ConfigError("--history-window must not be longer than 744h")


def history_points(options: NsqadminOptions) -> int:
    """Return the number of polls that a series remembers: those of up to an hour."""
    window = min(options.history_window, _FINE_WINDOW)
    return max(2, min(-(-window // options.poll_interval), _MAX_HISTORY_POINTS))


def config_network(options: NsqadminOptions) -> Network | None:
    """Return the network whose clients may use /config; None allows every client."""
    text = options.allow_config_from_cidr
    if not text:
        return None
    try:
        if "/" not in text:
            raise ValueError
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ConfigError(f"failed to parse --allow-config-from-cidr ({text}) - invalid CIDR address: {text}") from None


def trusted_networks(options: NsqadminOptions) -> list[Network]:
    """Return the networks whose user header is accepted."""
    networks = []
    for text in options.trusted_proxies or ("127.0.0.0/8", "::1/128"):
        try:
            networks.append(ipaddress.ip_network(text, strict=False))
        except ValueError:
            raise ConfigError(f"failed to parse --trusted-proxy ({text}) - an address or a network expected") from None
    return networks


def tail_options(options: NsqadminOptions) -> dict[str, Any]:
    """Return the client options for tails; raises ConfigError."""
    given = read_option_flags(options.consumer_opts)
    ClientOptions.of(given)
    return given


def _check_origin(text: str) -> None:
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.path in ("", "/")
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(f"failed to parse --allowed-origin ({text}) - an origin such as https://host expected")


def _read_token(options: NsqadminOptions, name: str) -> None:
    """Read the token from its file, if one is given, and check it."""
    flag = name.replace("_", "-")
    path = getattr(options, f"{name}_file")
    if path and getattr(options, name):
        raise ConfigError(f"use --{flag} or --{flag}-file not both")
    if path:
        try:
            with open(path, encoding="utf-8") as file:
                setattr(options, name, file.read().strip())
        except (OSError, ValueError) as error:
            raise ConfigError(f"failed to read --{flag}-file {path} - {error}") from None
    token: str = getattr(options, name)
    if (path or token) and len(token) < MIN_TOKEN_LENGTH:
        raise ConfigError(f"--{flag} must have at least {MIN_TOKEN_LENGTH} characters")
    if not token.isprintable() or not token.isascii() or " " in token:
        raise ConfigError(f"--{flag} must consist of printable ASCII characters without spaces")
