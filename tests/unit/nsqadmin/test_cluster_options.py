"""Several clusters in one nsqadmin: their options and their paths."""

from pathlib import Path
from typing import Any

import pytest

from nsqx.errors import ConfigError
from nsqx.nsqadmin.cluster_options import ClusterPaths, all_clusters, cluster_links
from nsqx.nsqadmin.options import NsqadminOptions

TOKEN, OTHER = "0123456789abcdef", "fedcba9876543210"
STAGING = {"name": "staging", "nsqd_http_addresses": ["127.0.0.1:5151"]}


def options(*tables: dict[str, Any], **changes: Any) -> NsqadminOptions:
    return NsqadminOptions(nsqlookupd_http_addresses=["127.0.0.1:4161"], cluster=list(tables), **changes)


def test_one_cluster_has_no_name_and_no_links() -> None:
    every = all_clusters(options())
    assert [each.cluster_name for each in every] == [""]
    assert cluster_links(every) == []


def test_a_table_changes_options_of_its_cluster_only() -> None:
    main = options(
        {**STAGING, "poll_interval": "1s", "view_token": OTHER, "alert": [{"rule": "old", "enabled": False}]},
        {"name": "dev", "nsqlookupd_http_addresses": "127.0.0.1:6161"},
        base_path="/nsq/",
        operate_token=TOKEN,
        state_file="/var/lib/nodes.json",
        external_url="https://admin/nsq/",
        cluster_name="live",
    )
    live, staging, dev = all_clusters(main)
    assert live is main
    assert [each.cluster_name for each in (live, staging, dev)] == ["live", "staging", "dev"]
    assert (staging.nsqd_http_addresses, staging.nsqlookupd_http_addresses) == (["127.0.0.1:5151"], [])
    assert (dev.nsqd_http_addresses, dev.nsqlookupd_http_addresses) == ([], ["127.0.0.1:6161"])
    assert (live.poll_interval, staging.poll_interval, dev.poll_interval) == (5 * 10**9, 10**9, 5 * 10**9)
    assert (live.view_token, staging.view_token, staging.operate_token) == ("", OTHER, TOKEN)
    assert staging.alert
    assert not dev.alert
    assert staging.state_file == "/var/lib/nodes-staging.json"
    assert staging.external_url == "https://admin/nsq/clusters/staging"
    assert cluster_links([live, staging, dev]) == [
        ("live", "/nsq/"),
        ("staging", "/nsq/clusters/staging/"),
        ("dev", "/nsq/clusters/dev/"),
    ]


def test_a_token_in_one_form_replaces_the_other_form(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(OTHER)
    main, staging = all_clusters(options({**STAGING, "operate_token_file": str(file)}, operate_token=TOKEN))
    assert (main.operate_token, staging.operate_token) == (TOKEN, OTHER)
    file.write_text(TOKEN)
    main, staging = all_clusters(options(STAGING, operate_token_file=str(file)))
    assert (main.operate_token, staging.operate_token) == (TOKEN, TOKEN)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({}, "name: invalid name None: use 1 to 32 of a-z 0-9 _ -"),
        ({"name": "Prod/eu"}, 'invalid name "Prod/eu"'),
        ({"name": "staging"}, 'the name "staging" is used twice'),
        ({"name": "default"}, 'the name "default" is used twice'),
        ({"name": "dev", "nsqd_http_addresses": []}, "--nsqd-http-address or --lookupd-http-address required"),
        ({"name": "dev", "http_address": ":1"}, 'unknown key "http_address"'),
        ({"name": "dev", "cluster": []}, 'unknown key "cluster"'),
        ({"name": "dev", "poll_interval": "often"}, "invalid poll_interval - "),
        ({"name": "dev", "nsqlookupd_http_addresses": ["nowhere"]}, "missing port in address"),
        ({**STAGING, "name": "dev", "alert": [{"rule": "x"}]}, '[[alert]] table 1: invalid rule "x"'),
    ],
)
def test_a_bad_table_is_one_clear_line(table: dict[str, Any], text: str) -> None:
    addresses = {"nsqd_http_addresses": ["127.0.0.1:5151"]} if table.get("name") in ("staging", "default") else {}
    with pytest.raises(ConfigError) as failure:
        all_clusters(options(STAGING, {**addresses, **table}))
    assert str(failure.value).startswith("[[cluster]] table 2: ")
    assert text in str(failure.value)


async def test_requests_go_to_the_cluster_of_their_path() -> None:
    asked: list[str] = []

    def app(name: str) -> Any:
        async def answer(_scope: Any, _receive: Any, _send: Any) -> None:
            asked.append(name)

        return answer

    paths: Any = ClusterPaths(app("main"), {"/clusters/dev": app("dev"), "/clusters/dev2": app("dev2")})
    for path in ("/", "/clusters/dev", "/clusters/dev/api/topics", "/clusters/dev2/", "/clusters/other", "/topics"):
        await paths({"type": "http", "path": path}, None, None)
    assert asked == ["main", "dev", "dev", "dev2", "main", "main"]
