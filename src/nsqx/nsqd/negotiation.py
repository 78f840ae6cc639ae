"""IDENTIFY on the broker's side: checks the requested settings against the limits and decides the upgrades."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from nsqx.errors import ProtocolError
from nsqx.nsqd.effects import Upgrade
from nsqx.units import NS_PER_MS
from nsqx.version import NSQ_VERSION, VERSION
from nsqx.wire.gojson import InvalidJSON
from nsqx.wire.identify import IdentifyRequest, decode_identify
from nsqx.wire.xpub import FEATURES

if TYPE_CHECKING:
    from nsqx.nsqd.broker import Broker
    from nsqx.nsqd.client import Client

_DEFAULT_DEFLATE_LEVEL = 6


@dataclass(slots=True)
class Negotiated:
    """The answer to IDENTIFY, and the upgrade of the connection that follows it."""

    answer: bytes
    upgrade: Upgrade | None = None


def negotiate(client: Client, body: bytes, broker: Broker) -> Negotiated:
    """Apply the requested settings to ``client``; raises ProtocolError for settings that are not allowed."""
    try:
        request = decode_identify(body)
    except InvalidJSON:
        raise ProtocolError("E_BAD_BODY", "IDENTIFY failed to decode JSON body") from None
    broker.log.info("[%s] IDENTIFY: %s", client.remote_address, request)
    client.client_id = request.client_id
    client.hostname = request.hostname
    client.user_agent = request.user_agent
    client.topology_region = request.topology_region
    client.topology_zone = request.topology_zone
    _set_heartbeat(client, request, broker)
    _set_output_buffer(client, request, broker)
    if not 0 <= request.sample_rate <= 99:
        raise _invalid("sample rate", request.sample_rate)
    client.sample_rate = request.sample_rate
    _set_msg_timeout(client, request, broker)
    if not request.feature_negotiation:
        return Negotiated(b"OK")
    return _grant_features(client, request, broker)


def _invalid(what: str, value: int) -> ProtocolError:
    return ProtocolError("E_BAD_BODY", f"IDENTIFY {what} ({value}) is invalid")


def _set_heartbeat(client: Client, request: IdentifyRequest, broker: Broker) -> None:
    interval_ms = request.heartbeat_interval
    if interval_ms == -1:
        client.heartbeat_interval_ns = 0
    elif 1000 <= interval_ms <= broker.options.max_heartbeat_interval // NS_PER_MS:
        client.heartbeat_interval_ns = interval_ms * NS_PER_MS
    elif interval_ms != 0:
        raise _invalid("heartbeat interval", interval_ms)


def _set_output_buffer(client: Client, request: IdentifyRequest, broker: Broker) -> None:
    """Store and report size and timeout only: output is sent at the end of each turn of the loop, which is earlier."""
    options = broker.options
    timeout_ms = request.output_buffer_timeout
    shortest_ms = options.min_output_buffer_timeout // NS_PER_MS
    longest_ms = options.max_output_buffer_timeout // NS_PER_MS
    if timeout_ms == -1:
        client.output_buffer_timeout_ns = 0
    elif timeout_ms != 0:
        if not shortest_ms <= timeout_ms <= longest_ms:
            raise _invalid("output buffer timeout", timeout_ms)
        client.output_buffer_timeout_ns = timeout_ms * NS_PER_MS
    size = request.output_buffer_size
    if size == -1:
        client.output_buffer_size = 1
        client.output_buffer_timeout_ns = 0
    elif size != 0:
        if not 64 <= size <= options.max_output_buffer_size:
            raise _invalid("output buffer size", size)
        client.output_buffer_size = size


def _set_msg_timeout(client: Client, request: IdentifyRequest, broker: Broker) -> None:
    timeout_ms = request.msg_timeout
    if timeout_ms == 0:
        return
    if not 1000 <= timeout_ms <= broker.options.max_msg_timeout // NS_PER_MS:
        raise _invalid("msg timeout", timeout_ms)
    client.msg_timeout_ns = timeout_ms * NS_PER_MS


def _grant_features(client: Client, request: IdentifyRequest, broker: Broker) -> Negotiated:
    options = broker.options
    offered = broker.upgrades
    tls = offered.tls and request.tls_v1
    snappy = offered.snappy and request.snappy
    deflate = offered.deflate and request.deflate
    level = _DEFAULT_DEFLATE_LEVEL
    if deflate and request.deflate_level > 0:
        level = request.deflate_level
    level = min(level, options.max_deflate_level)
    if snappy and deflate:
        raise ProtocolError("E_IDENTIFY_FAILED", "cannot enable both deflate and snappy compression")
    answer: dict[str, object] = {
        "max_rdy_count": options.max_rdy_count,
        "version": NSQ_VERSION,
        "max_msg_timeout": options.max_msg_timeout // NS_PER_MS,
        "msg_timeout": client.msg_timeout_ns // NS_PER_MS,
        "tls_v1": tls,
        "deflate": deflate,
        "deflate_level": level,
        "max_deflate_level": options.max_deflate_level,
        "snappy": snappy,
        "sample_rate": client.sample_rate,
        "auth_required": broker.authorizer.is_enabled,
        "output_buffer_size": client.output_buffer_size,
        "output_buffer_timeout": client.output_buffer_timeout_ns // NS_PER_MS,
        "topology_region": options.topology_region,
        "topology_zone": options.topology_zone,
        "nsqx_version": VERSION,
    }
    if broker.broker_id:
        answer["broker_id"] = broker.broker_id
    if request.nsqx:
        client.has_nsqx = True
        port = broker.broadcast_http_port
        answer["nsqx"] = {**FEATURES, "http_port": port} if port > 0 else FEATURES
    upgrade = Upgrade(tls, snappy, deflate, level) if tls or snappy or deflate else None
    return Negotiated(orjson.dumps(answer), upgrade)
