"""IDENTIFY: what a client says of itself and asks for, decoded as Go's JSON decoder would.

That decoder matches keys without regard to case, lets the last of several win, ignores null and unknown keys, and
refuses a value of another JSON type than the field's, numbers with a fraction or an exponent included.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any


class InvalidIdentify(ValueError):
    """The body is not the JSON object that IDENTIFY needs."""


@dataclass(slots=True)
class IdentifyRequest:
    """The fields of section "IDENTIFY" of NSQ's protocol; an absent one has its zero value."""

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


_KINDS: dict[str, type] = {f.name: type(f.default) for f in fields(IdentifyRequest)}
_INT_BITS = {name: 64 for name, kind in _KINDS.items() if kind is int} | {"sample_rate": 32}


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with its keys in order and repeats kept."""


def decode_identify(body: bytes) -> IdentifyRequest:
    """The request in an IDENTIFY body; raises InvalidIdentify."""
    try:
        text = body.decode("utf-8", "replace")
        value = json.loads(text, object_pairs_hook=_Pairs, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidIdentify(str(error)) from None
    request = IdentifyRequest()
    if value is None:
        return request
    if not isinstance(value, _Pairs):
        raise InvalidIdentify("not an object")
    for key, field_value in value:
        name = key.casefold()
        kind = _KINDS.get(name)
        if kind is not None and field_value is not None:
            setattr(request, name, _checked(name, kind, field_value))
    return request


def _checked(name: str, kind: type, value: Any) -> Any:
    # bool is an int to Python and not to JSON, hence the exact comparison.
    if type(value) is not kind:
        raise InvalidIdentify(f"{name} must be {kind.__name__}")
    if isinstance(value, int) and kind is int and not _fits(value, _INT_BITS[name]):
        raise InvalidIdentify(f"{name} is out of range")
    return _without_surrogates(value) if isinstance(value, str) else value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _fits(number: int, bits: int) -> bool:
    return -(1 << (bits - 1)) <= number < 1 << (bits - 1)


def _without_surrogates(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
