"""Requests to daemons: URLs, tokens, the repetition over HTTPS, and failures in Go's wording."""

import errno
import os
import socket
import ssl
from typing import Any

import pytest

from nsqx.cluster import http as http_module
from nsqx.cluster.credentials import NSQD, Credentials
from nsqx.cluster.daemon import Change, daemon_url
from nsqx.cluster.http import HTTPSession, decode
from nsqx.cluster.lookupd import LookupdClient
from nsqx.cluster.nsqd import NsqdClient, topics_of
from nsqx.errors import RequestFailed
from nsqx.net.http_client import HTTPAnswer, HTTPRequestFailed
from nsqx.nsqadmin.cluster import http_credentials
from nsqx.nsqadmin.options import NsqadminOptions

URL = "http://n.example:4151/stats?format=json"


class FakeHTTPClient:
    """A fake HTTP client: returns or raises the given outcomes in turn."""

    def __init__(self, *outcomes: HTTPAnswer | Exception) -> None:
        self.outcomes = list(outcomes)
        self.asked: list[tuple[str, str, bytes, dict[str, str]]] = []

    async def request(self, method: str, url: str, *, body: bytes, headers: Any, **_options: Any) -> HTTPAnswer:
        self.asked.append((method, url, body, headers))
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, HTTPAnswer):
            return outcome
        try:
            raise outcome
        except HTTPRequestFailed as error:
            raise HTTPRequestFailed(f"{method} {url}: {error}") from None
        except TimeoutError:
            raise HTTPRequestFailed(f"{method} {url}: no answer in time") from None
        except (OSError, ValueError) as error:
            raise HTTPRequestFailed(f"{method} {url}: {error}") from None


@pytest.fixture
def asking(monkeypatch: pytest.MonkeyPatch) -> Any:
    def with_outcomes(*outcomes: HTTPAnswer | Exception) -> tuple[HTTPSession, FakeHTTPClient]:
        net = FakeHTTPClient(*outcomes)
        monkeypatch.setattr(http_module, "request", net.request)
        return HTTPSession(Credentials({NSQD: "secret"})), net

    return with_outcomes


async def failure(question: Any) -> str:
    with pytest.raises(RequestFailed) as caught:
        await question
    return str(caught.value)


async def test_the_requests_to_nsqd(asking: Any) -> None:
    session, net = asking(HTTPAnswer(200, body=b'{"topics":[{"topic_name":"t"}]}'), *[HTTPAnswer(200)] * 4)
    nsqd = NsqdClient(session, "n:1")
    assert await nsqd.stats("t", "c#ephemeral") == [{"topic_name": "t"}]
    await nsqd.publish("t", b"x", 5)
    await nsqd.apply(Change("pause", "t"))
    await nsqd.apply(Change("create", "t", "c"))
    await nsqd.ping()
    headers = {"Accept": "application/vnd.nsq; version=1.0", "Authorization": "Bearer secret"}
    assert [(method, url.removeprefix("http://n:1"), body) for method, url, body, _ in net.asked] == [
        ("GET", "/stats?format=json&topic=t&channel=c%23ephemeral&include_clients=false", b""),
        ("POST", "/pub?topic=t&defer=5", b"x"),
        ("POST", "/topic/pause?topic=t", b""),
        ("POST", "/channel/create?topic=t&channel=c", b""),
        ("GET", "/ping", b""),
    ]
    assert all(asked[3] == headers for asked in net.asked)


async def test_a_token_is_sent_only_to_its_kind_of_daemon(asking: Any) -> None:
    session, net = asking(HTTPAnswer(200), HTTPAnswer(200))
    await LookupdClient(session, "l:1").apply(Change("tombstone", "t", node="n:1"))
    await session.fetch("GET", "http://graphite.example/render")
    assert net.asked[0][1] == "http://l:1/topic/tombstone?topic=t&node=n%3A1"
    assert all("Authorization" not in (asked[3] or {}) for asked in net.asked)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("host:4161", "http://host:4161/lookup?topic=t"),
        ("http://host:4161", "http://host:4161/lookup?topic=t"),
        ("http://host:4161/", "http://host:4161/lookup?topic=t"),
        ("https://host:443/proxied/lookup", "https://host:443/proxied/lookup?topic=t"),
        ("http://host:4161/?key=a%20b", "http://host:4161/lookup?key=a+b&topic=t"),
        ("[::1]:4161", "http://[::1]:4161/lookup?topic=t"),
    ],
)
def test_the_url_of_a_request(text: str, url: str) -> None:
    assert daemon_url(text, "/lookup", {"topic": "t"}) == url


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED)),
            "dial tcp n.example:4151: connect: connection refused",
        ),
        (OSError(errno.EHOSTUNREACH, "x"), "dial tcp n.example:4151: connect: no route to host"),
        (TimeoutError(), "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"),
        (
            OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)),
            "dial tcp n.example:4151: connect: connection timed out",
        ),
        (socket.gaierror(-2, "Name or service not known"), "dial tcp: lookup n.example: no such host"),
        (ConnectionResetError(errno.ECONNRESET, "x"), "read tcp n.example:4151: read: connection reset by peer"),
        (HTTPRequestFailed("the answer was cut off"), "EOF"),
        (HTTPRequestFailed("the answer is too big"), "the answer is too big"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong"), "tls: "),
    ],
)
async def test_a_failed_request_has_the_message_of_go(asking: Any, error: Exception, reason: str) -> None:
    session, _ = asking(error)
    assert (await failure(session.ask(NSQD, "GET", URL))).startswith(f'Get "{URL}": {reason}')


@pytest.mark.parametrize(
    ("outcome", "plain"),
    [
        (OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED)), "connection refused"),
        (TimeoutError(), "no answer in time"),
        (socket.gaierror(-2, "Name or service not known"), "unknown host n.example"),
        (HTTPRequestFailed("the answer was cut off"), "the connection was closed before the end of the answer"),
        (HTTPRequestFailed("the answer is too big"), "the answer is too big"),
        (HTTPAnswer(404, body=b'{"message":"TOPIC_NOT_FOUND"}'), "the answer is 404 Not Found, TOPIC_NOT_FOUND"),
        (HTTPAnswer(500), "the answer is 500 Internal Server Error"),
        (HTTPAnswer(599), "the answer is 599"),
    ],
)
async def test_a_failure_has_a_reason_in_plain_words(asking: Any, outcome: Any, plain: str) -> None:
    session, _ = asking(outcome)
    with pytest.raises(RequestFailed) as caught:
        await session.ask(NSQD, "GET", URL)
    assert caught.value.plain == plain


async def test_an_error_status_has_the_message_of_go(asking: Any) -> None:
    session, _ = asking(HTTPAnswer(404, body=b'{"message":"X"}'), HTTPAnswer(500), HTTPAnswer(599, body=b"?"))
    assert await failure(session.ask(NSQD, "GET", URL)) == 'got response 404 Not Found "{\\"message\\":\\"X\\"}"'
    assert await failure(session.ask(NSQD, "POST", URL)) == 'got response 500 Internal Server Error ""'
    assert await failure(session.ask(NSQD, "POST", URL)) == 'got response 599  "?"'


async def test_a_request_is_repeated_over_https_if_nsqd_requires_it(asking: Any) -> None:
    refusal = HTTPAnswer(403, body=b'{"message": "TLS_REQUIRED", "https_port": 4152}')
    session, net = asking(refusal, HTTPAnswer(200, body=b"[]"))
    assert await session.ask(NSQD, "GET", URL) == b"[]"
    assert net.asked[1][1] == "https://n.example:4152/stats?format=json"
    session, net = asking(refusal, HTTPAnswer(403, body=b"no"))
    assert await failure(session.ask(NSQD, "GET", "http://[::1]:4151/x")) == 'got response 403 Forbidden "no"'
    assert net.asked[1][1] == "https://[::1]:4152/x"


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"https_port":"x"}', b"<html>"])
async def test_other_403_answers_are_errors(asking: Any, body: bytes) -> None:
    session, net = asking(HTTPAnswer(403, body=body))
    await failure(session.ask(NSQD, "GET", URL))
    assert len(net.asked) == 1


def test_a_parameter_with_several_values_is_repeated() -> None:
    url = daemon_url("h:1", "/dead/purge", {"topic": "a b", "offset": ["1", "2"], "id": []})
    assert url == "http://h:1/dead/purge?topic=a+b&offset=1&offset=2"


def test_invalid_json_has_the_message_of_go() -> None:
    for body, reason in (
        (b"", "unexpected end of JSON input"),
        (b"<html>", "invalid character '<' looking for beginning of value"),
        (b"{", "invalid JSON: "),
    ):
        with pytest.raises(RequestFailed, match=reason):
            decode(body)


def test_the_wrapped_answer_of_old_versions_is_decoded() -> None:
    assert decode(b'{"status_code":200,"status_txt":"OK","data":{"topics":[]}}') == {"topics": []}


def test_the_topics_in_stats() -> None:
    assert topics_of(b'{"topics":[{"topic_name":"t"}]}') == [{"topic_name": "t"}]
    assert topics_of(b'{"topics":null}') == []


@pytest.mark.parametrize("body", [b"null", b"[]", b"{}", b'{"topics":5}', b'{"topics":[1]}'])
def test_invalid_stats_are_rejected(body: bytes) -> None:
    with pytest.raises(RequestFailed, match="json: |the answer is not from nsqd"):
        topics_of(body)


async def test_an_unknown_topic_has_no_producers_unless_it_must_exist(asking: Any) -> None:
    session, _ = asking(*[HTTPAnswer(404, body=b'{"message":"TOPIC_NOT_FOUND"}')] * 2, HTTPAnswer(404))
    lookupd = LookupdClient(session, "l:1")
    assert await lookupd.lookup("t") == []
    assert "TOPIC_NOT_FOUND" in await failure(lookupd.lookup("t", must_exist=True))
    assert await failure(lookupd.lookup("t")) == 'got response 404 Not Found ""'


def test_tls_options_of_nsqadmin() -> None:
    assert http_credentials(NsqadminOptions()).ssl_context is None
    context = http_credentials(NsqadminOptions(http_client_tls_insecure_skip_verify=True)).ssl_context
    assert context is not None
    assert context.verify_mode == ssl.CERT_NONE
