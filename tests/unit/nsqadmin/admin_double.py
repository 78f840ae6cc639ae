"""nsqadmin's application without sockets: scripted nsqds, and requests through the ASGI interface."""

import asyncio
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from nsqx.cluster.http import HTTPSession
from nsqx.errors import RequestFailed
from nsqx.log import INFO, Log
from nsqx.net.http_client import HTTPAnswer
from nsqx.nsqadmin.access import Access
from nsqx.nsqadmin.app import Handlers, build_app
from nsqx.nsqadmin.audit import Audit
from nsqx.nsqadmin.cluster import ClusterClient
from nsqx.nsqadmin.config_api import ConfigAPI
from nsqx.nsqadmin.options import NsqadminOptions
from nsqx.nsqadmin.single_flight import SingleFlight
from nsqx.nsqadmin.stored_messages import StoredMessageAPI
from nsqx.nsqadmin.topic_logs import TopicLogAPI
from openapi_documents import AnyHandler

GO, LOGS, OTHER = "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"
ADDRESSES = (GO, LOGS, OTHER)

Answer = dict[str, Any] | tuple[int, dict[str, Any]] | Exception | list[Any]
"""A document, a status and a document, a failure, or a list of these for one request after the other."""


@dataclass(frozen=True)
class Asked:
    """A request that an nsqd got."""

    address: str
    method: str
    path: str
    query: list[tuple[str, str]]
    body: bytes


@dataclass(frozen=True)
class ScriptedHTTP(HTTPSession):
    """Answers for nsqds: by address, method and path. A route without an answer is unknown to the nsqd."""

    answers: dict[tuple[str, str], Answer] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)

    async def fetch(
        self, method: str, url: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> HTTPAnswer:
        parts = urlsplit(url)
        self.asked.append(Asked(parts.netloc, method, parts.path, parse_qsl(parts.query), body))
        answer = self.answers.get((parts.netloc, f"{method} {parts.path}"), (404, {"message": "NOT_FOUND"}))
        if isinstance(answer, list):
            answer = answer.pop(0)
        if isinstance(answer, Exception):
            raise answer
        status, document = answer if isinstance(answer, tuple) else (200, answer)
        return HTTPAnswer(status, {}, json.dumps(document).encode())


class Admin:
    """An nsqadmin with three nsqds, which all have the topic ``orders``: Go's nsqd, and two with logs."""

    def __init__(self, **options: Any) -> None:
        self.options = NsqadminOptions(nsqd_http_addresses=list(ADDRESSES), **options)
        self.http = ScriptedHTTP()
        log = Log("", INFO, io.StringIO())
        cluster = ClusterClient(self.options, self.http, log)
        access = Access(self.options, log)
        self.audit = Audit(self.options, self.http, log)
        flight = SingleFlight()
        any_handler: Any = AnyHandler()
        parts = dict.fromkeys(Handlers.__dataclass_fields__, any_handler)
        parts |= {
            "logs": TopicLogAPI(cluster, flight, self.audit),
            "stored": StoredMessageAPI(self.options, cluster, flight, self.audit),
            "config": ConfigAPI(self.options, access, flight, self.audit, log),
        }
        self._app = build_app(self.options, Handlers(**parts), access, self.audit, log)
        for address in ADDRESSES:
            port = int(address.rpartition(":")[2])
            self.script(address, "GET /info", {"broadcast_address": "127.0.0.1", "http_port": port, "hostname": "h"})
            self.script(address, "GET /stats", {"topics": [{"topic_name": "orders", "channels": []}]})

    def script(self, address: str, route: str, answer: Answer) -> None:
        """Set the answer of one nsqd to a method and path."""
        self.http.answers[address, route] = answer

    def asked(self, path: str) -> list[Asked]:
        """Return the requests that nsqds got at a path, in the order of their addresses."""
        return sorted((each for each in self.http.asked if each.path == path), key=lambda each: each.address)

    def request(self, method: str, target: str, document: Any = None, **headers: str) -> tuple[int, Any]:
        """Return the status and the JSON of nsqadmin's answer."""
        body = b"" if document is None else document if isinstance(document, bytes) else json.dumps(document).encode()
        path, _, query = target.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "client": ("127.0.0.1", 5000),
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
        }
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        app: Callable[..., Any] = self._app
        asyncio.run(app(scope, receive, send))
        answer = b"".join(message.get("body", b"") for message in sent[1:])
        return sent[0]["status"], json.loads(answer)

    def get(self, target: str, **headers: str) -> Any:
        """Return the JSON of a successful GET."""
        status, document = self.request("GET", target, **headers)
        assert status == 200, document
        return document

    @property
    def records(self) -> list[SimpleNamespace]:
        """The audit records, oldest first."""
        return [SimpleNamespace(**record) for record in self.audit.recent]


def unreachable() -> RequestFailed:
    """Return the failure of an nsqd that does not listen."""
    return RequestFailed("dial tcp: connect: connection refused")
