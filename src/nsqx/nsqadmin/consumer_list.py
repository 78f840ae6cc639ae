"""All consumers of the cluster: the connections of every channel on every nsqd, joined to one entry per consumer.

A consumer connects to each nsqd, and nsqd knows only connections. Connections to the same channel with the same client
id, host name and user agent are one entry. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nsqx.cluster.json_fields import integer, objects, switch, text

_COUNTS = ("ready_count", "in_flight_count", "finish_count", "requeue_count", "message_count")
_Key = tuple[str, str, str, str, str]


class ConsumerList:
    """One reading of all nsqds: ``add`` each, then ``rows``. A reading has rates if it knows the one before."""

    def __init__(self, time_s: float, before: ConsumerList | None = None) -> None:
        self._time_s = time_s
        self._before = before
        self._rows: dict[_Key, dict[str, Any]] = {}
        self._finished: dict[tuple[str, str], int] = {}
        """The messages that each connection has finished, by nsqd and remote address."""

    def forget_before(self) -> None:
        """Release the reading before this one."""
        self._before = None

    def add(self, node: str, topics: Iterable[dict[str, Any]]) -> None:
        """Add the topics of one nsqd, with clients; raises RequestFailed if they are not nsqd's."""
        for topic in topics:
            name = text(topic, "topic_name")
            for channel in objects(topic, "channels") or ():
                for client in objects(channel, "clients") or ():
                    self._add_client(node, name, channel, client)

    def _add_client(self, node: str, topic: str, channel: dict[str, Any], client: dict[str, Any]) -> None:
        who = text(client, "client_id"), text(client, "hostname"), text(client, "user_agent")
        key = (topic, text(channel, "channel_name"), *who)
        row = self._rows.get(key)
        connected_at_s = integer(client, "connect_ts")
        if row is None:
            row = self._rows[key] = {
                "topic": topic,
                "channel": key[1],
                "client_id": who[0],
                "hostname": who[1],
                "user_agent": who[2],
                "connections": 0,
                "nodes": [],
                **dict.fromkeys(_COUNTS, 0),
                "finished_per_s": None,
                "connected_at_s": connected_at_s,
                "paused": False,
                "tls": True,
                "remote_addresses": [],
            }
        row["connections"] += 1
        if node not in row["nodes"]:
            row["nodes"].append(node)
        for count in _COUNTS:
            row[count] += integer(client, count)
        row["connected_at_s"] = max(row["connected_at_s"], connected_at_s)
        row["paused"] = row["paused"] or switch(channel, "paused")
        row["tls"] = row["tls"] and switch(client, "tls")
        remote = text(client, "remote_address")
        row["remote_addresses"].append(remote)
        self._add_rate(row, (node, f"{remote} {topic} {key[1]}"), integer(client, "finish_count"))

    def _add_rate(self, row: dict[str, Any], connection: tuple[str, str], finished: int) -> None:
        self._finished[connection] = finished
        before = self._before
        if before is None or self._time_s <= before._time_s:
            return
        known = before._finished.get(connection)
        came = finished - known if known is not None and known <= finished else 0
        row["finished_per_s"] = round((row["finished_per_s"] or 0) + came / (self._time_s - before._time_s), 3)

    def rows(self) -> list[dict[str, Any]]:
        """Return the entries, unsorted."""
        return list(self._rows.values())
