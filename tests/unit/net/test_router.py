"""Routing of requests. The answers to near misses were recorded from Go's nsqd 1.3.0."""

import pytest

from nsqx.net.http_head import Head
from nsqx.net.requests import Request
from nsqx.net.responses import OK, Response
from nsqx.net.router import DEFAULT_BODY_LIMIT, BodyLimit, Route, Router, clean_path


def handler(_request: Request) -> Response:
    return OK


def nsqd_router() -> Router:
    router = Router()
    router.add("GET", "/ping", handler)
    router.add("GET", "/stats", handler)
    router.add("POST", "/pub", handler, body_limit=BodyLimit(10, "MSG_TOO_BIG"), logged=False)
    router.add("POST", "/topic/create", handler)
    router.add("GET", "/config/:opt", handler)
    router.add("PUT", "/config/:opt", handler)
    router.add("GET", "/debug/pprof/", handler)
    router.add("GET", "/debug/pprof/symbol", handler)
    router.add("POST", "/debug/pprof/symbol", handler)
    return router


ROUTER = nsqd_router()


def route_of(method: str, target: str) -> tuple[Route, Head]:
    head = Head(method, target.encode(), {})
    ROUTER.resolve(head)
    assert head.route is not None
    return head.route, head


def miss(method: str, target: str) -> Response:
    route, head = route_of(method, target)
    assert route.answer is not None, "the path has a handler"
    assert route.handler(Request(Peer(), head)) is route.answer
    return route.answer


class Peer:
    remote = ""
    tls = None

    def answered(self, request: Request) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    ("method", "target", "params"),
    [
        ("GET", "/ping", {}),
        ("GET", "/%70ing?x", {}),
        ("GET", "http://host/ping", {}),
        ("POST", "/pub?topic=a", {}),
        ("GET", "/config/log_level", {"opt": "log_level"}),
        ("PUT", "/config/Log%20Level", {"opt": "Log Level"}),
        ("GET", "/debug/pprof/", {}),
        ("POST", "/debug/pprof/symbol", {}),
    ],
)
def test_a_route_is_found(method: str, target: str, params: dict[str, str]) -> None:
    route, head = route_of(method, target)
    assert route.handler is handler
    assert route.answer is None
    assert head.params == params


def test_a_route_keeps_its_settings() -> None:
    route, _ = route_of("POST", "/pub")
    assert (route.body_limit, route.logged) == (BodyLimit(10, "MSG_TOO_BIG"), False)
    route, _ = route_of("GET", "/ping")
    assert (route.body_limit, route.logged) == (DEFAULT_BODY_LIMIT, True)


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/nope"),
        ("GET", "/"),
        ("CONNECT", "host:80"),
        ("GET", "/config"),
        ("GET", "/config/"),
        ("GET", "/config/a/b"),
        ("GET", "/pingx"),
        ("PUT", "/PUB?topic=a"),
        ("HEAD", "/nope"),
        ("HEAD", "/PING"),
        ("OPTIONS", "/nope"),
        ("DELETE", "/Ping"),
    ],
)
def test_an_unknown_path_is_404(method: str, target: str) -> None:
    answer = miss(method, target)
    assert (answer.status, answer.body) == (404, b'{"message":"NOT_FOUND"}')
    assert route_of(method, target)[0].logged


@pytest.mark.parametrize(
    ("method", "target", "allow"),
    [
        ("GET", "/pub", "OPTIONS, POST"),
        ("GET", "*", "GET, OPTIONS, POST, PUT"),
        ("HEAD", "/ping", "GET, OPTIONS"),
        ("DELETE", "/config/x", "GET, OPTIONS, PUT"),
        ("POST", "/debug/pprof/", "GET, OPTIONS"),
        ("DELETE", "/debug/pprof/symbol", "GET, OPTIONS, POST"),
    ],
)
def test_another_method_is_405(method: str, target: str, allow: str) -> None:
    answer = miss(method, target)
    assert (answer.status, answer.body) == (405, b'{"message":"METHOD_NOT_ALLOWED"}')
    assert ("Allow", allow) in answer.headers
    assert route_of(method, target)[0].logged


@pytest.mark.parametrize(
    ("target", "headers"),
    [("/pub", (("Allow", "OPTIONS, POST"),)), ("/config/x", (("Allow", "GET, OPTIONS, PUT"),)), ("*", ())],
)
def test_options_lists_the_methods(target: str, headers: tuple[tuple[str, str], ...]) -> None:
    answer = miss("OPTIONS", target)
    assert (answer.status, answer.body, answer.content_type, answer.headers) == (200, b"", None, headers)
    assert not route_of("OPTIONS", target)[0].logged


@pytest.mark.parametrize(
    ("method", "target", "location"),
    [
        ("GET", "/ping/", "/ping"),
        ("GET", "//ping?x=1", "/ping?x=1"),
        ("GET", "/PING", "/ping"),
        ("GET", "/PING/", "/ping"),
        ("GET", "/a/../ping", "/ping"),
        ("GET", "/a/./../Stats?x=%20y", "/stats?x=%20y"),
        ("GET", "/../../ping", "/ping"),
        ("GET", "/ping/.", "/ping"),
        ("GET", "/ping%2f", "/ping"),
        ("GET", "/pi%20ng/../PING", "/ping"),
        ("GET", "/Config/broadcast_address", "/config/broadcast_address"),
        ("GET", "/CONFIG/Broadcast_Address/", "/config/Broadcast_Address"),
        ("GET", "/config//x", "/config/x"),
        ("GET", "/config/a%20b/", "/config/a%20b"),
        ("GET", "/config/a%0d%0ab/", "/config/a%0D%0Ab"),
        ("GET", "/debug/pprof", "/debug/pprof/"),
        ("POST", "/pub/?topic=a", "/pub?topic=a"),
        ("POST", "/PUB?topic=a", "/pub?topic=a"),
        ("PUT", "/config/x/", "/config/x"),
    ],
)
def test_a_near_miss_is_redirected(method: str, target: str, location: str) -> None:
    answer = miss(method, target)
    assert answer.status == (301 if method == "GET" else 307)
    assert ("Location", location) in answer.headers
    assert not route_of(method, target)[0].logged


@pytest.mark.parametrize("target", ["//evil.example/ping", "//evil.example/..", "/\\evil.example/ping/", "//ping//x"])
def test_a_redirect_never_leaves_the_site(target: str) -> None:
    route, _ = route_of("GET", target)
    for name, value in () if route.answer is None else route.answer.headers:
        assert name != "Location" or not value.startswith(("//", "/\\"))


@pytest.mark.parametrize(
    ("path", "cleaned"),
    [
        ("/", "/"),
        ("", "/"),
        ("a", "/a"),
        ("//", "/"),
        ("/a//b", "/a/b"),
        ("/a/./b", "/a/b"),
        ("/a/../b", "/b"),
        ("/a/b/..", "/a"),
        ("/a/b/../", "/a/"),
        ("/..", "/"),
        ("/a/", "/a/"),
        ("/a/.", "/a/"),
        ("///a///", "/a/"),
    ],
)
def test_paths_are_cleaned_as_in_go(path: str, cleaned: str) -> None:
    assert clean_path(path) == cleaned


def test_adding_a_route_to_a_frozen_router_is_an_error() -> None:
    router = Router()
    router.add("GET", "/a", handler)
    router.freeze()
    with pytest.raises(RuntimeError):
        router.add("GET", "/b", handler)


def test_a_path_without_a_slash_is_an_error() -> None:
    with pytest.raises(ValueError):
        Router().add("GET", "a", handler)
