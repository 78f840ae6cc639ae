"""Finds the handler for a method and a path, or the answer for a request without a route.

Follows julienschmidt/httprouter as nsqd uses it: paths are matched exactly, ``:name`` matches one segment, a near miss
is redirected, and a path that exists only for other methods is answered with 405. No sockets.
"""

from __future__ import annotations

from posixpath import normpath
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from nsqx.net.responses import (
    Response,
    error_response,
    method_not_allowed,
    options_response,
    redirect_response,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nsqx.net.http_head import Head
    from nsqx.net.requests import Handler, Request

# Characters that Go leaves unescaped in a path.
_UNESCAPED = "/$&+,:;=@"


class BodyLimit(NamedTuple):
    """The size limit of a request's body, and the error code of the 413 for larger ones."""

    max_bytes: int
    code: str


DEFAULT_BODY_LIMIT = BodyLimit(1024 * 1024, "BODY_TOO_BIG")


class Route:
    """The target of a request: a handler or a fixed answer."""

    __slots__ = ("answer", "body_limit", "handler", "logged")

    handler: Handler
    answer: Response | None
    body_limit: BodyLimit | Callable[[Request], BodyLimit]
    logged: bool

    def __init__(
        self,
        handler: Handler,
        *,
        answer: Response | None = None,
        body_limit: BodyLimit | Callable[[Request], BodyLimit] = DEFAULT_BODY_LIMIT,
        logged: bool = True,
    ) -> None:
        self.handler = handler
        self.answer = answer
        self.body_limit = body_limit
        self.logged = logged


def fixed_route(answer: Response, *, logged: bool) -> Route:
    """Return a route that sends ``answer`` to every request, whatever its body."""
    return Route(lambda _request: answer, answer=answer, logged=logged)


NOT_FOUND = fixed_route(error_response(404, "NOT_FOUND"), logged=True)
_SERVER_OPTIONS = fixed_route(options_response(""), logged=False)


class _MethodRoutes:
    """The routes of one method."""

    __slots__ = ("_patterns", "_static", "_static_any_case")

    def __init__(self) -> None:
        self._static: dict[str, Route] = {}
        self._static_any_case: dict[str, str] = {}
        self._patterns: list[tuple[list[str], Route]] = []

    def add(self, path: str, route: Route) -> None:
        if "/:" in path:
            self._patterns.append((path.split("/"), route))
        else:
            self._static[path] = route
            self._static_any_case[path.lower()] = path

    def routes(self) -> Iterator[tuple[str, Route]]:
        yield from self._static.items()
        for pattern, route in self._patterns:
            yield "/".join(pattern), route

    def find(self, path: str) -> tuple[Route, dict[str, str]] | None:
        route = self._static.get(path)
        if route is not None:
            return route, {}
        segments = path.split("/")
        for pattern, route in self._patterns:
            params = _match(pattern, segments)
            if params is not None:
                return route, params
        return None

    def fix_case(self, path: str) -> str | None:
        """Return the path of the route that equals ``path`` except for case."""
        fixed = self._static_any_case.get(path.lower())
        if fixed is not None:
            return fixed
        segments = path.split("/")
        for pattern, _route in self._patterns:
            if len(pattern) == len(segments) and all(map(_equals_ignoring_case, pattern, segments)):
                return "/".join(
                    given if part[:1] == ":" else part for part, given in zip(pattern, segments, strict=True)
                )
        return None


def _match(pattern: list[str], segments: list[str]) -> dict[str, str] | None:
    if len(pattern) != len(segments):
        return None
    params = {}
    for part, given in zip(pattern, segments, strict=True):
        if part[:1] == ":" and given:
            params[part[1:]] = given
        elif part != given:
            return None
    return params


def _equals_ignoring_case(part: str, given: str) -> bool:
    return bool(given) if part[:1] == ":" else part.lower() == given.lower()


def clean_path(path: str) -> str:
    """Remove empty segments, ``.`` and ``..``; keep a slash at the end."""
    cleaned = normpath("/" + path.lstrip("/"))
    if path.endswith(("/", "/.")) and cleaned != "/":
        return cleaned + "/"
    return cleaned


class Router:
    """All routes. They are added before a server starts; a frozen router can be used by several servers."""

    __slots__ = ("_frozen", "_methods")

    def __init__(self) -> None:
        self._methods: dict[str, _MethodRoutes] = {}
        self._frozen = False

    def add(
        self,
        method: str,
        path: str,
        handler: Handler,
        *,
        body_limit: BodyLimit | Callable[[Request], BodyLimit] = DEFAULT_BODY_LIMIT,
        logged: bool = True,
    ) -> None:
        """Route ``method path`` to ``handler``; a segment ``:name`` of the path becomes ``request.params["name"]``.

        A body over ``body_limit`` is rejected unread. Each request of a ``logged`` route is one INFO line.
        """
        if self._frozen:
            raise RuntimeError("routes are added before the server starts")
        if not path.startswith("/"):
            raise ValueError(f"the path of a route must start with a slash: {path!r}")
        routes = self._methods.setdefault(method, _MethodRoutes())
        routes.add(path, Route(handler, body_limit=body_limit, logged=logged))

    def freeze(self) -> None:
        """Forbid further routes, so that servers can cache the result of ``resolve``."""
        self._frozen = True

    def routes(self) -> Iterator[tuple[str, str, Route]]:
        """Yield the method, the path and the target of every route."""
        for method, routes in self._methods.items():
            for path, route in routes.routes():
                yield method, path, route

    def resolve(self, head: Head) -> None:
        """Set the head's route and params; there is always a route."""
        method = head.method
        path = head.path
        routes = self._methods.get(method)
        if routes is not None:
            found = routes.find(path)
            if found is not None:
                head.route, head.params = found
                return
        head.route = self._miss(method, path, head.raw_query)

    def _miss(self, method: str, path: str, raw_query: bytes) -> Route:
        if path == "*" and method == "OPTIONS":
            return _SERVER_OPTIONS
        routes = self._methods.get(method)
        if routes is not None and path not in ("/", "*", ""):
            meant = self._corrected_path(routes, path)
            if meant is not None:
                location = quote(meant, safe=_UNESCAPED)
                if raw_query:
                    location += "?" + raw_query.decode("latin-1")
                return fixed_route(redirect_response(method, location), logged=False)
        allow = self._allowed(path)
        if not allow:
            return NOT_FOUND
        if method == "OPTIONS":
            return fixed_route(options_response(allow), logged=False)
        return fixed_route(method_not_allowed(allow), logged=True)

    @staticmethod
    def _corrected_path(routes: _MethodRoutes, path: str) -> str | None:
        """Return the path of a route that differs by a final slash, by redundant segments or by case."""
        other = _toggle_slash(path)
        if routes.find(other) is not None:
            return other
        cleaned = clean_path(path)
        return routes.fix_case(cleaned) or routes.fix_case(_toggle_slash(cleaned))

    def _allowed(self, path: str) -> str:
        methods = [method for method, routes in self._methods.items() if path == "*" or routes.find(path) is not None]
        return ", ".join(sorted([*methods, "OPTIONS"])) if methods else ""


def _toggle_slash(path: str) -> str:
    return path[:-1] if path.endswith("/") else path + "/"
