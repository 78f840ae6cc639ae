"""The states of a client in the TCP protocol, and the commands that are allowed in each."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class ClientState(IntEnum):
    """The state of a client, with the numbers of /stats. As in Go nsqd, two of them are never entered."""

    INIT = 0
    DISCONNECTED = 1
    CONNECTED = 2
    SUBSCRIBED = 3
    CLOSING = 4


_ALWAYS: Final = frozenset(ClientState)
_BEFORE_SUB: Final = frozenset({ClientState.INIT})
_CONSUMING: Final = frozenset({ClientState.SUBSCRIBED, ClientState.CLOSING})

# Every command of the protocol. RDY after CLS is allowed and ignored.
ALLOWED_STATES: Final[dict[bytes, frozenset[ClientState]]] = {
    b"IDENTIFY": _BEFORE_SUB,
    b"AUTH": _BEFORE_SUB,
    b"SUB": _BEFORE_SUB,
    b"RDY": _CONSUMING,
    b"FIN": _CONSUMING,
    b"REQ": _CONSUMING,
    b"TOUCH": _CONSUMING,
    b"CLS": frozenset({ClientState.SUBSCRIBED}),
    b"NOP": _ALWAYS,
    b"PUB": _ALWAYS,
    b"MPUB": _ALWAYS,
    b"DPUB": _ALWAYS,
    b"XPUB": _ALWAYS,
}

# A client that has not asked for the commands of nsqx gets the answer of Go's nsqd to this one: it is unknown.
NEGOTIATED: Final = b"XPUB"

# If TLS is required, only this command is allowed before the upgrade: it negotiates TLS.
ALLOWED_BEFORE_TLS: Final = b"IDENTIFY"
