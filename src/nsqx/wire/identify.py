"""The body of IDENTIFY: the identity of a client and the settings it requests."""

from __future__ import annotations

from dataclasses import dataclass, fields

from nsqx.wire.gojson import InvalidJSON, decode_fields


@dataclass(slots=True)
class IdentifyRequest:
    """The fields of IDENTIFY in NSQ's protocol; an absent field has its zero value. Go's nsqd ignores ``nsqx``."""

    client_id: str = ""
    hostname: str = ""
    heartbeat_interval: int = 0
    output_buffer_size: int = 0
    output_buffer_timeout: int = 0
    feature_negotiation: bool = False
    tls_v1: bool = False
    deflate: bool = False
    deflate_level: int = 0
    snappy: bool = False
    sample_rate: int = 0
    user_agent: str = ""
    msg_timeout: int = 0
    topology_region: str = ""
    topology_zone: str = ""
    nsqx: bool = False


_KINDS: dict[str, type] = {field.name: type(field.default) for field in fields(IdentifyRequest)} | {"nsqx": object}
_INT32_LIMIT = 1 << 31


def decode_identify(body: bytes) -> IdentifyRequest:
    """Decode the body of IDENTIFY; raises InvalidJSON."""
    found = decode_fields(body, _KINDS)
    request = IdentifyRequest(**{**found, "nsqx": found.get("nsqx") is True})
    if not -_INT32_LIMIT <= request.sample_rate < _INT32_LIMIT:  # the only field that is not an int64 in Go
        raise InvalidJSON("sample_rate is out of range")
    return request
