"""nsqlookupd's options: their names, defaults, flags and limits.

An attribute of ``Options`` is called what its key in the configuration file is called. Durations are integers of
nanoseconds. Nothing here opens a file or a socket but the configuration file.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TextIO

from nsqx import log
from nsqx.errors import ConfigError
from nsqx.flags import BOOL, DURATION, LOG_LEVEL, STRING, Flag, Kind, read_options
from nsqx.net.address import TCPAddress, parse_address

_S = 1_000_000_000


@dataclass(slots=True)
class Options:
    """Every setting of one nsqlookupd, with NSQ's defaults."""

    log_level: int = log.INFO
    log_prefix: str = "[nsqlookupd] "
    tcp_address: str = "0.0.0.0:4160"
    http_address: str = "0.0.0.0:4161"
    broadcast_address: str = field(default_factory=lambda: socket.gethostname())
    inactive_producer_timeout: int = 300 * _S
    tombstone_lifetime: int = 45 * _S
    tls_cert: str = ""
    tls_key: str = ""
    http_read_token_file: str = ""
    http_admin_token_file: str = ""


_DEFAULTS = Options()


def _option(name: str, kind: Kind, help: str) -> Flag:  # noqa: A002
    return Flag(name, kind, getattr(_DEFAULTS, name.replace("-", "_")), help)


def _command_line_only(name: str, kind: Kind, default: object, help: str) -> Flag:  # noqa: A002
    return Flag(name, kind, default, help, in_config=False)


FLAGS: tuple[Flag, ...] = (
    _command_line_only("version", BOOL, False, "print the version and exit"),
    _command_line_only("config", STRING, "", "path of a TOML configuration file"),
    _command_line_only("verbose", BOOL, False, "[deprecated] no effect; see -log-level"),
    _option("log-level", LOG_LEVEL, "least severe level that is logged: debug, info, warn, error or fatal"),
    _option("log-prefix", STRING, "text at the start of every log line"),
    _option("tcp-address", STRING, "where nsqd connects to register: host:port"),
    _option("http-address", STRING, "where HTTP clients connect: host:port"),
    _option("broadcast-address", STRING, "host that nsqd is told to reach this nsqlookupd by"),
    _option("inactive-producer-timeout", DURATION, "time since its last ping after which an nsqd is no longer shown"),
    _option("tombstone-lifetime", DURATION, "time that a tombstoned producer is left out of a topic's lookup"),
    _option("tls-cert", STRING, "path of a certificate, with which nsqd must speak TLS (nsqx only)"),
    _option("tls-key", STRING, "path of the certificate's private key (nsqx only)"),
    _option("http-read-token-file", STRING, "tokens, one a line, one of which look-ups need (nsqx only)"),
    _option("http-admin-token-file", STRING, "tokens, one of which every change needs (nsqx only)"),
)


def options_from_argv(argv: Sequence[str], stderr: TextIO) -> Options:
    """The options that argv, less the program's name, and the configuration file it names ask for; not yet validated.

    Raises UsageError, VersionWanted or ConfigError; harmless mistakes are logged on ``stderr``.
    """
    return Options(**read_options(FLAGS, argv, "nsqlookupd", stderr))


def validate(options: Options) -> None:
    """Raise ConfigError if nsqlookupd cannot run as asked."""
    listen_address(options.tcp_address)
    listen_address(options.http_address)
    for name in ("inactive-producer-timeout", "tombstone-lifetime"):
        if getattr(options, name.replace("-", "_")) < 0:
            raise ConfigError(f"--{name} must not be negative")


def listen_address(text: str) -> TCPAddress:
    """The address to listen on; nsqlookupd has no unix sockets."""
    try:
        address = parse_address(text)
    except ConfigError as error:
        raise ConfigError(f"listen ({text}) failed - {error}") from None
    if not isinstance(address, TCPAddress):
        raise ConfigError(f"listen ({text}) failed - listen tcp: address {text}: missing port in address")
    return address
