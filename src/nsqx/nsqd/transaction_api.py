"""The routes for transactions: POST /log/stage, POST /log/commit, GET /log/ledger.

A task stages the messages of its part of a batch, in one request or in several, each with a part of its own:

      POST /log/stage?query=Q&batch=7&part=3&attempt=0&topic=orders      as /mpub, with ``binary`` and ``defer``
      POST /log/stage?query=Q&batch=7&part=3&attempt=0                   messages for several topics

The body of the second form is a list of groups, and all its numbers are big-endian:

      u8 size of the topic, topic, i64 delay in ms, u32 size of the MPUB body, MPUB body
"""

from __future__ import annotations

import re
from struct import Struct
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import orjson

from nsqx.errors import BrokerExiting, DiskQueueError, HTTPError, NotALogTopic, ProtocolError
from nsqx.names import is_valid_name, is_valid_producer
from nsqx.net.responses import Response, json_response
from nsqx.net.router import BodyLimit
from nsqx.nsqd.refusals import refused
from nsqx.nsqd.transactions import CommitRequest, LedgerMismatch, PartMissing, TooManyDeferred, TransactionTooLarge
from nsqx.queues.log.staging import PartDamaged, PartMessages, PartName
from nsqx.units import NS_PER_MS
from nsqx.wire.batches import LineSlices, has_longer_line
from nsqx.wire.commands import read_batch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from nsqx.net.requests import Request
    from nsqx.net.router import Router
    from nsqx.net.steps import Steps
    from nsqx.nsqd.broker import Broker
    from nsqx.queues.log.ledger import LedgerEntry

MAX_NODES = 64
MAX_PARTS = 10_000
MAX_ADDRESS_LENGTH = 255
MAX_BATCH = (1 << 62) - 1
_TRUE = ("true", "1")
_DIGITS = re.compile("[0-9]{1,19}", re.ASCII)
_GROUP = Struct(">qI")


class StageAnswer(TypedDict):
    """The answer of /log/stage."""

    messages: Annotated[int, "The messages of the part."]
    duplicate: Annotated[bool, "True if the batch is committed already, so the part was not stored."]


class CommitAnswer(TypedDict):
    """The answer of /log/commit."""

    messages: Annotated[int, "The messages that were stored; 0 if the batch was committed before."]
    duplicate: Annotated[bool, "True if the batch was committed before."]


class LedgerAnswer(TypedDict):
    """The last batch that a query has committed at this nsqd."""

    query: str
    batch: int
    nodes: Annotated[list[str], "The nsqds that get the batches of the query, in turn."]
    place: Annotated[int, "The index of this nsqd in `nodes`."]
    time: Annotated[int, "When it was committed: nanoseconds since 1970."]


class LedgersAnswer(TypedDict):
    """The ledger."""

    queries: list[LedgerAnswer]


class PartBody(TypedDict):
    """A staged part."""

    part: str
    attempt: str


class CommitBody(TypedDict, total=False):
    """A batch to commit."""

    query: str
    batch: int
    nodes: Annotated[list[str], "The nsqds that get the batches of the query, in turn. The names are only compared."]
    place: Annotated[int, "The index of this nsqd in `nodes`."]
    parts: list[PartBody]
    replace: Annotated[bool, "True: the query may have used other `nodes` before."]


def add_transaction_routes(router: Router, broker: Broker) -> None:
    """Add the routes of this module."""
    api = TransactionAPI(broker)
    limit = BodyLimit(broker.options.max_body_size, "BODY_TOO_BIG")
    router.add("POST", "/log/stage", api.stage, body_limit=limit, logged=False)
    router.add("POST", "/log/commit", api.commit, body_limit=limit)
    router.add("GET", "/log/ledger", api.show)


class TransactionAPI:
    """Stages and commits transactions, and shows the ledger."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def stage(self, request: Request) -> Awaitable[Response]:
        """Store a part of a batch. Answers when it is durable."""
        query = request.query
        name = PartName(
            _name(query, "query", "QUERY"), _batch(query), _name(query, "part", "PART"),
            _name(query, "attempt", "ATTEMPT"),
        )  # fmt: skip
        body = request.body
        return self._stage(name, self._groups_of_topic(query, body) if "topic" in query else self._groups(body))

    async def _stage(self, name: PartName, steps: Steps[list[PartMessages]]) -> Response:
        groups = await self._broker.long_jobs.run(steps)
        try:
            is_new = await self._broker.transactions.stage(name, groups)
        except (NotALogTopic, BrokerExiting, DiskQueueError) as error:
            raise _refused(error) from None
        answer: StageAnswer = {"messages": sum(group.message_count for group in groups), "duplicate": not is_new}
        return json_response(answer)

    def _groups_of_topic(self, query: Mapping[str, str], body: bytes) -> Steps[list[PartMessages]]:
        """Return the messages of a body in the format of /mpub; raises HTTPError."""
        topic = query["topic"]
        if not is_valid_name(topic):
            raise HTTPError(400, "INVALID_TOPIC")
        defer_ns = self._defer_ns(query["defer"]) if "defer" in query else 0
        if query.get("binary", "false") in _TRUE:
            items, count = self._read_batch(body)
            return [PartMessages(topic, defer_ns, count, bytes(items))] if count else []
        if has_longer_line(body, self._broker.options.max_msg_size):
            raise HTTPError(413, "MSG_TOO_BIG")
        slices = LineSlices(body)
        groups = []
        while not slices.is_done:
            items = slices.next()
            if slices.count:
                groups.append(PartMessages(topic, defer_ns, slices.count, bytes(items)))
            yield
        return groups

    def _groups(self, body: bytes) -> Steps[list[PartMessages]]:
        """Return the groups of a body with messages for several topics; raises HTTPError."""
        groups = []
        position = 0
        while position < len(body):
            topic_end = position + 1 + body[position]
            start = topic_end + _GROUP.size
            if start > len(body):
                raise HTTPError(413, "BAD_BODY")
            topic = body[position + 1 : topic_end].decode("latin-1")
            defer_ms, size = _GROUP.unpack_from(body, topic_end)
            position = start + size
            if position > len(body):
                raise HTTPError(413, "BAD_BODY")
            if not is_valid_name(topic):
                raise HTTPError(400, "INVALID_TOPIC")
            items, count = self._read_batch(body[start:position])
            if count:
                groups.append(PartMessages(topic, self._defer_ns(str(defer_ms)), count, bytes(items)))
            yield
        return groups

    def _defer_ns(self, text: str) -> int:
        if _DIGITS.fullmatch(text) is None or int(text) * NS_PER_MS > self._broker.options.max_req_timeout:
            raise HTTPError(400, "INVALID_DEFER")
        return int(text) * NS_PER_MS

    def _read_batch(self, body: bytes) -> tuple[bytes, int]:
        options = self._broker.options
        try:
            return read_batch(body, options.max_body_size, options.max_msg_size)
        except ProtocolError as error:
            raise HTTPError(413, error.code.removeprefix("E_")) from None

    def commit(self, request: Request) -> Awaitable[Response]:
        """Store a batch once. Answers when it is durable."""
        return self._commit(_commit_request(request.body))

    async def _commit(self, request: CommitRequest) -> Response:
        try:
            outcome = await self._broker.transactions.commit(request)
        except LedgerMismatch as error:
            raise HTTPError(409, "LEDGER_MISMATCH", fields=_entry_fields(error.entry)) from None
        except PartMissing as error:
            raise HTTPError(404, "PART_NOT_FOUND", fields=_part_fields(error.name)) from None
        except PartDamaged as error:
            raise HTTPError(409, "PART_DAMAGED", fields=(("part", str(error)),)) from None
        except TransactionTooLarge as error:
            raise HTTPError(413, "TRANSACTION_TOO_LARGE", fields=(("bytes", error.size),)) from None
        except TooManyDeferred as error:
            raise HTTPError(413, "TOO_MANY_DEFERRED", fields=(("deferred", error.count),)) from None
        except (NotALogTopic, BrokerExiting, DiskQueueError) as error:
            raise _refused(error) from None
        answer: CommitAnswer = {"messages": outcome.message_count, "duplicate": outcome.is_duplicate}
        return json_response(answer)

    def show(self, request: Request) -> Response:
        """Answer with the last batch of each query, or of one."""
        entries = self._broker.transactions.entries()
        if "query" in request.query:
            query = _name(request.query, "query", "QUERY")
            entries = [entry for entry in entries if entry[0] == query]
            if not entries:
                raise HTTPError(404, "QUERY_NOT_FOUND")
        answer: LedgersAnswer = {
            "queries": [
                {
                    "query": query,
                    "batch": entry.batch,
                    "nodes": list(entry.nodes),
                    "place": entry.place,
                    "time": entry.time_ns,
                }
                for query, entry in entries
            ]
        }
        return json_response(answer)


def _refused(error: Exception) -> HTTPError:
    if isinstance(error, NotALogTopic):
        return HTTPError(400, "NOT_A_LOG", fields=(("topic", error.topic_name),))
    return refused(error)


def _entry_fields(entry: LedgerEntry) -> tuple[tuple[str, int | str], ...]:
    return (("batch", entry.batch), ("nodes", ",".join(entry.nodes)), ("place", entry.place))


def _part_fields(name: PartName) -> tuple[tuple[str, int | str], ...]:
    return (("part", name.part), ("attempt", name.attempt))


def _name(query: Mapping[str, str], key: str, code: str) -> str:
    if key not in query:
        raise HTTPError(400, f"MISSING_ARG_{code}")
    if not is_valid_producer(query[key]):
        raise HTTPError(400, f"INVALID_{code}")
    return query[key]


def _batch(query: Mapping[str, str]) -> int:
    text = query.get("batch")
    if text is None:
        raise HTTPError(400, "MISSING_ARG_BATCH")
    if _DIGITS.fullmatch(text) is None or int(text) > MAX_BATCH:
        raise HTTPError(400, "INVALID_BATCH")
    return int(text)


def _commit_request(body: bytes) -> CommitRequest:
    """Return the request in a body; raises HTTPError."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise HTTPError(400, "INVALID_BODY") from None
    if not isinstance(fields, dict):
        raise HTTPError(400, "INVALID_BODY")
    query, batch = fields.get("query"), fields.get("batch")
    if not isinstance(query, str) or not is_valid_producer(query):
        raise HTTPError(400, "INVALID_QUERY")
    if type(batch) is not int or not 0 <= batch <= MAX_BATCH:
        raise HTTPError(400, "INVALID_BATCH")
    nodes, place = fields.get("nodes"), fields.get("place")
    if not (isinstance(nodes, list) and 0 < len(nodes) <= MAX_NODES and all(map(_is_address, nodes))):
        raise HTTPError(400, "INVALID_NODES")
    if type(place) is not int or not 0 <= place < len(nodes):
        raise HTTPError(400, "INVALID_PLACE")
    parts = fields.get("parts")
    if not isinstance(parts, list):
        raise HTTPError(400, "INVALID_PARTS")
    if len(parts) > MAX_PARTS:
        raise HTTPError(413, "TOO_MANY_PARTS", fields=(("parts", len(parts)),))
    names = [_part_name(query, batch, part) for part in parts]
    if len({name.part for name in names}) < len(names):
        raise HTTPError(400, "REPEATED_PART")
    is_replacing = fields.get("replace", False)
    if not isinstance(is_replacing, bool):
        raise HTTPError(400, "INVALID_REPLACE")
    return CommitRequest(query, batch, tuple(nodes), place, names, is_replacing)


def _is_address(address: object) -> bool:
    return isinstance(address, str) and 0 < len(address) <= MAX_ADDRESS_LENGTH and address.isprintable()


def _part_name(query: str, batch: int, part: Any) -> PartName:
    if not isinstance(part, dict) or part.keys() != {"part", "attempt"}:
        raise HTTPError(400, "INVALID_PARTS")
    for value in part.values():
        if not isinstance(value, str) or not is_valid_producer(value):
            raise HTTPError(400, "INVALID_PARTS")
    return PartName(query, batch, part["part"], part["attempt"])
