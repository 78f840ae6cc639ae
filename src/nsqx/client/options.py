"""The options of producers and consumers. Names, defaults and ranges are those of go-nsq.

A duration is a number of seconds (``1.5``), a ``timedelta`` or text in Go's form (``"250ms"``, ``"1m30s"``). It is
stored as seconds. ``-1`` turns an option off where that is possible. ``read_option_flags`` reads options from a command
line (``--consumer-opt name,value``). There, a duration without a unit is milliseconds, as in go-nsq.
"""

from __future__ import annotations

import difflib
import math
import os
import socket
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, TypedDict

from nsqx.errors import ConfigError
from nsqx.gotext import format_duration, parse_duration_ns
from nsqx.net.address import TCPAddress, parse_address
from nsqx.net.compression import make_snappy
from nsqx.net.tls import client_context
from nsqx.units import NS_PER_S
from nsqx.version import VERSION

Duration = float | str | timedelta
"""A number of seconds, a ``timedelta``, or text in Go's form, such as ``"250ms"`` or ``"1m30s"``."""

USER_AGENT = f"nsqx/{VERSION}"

_MINUTE = 60.0
_HOUR = 3600.0
_TRUE = {"1", "t", "true"}
_FALSE = {"0", "f", "false"}
# nsqd counts attempts in 16 bits.
MAX_ATTEMPTS = 65535
# go-nsq's name of an option. As in go-nsq, true means that the secret is sent to nsqlookupd.
_GO_NAMES = {"skip_lookupd_authorization": "lookupd_authorization"}
_BACKOFF_STRATEGIES = ("exponential", "full_jitter")
_TLS_VERSIONS = ("", "ssl3.0", "tls1.0", "tls1.1", "tls1.2", "tls1.3")


def _duration(default_s: float, least_s: float = 0.0, most_s: float = math.inf, *, may_be_off: bool = False) -> float:
    metadata = {"kind": "duration", "least": least_s, "most": most_s, "may_be_off": may_be_off}
    value: float = field(default=default_s, metadata=metadata)
    return value


def _number(default: int, least: int = 0, most: float = math.inf, *, may_be_off: bool = False) -> int:
    metadata = {"kind": "int", "least": least, "most": most, "may_be_off": may_be_off}
    value: int = field(default=default, metadata=metadata)
    return value


def _choice(default: str, allowed: tuple[str, ...]) -> str:
    value: str = field(default=default, metadata={"kind": "choice", "allowed": allowed})
    return value


def _text(default: str = "") -> str:
    value: str = field(default=default, metadata={"kind": "text"})
    return value


def _flag() -> bool:
    value: bool = field(default=False, metadata={"kind": "bool"})
    return value


class OptionKeywords(TypedDict, total=False):
    """Keyword arguments of producers and consumers.

    Attributes:
        dial_timeout: Longest time to establish a connection to nsqd; 0 means no limit.
        local_addr: Local ``host:port`` to connect from; port 0 lets the system choose.
        read_timeout: Close a connection on which nothing arrives for this long. Not applied when heartbeats are
            off.
        write_timeout: Close a connection whose peer accepts no bytes for this long.
        lookupd_poll_interval: Time between two look-ups in nsqlookupd.
        lookupd_poll_jitter: Largest random delay added to each look-up, as a fraction of the interval.
        lookupd_poll_timeout: Longest time for one look-up.
        max_requeue_delay: Upper limit of the default requeue delay.
        default_requeue_delay: Requeue delay per attempt: the second failure waits twice as long as the first.
        backoff_strategy: ``exponential``, or ``full_jitter``, which picks a random pause up to the exponential
            one.
        max_backoff_duration: Longest backoff pause; 0 turns backoff off.
        backoff_multiplier: Base of the backoff pause. The pause at level n is this value times 2 to the power
            of n.
        max_attempts: Deliveries after which a handler no longer receives a message; 0 means no limit.
        low_rdy_idle_timeout: Idle time after which a connection passes its RDY count on, if there are more
            connections than ``max_in_flight``.
        low_rdy_timeout: Time after which a connection passes its RDY count on even if messages arrive.
        rdy_redistribute_interval: Time between two redistributions of RDY counts.
        client_id: Name of the client in nsqd's statistics. Default: the host name up to the first dot.
        hostname: Host name in nsqd's statistics. Default: the name of this host.
        user_agent: Name and version of the library in nsqd's statistics.
        topology_region: Region of the client, sent to nsqd.
        topology_zone: Zone of the client within its region, sent to nsqd.
        heartbeat_interval: Time between two heartbeats from nsqd; 0 means nsqd's default, -1 none (producers
            only).
        sample_rate: Percentage of the channel's messages to receive; 0 means all.
        tls_v1: Require TLS.
        tls_root_ca_file: File with the certificate authorities to trust. Default: those of the system.
        tls_insecure_skip_verify: Accept any certificate.
        tls_cert: File with the client certificate.
        tls_key: File with the key of the client certificate.
        tls_min_version: Lowest TLS version to accept, such as ``tls1.2``.
        tls_context: Context to use instead of the ``tls_`` file options.
        deflate: Ask for deflate compression.
        deflate_level: Compression level for deflate, 1 to 9.
        snappy: Ask for snappy compression.
        output_buffer_size: Size in bytes of nsqd's output buffer for this client; -1 turns buffering off.
        output_buffer_timeout: Longest time that nsqd buffers output for this client; -1 turns the timer off.
        max_in_flight: Largest number of messages in flight over all connections of a consumer.
        msg_timeout: Time after which nsqd requeues a message that was not answered; 0 means nsqd's default.
        max_msg_size: Largest frame in bytes to accept from nsqd; 0 means no limit.
        auth_secret: Secret for AUTH.
        lookupd_authorization: Send ``auth_secret`` to nsqlookupd as a bearer token.
        nsqd_http_token_file: File with the bearer token for nsqd's HTTP API. Used by the Spark source and by
            pipelines.
        lookupd_http_token_file: File with the bearer token for nsqlookupd's HTTP API.
    """

    dial_timeout: Duration
    local_addr: str
    read_timeout: Duration
    write_timeout: Duration
    lookupd_poll_interval: Duration
    lookupd_poll_jitter: float
    lookupd_poll_timeout: Duration
    max_requeue_delay: Duration
    default_requeue_delay: Duration
    backoff_strategy: str
    max_backoff_duration: Duration
    backoff_multiplier: Duration
    max_attempts: int
    low_rdy_idle_timeout: Duration
    low_rdy_timeout: Duration
    rdy_redistribute_interval: Duration
    client_id: str
    hostname: str
    user_agent: str
    topology_region: str
    topology_zone: str
    heartbeat_interval: Duration
    sample_rate: int
    tls_v1: bool
    tls_root_ca_file: str
    tls_insecure_skip_verify: bool
    tls_cert: str
    tls_key: str
    tls_min_version: str
    tls_context: ssl.SSLContext | None
    deflate: bool
    deflate_level: int
    snappy: bool
    output_buffer_size: int
    output_buffer_timeout: Duration
    max_in_flight: int
    msg_timeout: Duration
    max_msg_size: int
    auth_secret: str
    lookupd_authorization: bool
    nsqd_http_token_file: str
    lookupd_http_token_file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All options with checked values; durations are in seconds. Create one with ``Options.of``."""

    dial_timeout: float = _duration(1.0)
    local_addr: str = field(default="", metadata={"kind": "address"})
    read_timeout: float = _duration(60.0, 0.1, 5 * _MINUTE)
    write_timeout: float = _duration(1.0, 0.1, 5 * _MINUTE)
    lookupd_poll_interval: float = _duration(60.0, 0.01, 5 * _MINUTE)
    lookupd_poll_jitter: float = field(default=0.3, metadata={"kind": "float", "least": 0.0, "most": 1.0})
    lookupd_poll_timeout: float = _duration(_MINUTE)
    max_requeue_delay: float = _duration(15 * _MINUTE, 0.0, _HOUR)
    default_requeue_delay: float = _duration(90.0, 0.0, _HOUR)
    backoff_strategy: str = _choice("exponential", _BACKOFF_STRATEGIES)
    max_backoff_duration: float = _duration(2 * _MINUTE, 0.0, _HOUR)
    backoff_multiplier: float = _duration(1.0, 0.0, _HOUR)
    max_attempts: int = field(default=5, metadata={"kind": "int", "least": 0, "most": math.inf, "top": MAX_ATTEMPTS})
    low_rdy_idle_timeout: float = _duration(10.0, 1.0, 5 * _MINUTE)
    low_rdy_timeout: float = _duration(30.0, 1.0, 5 * _MINUTE)
    rdy_redistribute_interval: float = _duration(5.0, 0.001, 5.0)
    client_id: str = _text()
    hostname: str = _text()
    user_agent: str = _text(USER_AGENT)
    topology_region: str = _text()
    topology_zone: str = _text()
    heartbeat_interval: float = _duration(30.0, 0.0, may_be_off=True)
    sample_rate: int = _number(0, 0, 99)
    tls_v1: bool = _flag()
    tls_root_ca_file: str = _text()
    tls_insecure_skip_verify: bool = _flag()
    tls_cert: str = _text()
    tls_key: str = _text()
    tls_min_version: str = _choice("", _TLS_VERSIONS)
    tls_context: ssl.SSLContext | None = field(default=None, metadata={"kind": "context"})
    deflate: bool = _flag()
    deflate_level: int = _number(6, 1, 9)
    snappy: bool = _flag()
    output_buffer_size: int = _number(16384, 0, may_be_off=True)
    output_buffer_timeout: float = _duration(0.25, 0.0, may_be_off=True)
    max_in_flight: int = _number(1)
    msg_timeout: float = _duration(0.0)
    max_msg_size: int = _number(0)
    auth_secret: str = _text()
    lookupd_authorization: bool = field(default=True, metadata={"kind": "bool"})
    nsqd_http_token_file: str = _text()
    lookupd_http_token_file: str = _text()

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Options:
        """Return the options with these values, and defaults for the others; raises ConfigError."""
        checked = {_known(name, _ADDRESSES): _checked(name, value) for name, value in options.items()}
        checked.setdefault("hostname", socket.gethostname())
        checked.setdefault("client_id", checked["hostname"].partition(".")[0])
        made = cls(**checked)
        made._check_together()
        return made

    def _check_together(self) -> None:
        if self.heartbeat_interval > self.read_timeout:
            raise ConfigError(
                f"option heartbeat_interval: {_shown(self.heartbeat_interval)} must not exceed read_timeout"
                f" {_shown(self.read_timeout)}, or idle connections would be closed"
            )
        if self.deflate and self.snappy:
            raise ConfigError("options deflate and snappy: nsqd allows only one compression at a time")
        if self.snappy:
            make_snappy()  # raises ConfigError if its package is not installed
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError("options tls_cert and tls_key: both are required")
        for name in ("tls_root_ca_file", "tls_cert", "tls_key", "nsqd_http_token_file", "lookupd_http_token_file"):
            path = getattr(self, name)
            if path and not os.path.isfile(path):
                raise ConfigError(f"option {name}: file {path} does not exist")
        if self.tls_root_ca_file or self.tls_cert:
            client_context(self)  # raises ConfigError if a file has no certificate or no key


_FIELDS = {each.name: each for each in fields(Options)}


def read_option_flags(flags: Iterable[str]) -> dict[str, Any]:
    """Parse options in the form ``name,value``; raises ConfigError. A name without a value means ``true``."""
    options: dict[str, Any] = {}
    for flag in flags:
        written, comma, text = flag.partition(",")
        written = written.replace("-", "_")
        name = _known(_GO_NAMES.get(written, written))
        options[name] = _checked(name, _read_text(name, text if comma else "true"))
    return options


# Arguments of the clients that a program may misspell, so that they seem to be options.
_ADDRESSES = ("nsqd_tcp_addresses", "nsqd_http_addresses", "lookupd_http_addresses")


def _known(name: str, others: Iterable[str] = ()) -> str:
    """Return the name of an option; raises ConfigError, which suggests the most similar option or one of ``others``."""
    if name in _FIELDS:
        return name
    close = difflib.get_close_matches(name, [*_FIELDS, *others], 1)
    raise ConfigError(f"invalid option {name}{f': did you mean {close[0]}?' if close else ''}")


def _read_text(name: str, text: str) -> Any:
    kind = _FIELDS[name].metadata["kind"]
    try:
        if kind == "duration":
            return int(text) / 1000 if text.isdigit() else _seconds(name, text)
        if kind == "int":
            return int(text)
        if kind == "float":
            return float(text)
    except ValueError:
        raise ConfigError(f"option {name}: {text!r} is not a number") from None
    if kind == "bool":
        if text.lower() not in _TRUE | _FALSE:
            raise ConfigError(f"option {name}: {text!r} is neither true nor false")
        return text.lower() in _TRUE
    return text


def _checked(name: str, value: Any) -> Any:
    rule = _FIELDS[_known(name)].metadata
    kind = rule["kind"]
    if kind == "duration":
        return _in_range(name, rule, _seconds(name, value), _shown)
    if kind == "int":
        return _in_range(name, rule, _typed(name, value, int, "an integer"), str)
    if kind == "float":
        return _in_range(name, rule, float(_typed(name, value, (int, float), "a number")), str)
    if kind == "bool":
        return _typed(name, value, bool, "True or False", allow_bool=True)
    if kind == "address":
        return _local_address(name, _typed(name, value, str, "a string such as 192.0.2.1:0"))
    if kind == "context":
        return value if value is None else _typed(name, value, ssl.SSLContext, "an ssl.SSLContext")
    text = _typed(name, value, str, "a string")
    if kind == "choice" and text not in rule["allowed"]:
        raise ConfigError(f"option {name}: {text!r} is not one of {', '.join(filter(None, rule['allowed']))}")
    return text


def _typed(name: str, value: Any, kind: Any, expected: str, *, allow_bool: bool = False) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and not allow_bool):
        raise ConfigError(f"option {name}: must be {expected}, not {value!r}")
    return value


def _in_range(name: str, rule: Mapping[str, Any], value: Any, shown: Any) -> Any:
    if rule.get("may_be_off") and value < 0:
        return type(value)(-1)
    if not rule["least"] <= value <= rule["most"]:
        limits = f"must be at least {shown(rule['least'])}"
        if rule["most"] != math.inf:
            limits = f"must be {shown(rule['least'])} to {shown(rule['most'])}"
        raise ConfigError(f"option {name}: {shown(value)} is out of range, {limits}")
    return min(value, rule.get("top", value))


def _local_address(name: str, text: str) -> str:
    if not text:
        return ""
    try:
        address = parse_address(text)
    except ConfigError as error:
        raise ConfigError(f"option {name}: {error}") from None
    if not isinstance(address, TCPAddress):
        raise ConfigError(f"option {name}: {text!r} has no port: use host:port, such as 192.0.2.1:0")
    return text


def seconds_of(name: str, value: Duration) -> float:
    """Return a duration in seconds; raises ConfigError, which names the argument ``name``."""
    return _seconds(name, value)


def positive_seconds_of(name: str, value: Duration) -> float:
    """Return a duration above 0 in seconds; raises ConfigError, which names the argument ``name``."""
    seconds = _seconds(name, value)
    if seconds <= 0:
        raise ConfigError(f"option {name}: {_shown(seconds)} is out of range, must be more than 0s")
    return seconds


def _seconds(name: str, value: Any) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        try:
            return parse_duration_ns(value) / NS_PER_S
        except ValueError:
            raise ConfigError(f"option {name}: {value!r} is not a duration such as 250ms or 1m30s") from None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"option {name}: must be seconds or a duration such as 250ms, not {value!r}")
    return float(value)


def _shown(seconds: float) -> str:
    return format_duration(round(seconds * NS_PER_S))
