"""Queries to nsqlookupd: addresses, order and failures. The HTTP requests are replaced."""

import pytest

from nsqx.client.discovery import Discovery
from nsqx.client.options import Options
from nsqx.cluster import http
from nsqx.errors import ConfigError, LookupFailed
from nsqx.net.http_client import HTTPAnswer, HTTPRequestFailed

PRODUCERS = (
    b'{"channels":[],"producers":[{"broadcast_address":"a","tcp_port":1},{"broadcast_address":"::1","tcp_port":2}]}'
)


@pytest.mark.parametrize("text", ["host", "http://host", "ftp://host:1", ":4161", "host:port", "", 4161])
def test_an_invalid_address_is_rejected(text):
    with pytest.raises(ConfigError, match="nsqlookupd address"):
        Discovery([text], Options.of({}))


class Lookupds:
    """The response of each address, and the requests it received."""

    def __init__(self, monkeypatch, **answers):
        self.answers = answers
        self.asked = []
        monkeypatch.setattr(http, "request", self.request)

    async def request(self, method, url, *, headers, **_limits):
        self.asked.append((method, url, headers))
        answer = self.answers[url.removeprefix("http://").partition(":")[0]]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def hosts(self):
        return [url.removeprefix("http://").partition(":")[0] for _, url, _ in self.asked]


async def test_an_answer_is_converted_to_addresses(monkeypatch):
    lookupds = Lookupds(monkeypatch, one=HTTPAnswer(200, {}, PRODUCERS))
    asking = Discovery(["one:1"], Options.of({"auth_secret": "secret"}))
    assert await asking.producers_of("t") == ["a:1", "[::1]:2"]
    assert await asking.nodes() == ["a:1", "[::1]:2"]
    headers = {"Accept": "application/vnd.nsq; version=1.0", "Authorization": "Bearer secret"}
    assert lookupds.asked == [
        ("GET", "http://one:1/lookup?topic=t", headers),
        ("GET", "http://one:1/nodes", headers),
    ]


async def test_a_token_for_nsqlookupd_replaces_the_auth_secret(monkeypatch, tmp_path):
    lookupds = Lookupds(monkeypatch, one=HTTPAnswer(200, {}, PRODUCERS))
    (tmp_path / "token").write_text("token\n")
    options = {"auth_secret": "secret", "lookupd_http_token_file": f"{tmp_path / 'token'}"}
    await Discovery(["one:1"], Options.of(options)).nodes()
    assert lookupds.asked[0][2]["Authorization"] == "Bearer token"


@pytest.mark.parametrize(
    ("content", "reason"), [("", "no token in the file"), ("two words", "without spaces"), ("\x01", "printable ASCII")]
)
def test_a_token_file_without_a_token_is_rejected(tmp_path, content, reason):
    (tmp_path / "token").write_text(content)
    with pytest.raises(ConfigError, match=rf"option lookupd_http_token_file {tmp_path}/token: .*{reason}"):
        Discovery(["one:1"], Options.of({"lookupd_http_token_file": f"{tmp_path / 'token'}"}))


async def test_nsqlookupds_are_queried_in_turn(monkeypatch):
    answer = HTTPAnswer(200, {}, PRODUCERS)
    lookupds = Lookupds(monkeypatch, one=answer, two=answer, three=answer)
    asking = Discovery(["one:1", "two:1", "three:1", "one:1"], Options.of({}))
    for _ in range(6):
        await asking.producers_of("t")
    hosts = lookupds.hosts()
    assert sorted(hosts[:3]) == ["one", "three", "two"]
    assert hosts[3:] == hosts[:3]


async def test_after_a_failure_the_next_nsqlookupd_is_queried(monkeypatch):
    failure = HTTPRequestFailed("no answer in time")
    lookupds = Lookupds(
        monkeypatch, one=failure, two=HTTPAnswer(500, {}, b"oops"), three=HTTPAnswer(200, {}, PRODUCERS)
    )
    asking = Discovery(["one:1", "two:1", "three:1"], Options.of({}))
    for _ in range(4):
        assert len(await asking.producers_of("t")) == 2
    assert "one" in lookupds.hosts()


async def test_the_error_lists_every_failure(monkeypatch):
    Lookupds(monkeypatch, one=HTTPRequestFailed("refused"), two=HTTPAnswer(200, {}, b"<html>"))
    asking = Discovery(["one:1", "two:1"], Options.of({}))
    with pytest.raises(LookupFailed) as caught:
        await asking.producers_of("t")
    assert sorted(str(caught.value).split("; ")) == [
        "nsqlookupd one:1: refused",
        "nsqlookupd two:1: invalid character '<' looking for beginning of value",
    ]


async def test_an_unknown_topic_has_no_producers(monkeypatch):
    Lookupds(monkeypatch, one=HTTPAnswer(404, {}, b'{"message":"TOPIC_NOT_FOUND"}'))
    assert await Discovery(["one:1"], Options.of({})).producers_of("t") == []


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"[]", "json: not an object"),
        (b"{}", "the answer is not from nsqlookupd"),
        (b'{"producers":[{}]}', "the answer is not from nsqlookupd"),
        (b'{"producers":[{"broadcast_address":"a","tcp_port":"x"}]}', "json: field tcp_port is not an integer"),
    ],
)
async def test_an_answer_that_is_not_from_nsqlookupd_is_rejected(monkeypatch, body, reason):
    Lookupds(monkeypatch, one=HTTPAnswer(200, {}, body))
    with pytest.raises(LookupFailed, match=f"nsqlookupd one:1: {reason}"):
        await Discovery(["one:1"], Options.of({})).producers_of("t")


async def test_the_wrapped_answer_of_old_versions_is_accepted(monkeypatch):
    Lookupds(monkeypatch, one=HTTPAnswer(200, {}, b'{"status_code":200,"data":' + PRODUCERS + b"}"))
    assert await Discovery(["one:1"], Options.of({})).producers_of("t") == ["a:1", "[::1]:2"]


async def test_sending_the_secret_to_nsqlookupd_can_be_turned_off(monkeypatch):
    lookupds = Lookupds(monkeypatch, one=HTTPAnswer(200, {}, PRODUCERS))
    options = Options.of({"auth_secret": "secret", "lookupd_authorization": False})
    await Discovery(["one:1"], options).nodes()
    assert all("Authorization" not in headers for _, _, headers in lookupds.asked)
