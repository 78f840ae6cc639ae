"""Failures of upstream requests have Go's wording."""

import errno
import os
import socket
import ssl
from typing import Any

import pytest

from nsqx.net.daemon_http import NSQD, NSQLOOKUPD, Credentials
from nsqx.net.http_client import HTTPAnswer, HTTPRequestFailed
from nsqx.nsqadmin import upstream as upstream_module
from nsqx.nsqadmin.options import NsqadminOptions
from nsqx.nsqadmin.upstream import Upstream, UpstreamFailed, credentials, decode

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
    def with_outcomes(*outcomes: HTTPAnswer | Exception) -> tuple[Upstream, FakeHTTPClient]:
        net = FakeHTTPClient(*outcomes)
        monkeypatch.setattr(upstream_module, "request", net.request)
        return Upstream(NsqadminOptions(), Credentials({NSQD: "secret"}), 4), net

    return with_outcomes


async def failure(question: Any) -> str:
    with pytest.raises(UpstreamFailed) as caught:
        await question
    return str(caught.value)


async def test_a_successful_answer_is_decoded(asking: Any) -> None:
    upstream, net = asking(HTTPAnswer(200, body=b'{"a":1}'), HTTPAnswer(200))
    assert await upstream.get(NSQD, URL) == {"a": 1}
    await upstream.post(NSQD, "http://n:1/topic/pause?topic=t", b"x")
    headers = {"Accept": "application/vnd.nsq; version=1.0", "Authorization": "Bearer secret"}
    assert net.asked[0] == ("GET", URL, b"", headers)
    assert net.asked[1] == ("POST", "http://n:1/topic/pause?topic=t", b"x", headers)


async def test_a_token_is_sent_only_to_its_kind_of_daemon(asking: Any) -> None:
    upstream, net = asking(*[HTTPAnswer(200, body=b"{}") for _ in range(2)])
    await upstream.get(NSQLOOKUPD, URL)
    await upstream.get_external("http://graphite.example/render", {})
    assert all("Authorization" not in asked[3] for asked in net.asked)


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
    upstream, _ = asking(error)
    assert (await failure(upstream.get(NSQD, URL))).startswith(f'Get "{URL}": {reason}')


async def test_an_error_status_has_the_message_of_go(asking: Any) -> None:
    upstream, _ = asking(HTTPAnswer(404, body=b'{"message":"X"}'), HTTPAnswer(500), HTTPAnswer(599, body=b"?"))
    assert await failure(upstream.get(NSQD, URL)) == 'got response 404 Not Found "{\\"message\\":\\"X\\"}"'
    assert await failure(upstream.post(NSQD, URL)) == 'got response 500 Internal Server Error ""'
    assert await failure(upstream.post(NSQD, URL)) == 'got response 599  "?"'


async def test_a_request_is_repeated_over_https_if_nsqd_requires_it(asking: Any) -> None:
    refusal = HTTPAnswer(403, body=b'{"message": "TLS_REQUIRED", "https_port": 4152}')
    upstream, net = asking(refusal, HTTPAnswer(200, body=b"[]"))
    assert await upstream.get(NSQD, URL) == []
    assert net.asked[1][1] == "https://n.example:4152/stats?format=json"
    upstream, net = asking(refusal, HTTPAnswer(403, body=b"no"))
    assert await failure(upstream.get(NSQD, "http://[::1]:4151/x")) == 'got response 403 Forbidden "no"'
    assert net.asked[1][1] == "https://[::1]:4152/x"


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"https_port":"x"}', b"<html>"])
async def test_other_403_answers_are_errors(asking: Any, body: bytes) -> None:
    upstream, net = asking(HTTPAnswer(403, body=body))
    await failure(upstream.get(NSQD, URL))
    assert len(net.asked) == 1


def test_invalid_json_has_the_message_of_go() -> None:
    for body, reason in (
        (b"", "unexpected end of JSON input"),
        (b"<html>", "invalid character '<' looking for beginning of value"),
        (b"{", "invalid JSON: "),
    ):
        with pytest.raises(UpstreamFailed, match=reason):
            decode(body)


def test_tls_options_of_upstream_requests() -> None:
    assert credentials(NsqadminOptions()).ssl_context is None
    context = credentials(NsqadminOptions(http_client_tls_insecure_skip_verify=True)).ssl_context
    assert context is not None
    assert context.verify_mode == ssl.CERT_NONE
