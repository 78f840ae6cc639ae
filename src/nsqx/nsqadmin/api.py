"""The JSON API of NSQ's nsqadmin: topics, channels, nodes, the counter, and the actions on them.

Every request queries the cluster, as in Go, so that answers are current. Equal requests that run at the same time share
one round of queries. A request that arrives after a change never joins a round that started before it. A rejected
request raises HTTPError.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from nsqx.errors import HTTPError, RequestFailed
from nsqx.names import is_valid_name
from nsqx.nsqadmin import audit
from nsqx.nsqadmin.audit import Action, Audit
from nsqx.nsqadmin.nodes import node_document
from nsqx.nsqadmin.reports import TopicReport
from nsqx.nsqadmin.request_context import RequestContext, json_bytes_response, json_response, query_fault

if TYPE_CHECKING:
    from starlette.responses import Response

    from nsqx.log import Log
    from nsqx.nsqadmin.cluster import ClusterClient
    from nsqx.nsqadmin.single_flight import SingleFlight

_ACTIONS = ("pause", "unpause", "empty")


def warning(problems: Sequence[str]) -> str:
    """Return the ``message`` of an answer: the failed queries, or an empty string."""
    return "WARNING: " + "; ".join(problems) if problems else ""


class PartialAnswer:
    """One answer under construction; collects the failures of its steps in NSQ's wording."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._messages: list[str] = []

    async def step(self, what: str, ask: Callable[[list[str]], Awaitable[Any]]) -> Any:
        """Return the result of ``ask``; raise HTTPError 502 if no daemon answers."""
        problems: list[str] = []
        try:
            found = await ask(problems)
        except RequestFailed as error:
            self._log.error("failed to %s - %s", what, error)
            raise HTTPError(502, f"UPSTREAM_ERROR: {error}") from None
        if problems:
            joined = "\n".join(problems)
            self._log.warn("%s", joined)
            self._messages.append(joined)
        return found

    @property
    def message(self) -> str:
        return warning(self._messages)


class ClusterQueryAPI:
    """The routes that read."""

    def __init__(self, cluster: ClusterClient, single_flight: SingleFlight, log: Log) -> None:
        self._cluster = cluster
        self._single_flight = single_flight
        self._log = log

    async def topics(self, context: RequestContext) -> Response:
        try:
            inactive = context.query.get("inactive") == "true"
        except HTTPError:
            raise HTTPError(400, query_fault(context.head.raw_query)) from None
        return await self._share(("topics", inactive), lambda report: self._topics(report, inactive))

    async def topic(self, context: RequestContext) -> Response:
        name = context.params["topic"]
        return await self._share(("topic", name), lambda report: self.topic_document(report, name))

    async def channel(self, context: RequestContext) -> Response:
        topic, channel = context.params["topic"], context.params["channel"]
        return await self._share(
            ("channel", topic, channel), lambda report: self.channel_document(report, topic, channel)
        )

    async def nodes(self, _context: RequestContext) -> Response:
        return await self._share(("nodes",), self._nodes)

    async def node(self, context: RequestContext) -> Response:
        address = context.params["node"]
        return await self._share(("node", address), lambda report: self._node(report, address))

    async def counter(self, _context: RequestContext) -> Response:
        return await self._share(("counter",), self._counter)

    async def _share(
        self, question: tuple[Any, ...], ask: Callable[[PartialAnswer], Awaitable[dict[str, Any]]]
    ) -> Response:
        body: bytes = await self._single_flight.share(question, lambda: self.encode(ask))
        return json_bytes_response(body)

    async def encode(self, ask: Callable[[PartialAnswer], Awaitable[dict[str, Any]]]) -> bytes:
        """Return the answer as JSON, with ``message`` as its last field."""
        report = PartialAnswer(self._log)
        document = await ask(report)
        return orjson.dumps({**document, "message": report.message})

    async def _topics(self, report: PartialAnswer, inactive: bool) -> dict[str, Any]:
        names = await report.step("get topics", self._cluster.topics)
        if not inactive:
            return {"topics": names or None}
        found = await self._cluster.inactive_topics(names)
        return {"topics": {name: channels or None for name, channels in found.items()}}

    async def topic_document(self, report: PartialAnswer, name: str) -> dict[str, Any]:
        """Return a topic summed over its nodes."""
        cluster = self._cluster
        nodes = await report.step("get topic producers", lambda problems: cluster.topic_nodes(name, problems))
        stats = await report.step(
            "get topic metadata",
            lambda problems: cluster.stats(nodes, problems, topic=name, include_clients=False),
        )
        total = TopicReport(name)
        for entry in stats.topics:
            total.add(entry)
        return total.document()

    async def channel_document(self, report: PartialAnswer, topic: str, channel: str) -> dict[str, Any]:
        """Return a channel summed over its nodes, with its clients; empty if no node has it."""
        cluster = self._cluster
        nodes = await report.step("get topic producers", lambda problems: cluster.topic_nodes(topic, problems))
        stats = await report.step(
            "get channel metadata",
            lambda problems: cluster.stats(nodes, problems, topic=topic, channel=channel, include_clients=True),
        )
        found = stats.channels.get(channel)
        return {} if found is None else found.document()

    async def _nodes(self, report: PartialAnswer) -> dict[str, Any]:
        nodes = await report.step("get nodes", self._cluster.nodes)
        return {"nodes": [node_document(node) for node in nodes] or None}

    async def _node(self, report: PartialAnswer, address: str) -> dict[str, Any]:
        nodes = await report.step("get producers", self._cluster.nodes)
        found = [node for node in nodes if node.http_address == address][:1]
        if not found:
            raise HTTPError(404, "NODE_NOT_FOUND")
        stats = await report.step(
            "get nsqd stats", lambda problems: self._cluster.stats(found, problems, include_clients=True)
        )
        clients = sum(len(channel.clients or ()) for topic in stats.topics for channel in topic.channels or ())
        return {
            "node": address,
            "topics": [topic.document() for topic in stats.topics] or None,
            "total_messages": sum(topic.counts["message_count"] for topic in stats.topics),
            "total_clients": clients,
        }

    async def _counter(self, report: PartialAnswer) -> dict[str, Any]:
        nodes = await report.step("get counter producer list", self._cluster.nodes)
        counters = await report.step("get nsqd stats", lambda problems: self._cluster.counters(nodes, problems))
        return {"stats": counters}


class ActionAPI:
    """The routes that change the cluster. Every action is recorded and sent to the notification endpoint."""

    def __init__(self, cluster: ClusterClient, single_flight: SingleFlight, records: Audit, log: Log) -> None:
        self._cluster = cluster
        self._single_flight = single_flight
        self._audit = records
        self._log = log

    async def create(self, context: RequestContext) -> Response:
        body = await context.fields({"topic": str, "channel": str})
        topic, channel = body.get("topic", ""), body.get("channel", "")
        if not is_valid_name(topic):
            raise HTTPError(400, "INVALID_TOPIC")
        if channel and not is_valid_name(channel):
            raise HTTPError(400, "INVALID_CHANNEL")
        actions = [Action("create_topic", topic)]
        if channel:
            actions.append(Action("create_channel", topic, channel))
        return await self._do(
            context,
            actions,
            "create topic/channel",
            lambda problems: self._cluster.create(topic, channel, problems),
        )

    async def delete_topic(self, context: RequestContext) -> Response:
        topic = context.params["topic"]
        return await self._do(
            context,
            [Action("delete_topic", topic)],
            "delete topic",
            lambda problems: self._cluster.delete(topic, "", problems),
        )

    async def delete_channel(self, context: RequestContext) -> Response:
        topic, channel = context.params["topic"], context.params["channel"]
        return await self._do(
            context,
            [Action("delete_channel", topic, channel)],
            "delete channel",
            lambda problems: self._cluster.delete(topic, channel, problems),
        )

    async def act(self, context: RequestContext) -> Response:
        """Pause, unpause or empty a topic or a channel."""
        topic, channel = context.params["topic"], context.params.get("channel", "")
        action = (await context.fields({"action": str})).get("action", "")
        if action not in _ACTIONS:
            raise HTTPError(400, "INVALID_ACTION")
        return await self._do(
            context,
            [Action(f"{action}_{'channel' if channel else 'topic'}", topic, channel)],
            f"{action} topic/channel",
            lambda problems: self._cluster.act(action, topic, channel, problems),
            notify_failure=True,
        )

    async def tombstone(self, context: RequestContext) -> Response:
        """Remove a topic from one node."""
        node = context.params["node"]
        try:
            topic = (await context.fields({"topic": str})).get("topic", "")
        except HTTPError as error:
            raise HTTPError(400, "INVALID_BODY") if error.status == 400 else error from None
        if not is_valid_name(topic):
            raise HTTPError(400, "INVALID_TOPIC")
        return await self._do(
            context,
            [Action("tombstone_topic_producer", topic, node=node)],
            "tombstone node for topic",
            lambda problems: self._cluster.tombstone(topic, node, problems),
        )

    async def _do(
        self,
        context: RequestContext,
        actions: list[Action],
        what: str,
        work: Callable[[list[str]], Awaitable[None]],
        *,
        notify_failure: bool = False,
    ) -> Response:
        """Run an action, record its outcome, and answer. NSQ sends some notifications even if the action fails."""
        report = PartialAnswer(self._log)
        outcome, detail = audit.DONE, ""
        try:
            await report.step(what, work)
            if report.message:
                outcome, detail = audit.PARTLY, report.message
        except HTTPError as error:
            outcome, detail = audit.FAILED, error.code
            raise
        except BaseException:
            outcome, detail = audit.FAILED, "interrupted"
            raise
        finally:
            self._single_flight.forget()
            for action in actions:
                self._audit.record(action, context.caller, outcome, detail)
                if outcome != audit.FAILED or notify_failure:
                    self._audit.notify(action, context.caller)
        return json_response({"message": report.message})
