"""Access rules: origins, tokens, sessions, proxies."""

import io
from typing import Any

import pytest
from starlette.requests import Request

from nsqx.errors import HTTPError
from nsqx.log import WARN, Log
from nsqx.nsqadmin.access import SESSION_S, Access, Role
from nsqx.nsqadmin.options import NsqadminOptions

TOKEN = "t" * 16
OTHER = "o" * 16


def request(*, peer: str = "127.0.0.1", path: str = "/x", query: str = "", **headers: str) -> Request:
    pairs = {"host": "admin.example:4171", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return Request(
        {
            "type": "http",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "query_string": query.encode(),
            "client": (peer, 5000) if peer else None,
            "headers": [(name.lower().encode(), value.encode()) for name, value in pairs.items()],
        }
    )


def access(log: Log | None = None, **options: Any) -> Access:
    return Access(NsqadminOptions(**options), log or Log("", WARN, io.StringIO()))


def refusal(check: Any, *arguments: Any) -> tuple[int, str] | None:
    try:
        check(*arguments)
    except HTTPError as error:
        return error.status, error.code
    return None


class TestOrigin:
    @pytest.mark.parametrize(
        ("headers", "passes"),
        [
            ({}, True),
            ({"origin": "http://admin.example:4171"}, True),
            ({"origin": "https://ADMIN.example:4171"}, True),
            ({"origin": "http://admin.example"}, False),
            ({"origin": "http://other.example:4171"}, False),
            ({"origin": "http://admin.example:4171.evil.example"}, False),
            ({"origin": "http://x@admin.example:4171"}, True),
            ({"origin": "null"}, False),
            ({"origin": ""}, False),
            ({"origin": "file://"}, False),
            ({"origin": "http://[::"}, False),
            ({"origin": "http://admin.example:99999"}, False),
            ({"sec_fetch_site": "same-origin"}, True),
            ({"sec_fetch_site": "none"}, True),
            ({"sec_fetch_site": "same-site"}, False),
            ({"sec_fetch_site": "cross-site", "origin": "http://admin.example:4171"}, False),
            ({"sec_fetch_site": "whatever"}, False),
            ({"origin": "https://page.example"}, True),
            ({"origin": "https://page.example:443", "sec_fetch_site": "cross-site"}, True),
            ({"origin": "http://page.example"}, False),
        ],
    )
    def test_requests_of_other_sites_are_rejected(self, headers: dict[str, str], passes: bool) -> None:
        rules = access(allowed_origins=["https://page.example/"])
        expected = None if passes else (403, "CROSS_ORIGIN")
        assert refusal(rules.check_origin, request(**headers)) == expected

    def test_an_origin_may_omit_its_default_port(self) -> None:
        rules = access()
        assert refusal(rules.check_origin, request(host="a.example", origin="https://a.example")) is None
        assert refusal(rules.check_origin, request(host="a.example:443", origin="https://a.example")) is None
        assert refusal(rules.check_origin, request(host="a.example:443", origin="http://a.example")) is not None


class TestRoles:
    def role(self, rules: Access, now_s: float = 0.0, **headers: str) -> Role:
        return rules.caller(request(**headers), now_s).role

    def test_without_tokens_every_caller_may_operate(self) -> None:
        assert self.role(access()) == Role.OPERATE

    def test_the_auth_token_allows_everything(self) -> None:
        rules = access(auth_token=TOKEN)
        assert self.role(rules) == Role.NOBODY
        assert self.role(rules, authorization=f"Bearer {TOKEN}") == Role.OPERATE
        assert self.role(rules, authorization=f"bearer  {TOKEN} ") == Role.OPERATE
        assert self.role(rules, authorization=f"Bearer {TOKEN}x") == Role.NOBODY
        assert self.role(rules, authorization=f"Basic {TOKEN}") == Role.NOBODY
        assert self.role(rules, authorization="Bearer") == Role.NOBODY

    def test_each_token_gives_its_role(self) -> None:
        rules = access(view_token=TOKEN, operate_token=OTHER)
        assert self.role(rules) == Role.NOBODY
        assert self.role(rules, authorization=f"Bearer {TOKEN}") == Role.VIEW
        assert self.role(rules, authorization=f"Bearer {OTHER}") == Role.OPERATE

    def test_a_consume_token_allows_reading_messages(self) -> None:
        rules = access(view_token=TOKEN, consume_token=OTHER, admin_users=["ann"])
        viewer = rules.caller(request(authorization=f"Bearer {TOKEN}"), 0)
        reader = rules.caller(request(authorization=f"Bearer {OTHER}"), 0)
        assert reader.role == Role.CONSUME
        assert refusal(rules.require, viewer, Role.CONSUME) == (403, "FORBIDDEN")
        assert refusal(rules.require, reader, Role.VIEW) is None
        assert refusal(rules.require, reader, Role.CONSUME) is None
        assert refusal(rules.require, reader, Role.OPERATE) == (403, "FORBIDDEN")

    def test_only_administrators_read_messages_without_a_consume_token(self) -> None:
        rules = access(admin_users=["ann"])
        bob, ann = (rules.caller(request(x_forwarded_user=name), 0) for name in ("bob", "ann"))
        assert refusal(rules.require, bob, Role.VIEW) is None
        assert refusal(rules.require, bob, Role.CONSUME) == (403, "FORBIDDEN")
        assert refusal(rules.require, ann, Role.CONSUME) is None
        assert (rules.may_consume(bob), rules.may_operate(bob)) == (False, False)
        assert (rules.may_consume(ann), rules.may_operate(ann)) == (True, True)

    def test_roles_with_only_one_token(self) -> None:
        assert self.role(access(consume_token=TOKEN)) == Role.VIEW
        assert self.role(access(operate_token=TOKEN)) == Role.VIEW
        assert self.role(access(view_token=TOKEN), authorization=f"Bearer {TOKEN}") == Role.VIEW

    def test_a_missing_role_is_rejected(self) -> None:
        rules = access(view_token=TOKEN, operate_token=OTHER, admin_users=["ann"])
        nobody = rules.caller(request(), 0)
        viewer = rules.caller(request(authorization=f"Bearer {TOKEN}"), 0)
        operator = rules.caller(request(authorization=f"Bearer {OTHER}"), 0)
        ann = rules.caller(request(authorization=f"Bearer {OTHER}", x_forwarded_user="ann"), 0)
        assert refusal(rules.require, nobody, Role.VIEW) == (401, "UNAUTHORIZED")
        assert refusal(rules.require, nobody, Role.NOBODY) is None
        assert refusal(rules.require, viewer, Role.OPERATE) == (403, "FORBIDDEN")
        assert refusal(rules.require, operator, Role.OPERATE) == (403, "FORBIDDEN")
        assert refusal(rules.require, operator, Role.VIEW) is None
        assert refusal(rules.require, ann, Role.OPERATE) is None

    def test_sessions_expire(self) -> None:
        rules = access(auth_token=TOKEN)
        key = rules.open_session(Role.VIEW, 100.0)
        cookie = f"nsqadmin_session={key}"
        assert self.role(rules, 100.0, cookie=cookie) == Role.VIEW
        assert self.role(rules, 99.0 + SESSION_S, cookie=cookie) == Role.VIEW
        assert self.role(rules, 100.0 + SESSION_S, cookie=cookie) == Role.NOBODY
        assert self.role(rules, 100.0, cookie="nsqadmin_session=") == Role.NOBODY
        rules.close_session(request(cookie=cookie))
        assert self.role(rules, 100.0, cookie=cookie) == Role.NOBODY

    def test_sessions_are_bounded(self) -> None:
        rules = access(auth_token=TOKEN)
        first = rules.open_session(Role.VIEW, 0.0)
        for _ in range(1000):
            last = rules.open_session(Role.VIEW, 0.0)
        assert self.role(rules, 1.0, cookie=f"nsqadmin_session={first}") == Role.NOBODY
        assert self.role(rules, 1.0, cookie=f"nsqadmin_session={last}") == Role.VIEW


class TestUsers:
    def user(self, rules: Access, **arguments: str) -> str:
        return rules.caller(request(x_forwarded_user="root", **arguments), 0).user

    def test_the_user_header_is_accepted_from_loopback(self) -> None:
        rules = access()
        assert self.user(rules) == "root"
        assert self.user(rules, peer="::1") == "root"
        assert self.user(rules, peer="::ffff:127.0.0.1") == "root"
        assert self.user(rules, peer="10.0.0.1") == ""
        assert self.user(rules, peer="") == ""

    def test_the_user_header_is_accepted_from_trusted_proxies(self) -> None:
        rules = access(trusted_proxies=["10.0.0.0/8", "fd00::/8"])
        assert self.user(rules) == ""
        assert self.user(rules, peer="10.9.8.7") == "root"
        assert self.user(rules, peer="fd00::7") == "root"
        assert self.user(rules, peer="11.0.0.1") == ""

    def test_every_address_can_be_trusted_as_in_go(self) -> None:
        rules = access(trusted_proxies=["0.0.0.0/0", "::/0"])
        assert self.user(rules, peer="8.8.8.8") == "root"
        assert self.user(rules, peer="2001:db8::1") == "root"

    def test_a_forged_user_is_logged_once(self) -> None:
        lines = io.StringIO()
        rules = access(Log("", WARN, lines), admin_users=["root"])
        for _ in range(3):
            self.user(rules, peer="10.0.0.1")
        assert lines.getvalue().count("ignoring X-Forwarded-User from 10.0.0.1") == 1

    @pytest.mark.parametrize(
        ("header", "user"),
        [
            ("Basic dXNlcjpwYXNz", "user"),
            ("Basic dXNlcjo=", "user"),
            ("Basic dXNlcg==", ""),
            ("Basic !!!", ""),
            ("basic dXNlcjpwYXNz", ""),
            ("Bearer dXNlcjpwYXNz", ""),
            ("", ""),
        ],
    )
    def test_the_user_of_basic_authentication(self, header: str, user: str) -> None:
        assert access().caller(request(authorization=header), 0).basic_user == user


class TestCaller:
    def test_the_url_of_a_caller(self) -> None:
        rules = access()
        caller = rules.caller(request(path="/api/topics/a b#c", query="x=1"), 0)
        assert caller.url == "http://admin.example:4171/api/topics/a%20b%23c?x=1"
        assert caller.remote == "127.0.0.1:5000"
        assert rules.caller(request(x_scheme="https"), 0).url.startswith("https://")
        assert rules.caller(request(x_forwarded_proto="https"), 0).url.startswith("https://")
        assert rules.caller(request(x_forwarded_proto="https", peer="9.9.9.9"), 0).url.startswith("http://")
        assert rules.caller(request(peer="::1"), 0).remote == "[::1]:5000"

    def test_config_is_limited_to_its_network(self) -> None:
        rules = access()
        assert refusal(rules.check_config, request()) is None
        assert refusal(rules.check_config, request(peer="::ffff:127.9.9.9")) is None
        assert refusal(rules.check_config, request(peer="10.0.0.1")) == (403, "FORBIDDEN")
        assert refusal(rules.check_config, request(peer="::1")) == (403, "FORBIDDEN")
        assert refusal(rules.check_config, request(peer="")) == (400, "INVALID_REMOTE_ADDR")
        assert refusal(access(allow_config_from_cidr="").check_config, request(peer="")) is None
