"""Stages and commits batches of a query at the nsqds of a list, from executors and from the driver.

One nsqd has a batch: the one whose index in the list is the number of the batch modulo the length of the list. If it
does not answer, the request is repeated until a deadline. No other nsqd is used, because only this one knows whether it
has the batch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import orjson

from nsqx.client.handshake import open_connection
from nsqx.client.http_credentials import http_credentials
from nsqx.client.options import Options
from nsqx.cluster.credentials import NSQD
from nsqx.cluster.http import HTTPSession, https_url
from nsqx.errors import ClientError, ConfigError, NSQError, RequestFailed
from nsqx.net.address import format_host_port

if TYPE_CHECKING:
    from nsqx.net.http_client import HTTPAnswer
    from nsqx.spark.options import OnceOptions

_CONNECT_TIMEOUT_S = 5.0
# Longer than a commit of --max-transaction-bytes on a slow disk. A request that takes longer is repeated.
_REQUEST_TIMEOUT_S = 120.0
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.1, 2.0
# An earlier list of nsqds that no nsqd has in its ledger.
UNKNOWN = "unknown"


class LedgerNodeAway(NSQError):
    """The nsqd of a batch did not answer before the deadline."""


class BatchRefused(NSQError):
    """An nsqd refused a part or a batch."""


@dataclass(frozen=True, slots=True)
class BatchId:
    """A batch of a query."""

    query: str
    number: int


@dataclass(frozen=True, slots=True)
class StagedName:
    """A staged part of a batch."""

    part: str
    attempt: str


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """The last batch of a query at an nsqd."""

    number: int
    nodes: tuple[str, ...]
    place: int


@dataclass(slots=True)
class _NodeAddresses:
    """The HTTP addresses of nsqds by their TCP address. A process keeps them for later batches."""

    known: dict[str, str] = field(default_factory=dict)


_ADDRESSES = _NodeAddresses()


class LedgerClient:
    """The nsqds that get the batches of a query."""

    def __init__(self, options: OnceOptions) -> None:
        """Raises ConfigError if a client option is wrong."""
        self._options = options
        self._checked = Options.of(dict(options.cluster.client_options))
        credentials = http_credentials(self._checked)
        self._headers = credentials.headers(NSQD)
        self._http = HTTPSession(credentials, _CONNECT_TIMEOUT_S, _REQUEST_TIMEOUT_S)
        self._nodes = options.cluster.nsqd_tcp_addresses

    def node_of(self, batch: BatchId) -> str:
        """Return the nsqd that has a batch, or will have it."""
        return self._nodes[self._place_of(batch)]

    def _place_of(self, batch: BatchId) -> int:
        return batch.number % len(self._nodes)

    # Tasks

    async def stage(self, batch: BatchId, name: StagedName, body: bytes) -> bool:
        """Stage a part; False if the batch is committed already. Raises LedgerNodeAway or BatchRefused."""
        words = {"query": batch.query, "batch": batch.number, "part": name.part, "attempt": name.attempt}
        answer = await self._ask(
            self.node_of(batch), "POST", f"/log/stage?{urlencode(words)}", body, f"stage {name.part}"
        )
        return not answer["duplicate"]

    # The driver

    async def commit(self, batch: BatchId, parts: Iterable[StagedName]) -> bool:
        """Commit a batch; False if it was committed before. Raises LedgerNodeAway, BatchRefused or ConfigError."""
        node, place = self.node_of(batch), self._place_of(batch)
        record = await self._record(node, batch.query)
        is_replacing = False
        if record is None or (record.nodes, record.place) != (self._nodes, place):
            if await self._is_stored_elsewhere(batch, record):
                return False
            is_replacing = record is not None
        request = {
            "query": batch.query,
            "batch": batch.number,
            "nodes": list(self._nodes),
            "place": place,
            "parts": [{"part": name.part, "attempt": name.attempt} for name in parts],
            "replace": is_replacing,
        }
        answer = await self._ask(node, "POST", "/log/commit", orjson.dumps(request), f"commit batch {batch.number}")
        return not answer["duplicate"]

    async def _record(self, node: str, query: str) -> LedgerRecord | None:
        answer = await self._ask(node, "GET", "/log/ledger", b"", "read the ledger")
        for found in answer["queries"]:
            if found["query"] == query:
                return LedgerRecord(found["batch"], tuple(found["nodes"]), found["place"])
        return None

    async def _is_stored_elsewhere(self, batch: BatchId, record: LedgerRecord | None) -> bool:
        """True if an nsqd of the list that was used before has the batch; ``record`` is that of the nsqd of the batch.

        Raises ConfigError if the query has used another list, and the option previousNsqd does not say so.
        """
        previous = self._options.previous_nodes
        if previous == (UNKNOWN,):
            return False
        others = [node for node in dict.fromkeys((*self._nodes, *previous)) if node != self.node_of(batch)]
        found = [record, *[await self._record(node, batch.query) for node in others]]
        newest = max((each for each in found if each is not None), key=lambda each: each.number, default=None)
        if newest is None or newest.nodes == self._nodes:
            return False
        if newest.nodes == previous:
            return newest.number >= batch.number
        raise ConfigError(
            f"nsq: the query has written batch {newest.number} to another list of nsqds, {', '.join(newest.nodes)}:"
            f" set the option previousNsqd to {','.join(newest.nodes)}, so that a repeated batch is found there, or to"
            f" {UNKNOWN} if one of them is gone for ever. Then the batch that was cut off, if there is one, may be"
            " written twice"
        )

    # Requests

    async def _ask(self, node: str, method: str, target: str, body: bytes, what: str) -> Any:
        """Return the JSON of an answer. Repeats the request while the nsqd is away, until the deadline."""
        deadline_s = time.monotonic() + self._options.commit_timeout_s
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                answer = await self._send(node, method, target, body)
                reason = f"{answer.status} {answer.headers.get('x-nsq-reason', '')}".rstrip()
            except (RequestFailed, ClientError) as error:
                answer = None
                reason = getattr(error, "plain", "") or str(error)
                _ADDRESSES.known.pop(node, None)
            if answer is not None and answer.status < 500 and answer.status != 429:
                return self._document(node, answer, what)
            if time.monotonic() + pause_s > deadline_s:
                raise LedgerNodeAway(
                    f"nsq: cannot {what}: nsqd {node} does not answer or refuses ({reason}) for"
                    f" {self._options.commit_timeout_s:g} s. Only this nsqd knows whether it has the batch, so no other"
                    " one can be used. Start it again, and restart the query"
                )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    async def _send(self, node: str, method: str, target: str, body: bytes) -> HTTPAnswer:
        url = f"http://{await self._address_of(node)}{target}"
        answer = await self._http.fetch(method, url, body, self._headers)
        secure = https_url(url, answer) if answer.status == 403 else None
        return await self._http.fetch(method, secure, body, self._headers) if secure is not None else answer

    async def _address_of(self, node: str) -> str:
        """Return the HTTP address of an nsqd, which it says itself; raises ClientError or ConfigError."""
        found = _ADDRESSES.known.get(node)
        if found is not None:
            return found
        connection, terms = await open_connection(node, self._checked, asks_extras=True)
        connection.fail(ClientError("not needed any more"))
        if not terms.http_port:
            raise ConfigError(
                f"nsq: exactlyOnce needs nsqds of nsqx with an HTTP port, and nsqd {node} is none or has no HTTP port"
            )
        address = format_host_port(node.rpartition(":")[0].strip("[]"), terms.http_port)
        _ADDRESSES.known[node] = address
        return address

    def _document(self, node: str, answer: HTTPAnswer, what: str) -> Any:
        try:
            document = orjson.loads(answer.body)
        except orjson.JSONDecodeError:
            document = {}
        if answer.status == 200:
            return document
        code = document.get("message", "") if isinstance(document, dict) else ""
        raise BatchRefused(f"nsq: cannot {what}: nsqd {node} answers {answer.status} {code}{_remedy(code, document)}")


def _remedy(code: str, document: Any) -> str:
    """Return what to do about an error."""
    texts = {
        "NOT_A_LOG": "topic {topic} is classic, and exactlyOnce needs log topics: convert it with POST"
        " /topic/convert?store=log, or start nsqd with --store=log",
        "NOT_FOUND": "it has no transactions: exactlyOnce needs nsqds of nsqx",
        "UNAUTHORIZED": "set nsq.nsqd_http_token_file to a file with a token of the groups publish and read, or admin",
        "PART_NOT_FOUND": "part {part}, attempt {attempt}, is gone: restart the query, it stages the batch again",
        "PART_DAMAGED": "{part}: restart the query, it stages the batch again",
        "TRANSACTION_TOO_LARGE": "the batch has {bytes} bytes: raise --max-transaction-bytes of nsqd, and limit the"
        " batches of the source, for example with maxOffsetsPerTrigger",
        "TOO_MANY_PARTS": "the batch has {parts} parts, at most 10,000 are possible: use fewer tasks or a larger"
        " maxRequestBytes",
        "TOO_MANY_DEFERRED": "the batch has {deferred} deferred messages, at most 100,000 are possible: limit the"
        " batches of the source, for example with maxOffsetsPerTrigger",
        "BODY_TOO_BIG": "raise --max-body-size of nsqd, or set the option maxRequestBytes to less",
        "BAD_MESSAGE": "a value is larger than --max-msg-size of nsqd",
        "LEDGER_MISMATCH": "another query with the same id has written batch {batch} to {nodes}",
        "INVALID_TOPIC": "the name of a topic is not valid: use 1 to 64 of a-z A-Z 0-9 . _ -",
        "INVALID_DEFER": "a delay in defer_ms is longer than --max-req-timeout of nsqd",
    }
    fields = document if isinstance(document, dict) else {}
    try:
        return f": {texts[code].format_map(fields)}" if code in texts else ""
    except KeyError:
        return ""
