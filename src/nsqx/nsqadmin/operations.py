"""``/api/operations``: the operations of the page, on the whole cluster or on one nsqd, with a result per daemon.

NSQ's own routes run the same actions on the whole cluster and report only failures. This module decides which daemons
carry out an operation, and in which order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsqx.cluster.daemon import Change
from nsqx.errors import HTTPError, RequestFailed
from nsqx.names import is_valid_name
from nsqx.nsqadmin import audit
from nsqx.nsqadmin.api import warning
from nsqx.nsqadmin.audit import Action, Audit
from nsqx.nsqadmin.request_context import RequestContext, json_response

if TYPE_CHECKING:
    from starlette.responses import Response

    from nsqx.cluster.daemon import DaemonClient
    from nsqx.cluster.node import Node
    from nsqx.nsqadmin.cluster import ClusterClient
    from nsqx.nsqadmin.single_flight import SingleFlight

_NAMES = ("pause", "unpause", "empty", "delete", "create", "tombstone")


@dataclass(frozen=True, slots=True)
class ClusterOperation:
    """An operation on a topic or on one of its channels."""

    name: str
    topic: str
    channel: str = ""
    node: str = ""
    """The address of the only nsqd to change; empty for all."""

    @property
    def action(self) -> Action:
        """Return the audit record's action, under NSQ's name."""
        if self.name == "tombstone":
            return Action("tombstone_topic_producer", self.topic, node=self.node)
        subject = "channel" if self.channel else "topic"
        return Action(f"{self.name}_{subject}", self.topic, self.channel, self.node)

    @property
    def changes(self) -> tuple[Change, ...]:
        """Return the changes at each nsqd and nsqlookupd; a new channel's topic is created first."""
        change = Change(self.name, self.topic, self.channel)
        return (Change(self.name, self.topic), change) if self.channel and self.name == "create" else (change,)


@dataclass(frozen=True, slots=True)
class DaemonRequest:
    """The changes at one daemon."""

    daemon: DaemonClient
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class DaemonOutcome:
    """The result on one daemon; ``error`` is empty on success."""

    kind: str
    address: str
    error: str


async def plan(cluster: ClusterClient, operation: ClusterOperation, problems: list[str]) -> list[list[DaemonRequest]]:
    """Return the requests, in rounds that run one after the other.

    Raises RequestFailed if the nodes cannot be determined, HTTPError 404 if the given node does not exist.
    """
    if operation.node:
        node = await _find_node(cluster, operation.node, problems)
        if operation.name == "tombstone":
            return _tombstone(cluster, operation, node)
        return [_requests_to_nodes(cluster, [node], operation.changes)]
    lookupds = [DaemonRequest(lookupd, operation.changes) for lookupd in cluster.lookupds]
    if operation.name == "create":
        return await _create(cluster, operation, lookupds, problems)
    nodes = await cluster.topic_nodes(operation.topic, problems)
    if operation.name == "delete":
        # nsqlookupd first: it must not send consumers to an nsqd that no longer has the topic.
        return [lookupds, _requests_to_nodes(cluster, nodes, operation.changes)]
    return [_requests_to_nodes(cluster, nodes, operation.changes)]


async def _create(
    cluster: ClusterClient, operation: ClusterOperation, lookupds: list[DaemonRequest], problems: list[str]
) -> list[list[DaemonRequest]]:
    """Plan a creation.

    With nsqlookupd, which stores the names, the nsqds that have the topic get the channel. Without it, every nsqd gets
    the topic and the channel.
    """
    if not lookupds:
        return [_requests_to_nodes(cluster, await cluster.nodes(problems), operation.changes)]
    if not operation.channel:
        return [lookupds]
    try:
        nodes = await cluster.topic_nodes(operation.topic, [])
    except RequestFailed:  # no daemon knows the topic yet
        nodes = []
    return [lookupds, _requests_to_nodes(cluster, nodes, operation.changes[-1:])]


def _tombstone(cluster: ClusterClient, operation: ClusterOperation, node: Node) -> list[list[DaemonRequest]]:
    tombstone = Change("tombstone", operation.topic, node=operation.node)
    return [
        [DaemonRequest(lookupd, (tombstone,)) for lookupd in cluster.lookupds],
        _requests_to_nodes(cluster, [node], (Change("delete", operation.topic),)),
    ]


def _requests_to_nodes(
    cluster: ClusterClient, nodes: Sequence[Node], changes: tuple[Change, ...]
) -> list[DaemonRequest]:
    return [DaemonRequest(nsqd, changes) for nsqd in cluster.nsqds(nodes)]


async def _find_node(cluster: ClusterClient, address: str, problems: list[str]) -> Node:
    for node in await cluster.nodes(problems):
        if node.http_address == address:
            return node
    raise HTTPError(404, "NODE_NOT_FOUND")


class OperationAPI:
    """Runs operations."""

    def __init__(self, cluster: ClusterClient, single_flight: SingleFlight, records: Audit) -> None:
        self._cluster = cluster
        self._single_flight = single_flight
        self._audit = records

    async def operate(self, context: RequestContext) -> Response:
        """Run an operation and answer with the result of every daemon; 502 if it failed on all of them."""
        operation = _read_operation(await context.fields({"operation": str, "topic": str, "channel": str, "node": str}))
        problems: list[str] = []
        outcomes: list[DaemonOutcome] = []
        code, result = "interrupted", audit.FAILED
        try:
            outcomes = await self._do(operation, problems)
            code, result = _summarize(outcomes, problems)
        except RequestFailed as error:
            code = f"UPSTREAM_ERROR: {error}"
            raise HTTPError(502, code) from None
        except HTTPError as error:
            code = error.code
            raise
        finally:
            self._single_flight.forget()
            self._audit.record(operation.action, context.caller, result, code)
            if result != audit.FAILED:
                self._audit.notify(operation.action, context.caller)
        return json_response(_document(outcomes, code), 502 if result == audit.FAILED else 200)

    async def _do(self, operation: ClusterOperation, problems: list[str]) -> list[DaemonOutcome]:
        rounds = await plan(self._cluster, operation, problems)
        outcomes: list[DaemonOutcome] = []
        for errands in rounds:
            outcomes += await asyncio.gather(*map(self._run, errands))
        if not outcomes:
            raise HTTPError(404, "TOPIC_NOT_FOUND")
        return outcomes

    async def _run(self, request: DaemonRequest) -> DaemonOutcome:
        daemon = request.daemon
        try:
            for change in request.changes:
                await daemon.apply(change)
        except RequestFailed as error:
            return DaemonOutcome(daemon.kind, daemon.address, error.plain)
        return DaemonOutcome(daemon.kind, daemon.address, "")


def _read_operation(fields: dict[str, Any]) -> ClusterOperation:
    operation = ClusterOperation(
        fields.get("operation", ""), fields.get("topic", ""), fields.get("channel", ""), fields.get("node", "")
    )
    if operation.name not in _NAMES:
        raise HTTPError(400, "INVALID_OPERATION")
    if not is_valid_name(operation.topic):
        raise HTTPError(400, "INVALID_TOPIC")
    if operation.channel and (operation.name == "tombstone" or not is_valid_name(operation.channel)):
        raise HTTPError(400, "INVALID_CHANNEL")
    if operation.name == "tombstone" and not operation.node:
        raise HTTPError(400, "INVALID_NODE")
    return operation


def _summarize(outcomes: Sequence[DaemonOutcome], problems: list[str]) -> tuple[str, str]:
    """Return the message of the answer and the outcome for the audit record."""
    failures = [outcome.error for outcome in outcomes if outcome.error]
    if len(failures) == len(outcomes):
        return "UPSTREAM_ERROR: " + "; ".join([*problems, *failures]), audit.FAILED
    message = warning([*problems, *failures])
    return message, audit.PARTLY if message else audit.DONE


def _document(outcomes: Sequence[DaemonOutcome], message: str) -> dict[str, Any]:
    shown = [{"kind": each.kind, "address": each.address, "error": each.error} for each in outcomes]
    return {"outcomes": shown, "message": message}
