"""nsqadmin's page shows the history of a day, its gaps and restarts, also after a restart of nsqadmin."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from browsers import AXE, accessibility_faults

from daemons import Daemon, Fleet, wait_until
from stored_day import store_day

if TYPE_CHECKING:
    from browsers import Opener
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.timeout(180)

SIZES = (360, 768, 1440)
TITLES = ["Messages", "Depth", "In flight", "Deferred", "Consumers", "Requeues and timeouts"]


def expect(locator: Any) -> Any:
    from playwright.sync_api import expect

    return expect(locator)


@pytest.fixture(scope="module")
def watched(chromium: "Browser", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """An nsqadmin that continues the history of a day."""
    fleet = Fleet()
    directory = tmp_path_factory.mktemp("history")
    nsqd = fleet.nsqd("nsqx")
    nsqd.post("/topic/create", topic="orders")
    nsqd.post("/channel/create", topic="orders", channel="billing")
    store_day(directory / "history.json", "orders", "billing", nsqd.http_address)
    state = f"--state-file={directory}/nodes.json"
    admin = fleet.nsqadmin("nsqx", f"--nsqd-http-address={nsqd.http_address}", "--poll-interval=1s", state)
    wait_until(lambda: admin.request("GET", "/api/health").json()["number"] >= 1, "two polls", 60)
    yield admin
    fleet.close()


def chart(page: "Page", title: str) -> Any:
    return page.locator("figure").filter(has=page.get_by_text(title, exact=True)).first


def points(page: "Page", title: str = "Depth") -> int:
    return int(chart(page, title).get_attribute("data-points") or 0)


def test_a_day_is_shown_with_its_gaps_and_restarts(watched: Daemon, open_page: "Opener") -> None:
    page = open_page(watched, "/topics/orders/billing?span=24+h")
    for title in TITLES:
        expect(chart(page, title)).to_have_attribute("data-gaps", "2")
        expect(chart(page, title)).to_have_attribute("data-restarts", "2")
    depth = chart(page, "Depth")
    expect(depth).to_contain_text("not measured")
    expect(depth).to_contain_text("nsqd restarted")
    expect(depth).to_contain_text("nsqadmin restarted")
    label = re.compile(r"Nothing was measured in 2 gaps\. 1 restart of an nsqd$")
    expect(depth.get_by_role("img")).to_have_attribute("aria-label", label)
    assert 600 < points(page) < 900


def test_the_span_is_chosen_and_kept_in_the_address(watched: Daemon, open_page: "Opener") -> None:
    page = open_page(watched, "/topics/orders/billing")
    spans = page.get_by_role("group", name="Time range of the graphs")
    expect(spans.get_by_role("button")).to_have_text(["5 min", "15 min", "1 h", "6 h", "24 h"])
    expect(spans.get_by_role("button", name="15 min")).to_have_attribute("aria-pressed", "true")
    spans.get_by_role("button", name="6 h").click()
    expect(chart(page, "Depth")).to_have_attribute("data-restarts", "2")
    expect(chart(page, "Depth")).to_have_attribute("data-gaps", "1")
    wait_until(lambda: 100 < points(page) < 400, "the points of six hours", 30)
    page.reload()
    expect(spans.get_by_role("button", name="6 h")).to_have_attribute("aria-pressed", "true")
    before = points(page)
    wait_until(lambda: points(page) > before, "the next poll adds a point", 30)


def test_a_topic_has_the_history_of_a_day_too(watched: Daemon, open_page: "Opener") -> None:
    page = open_page(watched, "/topics/orders?span=24+h")
    expect(chart(page, "Depth")).to_have_attribute("data-gaps", "2")
    expect(chart(page, "Messages").get_by_role("img")).to_have_attribute("aria-label", re.compile("published"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_graphs_are_accessible_and_fit_every_width(watched: Daemon, open_page: "Opener", scheme: str) -> None:
    page = open_page(watched, "/topics/orders?span=24+h", color_scheme=scheme, bypass_csp=True)
    expect(chart(page, "Depth")).to_have_attribute("data-gaps", "2")
    for width in SIZES:
        page.set_viewport_size({"width": width, "height": 900})
        expect(page.locator("figure canvas")).to_have_count(6)
        figures = page.locator("figure")
        assert all(each.evaluate("(figure) => figure.scrollWidth <= figure.clientWidth + 1") for each in figures.all())
        if AXE.exists():
            assert not accessibility_faults(page, "'figure'"), width
