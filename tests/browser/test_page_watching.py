"""nsqadmin's page shows the cluster, live."""

import base64
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browsers import AXE, accessibility_faults
from scene import Cluster, Traffic, order, reading

from daemons import Daemon, wait_until, write_metadata
from rawlookup import RawLookupClient, identify

if TYPE_CHECKING:
    from browsers import Opener
    from playwright.sync_api import Page

pytestmark = pytest.mark.timeout(120)

BUSY = "orders"
PHONE = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}


@pytest.fixture(scope="module", autouse=True)
def at_work(cluster: Cluster, traffic: Traffic) -> None:
    cluster.make_topic(BUSY, "billing", "archive")
    cluster.make_topic("sensor.readings", "archive")
    for number in range(12):
        cluster.make_topic(f"quiet.topic-{number:02d}", "worker", messages=number)
    traffic.publish(BUSY, 60, order)
    traffic.publish("sensor.readings", 10, reading)
    traffic.consume(BUSY, "billing", client_id="billing-0", user_agent="shop/1.0")


def expect(locator: Any) -> Any:
    from playwright.sync_api import expect

    return expect(locator)


def rows(page: "Page") -> Any:
    return page.get_by_role("table", name="Topics").get_by_role("row")


class TestTopics:
    def test_a_busy_topic_is_found_and_opened(self, admin: Daemon, open_page: "Opener") -> None:
        page = open_page(admin)
        page.get_by_role("button", name="Busy").click()
        expect(page.get_by_role("status").get_by_text("2 of 14 topics")).to_be_visible()
        page.get_by_role("columnheader", name="In/s").get_by_role("button").click()
        expect(rows(page).nth(1)).to_contain_text(BUSY)
        expect(page.get_by_role("columnheader", name="In/s")).to_have_attribute("aria-sort", "descending")
        page.get_by_role("link", name=BUSY).click()
        expect(page.get_by_role("heading", level=1, name=BUSY)).to_be_visible()
        assert page.url.endswith(f"/topics/{BUSY}")
        page.go_back()
        expect(page.get_by_role("button", name="Busy")).to_have_attribute("aria-pressed", "true")

    def test_a_search_filters_the_topics(self, admin: Daemon, open_page: "Opener") -> None:
        page = open_page(admin, "/topics?sort=-channels_depth")
        expect(rows(page)).to_have_count(15)
        page.get_by_label("Search topics").fill("QUIET 11")
        expect(rows(page)).to_have_count(2)
        expect(rows(page).nth(1)).to_contain_text("22")
        page.get_by_label("Search topics").fill("nothing like it")
        expect(page.get_by_text("No topic matches")).to_be_visible()
        page.get_by_role("button", name="Show all topics").click()
        expect(rows(page).nth(14)).to_be_visible()

    def test_a_topic_without_channels_shows_its_own_messages(self, module_fleet: Any, open_page: "Opener") -> None:
        nsqd = module_fleet.nsqd("nsqx")
        nsqd.post("/mpub", b"1\n2", topic="no.channels")
        address = f"--nsqd-http-address={nsqd.http_address}"
        page = open_page(module_fleet.nsqadmin("nsqx", address, "--poll-interval=200ms"))
        expect(rows(page).nth(1).get_by_role("cell").nth(4)).to_have_text("2")

    def test_rows_change_as_messages_arrive(self, admin: Daemon, open_page: "Opener") -> None:
        page = open_page(admin, f"/topics?q={BUSY}")
        waiting = rows(page).nth(1).get_by_role("cell").nth(4)
        before = waiting.inner_text()
        expect(waiting).not_to_have_text(before)
        assert page.evaluate("(canvas) => canvas.width > 0", page.locator("canvas").first.element_handle())

    def test_only_the_visible_rows_of_thousands_exist(
        self, cluster: Cluster, open_page: "Opener", tmp_path: Path, module_fleet: Any
    ) -> None:
        write_metadata(tmp_path, {f"many.{number:04d}": ["c"] for number in range(2500)})
        nsqd = module_fleet.nsqd("nsqx", data_path=tmp_path)
        admin = module_fleet.nsqadmin("nsqx", f"--nsqd-http-address={nsqd.http_address}", "--poll-interval=1s")
        page = open_page(admin)
        expect(page.get_by_text("2,500 topics")).to_be_visible()
        assert rows(page).count() < 80
        assert page.get_by_role("table").get_attribute("aria-rowcount") == "2501"
        page.keyboard.press("End")
        expect(page.get_by_role("link", name="many.2499")).to_be_visible()
        expect(page.get_by_role("link", name="many.0000")).to_have_count(0)
        page.get_by_role("columnheader", name="Topic").get_by_role("button").dblclick()
        expect(rows(page).nth(1)).to_be_attached()
        page.keyboard.press("Home")
        expect(page.get_by_role("link", name="many.2499")).to_be_in_viewport()
        page.keyboard.press("End")
        page.get_by_role("link", name="many.0003").click()
        expect(page.get_by_role("heading", level=1, name="many.0003")).to_be_in_viewport()
        page.go_back()
        expect(page.get_by_role("link", name="many.0003")).to_be_in_viewport()


class TestTopic:
    def test_the_chart_of_a_topic_moves(self, admin: Daemon, open_page: "Opener") -> None:
        page = open_page(admin, f"/topics/{BUSY}")
        chart = page.locator("figure", has_text="Messages")
        expect(chart.get_by_role("img")).to_have_attribute("aria-label", re.compile(r"Messages: published [1-9]\d*"))
        points = int(chart.get_attribute("data-points") or 0)
        picture = chart.screenshot()
        expect(chart).to_have_attribute("data-points", re.compile(rf"^(?!{points}$)\d+$"))
        assert int(chart.get_attribute("data-points") or 0) > points
        wait_until(lambda: chart.screenshot() != picture, "the line moves")

    def test_a_topic_shows_its_channels_and_nodes(self, admin: Daemon, cluster: Cluster, open_page: "Opener") -> None:
        page = open_page(admin, f"/topics/{BUSY}")
        for nsqd in cluster.nsqds:
            expect(page.get_by_role("link", name=nsqd.http_address)).to_be_visible()
        expect(page.get_by_role("row", name=re.compile("^archive")).get_by_text("No consumer")).to_be_visible()
        expect(page.get_by_role("cell", name="99 %")).to_be_visible()
        page.get_by_role("link", name="billing").click()
        expect(page.get_by_role("heading", level=1, name="billing")).to_be_visible()
        expect(page.get_by_role("cell", name="shop/1.0").first).to_be_visible()
        expect(page.get_by_role("row", name=re.compile("billing-0")).first).to_contain_text("127.0.0.1:")

    def test_an_unknown_topic_or_channel_is_reported(self, admin: Daemon, open_page: "Opener") -> None:
        page = open_page(admin, "/topics/no.such.topic")
        expect(page.get_by_text("There is no topic “no.such.topic”")).to_be_visible()
        expect(page.get_by_role("button", name="Delete…")).to_have_count(0)
        page.goto(f"http://{admin.http_address}/topics/{BUSY}/no-such-channel")
        expect(page.get_by_text("There is no channel “no-such-channel”")).to_be_visible()
        expect(page.get_by_role("button", name="Delete…")).to_have_count(0)

    def test_an_invalid_name_is_reported(self, admin: Daemon, open_page: "Opener") -> None:
        page = open_page(admin, "/topics/bad%20name")
        for path, text in (
            ("/topics/bad%20name", "“bad name” is not a valid topic name"),
            (f"/topics/{'x' * 65}", f"“{'x' * 65}” is not a valid topic name"),
            (f"/topics/{BUSY}/bad%20channel", "“bad channel” is not a valid channel name"),
            ("/topics/bad%20name?view=messages", "“bad name” is not a valid topic name"),
        ):
            page.goto(f"http://{admin.http_address}{path}")
            expect(page.get_by_text(text)).to_be_visible()
            expect(page.get_by_text("A name has 1 to 64 letters")).to_be_visible()
            for name in ("Delete…", "Empty…", "Pause", "Follow"):
                expect(page.get_by_role("button", name=name)).to_have_count(0)

    def test_an_unknown_path_is_reported(self, admin: Daemon, open_page: "Opener") -> None:
        page = open_page(admin, "/", complains_of=("404 (Not Found)",))
        for path in ("/nothing", "/topics/a/b/c", "/nodes/a/b", "/lookup/x"):
            answer = page.goto(f"http://{admin.http_address}{path}")
            assert answer is not None
            assert (answer.status, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
            expect(page.get_by_role("heading", level=1, name="Page not found")).to_be_visible()
        page.get_by_role("link", name="All topics").click()
        expect(page.get_by_role("heading", level=1, name="Topics")).to_be_visible()


class TestNodes:
    def test_a_node_shows_its_topics(self, admin: Daemon, cluster: Cluster, open_page: "Opener") -> None:
        page = open_page(admin, "/nodes")
        node = cluster.nsqds[0].http_address
        expect(page.get_by_role("row", name=re.compile(node))).to_contain_text("1 of 1")
        page.get_by_role("link", name=node).click()
        page.get_by_label("Search topics of this node").fill("ORDERS")
        channel = page.get_by_role("link", name="billing")
        expect(page.get_by_role("link", name=BUSY)).to_be_visible()
        expect(channel).to_have_count(0)
        page.get_by_role("button", name=f"Channels of {BUSY}").click()
        channel.click()
        expect(page.get_by_role("heading", level=1, name="billing")).to_be_visible()

    def test_old_versions_and_missing_registrations_cause_a_warning(
        self, cluster: Cluster, module_fleet: Any, open_page: "Opener"
    ) -> None:
        lonely = module_fleet.nsqlookupd("nsqx")
        lookupds = (cluster.lookupd, lonely)
        admin = module_fleet.nsqadmin("nsqx", *[f"--lookupd-http-address={each.http_address}" for each in lookupds])
        with RawLookupClient(lonely.tcp_address) as old:
            fields = {"broadcast_address": "127.0.0.9", "tcp_port": 1, "http_port": 1, "hostname": "museum"}
            old.ask(identify(version="0.3.8", **fields))
            page = open_page(admin, "/nodes")
            expect(page.get_by_role("row", name=re.compile("127.0.0.9:1"))).to_contain_text("0.3.8, older")
            expect(page.get_by_role("row", name=re.compile("127.0.0.9:1"))).to_contain_text("1 of 2")
            expect(page.get_by_text("1 nsqd runs an older version than 1.3.0")).to_be_visible()
            expect(page.get_by_text("3 nsqds are not registered with every nsqlookupd")).to_be_visible()

    def test_the_counter_counts(self, admin: Daemon, open_page: "Opener") -> None:
        page = open_page(admin, "/counter")
        counter = page.get_by_label(re.compile(r"^[\d,]+ messages$"))
        before = counter.inner_text()
        expect(counter).not_to_have_text(before)
        assert int(counter.inner_text().replace(",", "")) > int(before.replace(",", ""))


class TestMessages:
    def test_messages_are_followed_and_downloaded(self, admin: Daemon, cluster: Cluster, open_page: "Opener") -> None:
        page = open_page(admin, f"/topics/{BUSY}")
        page.get_by_role("button", name="Messages").click()
        page.get_by_role("button", name="Follow").click()
        message = page.get_by_role("article").first
        # Too large for a JavaScript number, but shown as published.
        expect(message).to_contain_text(re.compile(r'"order": 90071992547\d{5}'))
        expect(page.get_by_text(re.compile(r"Following on 2 of 2 nodes: \d+ received"))).to_be_visible()
        page.get_by_role("button", name="Stop").click()
        shown = message.get_attribute("aria-label")
        with page.expect_download() as saved:
            message.get_by_role("button", name=re.compile("^Download")).click()
        kept = json.loads(Path(saved.value.path()).read_text())
        assert kept["items"][0]["sku"].startswith("SKU-")
        assert saved.value.suggested_filename.endswith(".json")
        with page.expect_download() as saved:
            page.get_by_role("button", name="Download", exact=True).click()
        lines = Path(saved.value.path()).read_text().splitlines()
        assert shown is not None
        assert shown.endswith(json.loads(lines[-1])["id"])

        def is_gone() -> bool:
            topics = [nsqd.topic_stats(BUSY) for nsqd in cluster.nsqds]
            return all("tail" not in each["channel_name"] for topic in topics for each in topic["channels"])

        wait_until(is_gone, "the tail's channel is deleted when the viewer leaves")

    def test_binary_data_is_shown_as_a_hex_dump(self, admin: Daemon, open_page: "Opener") -> None:
        page = open_page(admin, "/topics/sensor.readings?view=messages")
        page.get_by_role("button", name="Follow").click()
        expect(page.get_by_role("article").first).to_contain_text(re.compile(r"000020 {2}([0-9a-f]{2} ){8}ff 00"))

    def test_a_published_test_message_is_shown(self, admin: Daemon, open_page: "Opener") -> None:
        page = open_page(admin, "/topics/quiet.topic-00?view=messages")
        page.get_by_role("button", name="Follow").click()
        expect(page.get_by_text("Following on 2 of 2 nodes")).to_be_visible()
        form = page.get_by_role("form", name="Publish a test message")
        form.get_by_label("Body", exact=True).fill('{"hello": [1, 2}')
        expect(form.get_by_text("invalid JSON")).to_be_visible()
        form.get_by_label("Body", exact=True).fill('{"hello":[1,2]}')
        expect(form.get_by_text("valid JSON", exact=True)).to_be_visible()
        form.get_by_role("button", name="Publish").click()
        expect(form.get_by_role("status")).to_contain_text("Published 15 B on 127.0.0.1:")
        expect(page.get_by_role("article").first).to_contain_text('"hello": [1, 2]')
        form.get_by_label("Body", exact=True).fill("[" * 60 + "]" * 60)
        form.get_by_role("button", name="Publish").click()
        expect(page.get_by_role("article").first).to_contain_text("[" * 60)
        form.get_by_label("Encoding").select_option("base64")
        form.get_by_label("Body", exact=True).fill(base64.b64encode(b"\xff\xfe").decode())
        form.get_by_role("button", name="Publish").click()
        expect(page.get_by_role("article").first).to_contain_text("000000  ff fe")


class TestFollowing:
    """The texts about following are true."""

    def test_a_topic_without_a_channel_is_not_followed(
        self, admin: Daemon, cluster: Cluster, open_page: "Opener"
    ) -> None:
        cluster.make_topic("untouched", messages=5)
        page = open_page(admin, "/topics/untouched?view=messages")
        page.get_by_role("button", name="Follow").click()
        expect(page.get_by_text("The topic is not followed")).to_be_visible()
        expect(
            page.get_by_text(re.compile("the topic has no channel on this nsqd.*Create a channel first")).first
        ).to_be_visible()
        assert [nsqd.topic_stats("untouched")["depth"] for nsqd in cluster.nsqds] == [5, 5]
        page.get_by_role("button", name="New channel").click()
        page.get_by_label("Channel", exact=True).fill("first")
        page.get_by_role("button", name="Create").click()
        page.get_by_role("dialog").get_by_role("button", name="Close").last.click()
        expect(page.get_by_text("Following on 2 of 2 nodes")).to_be_visible()
        assert [nsqd.channel_stats("untouched", "first")["depth"] for nsqd in cluster.nsqds] == [5, 5]
        admin.request("DELETE", "/api/topics/untouched")

    def test_a_searched_text_is_found_and_shown_decoded(
        self, admin: Daemon, cluster: Cluster, open_page: "Opener"
    ) -> None:
        page = open_page(admin, f"/topics/{BUSY}?view=messages")
        page.get_by_label("Show up to").select_option("1")
        page.get_by_label("Contains").fill("李雷")
        page.get_by_role("button", name="Follow").click()
        expect(page.get_by_text("No message contains this text")).to_be_visible()
        expect(page.get_by_text(re.compile(r"[1-9][\d,]* messages were searched since"))).to_be_visible()
        body = json.dumps({"customer": "李雷", "said": 'a "b" \n', "hidden": "\u202e"}).encode()
        assert b"\\u674e" in body
        cluster.nsqds[0].post("/pub", body, topic=BUSY)
        shown = page.get_by_role("article")
        expect(shown).to_have_count(1)
        expect(shown).to_contain_text('"customer": "李雷"')
        expect(shown).to_contain_text('"said": "a \\"b\\" \\n"')
        expect(shown).to_contain_text('"hidden": "\\u202e"')
        expect(page.get_by_text(re.compile(r"[\d,]+ searched, 1 contains “李雷”"))).to_be_visible()
        with page.expect_download() as saved:
            shown.get_by_role("button", name=re.compile("^Download")).click()
        assert Path(saved.value.path()).read_bytes() == body
        page.get_by_role("button", name="Stop").click()
        page.get_by_label("Contains").fill("nothing like it")
        expect(page.get_by_text("No message on this page contains this text")).to_be_visible()

    def test_messages_over_the_limit_are_counted(self, admin: Daemon, open_page: "Opener") -> None:
        page = open_page(admin, f"/topics/{BUSY}?view=messages")
        page.get_by_label("Show up to").select_option("1")
        page.get_by_label("Contains").fill("customer")
        page.get_by_role("button", name="Follow").click()
        expect(page.get_by_text(re.compile(r"contain “customer”, [1-9]\d* skipped by the rate limit"))).to_be_visible()

    def test_a_paused_topic_is_reported_as_paused(self, admin: Daemon, cluster: Cluster, open_page: "Opener") -> None:
        topic = "quiet.topic-01"
        for nsqd in cluster.nsqds:
            nsqd.post("/topic/pause", topic=topic)
        page = open_page(admin, f"/topics/{topic}?view=messages")
        page.get_by_role("button", name="Follow").click()
        expect(page.get_by_text("The topic is paused: new messages wait in the topic")).to_be_visible()
        for nsqd in cluster.nsqds:
            nsqd.post("/topic/unpause", topic=topic)
        expect(page.get_by_text("Waiting for messages")).to_be_visible()


class TestEverywhere:
    def test_the_page_works_with_the_keyboard_alone(self, admin: Daemon, open_page: "Opener") -> None:
        page = open_page(admin, "/topics?sort=name")
        expect(rows(page).nth(14)).to_be_visible()
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        page.keyboard.press("/")
        expect(page.get_by_label("Search topics")).to_be_focused()
        page.keyboard.type("quiet")
        expect(rows(page)).to_have_count(13)
        for _ in range(3):
            page.keyboard.press("ArrowDown")
        expect(page.get_by_role("link", name="quiet.topic-02")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1, name="quiet.topic-02")).to_be_focused()
        page.keyboard.press("?")
        expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(page.get_by_role("heading", level=1, name="quiet.topic-02")).to_be_focused()
        for key, name in (("n", "Nodes"), ("l", "Lookup"), ("c", "Counter"), ("a", "Activity"), ("t", "Topics")):
            page.keyboard.press("g")
            page.keyboard.press(key)
            expect(page.get_by_role("heading", level=1, name=name)).to_be_visible()

    def test_a_phone_needs_no_horizontal_scrolling(self, admin: Daemon, cluster: Cluster, open_page: "Opener") -> None:
        page = open_page(admin, "/", **PHONE)
        node = cluster.nsqds[0].http_address
        for path in (*VIEWS, f"/nodes/{node}", f"/topics/{BUSY}?view=messages", "/topics/bad%20name"):
            page.goto(f"http://{admin.http_address}{path}")
            settled(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
        page.get_by_role("navigation", name="Views").get_by_role("link", name="Nodes").click()
        expect(page.get_by_role("heading", level=1, name="Nodes")).to_be_visible()

    def test_colours_follow_the_system_or_the_choice(self, admin: Daemon, open_page: "Opener") -> None:
        def ground() -> int:
            return sum(map(int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))))

        page = open_page(admin, color_scheme="dark")
        assert ground() < 150
        page.get_by_role("button", name="Colours: system. Switch to light").click()
        assert ground() > 600
        page.reload()
        expect(page.get_by_role("button", name="Colours: light. Switch to dark")).to_be_visible()
        assert ground() > 600

    def test_the_layout_does_not_shift_while_numbers_change(self, admin: Daemon, open_page: "Opener") -> None:
        page = open_page(admin, f"/topics/{BUSY}")
        settled(page)
        expect(page.get_by_role("cell", name="99 %")).to_be_visible()
        page.evaluate(
            "window.jumps = 0; new PerformanceObserver((list) => { for (const entry of list.getEntries())"
            " window.jumps += entry.value; }).observe({type: 'layout-shift'})"
        )
        chart = page.locator("figure", has_text="Messages")
        points = int(chart.get_attribute("data-points") or 0)
        wait_until(lambda: int(chart.get_attribute("data-points") or 0) > points + 8, "eight more polls")
        assert page.evaluate("window.jumps") < 0.01

    @pytest.mark.parametrize(("scheme", "rules"), [("light", "{}"), ("dark", "{runOnly: ['color-contrast']}")])
    def test_every_control_has_a_name_and_every_text_has_contrast(
        self, admin: Daemon, cluster: Cluster, open_page: "Opener", scheme: str, rules: str
    ) -> None:
        if not AXE.exists():
            pytest.skip("axe-core is not installed: run make ui (needs npm)")
        page = open_page(admin, color_scheme=scheme)
        node = cluster.nsqds[0].http_address
        for path in (*VIEWS, f"/nodes/{node}", f"/topics/{BUSY}?view=messages", "/topics/bad%20name"):
            page.goto(f"http://{admin.http_address}{path}")
            settled(page)
            assert not accessibility_faults(page, rules), path


VIEWS = (
    *("/topics", "/channels", "/consumers", f"/topics/{BUSY}", f"/topics/{BUSY}/billing"),
    *("/nodes", "/lookup", "/counter", "/activity"),
)


def settled(page: "Page") -> None:
    """Wait until everything is loaded."""
    page.get_by_role("heading", level=1).wait_for()
    expect(page.locator("[aria-label^=Loading]")).to_have_count(0)
