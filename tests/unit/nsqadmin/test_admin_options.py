"""nsqadmin's options: NSQ's flags, our own, and the values that are rejected at the start."""

import io
import socket
from pathlib import Path
from typing import Any

import pytest

from nsqx import log
from nsqx.errors import ConfigError
from nsqx.flags import UsageError, VersionRequested
from nsqx.nsqadmin.options import (
    FLAGS,
    NsqadminOptions,
    config_value,
    history_points,
    normalized_base_path,
    options_from_argv,
    page_url,
    tail_options,
    trusted_networks,
    validate,
)

S = 1_000_000_000
GO_FLAGS = {
    *("config", "version", "log-level", "log-prefix", "verbose", "http-address", "base-path", "dev-static-dir"),
    *("graphite-url", "proxy-graphite", "statsd-counter-format", "statsd-gauge-format", "statsd-prefix"),
    *("statsd-interval", "notification-http-endpoint", "http-client-connect-timeout", "http-client-request-timeout"),
    *("http-client-tls-insecure-skip-verify", "http-client-tls-root-ca-file", "http-client-tls-cert"),
    *("http-client-tls-key", "allow-config-from-cidr", "acl-http-header", "lookupd-http-address"),
    *("nsqd-http-address", "admin-user"),
}


def parse(*argv: str) -> NsqadminOptions:
    return options_from_argv(argv, io.StringIO())


def usable(**changes: Any) -> NsqadminOptions:
    return NsqadminOptions(**{"nsqlookupd_http_addresses": ["127.0.0.1:4161"], **changes})


def test_every_flag_of_go_exists() -> None:
    assert {flag.name for flag in FLAGS} >= GO_FLAGS


def test_defaults_are_those_of_nsq() -> None:
    options = parse()
    assert options == NsqadminOptions()
    assert options.http_address == "0.0.0.0:4171"
    assert options.statsd_interval == 60 * S
    assert options.allow_config_from_cidr == "127.0.0.1/8"
    assert options.acl_http_header == "X-Forwarded-User"
    assert options.log_level == log.INFO


def test_flags_repeat_and_have_the_config_keys_of_go(tmp_path: Path) -> None:
    options = parse("-lookupd-http-address=a:1", "--lookupd-http-address", "b:2", "--admin-user=me")
    assert options.nsqlookupd_http_addresses == ["a:1", "b:2"]
    assert options.admin_users == ["me"]
    path = tmp_path / "nsqadmin.cfg"
    path.write_text('nsqd_http_addresses = ["c:3"]\nadmin_users = "x, y"\ntrusted_proxies = ["10.0.0.0/8"]\n')
    options = parse(f"--config={path}")
    assert options.nsqd_http_addresses == ["c:3"]
    assert options.admin_users == ["x", "y"]
    assert options.trusted_proxies == ["10.0.0.0/8"]


def test_version_and_unknown_flags() -> None:
    with pytest.raises(VersionRequested):
        parse("--version")
    with pytest.raises(UsageError, match="flag provided but not defined: -nope"):
        parse("--nope")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nsqlookupd_http_addresses": []}, "--nsqd-http-address or --lookupd-http-address required"),
        ({"nsqd_http_addresses": ["a:1"]}, "use --nsqd-http-address or --lookupd-http-address not both"),
        ({"http_client_tls_cert": "c"}, "--http-client-tls-key must be specified with --http-client-tls-cert"),
        ({"http_client_tls_key": "k"}, "--http-client-tls-cert must be specified with --http-client-tls-key"),
        ({"nsqlookupd_http_addresses": ["nowhere"]}, r"failed to resolve --lookupd-http-address \(nowhere\) - .*port"),
        ({"nsqlookupd_http_addresses": ["x:99999"]}, r"failed to resolve --lookupd-http-address \(x:99999\)"),
        ({"proxy_graphite": True, "graphite_url": "::"}, r"failed to parse --graphite-url \(::\)"),
        ({"allow_config_from_cidr": "127.0.0.1"}, r"failed to parse --allow-config-from-cidr \(127.0.0.1\) - invalid"),
        ({"allow_config_from_cidr": "x/8"}, "invalid CIDR address: x/8"),
        ({"http_address": "nowhere"}, r"listen \(nowhere\) failed"),
        ({"http_client_request_timeout": -1}, "--http-client-request-timeout must not be negative"),
        ({"poll_interval": 1}, "--poll-interval must be 0 or at least 100ms"),
        ({"history_window": S}, "--history-window must not be shorter"),
        ({"history_window": 745 * 3600 * S}, "--history-window must not be longer than 744h"),
        ({"alert": [{"rule": "slow"}]}, r'\[\[alert]] table 1: invalid rule "slow"'),
        ({"alert_webhook": "hooks.example.com"}, "invalid --alert-webhook: use a URL such as https://host/path"),
        ({"external_url": "ftp://x/"}, "invalid --external-url"),
        ({"manual_url": "docs/"}, "invalid --manual-url: use a URL such as https://host/path"),
        ({"alert_webhook": "http://x/", "poll_interval": 0}, "alerts need --poll-interval above 0"),
        ({"trusted_proxies": ["nobody"]}, r"failed to parse --trusted-proxy \(nobody\)"),
        ({"allowed_origins": ["example.com"]}, r"failed to parse --allowed-origin \(example.com\)"),
        ({"allowed_origins": ["https://example.com/path"]}, "--allowed-origin"),
        ({"auth_token": "short"}, "--auth-token must have at least 16 characters"),
        ({"view_token": "with space in the middle"}, "--view-token must consist of printable"),
        (
            {"operate_token": "x" * 16, "operate_token_file": "f"},
            "use --operate-token or --operate-token-file not both",
        ),
        ({"auth_token_file": "/does/not/exist"}, "failed to read --auth-token-file /does/not/exist"),
    ],
)
def test_invalid_options_are_rejected(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(usable(**changes))


def test_valid_options_are_accepted() -> None:
    validate(usable())
    validate(usable(poll_interval=0, history_window=0))
    validate(usable(allow_config_from_cidr=""))
    validate(usable(allowed_origins=["https://a.example", "http://b.example:8080/"]))


def test_an_empty_token_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("\n")
    with pytest.raises(ConfigError, match="at least 16 characters"):
        validate(usable(auth_token_file=str(path)))
    path.write_text("  sixteen-and-more \n")
    options = usable(auth_token_file=str(path))
    validate(options)
    assert options.auth_token == "sixteen-and-more"


@pytest.mark.parametrize(
    ("given", "normalized"),
    [("", "/"), ("/", "/"), ("//", "/"), ("x", "/x"), ("/x/", "/x"), ("//x//y/../z", "/x/z"), ("..", "/")],
)
def test_the_base_path_is_normalized(given: str, normalized: str) -> None:
    assert normalized_base_path(given) == normalized


def test_the_number_of_history_points() -> None:
    assert history_points(usable()) == 720
    assert history_points(usable(poll_interval=7 * S, history_window=20 * S)) == 3
    assert history_points(usable(poll_interval=S // 10)) == 12_000
    assert history_points(usable(poll_interval=7200 * S)) == 2


@pytest.mark.parametrize(
    ("changes", "url"),
    [
        ({"external_url": "https://admin.example.com/nsq/"}, "https://admin.example.com/nsq"),
        ({"http_address": "127.0.0.1:0"}, "http://127.0.0.1:4200"),
        ({"http_address": "[::1]:0", "base_path": "/nsq"}, "http://[::1]:4200/nsq"),
        ({"http_address": "0.0.0.0:4171"}, f"http://{socket.gethostname()}:4200"),
    ],
)
def test_the_address_of_the_page(changes: dict[str, Any], url: str) -> None:
    assert page_url(usable(**changes), 4200) == url


def test_loopback_is_trusted_by_default() -> None:
    assert [str(network) for network in trusted_networks(usable())] == ["127.0.0.0/8", "::1/128"]
    assert [str(network) for network in trusted_networks(usable(trusted_proxies=["10.1.2.3"]))] == ["10.1.2.3/32"]


def test_client_options_of_tails() -> None:
    options = usable(consumer_opts=["tls_v1", "auth_secret,s3cret"])
    validate(options)
    assert tail_options(options) == {"tls_v1": True, "auth_secret": "s3cret"}
    with pytest.raises(ConfigError, match="invalid option tls_v2: did you mean tls_v1"):
        validate(usable(consumer_opts=["tls_v2,true"]))
    with pytest.raises(ConfigError, match="tls_cert and tls_key: both are required"):
        validate(usable(consumer_opts=["tls_cert,x"]))


def test_secrets_are_not_shown() -> None:
    options = usable(auth_token="x" * 16)
    for key in (
        "auth_token",
        "view_token",
        "operate_token",
        "consumer_opts",
        "version",
        "config",
        "verbose",
        "nothing",
    ):
        with pytest.raises(KeyError):
            config_value(options, key)
    assert config_value(options, "nsqlookupd_http_addresses") == ["127.0.0.1:4161"]
