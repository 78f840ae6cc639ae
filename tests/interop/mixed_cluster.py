"""Functions for clusters of Go's daemons and ours: start an nsqd, query an nsqlookupd, call Go's nsqadmin."""

import json
from typing import Any

from daemons import Daemon, Fleet, wait_until


def start_nsqd(fleet: Fleet, implementation: str, *lookupds: Daemon, **options: Any) -> Daemon:
    """Start an nsqd and wait until it is registered with all of the nsqlookupds."""
    flags = [f"--lookupd-tcp-address={lookupd.tcp_address}" for lookupd in lookupds]
    daemon = fleet.nsqd(implementation, *flags, **options)
    for lookupd in lookupds:
        wait_until(lambda at=lookupd: daemon.http_port in ports(ask(at, "/nodes")), "nsqd is registered")
    return daemon


def ask(daemon: Daemon, target: str) -> Any:
    response = daemon.request("GET", target)
    assert response.status == 200, (target, response)
    return response.json()


def ports(answer: Any) -> set[int]:
    return {producer["http_port"] for producer in answer["producers"]}


def lookup(lookupd: Daemon, topic: str) -> tuple[set[int], set[str]] | None:
    """Return the HTTP ports of the producers and the names of the channels, or None for an unknown topic."""
    response = lookupd.request("GET", f"/lookup?topic={topic}")
    if response.status == 404:
        return None
    return ports(response.json()), set(response.json()["channels"])


class Admin:
    """Go's nsqadmin and a client of its HTTP API."""

    def __init__(self, fleet: Fleet, lookupd: Daemon) -> None:
        self._daemon = fleet.nsqadmin("go", f"--lookupd-http-address={lookupd.http_address}")

    def call(self, method: str, target: str, **body: str) -> Any:
        content = json.dumps(body).encode() if body else None
        response = self._daemon.request(method, f"/api{target}", content)
        assert response.status == 200, (target, response)
        answer = response.json()
        assert answer.pop("message") == "", answer
        return answer
