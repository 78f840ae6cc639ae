"""nsqlookupd's options: their names, defaults, flags and limits.

Each attribute of ``NsqlookupdOptions`` has the name of its key in the configuration file. Durations are integers of
nanoseconds. Opens no sockets and reads only the configuration file.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TextIO

from nsqx import log
from nsqx.errors import ConfigError
from nsqx.flags import BOOL, DAEMON_FLAGS, DURATION, LOG_LEVEL, STRING, STRINGS, Flag, OptionTable, read_options
from nsqx.net.address import parse_tcp_listen_address
from nsqx.net.cross_origin import check_host_names
from nsqx.units import NS_PER_S


@dataclass(slots=True)
class NsqlookupdOptions:
    """Every setting of one nsqlookupd, with NSQ's defaults."""

    log_level: int = log.INFO
    log_prefix: str = "[nsqlookupd] "
    tcp_address: str = "0.0.0.0:4160"
    http_address: str = "0.0.0.0:4161"
    https_address: str = ""
    broadcast_address: str = field(default_factory=lambda: socket.gethostname())
    inactive_producer_timeout: int = 300 * NS_PER_S
    tombstone_lifetime: int = 45 * NS_PER_S
    tls_cert: str = ""
    tls_key: str = ""
    tls_root_ca_file: str = ""
    http_read_token_file: str = ""
    http_admin_token_file: str = ""
    http_client_cert_groups: list[str] = field(default_factory=list)
    http_browser_checks: bool = True
    allowed_hosts: list[str] = field(default_factory=list)


_option = OptionTable(NsqlookupdOptions()).option


FLAGS: tuple[Flag, ...] = (
    *DAEMON_FLAGS,
    _option("log-level", LOG_LEVEL, "least severe level that is logged: debug, info, warn, error or fatal"),
    _option("log-prefix", STRING, "text at the start of every log line"),
    _option("tcp-address", STRING, "address where nsqd registers: host:port"),
    _option("http-address", STRING, "address for HTTP clients: host:port"),
    _option("https-address", STRING, "address for HTTPS clients: host:port; needs -tls-cert (nsqx only)"),
    _option("broadcast-address", STRING, "host name of this nsqlookupd that it reports to nsqd"),
    _option("inactive-producer-timeout", DURATION, "time since its last ping after which an nsqd is no longer listed"),
    _option("tombstone-lifetime", DURATION, "time for which lookups of a topic omit a tombstoned producer"),
    _option("tls-cert", STRING, "path of the certificate; if set, nsqd must connect with TLS (nsqx only)"),
    _option("tls-key", STRING, "path of the certificate's private key (nsqx only)"),
    _option("tls-root-ca-file", STRING, "path of the authorities that sign HTTPS clients' certificates (nsqx only)"),
    _option("http-read-token-file", STRING, "file with the tokens for lookups, one per line (nsqx only)"),
    _option("http-admin-token-file", STRING, "file with the tokens for all changes (nsqx only)"),
    _option(
        "http-client-cert-group",
        STRINGS,
        "group of routes that requires HTTPS with a client certificate: read or admin (nsqx only, may be repeated)",
        "http_client_cert_groups",
    ),
    _option("http-browser-checks", BOOL, "reject HTTP requests that a browser sends for another site (nsqx only)"),
    _option(
        "allowed-host",
        STRINGS,
        "name accepted in the Host header besides this host's own; * accepts any (nsqx only, may be repeated)",
        "allowed_hosts",
    ),
)


def options_from_argv(argv: Sequence[str], stderr: TextIO) -> NsqlookupdOptions:
    """Parse argv, without the program's name, and the configuration file that it names; do not validate the values.

    Raises UsageError, VersionRequested or ConfigError; ignored settings are logged on ``stderr``.
    """
    return NsqlookupdOptions(**read_options(FLAGS, argv, "nsqlookupd", stderr))


def validate(options: NsqlookupdOptions) -> None:
    """Raise ConfigError if an option is invalid; normalize the addresses."""
    check_host_names(options.allowed_hosts)
    # As in Go, an empty address means any free port on every interface.
    options.tcp_address = options.tcp_address or ":0"
    options.http_address = options.http_address or ":0"
    parse_tcp_listen_address(options.tcp_address)
    parse_tcp_listen_address(options.http_address)
    if bool(options.tls_cert) != bool(options.tls_key):
        raise ConfigError("--tls-cert and --tls-key must be given together")
    if options.https_address:
        parse_tcp_listen_address(options.https_address)
        if not options.tls_cert:
            raise ConfigError("--https-address needs --tls-cert and --tls-key")
    if options.http_client_cert_groups and not options.https_address:
        raise ConfigError("--http-client-cert-group needs --https-address: client certificates need HTTPS")
    for name in ("inactive-producer-timeout", "tombstone-lifetime"):
        if getattr(options, name.replace("-", "_")) < 0:
            raise ConfigError(f"--{name} must not be negative")
