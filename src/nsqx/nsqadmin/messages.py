"""Follow the messages of a topic and publish one: ``/api/tail/:topic`` and ``/api/publish/:topic``.

A tail needs the role ``CONSUME``, because message bodies can be confidential. Publishing needs ``OPERATE``.
"""

from __future__ import annotations

import random
from base64 import b64decode
from binascii import Error as Base64Error
from typing import TYPE_CHECKING, Any

from nsqx.errors import HTTPError, RequestFailed
from nsqx.names import is_valid_name
from nsqx.nsqadmin import audit
from nsqx.nsqadmin.audit import Action, Audit
from nsqx.nsqadmin.options import tail_options
from nsqx.nsqadmin.request_context import RequestContext, json_response
from nsqx.nsqadmin.tail import DEFAULT_BODY_LIMIT, MAX_BODY_LIMIT, MAX_PER_S, MAX_SEARCH_LENGTH, Tail, TailOptions

if TYPE_CHECKING:
    from starlette.responses import Response

    from nsqx.cluster.node import Node
    from nsqx.nsqadmin.cluster import ClusterClient
    from nsqx.nsqadmin.options import NsqadminOptions
    from nsqx.nsqadmin.single_flight import SingleFlight
    from nsqx.nsqadmin.sse import Viewers

_MIN_SAMPLE_PERCENT = 2
_MAX_DEFER_MS = 24 * 3600 * 1000


class MessageAPI:
    """Tails and test messages."""

    def __init__(
        self,
        options: NsqadminOptions,
        cluster: ClusterClient,
        single_flight: SingleFlight,
        tails: Viewers,
        records: Audit,
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._single_flight = single_flight
        self._tails = tails
        self._audit = records
        self._client_options = tail_options(options)

    async def tail(self, context: RequestContext) -> Response:
        """Stream the messages of a topic as server-sent events until the client disconnects."""
        topic = self._topic(context)
        options = TailOptions(
            topic,
            per_s=context.number("rate", MAX_PER_S, 1, MAX_PER_S),
            body_limit=context.number("limit", DEFAULT_BODY_LIMIT, 1, MAX_BODY_LIMIT),
            sample_percent=context.number("sample", 100, _MIN_SAMPLE_PERCENT, 100),
            contains=_search_text(context),
        )
        response = self._tails.response(Tail(self._cluster, options, client_options=self._client_options).events())
        self._audit.record(Action("tail_topic", topic), context.caller, audit.DONE)
        return response

    async def publish(self, context: RequestContext) -> Response:
        """Publish one message to the given node, or to any node that has the topic."""
        topic = self._topic(context)
        fields = await context.fields({"body": str, "encoding": str, "node": str, "defer_ms": int})
        body = _body(fields)
        defer_ms = fields.get("defer_ms", 0)
        if not 0 <= defer_ms <= _MAX_DEFER_MS:
            raise HTTPError(400, "INVALID_DEFER")
        problems: list[str] = []
        try:
            nodes = await self._candidates(topic, fields.get("node", ""), problems)
            node = await self._publish_on_one(nodes, topic, body, defer_ms)
        except RequestFailed as error:
            detail = f"UPSTREAM_ERROR: {error}"
            self._audit.record(Action("publish_message", topic), context.caller, audit.FAILED, detail)
            raise HTTPError(502, detail) from None
        finally:
            self._single_flight.forget()
        self._audit.record(Action("publish_message", topic, node=node), context.caller, audit.DONE)
        message = "WARNING: " + "; ".join(problems) if problems else ""
        return json_response({"node": node, "size": len(body), "message": message})

    def _topic(self, context: RequestContext) -> str:
        if not self._options.messages:
            raise HTTPError(403, "MESSAGES_DISABLED")
        topic = context.params["topic"]
        if not is_valid_name(topic):
            raise HTTPError(400, "INVALID_TOPIC")
        return topic

    async def _candidates(self, topic: str, address: str, problems: list[str]) -> list[Node]:
        """Return the nsqds to try. A given address must belong to the cluster."""
        if address:
            found = [node for node in await self._cluster.nodes(problems) if node.http_address == address]
            if not found:
                raise HTTPError(404, "NODE_NOT_FOUND")
            return found
        try:
            nodes = await self._cluster.topic_nodes(topic, problems)
        except RequestFailed:  # nsqlookupd does not know the topic
            nodes = []
        nodes = nodes or await self._cluster.nodes(problems)
        if not nodes:
            raise RequestFailed("no nsqd is known")
        return random.sample(nodes, len(nodes))

    async def _publish_on_one(self, nodes: list[Node], topic: str, body: bytes, defer_ms: int) -> str:
        """Publish to the first node that accepts the message; return its address; raise RequestFailed if none does."""
        failures: list[str] = []
        for nsqd in self._cluster.nsqds(nodes):
            try:
                await nsqd.publish(topic, body, defer_ms)
            except RequestFailed as error:
                failures.append(str(error))
            else:
                return nsqd.address
        raise RequestFailed("\n".join(failures))


def _body(fields: dict[str, Any]) -> bytes:
    text: str = fields.get("body", "")
    encoding = fields.get("encoding", "") or "text"
    if encoding == "text":
        body = text.encode()
    elif encoding == "base64":
        try:
            body = b64decode(text, validate=True)
        except (Base64Error, ValueError):
            raise HTTPError(400, "INVALID_BODY") from None
    else:
        raise HTTPError(400, "INVALID_ENCODING")
    if not body:
        raise HTTPError(400, "MSG_EMPTY")
    return body


def _search_text(context: RequestContext) -> str:
    text = context.query.get("contains", "")
    if len(text) > MAX_SEARCH_LENGTH:
        raise HTTPError(400, "INVALID_ARG_CONTAINS")
    return text
