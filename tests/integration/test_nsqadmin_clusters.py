"""Several clusters in one nsqadmin, with real daemons."""

import json
from pathlib import Path
from typing import Any

import pytest

from daemons import Daemon, DaemonFailed, Fleet, wait_until

WAIT_S = 60
LIVE, STAGING = "0123456789abcdef", "fedcba9876543210"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def names(admin: Daemon, prefix: str, token: str) -> list[str]:
    answer = admin.request("GET", f"{prefix}/api/overview", headers=bearer(token))
    return [row["name"] for row in answer.json().get("topics", [])]


def operate(admin: Daemon, prefix: str, token: str, **operation: str) -> Any:
    body = json.dumps(operation).encode()
    return admin.request("POST", f"{prefix}/api/operations", body, bearer(token))


def test_clusters_have_their_own_topics_access_audit_and_files(fleet: Fleet, tmp_path: Path) -> None:
    live, staging = fleet.nsqd("nsqx"), fleet.nsqd("nsqx")
    live.post("/topic/create", topic="live.topic")
    staging.post("/topic/create", topic="staging.topic")
    config = tmp_path / "nsqadmin.toml"
    config.write_text(f"""
nsqd_http_addresses = ["{live.http_address}"]
auth_token = "{LIVE}"
poll_interval = "200ms"
history_window = "1m"
cluster_name = "live"

[[cluster]]
name = "staging"
nsqd_http_addresses = ["{staging.http_address}"]
auth_token = "{STAGING}"
audit_log = "{tmp_path}/staging.ndjson"
""")
    admin = fleet.nsqadmin("nsqx", f"--config={config}", f"--state-file={tmp_path}/nodes.json")
    prefix = "/clusters/staging"
    wait_until(lambda: names(admin, "", LIVE) == ["live.topic"], "the topics of the first cluster", WAIT_S)
    wait_until(lambda: names(admin, prefix, STAGING) == ["staging.topic"], "those of the second one", WAIT_S)
    assert admin.request("GET", f"{prefix}/api/overview", headers=bearer(LIVE)).status == 401
    assert admin.request("GET", "/api/overview", headers=bearer(STAGING)).status == 401
    links = [{"name": "live", "path": "/"}, {"name": "staging", "path": "/clusters/staging/"}]
    settings = admin.request("GET", f"{prefix}/api/settings", headers=bearer(STAGING)).json()
    assert (settings["cluster"], settings["clusters"], settings["base_path"]) == ("staging", links, prefix)
    page = admin.request("GET", f"{prefix}/topics", headers={"Accept": "text/html"})
    assert page.status == 200
    assert b'<base href="/clusters/staging/">' in page.body

    answer = operate(admin, prefix, STAGING, operation="pause", topic="staging.topic")
    assert answer.status == 200
    assert staging.topic_stats("staging.topic")["paused"]
    activity = admin.request("GET", f"{prefix}/api/activity", headers=bearer(STAGING)).json()["activity"]
    assert [each["topic"] for each in activity] == ["staging.topic"]
    assert admin.request("GET", "/api/activity", headers=bearer(LIVE)).json()["activity"] == []
    assert json.loads((tmp_path / "staging.ndjson").read_text())["topic"] == "staging.topic"
    document = admin.request("GET", f"{prefix}/openapi.json", headers=bearer(STAGING)).json()
    assert document["servers"][0]["url"] == prefix
    assert admin.request("GET", "/config/cluster", headers=bearer(LIVE)).status == 400, "it has tokens"

    cookies = []
    for where, token in (("", LIVE), (prefix, STAGING)):
        login = admin.request("POST", f"{where}/api/login", json.dumps({"token": token}).encode())
        cookies.append(login.headers["set-cookie"].partition(";")[0])
    both = {"Cookie": "; ".join(cookies)}
    assert admin.request("GET", "/api/overview", headers=both).status == 200
    assert admin.request("GET", f"{prefix}/api/overview", headers=both).status == 200, "the cookies differ in name"
    admin.stop()
    assert {"nodes.json", "nodes-staging.json"} <= {each.name for each in tmp_path.iterdir()}


def test_a_bad_cluster_ends_the_start_with_one_line(fleet: Fleet, tmp_path: Path) -> None:
    config = tmp_path / "nsqadmin.toml"
    config.write_text('nsqd_http_addresses = ["127.0.0.1:4151"]\n[[cluster]]\nname = "a b"\n')
    with pytest.raises(DaemonFailed, match=r"FATAL: .*\[\[cluster\]\] table 1: name: invalid name \"a b\""):
        fleet.nsqadmin("nsqx", f"--config={config}")
