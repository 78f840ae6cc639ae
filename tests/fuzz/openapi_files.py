"""The OpenAPI descriptions that ship with the package."""

import json
from importlib.resources import files
from typing import Any

DAEMONS = ("nsqd", "nsqlookupd", "nsqadmin")


def description(daemon: str) -> dict[str, Any]:
    """The description of one daemon's HTTP API."""
    loaded: dict[str, Any] = json.loads(files(f"nsqx.{daemon}").joinpath("openapi.json").read_bytes())
    return loaded
