"""The data source's questions to a cluster: the list of topics, and the depth of a channel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from nsqx.cluster.fan_out import ask_all
from nsqx.cluster.http import HTTPSession
from nsqx.cluster.lookupd import LookupdClient, check_lookupd_address
from nsqx.cluster.node import merge_nodes
from nsqx.cluster.nsqd import NsqdClient
from nsqx.errors import RequestFailed

if TYPE_CHECKING:
    from nsqx.cluster.credentials import Credentials

_TIMEOUT_S = 5.0


def http_session(credentials: Credentials) -> HTTPSession:
    """Return the session for requests to nsqlookupd and nsqd."""
    return HTTPSession(credentials, _TIMEOUT_S, _TIMEOUT_S)


async def find_topics(lookupds: Sequence[str], credentials: Credentials) -> list[str]:
    """Return the topics of all nsqlookupds, sorted; raises RequestFailed if none of them answers.

    Raises ConfigError for an invalid address.
    """
    for address in lookupds:
        check_lookupd_address(address)
    answers = await ask_all(LookupdClient.at(http_session(credentials), lookupds), LookupdClient.topics)
    return sorted({topic for topics in answers.require_one().values for topic in topics})


async def channel_depth(
    lookupds: Iterable[str], topics: Iterable[str], channel: str, credentials: Credentials
) -> int | None:
    """Return the depth of a channel over all nsqds of these topics; None if one of them does not answer."""
    http = http_session(credentials)
    clients = LookupdClient.at(http, lookupds)
    try:
        return sum([await _depth(http, clients, topic, channel) for topic in topics])
    except RequestFailed:
        return None


async def _depth(http: HTTPSession, lookupds: Sequence[LookupdClient], topic: str, channel: str) -> int:
    found = await ask_all(lookupds, LookupdClient.lookup, topic)
    nsqds = NsqdClient.at(http, (node.http_address for node in merge_nodes(found.require_one().values)))
    depths = await ask_all(nsqds, _depth_on, topic, channel)
    return sum(depths.require_all().values)


async def _depth_on(nsqd: NsqdClient, topic: str, channel: str) -> int:
    depth = 0
    for each in await nsqd.stats(topic):
        if each.get("topic_name") == topic:
            found = [entry for entry in each.get("channels") or [] if entry.get("channel_name") == channel]
            # Messages that wait in the topic go to the channel, also if it does not exist yet.
            depth += sum(int(entry.get("depth", 0)) for entry in found) + int(each.get("depth", 0))
    return depth
