"""The descriptions of the routes for draining. Part of nsqd's OpenAPI document."""

from typing import Literal

from nsqx.net.openapi import JSON, Content, Parameter, RouteDoc
from nsqx.nsqd.drain_api import DrainAnswer

_STATE = Content("The state of the drain and what is left.", {JSON: DrainAnswer})

DRAIN_ROUTES = {
    "GET /drain": RouteDoc("drainState", "draining", "Return whether nsqd drains, and what is left", response=_STATE),
    "POST /drain": RouteDoc(
        "drain",
        "draining",
        "Refuse publishes, leave nsqlookupd and let consumers finish the messages",
        "Publishes get EXITING with the header `X-Nsq-Reason: draining`, or `E_PUB_FAILED PUB failed draining`. "
        "Connected consumers stay. A restart ends the drain.",
        query=(
            Parameter(
                "stay_registered",
                "`true` or `1`: stay registered with nsqlookupd, so that consumers that start now find this nsqd.",
                Literal["true", "false"],
            ),
        ),
        response=_STATE,
        errors="INVALID_STAY_REGISTERED",
    ),
    "POST /undrain": RouteDoc(
        "undrain", "draining", "Accept publishes again and register with nsqlookupd", response=_STATE
    ),
}
