"""The numbers that operators decide by, and the views that have them, at several sizes and in both colours."""

import re
from typing import TYPE_CHECKING, Any

import pytest
from browsers import AXE, accessibility_faults
from scene import Cluster, Traffic, order

from daemons import GO_PROGRAMS, Daemon, Fleet, wait_until

if TYPE_CHECKING:
    from browsers import Opener
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.timeout(180)

BUSY, STUCK, FAILING = "orders", "carts.abandoned", "webhooks"
LONG = "a-very-long-name.with.many.parts.to.test.the.layout.of.the.page1"
SIZES = {360: 740, 768: 1024, 1440: 900, 2560: 1300}
NEW_VIEWS = (
    "/channels",
    "/consumers",
    "/nodes",
    "/nodes/{node}",
    "/topics",
    f"/topics/{BUSY}",
    f"/topics/{BUSY}/billing",
)
LONG_VIEWS = (f"/topics/{LONG}", f"/topics/{LONG}/{LONG}", "/topics/bad%20name", "/nodes/no%20such:1")


@pytest.fixture(scope="module", autouse=True)
def at_work(cluster: Cluster, traffic: Traffic) -> None:
    cluster.make_topic(BUSY, "billing", "archive")
    cluster.make_topic(STUCK, "emails", messages=40)
    cluster.make_topic(FAILING, "sender")
    cluster.make_topic(LONG, LONG, messages=3)
    cluster.make_topic("idle", "worker")
    traffic.publish(BUSY, 60, order)
    for topic, channel in ((BUSY, "billing"), (BUSY, "archive"), ("idle", "worker")):
        traffic.consume(topic, channel, client_id=f"{channel}-0", user_agent="shop/1.0")


def expect(locator: Any) -> Any:
    from playwright.sync_api import expect

    return expect(locator)


def settled(page: "Page") -> None:
    """Wait until everything is loaded."""
    page.get_by_role("heading", level=1).wait_for()
    expect(page.locator("[aria-label^=Loading]")).to_have_count(0)


def rows(page: "Page", table: str) -> "Locator":
    return page.get_by_role("table", name=table).locator("tbody").get_by_role("row")


def cell(row: "Locator", label: str) -> "Locator":
    return row.locator(f'[data-label="{label}"]')


class TestChannels:
    def test_channels_that_need_attention_are_first(self, admin: Daemon, open_page: "Opener") -> None:
        page = open_page(admin, "/channels")
        first = rows(page, "Channels").first
        expect(first).to_contain_text("emails")
        expect(first).to_contain_text("No consumer")
        expect(cell(first, "Waiting")).to_have_text("80")
        expect(cell(first, "Oldest")).to_have_text(re.compile(r"^\d+ (s|min)$"))
        expect(cell(first, "Drains in")).to_have_text("not shrinking")
        busy = rows(page, "Channels").filter(has_text="billing")
        expect(cell(busy, "In/s")).to_have_text(re.compile(r"^[1-9]"))
        expect(cell(busy, "Out/s")).to_have_text(re.compile(r"^[1-9]"))
        expect(cell(busy, "Latency")).to_have_text(re.compile(r"\d (µs|ms|s)$"))
        busy.get_by_role("link", name="billing").click()
        expect(page.get_by_role("heading", level=1, name="billing")).to_be_visible()
        page.go_back()
        expect(page.get_by_role("heading", level=1, name="Channels")).to_be_visible()

    def test_search_filter_and_order_are_in_the_address(self, admin: Daemon, open_page: "Opener") -> None:
        page = open_page(admin, "/channels")
        page.get_by_label("Search channels").fill("ORDERS bill")
        expect(rows(page, "Channels")).to_have_count(1)
        expect(page.get_by_role("status").get_by_text(re.compile(r"^1 of \d+ channels$"))).to_be_visible()
        page.get_by_label("Search channels").fill("")
        page.get_by_role("button", name="Busy").click()
        expect(rows(page, "Channels")).to_have_count(2)
        page.get_by_role("columnheader", name="Topic").get_by_role("button").click()
        expect(page.get_by_role("columnheader", name="Topic")).to_have_attribute("aria-sort", "ascending")
        assert "filter=busy" in page.url
        assert "sort=topic" in page.url
        page.reload()
        expect(rows(page, "Channels")).to_have_count(2)
        page.get_by_label("Search channels").fill("nothing like it")
        expect(page.get_by_text("No channel matches")).to_be_visible()
        page.get_by_role("button", name="Show all channels").click()
        expect(rows(page, "Channels").first).to_be_visible()

    def test_a_growing_backlog_is_a_backlog(
        self, admin: Daemon, cluster: Cluster, open_page: "Opener", topic: str
    ) -> None:
        cluster.make_topic(topic, "slow")
        page = open_page(admin, f"/channels?q={topic}")
        row = rows(page, "Channels").first

        def grow() -> bool:
            cluster.nsqds[0].post("/mpub", b"\n".join([b"x"] * 50), topic=topic)
            return cell(row, "Drains in").inner_text() == "growing"

        wait_until(grow, "the backlog grows", 30)
        admin.request("DELETE", f"/api/topics/{topic}")

    def test_requeues_are_counted_per_minute(self, admin: Daemon, cluster: Cluster, open_page: "Opener") -> None:
        from rawclient import RawClient

        nsqd = cluster.nsqds[0]
        page = open_page(admin, f"/channels?q={FAILING}")
        row = rows(page, "Channels").first
        expect(cell(row, "Requeues/min")).to_have_text("0")
        nsqd.post("/pub", b"x", topic=FAILING)
        with RawClient(nsqd.tcp_address) as consumer:
            consumer.sub(FAILING, "sender")
            for _ in range(3):
                consumer.rdy(1)
                message_id = consumer.read_message().id
                consumer.rdy(0)
                consumer.req(message_id, 0)
            expect(cell(row, "Requeues/min")).to_have_text(re.compile(r"^[1-9]"))


class TestTopics:
    def test_topics_that_need_attention_are_first(self, admin: Daemon, open_page: "Opener") -> None:
        page = open_page(admin, "/topics")
        table = page.get_by_role("table", name="Topics")
        expect(table.get_by_role("row").nth(1)).to_contain_text(re.compile(f"{STUCK}|{LONG}"))
        page.get_by_role("columnheader", name="Oldest").get_by_role("button").click()
        expect(table.get_by_role("row").nth(1)).to_contain_text(re.compile(r"\d (s|min)"))
        page.get_by_role("button", name="No consumer").click()
        expect(table.get_by_role("row").nth(1)).not_to_contain_text(BUSY)

    def test_the_channels_of_a_topic_have_rates_ages_and_latencies(self, admin: Daemon, open_page: "Opener") -> None:
        page = open_page(admin, f"/topics/{BUSY}")
        row = rows(page, "Channels").filter(has_text="billing")
        expect(cell(row, "Out/s")).to_have_text(re.compile(r"^[1-9]"))
        expect(cell(row, "Latency p99")).to_have_text(re.compile(r"\d (µs|ms|s)$"))
        expect(page.get_by_label("The topic in numbers")).to_contain_text("channels, per second")
        page.goto(f"http://{admin.http_address}/topics/{STUCK}/emails")
        numbers = page.get_by_label("The channel in numbers")
        expect(numbers).to_contain_text("not shrinking")
        expect(numbers).to_contain_text(re.compile(r"Oldest\s*\d+ (s|min)"))


class TestConsumers:
    def test_all_consumers_with_their_rates(self, admin: Daemon, open_page: "Opener") -> None:
        page = open_page(admin, "/consumers")
        expect(rows(page, "Consumers")).to_have_count(3)
        row = rows(page, "Consumers").filter(has_text="billing-0")
        expect(row).to_contain_text("shop/1.0")
        expect(cell(row, "Connections")).to_have_text("2 to 2 nodes")
        expect(cell(row, "Finished/s")).to_have_text(re.compile(r"^[1-9]"))
        page.get_by_label("Search consumers").fill("worker")
        expect(rows(page, "Consumers")).to_have_count(1)
        page.get_by_label("Search consumers").fill("")
        page.get_by_role("columnheader", name="Finished/s").get_by_role("button").click()
        expect(rows(page, "Consumers").nth(2)).to_contain_text("worker-0")
        row.get_by_role("link", name="billing").click()
        expect(page.get_by_role("heading", level=1, name="billing")).to_be_visible()


class TestNodes:
    def test_nodes_have_memory_disk_and_rates(self, admin: Daemon, cluster: Cluster, open_page: "Opener") -> None:
        page = open_page(admin, "/nodes")
        row = page.get_by_role("row", name=re.compile(cluster.nsqds[0].http_address))
        expect(cell(row, "Version")).to_contain_text(re.compile(r"nsqx \d"))
        expect(cell(row, "Memory")).to_have_text(re.compile(r"MiB$"))
        expect(cell(row, "Disk free")).to_contain_text("%")
        expect(cell(row, "In/s")).to_have_text(re.compile(r"^[1-9]"))
        expect(cell(row, "Connections")).to_have_text(re.compile(r"^[1-9]\d*$"))
        row.get_by_role("link").first.click()
        process = page.get_by_label("The process")
        expect(process).to_contain_text("resident")
        expect(process).to_contain_text("Uptime")

    def test_what_go_does_not_report_is_unknown_and_not_0(
        self, cluster: Cluster, module_fleet: Fleet, open_page: "Opener"
    ) -> None:
        if not (GO_PROGRAMS / "nsqd").exists():
            pytest.skip('Go\'s nsqd is missing: run "make interop" (needs Go)')
        theirs = module_fleet.nsqd("go")
        theirs.post("/topic/create", topic="old")
        theirs.post("/channel/create", topic="old", channel="c")
        theirs.post("/pub", b"x", topic="old")
        nsqds = [f"--nsqd-http-address={each.http_address}" for each in (theirs, cluster.nsqds[0])]
        admin = module_fleet.nsqadmin("nsqx", "--poll-interval=250ms", "--history-window=5m", *nsqds)
        page = open_page(admin, "/channels?q=old")
        row = rows(page, "Channels").first
        expect(cell(row, "Waiting")).to_have_text("1")
        expect(cell(row, "Oldest")).to_have_text("unknown")
        page.goto(f"http://{admin.http_address}/nodes")
        expect(page.get_by_text(re.compile(r"1 × nsqx \S+, 1 × Go 1\.3\.0"))).to_be_visible()
        row = page.get_by_role("row", name=re.compile(theirs.http_address))
        expect(cell(row, "Version")).to_have_text("Go 1.3.0")
        expect(cell(row, "Disk free")).to_have_text("unknown")
        expect(cell(row, "Memory")).to_have_text(re.compile(r"iB$"))
        theirs.kill()
        expect(cell(row, "State")).to_have_text("No answer")
        expect(page.get_by_text("deadline exceeded")).to_have_count(0)


class TestLayout:
    @pytest.mark.parametrize(
        ("width", "scheme"),
        [*((width, scheme) for width in (360, 768, 1440) for scheme in ("light", "dark")), (2560, "light")],
    )
    def test_every_view_fits_and_is_accessible(
        self, admin: Daemon, cluster: Cluster, open_page: "Opener", width: int, scheme: str
    ) -> None:
        size = {"width": width, "height": SIZES[width]}
        page = open_page(admin, "/topics", viewport=size, color_scheme=scheme, complains_of=("404 (Not Found)",))
        checks_rules = AXE.exists() and width != 2560
        for path in (*NEW_VIEWS, *LONG_VIEWS):
            page.goto(f"http://{admin.http_address}{path.format(node=cluster.nsqds[0].http_address)}")
            settled(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path
            if width in (360, 768):
                cut = page.evaluate(
                    "[...document.querySelectorAll('.table-scroll')]"
                    ".some((each) => each.scrollWidth > each.clientWidth + 1)"
                )
                assert not cut, f"{path}: a table is wider than its card"
            if checks_rules and path in NEW_VIEWS:
                rules = "{}" if scheme == "light" else "{runOnly: ['color-contrast']}"
                assert not accessibility_faults(page, rules), path

    def test_a_wide_screen_is_used_and_names_are_not_cut(self, admin: Daemon, open_page: "Opener") -> None:
        page = open_page(admin, "/topics", viewport={"width": 2560, "height": 1300})
        name = page.get_by_role("link", name=LONG)
        expect(name).to_be_visible()
        assert name.evaluate("(link) => link.scrollWidth <= link.clientWidth")
        table = page.get_by_role("table", name="Topics").bounding_box()
        assert table is not None
        assert table["width"] > 2200

    def test_the_views_behind_more_are_reached_on_a_phone(self, admin: Daemon, open_page: "Opener") -> None:
        page = open_page(admin, "/topics", viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
        views = page.get_by_role("navigation", name="Views")
        expect(views.get_by_role("link", name="Consumers")).to_have_count(0)
        views.get_by_role("button", name="More").click()
        views.get_by_role("link", name="Consumers").click()
        expect(page.get_by_role("heading", level=1, name="Consumers")).to_be_visible()
        expect(views.get_by_role("link", name="Consumers")).to_have_count(0)

    def test_back_returns_to_the_view_before(self, admin: Daemon, open_page: "Opener") -> None:
        page = open_page(admin, f"/topics/{BUSY}")
        page.get_by_role("button", name="Browse").click()
        expect(page.get_by_role("button", name="Browse")).to_have_attribute("aria-pressed", "true")
        page.go_back()
        expect(page.get_by_role("button", name="Numbers")).to_have_attribute("aria-pressed", "true")
        expect(page.get_by_label("The topic in numbers")).to_be_visible()
