"""Questions to routes that not every nsqd has: an answer, or an error in plain words, for each node.

Go's nsqd and older versions of nsqx answer 404 to such a route. That is not a failure of the node: its answer says that
the function is not available there. Does not know nsqadmin's own clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nsqx.cluster.fan_out import ask_all
from nsqx.errors import HTTPError, RequestFailed

if TYPE_CHECKING:
    from nsqx.cluster.daemon import Query
    from nsqx.cluster.nsqd import NsqdClient
    from nsqx.nsqadmin.cluster import ClusterClient

NOT_AVAILABLE = "NOT_AVAILABLE"
UNREACHABLE = "UNREACHABLE"
# The answers of a router without the route.
_NO_ROUTE = ("NOT_FOUND", "METHOD_NOT_ALLOWED")
_TEXTS = {
    NOT_AVAILABLE: "This nsqd does not have this function. It is Go's nsqd or an older version.",
    "CHANNEL_NOT_FOUND": "The channel does not exist on this node.",
    "CONVERTING": "The messages of the topic are being moved to another store. Try again when that is done.",
    "INVALID_OPTION": "This nsqd does not have one of the settings, or it does not apply to the store of the topic.",
    "INVALID_POSITION": "The position is not an offset, a time, beginning or end.",
    "INVALID_TIME": "The time is not valid.",
    "INVALID_VALUE": "A value is not valid. Ages are durations such as 72h, sizes are bytes, and a retention must not "
    "exceed its limit.",
    "MISSING_ARG_CHANNEL": "Some letters do not say which channel failed. Choose the channel that gets them.",
    "NO_DEAD_LETTERS": "The topic has no dead letters on this node.",
    "NO_SUCH_TIME": "The log has no message at or after this time.",
    "NOT_A_LOG": "The topic has no log on this node, so it has no offsets and no history.",
    "READ_FAILED": "The log could not be read. The log of nsqd has the reason.",
    "TOPIC_NOT_FOUND": "The topic does not exist on this node.",
    "UNAUTHORIZED": "nsqadmin's token for this nsqd does not permit it (--nsqd-http-token-file).",
}


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """The answer of one nsqd; ``code`` and ``error`` are empty if it did what was asked."""

    address: str
    document: dict[str, Any] = field(default_factory=dict)
    code: str = ""
    error: str = ""
    """The reason of a failure, in plain words."""


async def ask_nodes(
    nsqds: Sequence[NsqdClient], method: str, path: str, query: Query, body: bytes = b""
) -> list[NodeAnswer]:
    """Send the same request to several nsqds. Never raises RequestFailed."""

    async def ask(nsqd: NsqdClient) -> NodeAnswer:
        return await ask_node(nsqd, method, path, query, body)

    return (await ask_all(nsqds, ask)).values


async def ask_node(nsqd: NsqdClient, method: str, path: str, query: Query, body: bytes = b"") -> NodeAnswer:
    """Send a request to one nsqd. Never raises RequestFailed."""
    try:
        return NodeAnswer(nsqd.address, await nsqd.ask_object(method, path, query, body))
    except RequestFailed as error:
        code, text = explain(error)
        return NodeAnswer(nsqd.address, code=code, error=text)


def explain(error: RequestFailed) -> tuple[str, str]:
    """Return the code of a failure and its reason in plain words."""
    if not error.status:
        return UNREACHABLE, f"This nsqd does not answer: {error.plain}"
    code = NOT_AVAILABLE if error.code in _NO_ROUTE else error.code
    if code == "OFFSET_GONE":
        return code, f"The log does not have this offset any more. Its first offset is {error.numbers.get('first')}."
    if code == "OFFSET_BEYOND_END":
        return code, f"The log does not have this offset yet. Its end is {error.numbers.get('end')}."
    return code or "FAILED", _TEXTS.get(code, error.plain)


async def nsqds_with_topic(cluster: ClusterClient, topic: str, address: str, problems: list[str]) -> list[NsqdClient]:
    """Return clients for the nsqds that have a topic, or for the one of them at ``address``.

    Raises HTTPError 404 if there is none, and 502 if the cluster does not answer.
    """
    try:
        nodes = await cluster.topic_nodes(topic, problems)
    except RequestFailed as error:
        if "TOPIC_NOT_FOUND" in str(error):
            raise HTTPError(404, "TOPIC_NOT_FOUND") from None
        raise HTTPError(502, f"UPSTREAM_ERROR: {error}") from None
    if not nodes:
        raise HTTPError(404, "TOPIC_NOT_FOUND")
    if address:
        nodes = [node for node in nodes if node.http_address == address]
        if not nodes:
            raise HTTPError(404, "NODE_NOT_FOUND")
    return cluster.nsqds(sorted(nodes, key=lambda node: node.http_address))
