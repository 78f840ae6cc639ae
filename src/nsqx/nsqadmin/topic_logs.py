"""The logs of topics on the nsqds of the cluster: sizes, offsets, settings, and changes of positions and settings.

Owns ``/api/log/:topic``, ``/api/config/:topic``, ``/api/config/:topic/:channel``, ``/api/seek/:topic/:channel`` and
``/api/trim/:topic``. Offsets belong to one node: a position that is an offset needs the address of its node.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson

from nsqx.cluster.json_fields import integer, objects, text
from nsqx.errors import HTTPError, RequestFailed
from nsqx.names import is_valid_name
from nsqx.nsqadmin.api import warning
from nsqx.nsqadmin.audit import Action
from nsqx.nsqadmin.node_answers import ask_node, ask_nodes, explain, nsqds_with_topic
from nsqx.nsqadmin.node_changes import NodeChange, NodeChanges
from nsqx.nsqadmin.request_context import RequestContext, json_bytes_response, json_response

if TYPE_CHECKING:
    from starlette.responses import Response

    from nsqx.cluster.nsqd import NsqdClient
    from nsqx.nsqadmin.audit import Audit
    from nsqx.nsqadmin.cluster import ClusterClient
    from nsqx.nsqadmin.node_answers import NodeAnswer
    from nsqx.nsqadmin.single_flight import SingleFlight

_SEEK_RESULT = ("from", "to", "depth_before", "depth", "in_flight", "forgotten")
_TRIM_RESULT = ("before", "first", "dropped", "dropped_from_topic", "bytes")
_CONFIG_RESULT = ("settings", "changed")
_LOG_COUNTS = ("first", "stable", "end", "bytes", "segments", "deferred_count")
# Numbers that older versions do not report are null.
_LOG_EXTRAS = ("kept_bytes", "dropped", "expired", "duplicates")
_CURSOR_COUNTS = ("floor", "next", "holes")
_CURSOR_EXTRAS = ("dropped", "expired", "dead")
_CHANNEL_COUNTS = ("depth", "in_flight_count", "deferred_count")
# nsqd reads an integer with so many digits as a time, and a shorter one as an offset.
_TIME_DIGITS = 16
_MAX_POSITION_LENGTH = 64


class TopicLogAPI:
    """Reads the logs of topics, and changes positions and settings."""

    def __init__(self, cluster: ClusterClient, single_flight: SingleFlight, records: Audit) -> None:
        self._cluster = cluster
        self._single_flight = single_flight
        self._changes = NodeChanges(single_flight, records)

    # Reading

    async def log(self, context: RequestContext) -> Response:
        """Answer with the log and the settings of a topic on each nsqd."""
        topic = topic_in(context)
        body: bytes = await self._single_flight.share(("log", topic), lambda: self._log(topic))
        return json_bytes_response(body)

    async def _log(self, topic: str) -> bytes:
        problems: list[str] = []
        nsqds = await nsqds_with_topic(self._cluster, topic, "", problems)
        nodes = await asyncio.gather(*(_node_document(nsqd, topic) for nsqd in nsqds))
        return orjson.dumps({"topic": topic, "nodes": nodes, "message": warning(problems)})

    async def channel_config(self, context: RequestContext) -> Response:
        """Answer with the settings of a channel on each nsqd."""
        topic, channel = topic_in(context), channel_in(context)
        problems: list[str] = []
        nsqds = await nsqds_with_topic(self._cluster, topic, "", problems)
        query = {"topic": topic, "channel": channel}
        nodes = [
            {"node": answer.address, "code": answer.code, "error": answer.error, **_config(answer)}
            for answer in await ask_nodes(nsqds, "GET", "/channel/config", query)
        ]
        return json_response({"topic": topic, "channel": channel, "nodes": nodes, "message": warning(problems)})

    # Changing

    async def configure(self, context: RequestContext) -> Response:
        """Change settings of a topic or a channel; null returns a setting to its configured value."""
        topic, channel = topic_in(context), channel_in(context) if "channel" in context.params else ""
        body = await context.json_object()
        settings, node = body.get("settings"), body.get("node") or ""
        if not isinstance(settings, dict) or not settings or not all(map(_is_setting, settings.values())):
            raise HTTPError(400, "INVALID_SETTINGS")
        if not isinstance(node, str):
            raise HTTPError(400, "INVALID_BODY")
        problems: list[str] = []
        nsqds = await nsqds_with_topic(self._cluster, topic, node, problems)
        subject, query = ("channel", {"topic": topic, "channel": channel}) if channel else ("topic", {"topic": topic})
        sent = orjson.dumps(settings)
        changes = [NodeChange(nsqd, "PUT", f"/{subject}/config", query, sent) for nsqd in nsqds]
        action = Action(f"set_{subject}_config", topic, channel, node)
        return await self._changes.apply(context, action, changes, _CONFIG_RESULT, problems, sent.decode())

    async def seek(self, context: RequestContext) -> Response:
        """Move a channel to a position in the log, or show what that would do."""
        topic, channel = topic_in(context), channel_in(context)
        action = Action("seek_channel", topic, channel)
        query = {"topic": topic, "channel": channel}
        return await self._move(context, action, "/channel/seek", "to", query, _SEEK_RESULT)

    async def trim(self, context: RequestContext) -> Response:
        """Drop the messages before a position for all channels, or show what that would do."""
        topic = topic_in(context)
        return await self._move(
            context, Action("trim_topic", topic), "/log/trim", "before", {"topic": topic}, _TRIM_RESULT
        )

    async def _move(
        self,
        context: RequestContext,
        action: Action,
        path: str,
        name: str,
        query: dict[str, str],
        keys: tuple[str, ...],
    ) -> Response:
        """Run a change of a position, which is the parameter ``name`` of nsqd's route."""
        fields = await context.fields({name: str, "node": str, "dry_run": bool})
        position, node = fields.get(name, ""), fields.get("node", "")
        if not position or len(position) > _MAX_POSITION_LENGTH:
            raise HTTPError(400, "INVALID_POSITION")
        if is_offset(position) and not node:
            raise HTTPError(400, "INVALID_NODE")
        problems: list[str] = []
        nsqds = await nsqds_with_topic(self._cluster, action.topic, node, problems)
        query = {**query, name: position}
        if fields.get("dry_run", False):
            query["dry_run"] = "true"
            return await self._changes.preview([NodeChange(nsqd, "POST", path, query) for nsqd in nsqds], keys)
        recorded = Action(action.name, action.topic, action.channel, node)
        changes = [NodeChange(nsqd, "POST", path, query) for nsqd in nsqds]
        return await self._changes.apply(context, recorded, changes, keys, problems, f"{name}={position}")


def topic_in(context: RequestContext) -> str:
    """Return the topic in the path of a request; raises HTTPError."""
    topic = context.params["topic"]
    if not is_valid_name(topic):
        raise HTTPError(400, "INVALID_TOPIC")
    return topic


def channel_in(context: RequestContext) -> str:
    """Return the channel in the path of a request; raises HTTPError."""
    channel = context.params["channel"]
    if not is_valid_name(channel):
        raise HTTPError(400, "INVALID_CHANNEL")
    return channel


def is_offset(position: str) -> bool:
    """True if nsqd reads a position as an offset."""
    return position.isascii() and position.isdigit() and len(position) < _TIME_DIGITS


def _is_setting(value: object) -> bool:
    return value is None or (isinstance(value, str | int) and not isinstance(value, bool))


async def _node_document(nsqd: NsqdClient, topic: str) -> dict[str, Any]:
    """Return the log of a topic on one nsqd. A failure is part of the document."""
    query = {"topic": topic}
    stats, offsets, config = await asyncio.gather(
        _topic_stats(nsqd, topic),
        ask_node(nsqd, "GET", "/log/offsets", query),
        ask_node(nsqd, "GET", "/topic/config", query),
    )
    if isinstance(stats, RequestFailed):
        code, error = explain(stats)
        return _document(nsqd.address, code, error, None, [], config)
    try:
        log = _log_document(stats, offsets.document)
        channels = [_channel_document(each) for each in objects(stats, "channels") or ()] if log is not None else []
    except RequestFailed as failure:
        return _document(nsqd.address, "FAILED", failure.plain, None, [], config)
    return _document(nsqd.address, "", "", log, channels, config)


def _document(
    address: str, code: str, error: str, log: dict[str, Any] | None, channels: list[dict[str, Any]], config: NodeAnswer
) -> dict[str, Any]:
    return {
        "node": address,
        "code": code,
        "error": error,
        "log": log,
        "channels": channels,
        "config": {"code": config.code, "error": config.error, **_config(config)},
    }


async def _topic_stats(nsqd: NsqdClient, topic: str) -> dict[str, Any] | RequestFailed:
    """Return the entry of a topic in /stats, or the failure."""
    try:
        for stats in await nsqd.stats(topic):
            if text(stats, "topic_name") == topic:
                return stats
    except RequestFailed as error:
        return error
    return RequestFailed("the topic does not exist", status=404, code="TOPIC_NOT_FOUND")


def _log_document(stats: dict[str, Any], offsets: dict[str, Any]) -> dict[str, Any] | None:
    """Return the log of a topic; None if the topic has no log."""
    log = stats.get("log")
    if not isinstance(log, dict):
        return None
    listed = (objects(offsets, "topics") or [{}])[0]
    return {
        **{key: text(log, key) for key in ("store", "durability", "id")},
        **{key: integer(log, key) for key in _LOG_COUNTS},
        **{key: _optional_integer(log, key) for key in _LOG_EXTRAS},
        "first_time": listed.get("first_time") if isinstance(listed.get("first_time"), str) else None,
        "bytes_per_message": _optional_integer(listed, "bytes_per_message"),
    }


def _channel_document(stats: dict[str, Any]) -> dict[str, Any]:
    """Return the position of a channel in the log; times are texts, because JavaScript has no integers of that size."""
    cursor = stats.get("cursor")
    if not isinstance(cursor, dict):
        cursor = {}
    oldest_ns = integer(cursor, "oldest")
    return {
        "channel": text(stats, "channel_name"),
        **{key: integer(stats, key) for key in _CHANNEL_COUNTS},
        **{key: integer(cursor, key) for key in _CURSOR_COUNTS},
        **{key: _optional_integer(cursor, key) for key in _CURSOR_EXTRAS},
        "oldest_ns": str(oldest_ns) if oldest_ns else None,
    }


def _config(answer: NodeAnswer) -> dict[str, Any]:
    settings, changed = answer.document.get("settings"), answer.document.get("changed")
    return {
        "settings": settings if isinstance(settings, dict) else {},
        "changed": changed if isinstance(changed, list) else [],
    }


def _optional_integer(document: dict[str, Any], key: str) -> int | None:
    return integer(document, key) if key in document else None
