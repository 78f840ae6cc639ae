"""Stored messages on the nsqds of the cluster: browse a topic, and list, redrive and purge its dead letters.

Owns ``/api/browse/:topic`` and ``/api/dead/:topic``. Reading changes nothing on the nsqds. Routes that show bodies need
the role ``CONSUME``; redriving and purging need ``OPERATE``.
"""

from __future__ import annotations

import heapq
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nsqx.cluster.json_fields import integer, objects, switch, text
from nsqx.errors import HTTPError, RequestFailed
from nsqx.names import is_valid_name
from nsqx.nsqadmin import audit
from nsqx.nsqadmin.api import warning
from nsqx.nsqadmin.audit import Action
from nsqx.nsqadmin.node_answers import NodeAnswer, ask_nodes, nsqds_with_topic
from nsqx.nsqadmin.node_changes import NodeChange, NodeChanges
from nsqx.nsqadmin.request_context import RequestContext, json_response
from nsqx.nsqadmin.tail import DEFAULT_BODY_LIMIT, MAX_SEARCH_LENGTH
from nsqx.nsqadmin.topic_logs import is_offset, topic_in

if TYPE_CHECKING:
    from starlette.responses import Response

    from nsqx.nsqadmin.audit import Audit
    from nsqx.nsqadmin.cluster import ClusterClient
    from nsqx.nsqadmin.options import NsqadminOptions
    from nsqx.nsqadmin.single_flight import SingleFlight

DEFAULT_COUNT = 20
MAX_COUNT = 200
MAX_STORED_BODY_LIMIT = 1024 * 1024
MAX_LETTERS = 1000
# nsqd limits the size of all bodies in an answer together; nsqadmin cuts each body.
_MAX_PAGE_BYTES = 4 * 1024 * 1024
STATES = ("waiting", "in_flight", "deferred")
# Each of them says where to begin; a request has at most one.
_POSITIONS = ("offset", "time", "id", "last", "skip")
_OF_ONE_NODE = ("offset", "skip")
_MAX_POSITION_LENGTH = 64
_ACTIONS = {"redrive": ("redriven", "left"), "purge": ("purged", "left")}


class StoredMessageAPI:
    """Shows stored messages, and moves or deletes dead letters."""

    def __init__(
        self, options: NsqadminOptions, cluster: ClusterClient, single_flight: SingleFlight, records: Audit
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._audit = records
        self._changes = NodeChanges(single_flight, records)

    async def browse(self, context: RequestContext) -> Response:
        """Answer with stored messages of a topic, from all nsqds that have it or from one, oldest first."""
        topic = topic_in(context)
        query, limit = self._page(context, topic)
        given = context.query
        positions = [name for name in _POSITIONS if given.get(name)]
        if len(positions) > 1 or any(len(given[name]) > _MAX_POSITION_LENGTH for name in positions):
            raise HTTPError(400, "INVALID_POSITION")
        query |= {name: given[name] for name in positions}
        if state := given.get("state", ""):
            if state not in STATES:
                raise HTTPError(400, "INVALID_ARG_STATE")
            query["state"] = state
        if wanted := given.get("contains", ""):
            if len(wanted) > MAX_SEARCH_LENGTH:
                raise HTTPError(400, "INVALID_ARG_CONTAINS")
            query["contains"] = wanted
        node = given.get("node", "")
        if not node and any(name in _OF_ONE_NODE for name in positions):
            raise HTTPError(400, "INVALID_NODE")
        problems: list[str] = []
        nsqds = await nsqds_with_topic(self._cluster, topic, node, problems)
        self._audit.record(Action("browse_topic", topic, query.get("channel", ""), node), context.caller, audit.DONE)
        answers = await ask_nodes(nsqds, "GET", "/peek", query)
        shown = [_browsed(answer, limit) for answer in answers]
        return json_response(
            {
                "topic": topic,
                "channel": query.get("channel", ""),
                "nodes": [node for node, _ in shown],
                "messages": _in_order_of_time([messages for _, messages in shown]),
                "message": warning(problems),
            }
        )

    async def dead_letters(self, context: RequestContext) -> Response:
        """Answer with the dead letters of a topic, from all nsqds that have it or from one, oldest first."""
        topic = topic_in(context)
        query, limit = self._page(context, topic)
        node, offset = context.query.get("node", ""), context.query.get("offset", "")
        if offset:
            if not is_offset(offset):
                raise HTTPError(400, "INVALID_POSITION")
            if not node:
                raise HTTPError(400, "INVALID_NODE")
            query["offset"] = offset
        problems: list[str] = []
        nsqds = await nsqds_with_topic(self._cluster, topic, node, problems)
        self._audit.record(
            Action("list_dead_letters", topic, query.get("channel", ""), node), context.caller, audit.DONE
        )
        answers = await ask_nodes(nsqds, "GET", "/dead", query)
        shown = [_letters(answer, limit) for answer in answers]
        return json_response(
            {
                "topic": topic,
                "channel": query.get("channel", ""),
                "count": sum(node["count"] for node, _ in shown),
                "nodes": [node for node, _ in shown],
                "messages": _in_order_of_time([messages for _, messages in shown]),
                "message": warning(problems),
            }
        )

    async def act_on_dead_letters(self, context: RequestContext) -> Response:
        """Redrive or purge dead letters: those that are named, or all, or all that one channel has failed."""
        topic = topic_in(context)
        body = await context.json_object()
        name, channel, node = (body.get(key) or "" for key in ("action", "channel", "node"))
        if name not in _ACTIONS:
            raise HTTPError(400, "INVALID_ACTION")
        if not isinstance(channel, str) or not isinstance(node, str):
            raise HTTPError(400, "INVALID_BODY")
        if channel and not is_valid_name(channel):
            raise HTTPError(400, "INVALID_CHANNEL")
        chosen = _chosen(body)
        problems: list[str] = []
        nsqds = await nsqds_with_topic(self._cluster, topic, node, problems)
        if chosen is not None:
            addresses = {nsqd.address for nsqd in nsqds}
            if not chosen.keys() <= addresses:
                raise HTTPError(404, "NODE_NOT_FOUND")
            nsqds = [nsqd for nsqd in nsqds if nsqd.address in chosen]
        query = {"topic": topic, **({"channel": channel} if channel else {})}
        changes = [
            NodeChange(nsqd, "POST", f"/dead/{name}", {**query, "offset": (chosen or {}).get(nsqd.address, [])})
            for nsqd in nsqds
        ]
        action = Action(f"{name}_dead_letters", topic, channel, node)
        detail = "all" if chosen is None else f"{sum(map(len, chosen.values()))} chosen"
        return await self._changes.apply(context, action, changes, _ACTIONS[name], problems, detail)

    def _page(self, context: RequestContext, topic: str) -> tuple[dict[str, str], int]:
        """Return the parameters that both lists send to nsqd, and the most bytes of a body; raises HTTPError."""
        if not self._options.messages:
            raise HTTPError(403, "MESSAGES_DISABLED")
        count = context.number("count", DEFAULT_COUNT, 1, MAX_COUNT)
        query = {"topic": topic, "count": str(count), "max_bytes": str(_MAX_PAGE_BYTES)}
        if channel := context.query.get("channel", ""):
            if not is_valid_name(channel):
                raise HTTPError(400, "INVALID_CHANNEL")
            query["channel"] = channel
        return query, context.number("limit", DEFAULT_BODY_LIMIT, 1, MAX_STORED_BODY_LIMIT)


def _chosen(body: dict[str, Any]) -> dict[str, list[str]] | None:
    """Return the offsets of the named letters by the address of their node; None for all letters."""
    letters = body.get("letters")
    if letters is None:
        return None
    if not isinstance(letters, list) or not 0 < len(letters) <= MAX_LETTERS:
        raise HTTPError(400, "INVALID_LETTERS")
    chosen: dict[str, list[str]] = {}
    for letter in letters:
        node, offset = (letter.get("node"), letter.get("offset")) if isinstance(letter, dict) else (None, None)
        if not isinstance(node, str) or type(offset) is not int or offset < 0:
            raise HTTPError(400, "INVALID_LETTERS")
        chosen.setdefault(node, []).append(str(offset))
    return chosen


def _browsed(answer: NodeAnswer, limit: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the state of a node after a browse, and its messages."""
    try:
        document = answer.document
        following, end = integer(document, "next"), integer(document, "end")
        node = {
            "node": answer.address,
            "code": answer.code,
            "error": answer.error,
            "store": text(document, "store"),
            "next": None if answer.code else following,
            "end": None if answer.code else end,
            "scanned": integer(document, "scanned"),
            # nsqd's ``complete`` is true if the page ends only because it is full.
            "complete": following >= end,
        }
        return node, _messages(answer, limit)
    except RequestFailed as failure:
        return _browsed(NodeAnswer(answer.address, code="FAILED", error=failure.plain), limit)


def _letters(answer: NodeAnswer, limit: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the state of a node after a list of dead letters, and the letters. No dead letters are not a failure."""
    if answer.code == "NO_DEAD_LETTERS":
        answer = NodeAnswer(answer.address, {"complete": True})
    try:
        document = answer.document
        messages = _messages(answer, limit)
        has_offsets = all(message["offset"] is not None for message in messages)
        node = {
            "node": answer.address,
            "code": answer.code,
            "error": answer.error,
            "dead_letter": text(document, "dead_letter"),
            "count": integer(document, "count"),
            # The letters of a classic topic have no offsets, at which a page could continue.
            "next": integer(document, "next") if messages and has_offsets else None,
            "complete": answer.code != "" or switch(document, "complete"),
        }
        return node, messages
    except RequestFailed as failure:
        return _letters(NodeAnswer(answer.address, code="FAILED", error=failure.plain), limit)


def _messages(answer: NodeAnswer, limit: int) -> list[dict[str, Any]]:
    return [_message(answer.address, each, limit) for each in objects(answer.document, "messages") or ()]


def _message(node: str, message: dict[str, Any], limit: int) -> dict[str, Any]:
    """Return a message in the form of a tail's. Times are texts: JavaScript has no integers of that size."""
    due_ns, origin = integer(message, "due"), message.get("origin")
    return {
        "node": node,
        "offset": _optional(message, "offset"),
        "id": text(message, "id"),
        "timestamp_ns": str(integer(message, "timestamp")),
        "attempts": _optional(message, "attempts"),
        "state": text(message, "state"),
        "due_ns": str(due_ns) if due_ns else None,
        **_body(message, limit),
        "size": integer(message, "size"),
        "origin": _origin(origin) if isinstance(origin, dict) else None,
    }


def _body(message: dict[str, Any], limit: int) -> dict[str, Any]:
    """Return the body of a message, at most ``limit`` bytes of it."""
    is_cut = switch(message, "truncated")
    if "base64" in message:
        try:
            data = b64decode(text(message, "base64"), validate=True)
        except (Base64Error, ValueError):
            raise RequestFailed("json: field base64 is not base64") from None
        body, encoding = b64encode(data[:limit]).decode(), "base64"
    else:
        data = text(message, "text").encode("utf-8", "replace")
        body, encoding = data[:limit].decode("utf-8", "ignore"), "text"
    return {"encoding": encoding, "body": body, "truncated": is_cut or len(data) > limit}


def _origin(origin: dict[str, Any]) -> dict[str, Any]:
    """Return where a dead letter comes from."""
    return {
        "topic": text(origin, "topic"),
        "channel": text(origin, "channel"),
        "offset": _optional(origin, "offset"),
        "id": text(origin, "id"),
        "timestamp_ns": str(integer(origin, "timestamp")),
        "attempts": _optional(origin, "attempts"),
        "reason": text(origin, "reason"),
        "consumer": text(origin, "consumer"),
        "time_ns": str(integer(origin, "time")),
    }


def _optional(document: dict[str, Any], key: str) -> int | None:
    return integer(document, key) if document.get(key) is not None else None


def _in_order_of_time(lists: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Merge the messages of several nodes by time. The messages of one node stay in nsqd's order."""
    return list(heapq.merge(*lists, key=lambda message: int(message["timestamp_ns"])))
