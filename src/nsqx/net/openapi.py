"""OpenAPI 3.1 documents, generated from the route table of a router.

Paths, path parameters, body limits and access rules come from the routes. Each daemon declares the rest of a route
(summary, query, body, response and errors) in a ``RouteDoc``. A route without a RouteDoc is an error. A RouteDoc
without a route is left out, because some routes depend on options.

A daemon imports this module at the first request for its document. Before that, the module costs no time or memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

from nsqx.names import MAX_NAME_LENGTH, NAME_PATTERN
from nsqx.net.access import READ
from nsqx.net.json_schema import Schema, SchemaCollection, component
from nsqx.net.router import BodyLimit, Route
from nsqx.version import NSQ_VERSION

JSON = "application/json"
TEXT = "text/plain"
HTML = "text/html"
BINARY = "application/octet-stream"
ANY_TYPE = "*/*"

NAME = component("Name")
_NAME_SCHEMA: Schema = {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_NAME_LENGTH,
    "pattern": f"^{NAME_PATTERN}$",
    "description": "Letters, digits, `.`, `_` and `-`; at most 64 characters. The suffix `#ephemeral` keeps the topic "
    "or channel in memory only.",
}

# The meaning of each error code, by status.
ErrorTable = Mapping[int, Mapping[str, str]]
# Returns the errors that a request may get before its handler runs, for a method, path and route.
Refusals = Callable[[str, str, Route], ErrorTable]

REFUSALS: ErrorTable = {
    400: {
        "INVALID_REQUEST": "the query is malformed",
        "BAD_REQUEST": "the request is not valid HTTP, or two servers could read its framing differently",
    },
    401: {"UNAUTHORIZED": "the token or the client certificate is missing or does not fit"},
    403: {
        "TLS_REQUIRED": "this route is served only over HTTPS, on the port `https_port`",
        "CROSS_ORIGIN": "a page of another site made a browser send the request",
        "HOST_NOT_ALLOWED": "the listener does not serve this Host",
    },
    429: {"TOO_MANY_WRONG_TOKENS": "many wrong bearer tokens came from the same address"},
}


class ErrorMessage(TypedDict):
    """The body of an error."""

    message: str
    https_port: NotRequired[int]
    first: NotRequired[Annotated[int, "With OFFSET_GONE: the first offset that is available."]]
    end: NotRequired[Annotated[int, "With OFFSET_BEYOND_END: the end of the log."]]
    topic: NotRequired[Annotated[str, "With NOT_A_LOG, if the request has several topics: the classic topic."]]
    part: NotRequired[Annotated[str, "With PART_NOT_FOUND or PART_DAMAGED: the part."]]
    attempt: NotRequired[Annotated[str, "With PART_NOT_FOUND: the attempt."]]
    batch: NotRequired[Annotated[int, "With LEDGER_MISMATCH: the last batch that the query has committed here."]]
    nodes: NotRequired[Annotated[str, "With LEDGER_MISMATCH: the nsqds of that batch, separated by commas."]]
    place: NotRequired[Annotated[int, "With LEDGER_MISMATCH: the index of this nsqd among them."]]
    bytes: NotRequired[Annotated[int, "With TRANSACTION_TOO_LARGE: the size of the parts."]]
    parts: NotRequired[Annotated[int, "With TOO_MANY_PARTS: their number."]]
    deferred: NotRequired[Annotated[int, "With TOO_MANY_DEFERRED: their number."]]


class Parameter(NamedTuple):
    """A parameter in the query or in the path."""

    name: str
    description: str
    schema: Any = str
    required: bool = False


class Content(NamedTuple):
    """A body: its description, and its schema for each media type."""

    description: str
    schemas: Mapping[str, Any] = {}


class RouteDoc(NamedTuple):
    """The description of one route. ``errors`` names codes of the error table, separated by commas."""

    id: str
    tag: str
    summary: str
    description: str = ""
    query: tuple[Parameter, ...] = ()
    body: Content | None = None
    response: Content = Content("Done. The response has no body.")
    errors: str = ""
    other_responses: Mapping[int, Content] = {}
    """Responses other than 200 whose body is not an ErrorMessage."""


class APIDoc(NamedTuple):
    """The description of a daemon's HTTP API. Keys of ``routes`` are a method and a path, separated by a space."""

    title: str
    summary: str
    description: str
    tags: Mapping[str, str]
    routes: Mapping[str, RouteDoc]
    errors: ErrorTable
    path_parameters: Mapping[str, Parameter] = {}
    """By name, or by the key of a route that needs its own."""
    security: Mapping[str, Schema] = {}


OPENAPI_ROUTE = {
    "GET /openapi.json": RouteDoc(
        "openapi", "health", "Return this document", response=Content("OpenAPI 3.1.", {JSON: dict[str, Any]})
    )
}
PONG = Content("The daemon is running.", {TEXT: Literal["OK"]})
METRICS_PAGE = Content(
    "The page in the format that the Accept header selects.", {TEXT: str, "application/openmetrics-text": str}
)
API_DESCRIPTION = (
    "The version is that of the NSQ release whose API this is. Every path may also respond with 404 `NOT_FOUND` "
    "(unknown path), 405 `METHOD_NOT_ALLOWED` with an Allow header, and 301 or 307 to a path that differs by a slash "
    "or by case."
)
DAEMON_DESCRIPTION = (
    f"{API_DESCRIPTION} A request that cannot be read gets 408 `REQUEST_TIMEOUT`, 417, 431 "
    "`HEADER_TOO_BIG`, 501 or 505."
)
BEARER_TOKEN: Schema = {
    "type": "http",
    "scheme": "bearer",
    "description": "Needed only if the daemon was started with tokens.",
}


def select_errors(table: ErrorTable, codes: str) -> dict[int, dict[str, str]]:
    """Return the entries of ``codes``, separated by commas, under every status that has them; raises KeyError."""
    selected: dict[int, dict[str, str]] = {}
    for code in filter(None, codes.split(", ")):
        statuses = [status for status in table if code in table[status]]
        if not statuses:
            raise KeyError(code)
        for status in statuses:
            selected.setdefault(status, {})[code] = table[status][code]
    return selected


def daemon_refusals(group_of: Callable[[str, str], str]) -> Refusals:
    """Return the refusals of an HTTPServer; ``group_of`` returns the access group of a method and path."""

    def refusals(method: str, path: str, route: Route) -> ErrorTable:
        group = group_of(method, path)
        codes = "INVALID_REQUEST, BAD_REQUEST, TLS_REQUIRED, HOST_NOT_ALLOWED"
        if group:
            codes += ", UNAUTHORIZED, TOO_MANY_WRONG_TOKENS"
        if group not in ("", READ):
            codes += ", CROSS_ORIGIN"
        errors = select_errors(REFUSALS, codes)
        if method != "GET" and isinstance(route.body_limit, BodyLimit):
            limit = route.body_limit
            errors[413] = {limit.code: f"the body is larger than {limit.max_bytes} bytes"}
        return errors

    return refusals


def build_document(
    api: APIDoc, routes: Iterable[tuple[str, str, Route]], refusals: Refusals, server_url: str = "/"
) -> dict[str, Any]:
    """Describe ``routes``; raises ValueError if ``api`` does not describe one of them.

    ``server_url`` is the prefix of all paths.
    """
    found = {f"{method} {path}": route for method, path, route in routes}
    undescribed = sorted(found.keys() - api.routes.keys())
    if undescribed:
        raise ValueError(f"no description of {', '.join(undescribed)}")
    writer = _Writer(api)
    paths: dict[str, dict[str, Schema]] = {}
    for key, doc in api.routes.items():
        if key in found:
            method, _, path = key.partition(" ")
            operation = writer.operation(key, doc, refusals(method, path, found[key]))
            paths.setdefault(re.sub(r":(\w+)", r"{\1}", path), {})[method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": api.title,
            "version": NSQ_VERSION,
            "summary": api.summary,
            "description": api.description,
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": server_url, "description": "The daemon that serves this document."}],
        "tags": [{"name": name, "description": description} for name, description in api.tags.items()],
        "security": [{}, *({name: []} for name in api.security)],
        "paths": paths,
        "components": {"schemas": writer.schemas.components, "securitySchemes": dict(api.security)},
    }


class _Writer:
    """Writes the operations of one document."""

    def __init__(self, api: APIDoc) -> None:
        self._api = api
        self.schemas = SchemaCollection()
        self.schemas.components["Name"] = _NAME_SCHEMA

    def operation(self, key: str, doc: RouteDoc, refusals: ErrorTable) -> Schema:
        operation: Schema = {"operationId": doc.id, "tags": [doc.tag], "summary": doc.summary}
        if doc.description:
            operation["description"] = doc.description
        if parameters := [*self._path_parameters(key), *(self._parameter(each, "query") for each in doc.query)]:
            operation["parameters"] = parameters
        if doc.body is not None:
            operation["requestBody"] = {"required": True, **self._content(doc.body)}
        operation["responses"] = self._responses(doc, refusals)
        if 401 not in refusals:
            operation["security"] = []
        return operation

    def _path_parameters(self, key: str) -> Iterable[Schema]:
        for name in re.findall(r":(\w+)", key):
            parameter = self._api.path_parameters.get(key) or self._api.path_parameters[name]
            yield self._parameter(parameter._replace(required=True), "path")

    def _parameter(self, parameter: Parameter, place: str) -> Schema:
        return {
            "name": parameter.name,
            "in": place,
            "required": parameter.required,
            "description": parameter.description,
            "schema": self.schemas.of(parameter.schema),
        }

    def _content(self, content: Content) -> Schema:
        if not content.schemas:
            return {"description": content.description}
        return {
            "description": content.description,
            "content": {media: {"schema": self.schemas.of(each)} for media, each in content.schemas.items()},
        }

    def _responses(self, doc: RouteDoc, refusals: ErrorTable) -> Schema:
        lines: dict[int, list[str]] = {}
        for errors in (select_errors(self._api.errors, doc.errors), refusals):
            for status, meanings in errors.items():
                lines.setdefault(status, []).extend(f"- `{code}`: {meaning}" for code, meaning in meanings.items())
        responses = {200: doc.response}
        for status, each in lines.items():
            responses[status] = Content("\n".join(each), {JSON: ErrorMessage})
        for status, response in doc.other_responses.items():
            responses[status] = _merged(response, responses.get(status))
        return {str(status): self._content(responses[status]) for status in sorted(responses)}


def _merged(response: Content, errors: Content | None) -> Content:
    if errors is None:
        return response
    return Content(f"{response.description}\n\n{errors.description}", {**errors.schemas, **response.schemas})
