"""nsqadmin's page below a base path, with tokens, and without history."""

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest
from scene import Cluster

from daemons import Fleet

if TYPE_CHECKING:
    from browsers import Opener

pytestmark = pytest.mark.timeout(120)

VIEW_TOKEN = "view-0123456789abcdef"
OPERATE_TOKEN = "operate-0123456789abcdef"


def expect(locator: Any) -> Any:
    from playwright.sync_api import expect

    return expect(locator)


def test_the_page_works_below_a_base_path(cluster: Cluster, open_page: "Opener", topic: str) -> None:
    cluster.make_topic(topic, "c")
    admin = cluster.admin("--base-path=/tools/nsq&co")
    page = open_page(admin, "/tools/nsq&co/topics")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.reload()
    page.get_by_role("link", name=topic).click()
    page.get_by_role("link", name="c", exact=True).click()
    expect(page.get_by_role("heading", level=1, name="c")).to_be_visible()
    page.reload()
    expect(page.get_by_text("No consumer is connected")).to_be_visible()
    page.get_by_role("link", name="Nodes", exact=True).click()
    expect(page.get_by_role("link", name=cluster.nsqds[0].http_address)).to_be_visible()
    base = f"http://{admin.http_address}/tools/nsq&co/"
    assert unquote(page.url) == base + "nodes"
    assert len(asked) > 5
    assert [url for url in asked if not unquote(url).startswith((base, "data:"))] == []


def test_a_token_opens_the_page(cluster: Cluster, open_page: "Opener", topic: str) -> None:
    cluster.make_topic(topic)
    admin = cluster.admin(f"--view-token={VIEW_TOKEN}", f"--operate-token={OPERATE_TOKEN}")
    page = open_page(admin, f"/topics/{topic}", complains_of=("401 (Unauthorized)",))
    expect(page.get_by_role("heading", level=1, name="Log in")).to_be_visible()
    expect(page.get_by_role("navigation", name="Views")).to_have_count(0)
    page.get_by_label("Token").fill("wrong-0123456789abcdef")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("not valid")
    page.get_by_label("Token").fill(VIEW_TOKEN)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name=topic)).to_be_visible()
    expect(page.get_by_text("View only")).to_be_visible()
    expect(page.get_by_role("link", name=cluster.nsqds[0].http_address)).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("Pause|Empty|Delete|Tombstone|Messages|New"))).to_have_count(0)
    page.get_by_role("button", name="Log out").click()
    page.get_by_label("Token").fill(OPERATE_TOKEN)
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Pause", exact=True)).to_be_visible()


def test_an_expired_session_leads_to_the_login(cluster: Cluster, fleet: Fleet, open_page: "Opener") -> None:
    flags = (f"--lookupd-http-address={cluster.lookupd.http_address}", f"--auth-token={OPERATE_TOKEN}")
    admin = fleet.nsqadmin("nsqx", *flags)
    page = open_page(admin, "/topics", complains_of=("401 (Unauthorized)", "net::ERR_"))
    page.get_by_label("Token").fill(OPERATE_TOKEN)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name="Topics")).to_be_visible()
    admin.kill()
    fleet.nsqadmin("nsqx", f"--http-address={admin.http_address}", *flags)
    expect(page.get_by_role("heading", level=1, name="Log in")).to_be_visible()


def test_without_history_the_page_queries_the_numbers(cluster: Cluster, open_page: "Opener", topic: str) -> None:
    cluster.make_topic(topic, "c", messages=3)
    admin = cluster.admin("--poll-interval=0")
    page = open_page(admin)
    page.get_by_role("link", name=topic).click()
    expect(page.get_by_label("The topic in numbers")).to_contain_text("6")
    expect(page.locator("figure")).to_have_count(0)
    page.get_by_role("link", name="c", exact=True).click()
    expect(page.get_by_label("The channel in numbers")).to_contain_text("6")
    page.get_by_role("link", name="Counter").click()
    expect(page.get_by_text("No counts")).to_be_visible()


def test_following_messages_can_be_disabled(cluster: Cluster, open_page: "Opener", topic: str) -> None:
    cluster.make_topic(topic)
    page = open_page(cluster.admin("--messages=false"), f"/topics/{topic}?view=messages")
    expect(page.get_by_label("The topic in numbers")).to_be_visible()
    expect(page.get_by_role("button", name="Messages")).to_have_count(0)


def test_an_unknown_node_address_is_reported(cluster: Cluster, open_page: "Opener") -> None:
    admin = cluster.admin()
    page = open_page(admin, "/nodes/127.0.0.1:1", complains_of=("404 (Not Found)",))
    expect(page.get_by_text("This nsqd is not in the cluster")).to_be_visible()
