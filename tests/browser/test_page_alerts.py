"""nsqadmin's page shows alerts: the count in the health line, and the list."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browsers import AXE, accessibility_faults

from daemons import Daemon, Fleet, wait_until

if TYPE_CHECKING:
    from browsers import Opener
    from playwright.sync_api import Browser

pytestmark = pytest.mark.timeout(180)

CONFIG = """
manual_url = "https://docs.example.com/nsqx/"

[[alert]]
rule = "no_consumer"
topic = "later*"
for = "1h"

[[alert]]
rule = "no_consumer"
for = "0s"
keep_firing_for = "0s"

[[alert]]
rule = "node_gone"
for = "0s"

[[alert]]
rule = "timing_out"
enabled = false
"""
SIZES = (360, 768, 1440)


def expect(locator: Any) -> Any:
    from playwright.sync_api import expect

    return expect(locator)


class Watched:
    """An nsqd with three topics, an nsqd that is gone, and their nsqadmin."""

    def __init__(self, fleet: Fleet, path: Path) -> None:
        self.nsqd = fleet.nsqd("nsqx")
        self.gone = fleet.nsqd("nsqx")
        config = path / "nsqadmin.toml"
        config.write_text(CONFIG)
        addresses = (f"--nsqd-http-address={each.http_address}" for each in (self.nsqd, self.gone))
        self.admin = fleet.nsqadmin("nsqx", *addresses, "--poll-interval=200ms", f"--config={config}")
        for topic, messages in (("orders", 12_345), ("short.lived", 1), ("later", 3)):
            self.nsqd.post("/topic/create", topic=topic)
            self.nsqd.post("/channel/create", topic=topic, channel="billing")
            self.nsqd.post("/mpub", b"\n".join([b"x"] * messages), topic=topic)
        wait_until(lambda: self.counts()["firing"] == 2, "two alerts fire", 60)
        self.gone.stop()
        wait_until(lambda: self.counts()["critical"] == 1, "the nsqd is gone", 60)
        self.nsqd.post("/channel/empty", topic="short.lived", channel="billing")
        wait_until(lambda: self.document()["resolved"], "an alert is resolved", 60)

    def document(self) -> Any:
        return self.admin.request("GET", "/api/alerts").json()

    def counts(self) -> dict[str, int]:
        counts: dict[str, int] = self.document()["counts"]
        return counts


@pytest.fixture(scope="module")
def watched(chromium: "Browser", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    fleet = Fleet()
    yield Watched(fleet, tmp_path_factory.mktemp("alerts"))
    fleet.close()


def test_alerts_are_counted_and_listed(watched: Watched, open_page: "Opener") -> None:
    page = open_page(watched.admin)
    health = page.get_by_role("region", name="Health of the cluster")
    health.get_by_role("link", name="2 alerts").click()
    expect(page.get_by_role("heading", level=1, name="Alerts")).to_be_visible()
    expect(page.get_by_text("2 alerts firing, 1 more pending.")).to_be_visible()
    rows = page.get_by_role("region", name="Active alerts").get_by_role("row")
    expect(rows).to_have_count(4)
    expect(rows.nth(1)).to_contain_text("nsqd gone")
    expect(rows.nth(1)).to_contain_text("critical")
    expect(rows.nth(1).get_by_role("link", name=watched.gone.http_address)).to_be_visible()
    expect(rows.nth(2)).to_contain_text("No consumer")
    expect(rows.nth(2)).to_contain_text("12,345")
    expect(rows.nth(2)).to_contain_text("ago")
    expect(rows.nth(3)).to_contain_text("pending")
    resolved = page.get_by_role("region", name="Resolved alerts").get_by_role("row")
    expect(resolved.nth(1)).to_contain_text("short.lived")
    rules = page.get_by_role("region", name="Rules").get_by_role("row")
    expect(rules).to_have_count(8)
    expect(rules.filter(has_text="timing_out")).to_contain_text("Off")
    expect(rules.filter(has_text="disk_low")).to_contain_text(re.compile("10 %.*12 %"))
    rows.nth(2).get_by_role("link", name="billing").click()
    expect(page.get_by_role("heading", level=1, name="billing")).to_be_visible()


def test_rules_and_views_link_to_the_manual(watched: Watched, open_page: "Opener") -> None:
    page = open_page(watched.admin, "/alerts")
    manual = "https://docs.example.com/nsqx/nsqadmin.html"
    rules = page.get_by_role("region", name="Rules")
    expect(rules.get_by_role("link", name="Disk low")).to_have_attribute("href", f"{manual}#disk_low")
    active = page.get_by_role("region", name="Active alerts")
    expect(active.get_by_role("link", name="nsqd gone")).to_have_attribute("href", f"{manual}#node_gone")
    button = page.get_by_role("link", name="Manual of this view")
    for place, section in {
        "/alerts": "alerts",
        "/topics/orders": "a-topic-or-a-channel",
        "/topics/orders?view=browse": "stored-messages",
        "/nodes": "nodes-and-other-views",
    }.items():
        page.goto(f"http://{watched.admin.http_address}{place}")
        expect(button).to_have_attribute("href", f"{manual}#{section}")


def test_a_page_without_history_says_so(watched: Watched, open_page: "Opener", module_fleet: Fleet) -> None:
    where = f"--nsqd-http-address={watched.nsqd.http_address}"
    admin: Daemon = module_fleet.nsqadmin("nsqx", where, "--poll-interval=0")
    page = open_page(admin, "/alerts", complains_of=("404 (Not Found)",))
    expect(page.get_by_text("Alerts are disabled")).to_be_visible()
    expect(page.get_by_role("link", name="Manual of this view")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_view_is_accessible_and_fits_every_width(watched: Watched, open_page: "Opener", scheme: str) -> None:
    page = open_page(watched.admin, "/alerts", color_scheme=scheme, bypass_csp=True)
    for width in SIZES:
        page.set_viewport_size({"width": width, "height": 900})
        expect(page.get_by_role("region", name="Rules")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if AXE.exists():
            assert not accessibility_faults(page), width
