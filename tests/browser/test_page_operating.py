"""Operations on nsqadmin's page, and their effect on the nsqds."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browsers import AXE, accessibility_faults
from scene import Cluster, Traffic

from daemons import Daemon, Fleet, wait_until

if TYPE_CHECKING:
    from browsers import Opener
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.timeout(120)


def expect(locator: Any) -> Any:
    from playwright.sync_api import expect

    return expect(locator)


def button(page: "Page | Locator", name: str) -> "Locator":
    return page.get_by_role("button", name=name, exact=True)


def finish(page: "Page", nsqd_count: int, *others: Daemon) -> None:
    """Check the result of every node and close the dialog."""
    outcomes = page.get_by_role("list", name="Result per node").get_by_role("listitem")
    expect(outcomes).to_have_count(nsqd_count + len(others))
    expect(outcomes.filter(has_text="done")).to_have_count(nsqd_count + len(others))
    button(page.get_by_role("dialog"), "Close").last.click()
    expect(page.get_by_role("dialog")).to_have_count(0)


def paused(cluster: Cluster, topic: str, channel: str) -> list[bool]:
    return [nsqd.channel_stats(topic, channel)["paused"] for nsqd in cluster.nsqds]


def depths(cluster: Cluster, topic: str, channel: str) -> list[int]:
    return [nsqd.channel_stats(topic, channel)["depth"] for nsqd in cluster.nsqds]


class TestChannel:
    def test_a_channel_is_paused_and_resumed(
        self, admin: Daemon, cluster: Cluster, open_page: "Opener", topic: str
    ) -> None:
        cluster.make_topic(topic, "c")
        page = open_page(admin, f"/topics/{topic}/c")
        button(page, "Pause").click()
        dialog = page.get_by_role("dialog", name="Pause channel c")
        expect(button(dialog, "Pause")).to_be_focused()
        button(dialog, "Pause").click()
        finish(page, 2)
        assert paused(cluster, topic, "c") == [True, True]
        expect(page.get_by_text("Paused").first).to_be_visible()
        button(page, "Resume").click()
        page.keyboard.press("Enter")
        finish(page, 2)
        assert paused(cluster, topic, "c") == [False, False]
        expect(button(page, "Pause")).to_be_visible()

    def test_a_channel_is_paused_on_one_node(
        self, admin: Daemon, cluster: Cluster, open_page: "Opener", topic: str
    ) -> None:
        cluster.make_topic(topic, "c")
        page = open_page(admin, f"/topics/{topic}/c")
        button(page, f"Pause on {cluster.nsqds[1].http_address}").click()
        expect(page.get_by_label("Where")).to_have_value(cluster.nsqds[1].http_address)
        button(page.get_by_role("dialog"), "Pause").click()
        finish(page, 1)
        assert paused(cluster, topic, "c") == [False, True]

    def test_a_channel_is_emptied_after_its_name_is_typed(
        self, admin: Daemon, cluster: Cluster, open_page: "Opener", topic: str
    ) -> None:
        cluster.make_topic(topic, "c", "kept", messages=5)
        wait_until(lambda: depths(cluster, topic, "c") == [5, 5], "the messages are in the channel")
        page = open_page(admin, f"/topics/{topic}/c")
        expect(page.get_by_label("The channel in numbers")).to_contain_text("10")
        button(page, "Empty…").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("(now 10 messages)")
        expect(dialog.get_by_label("Type c to confirm")).to_be_focused()
        expect(button(dialog, "Empty")).to_be_disabled()
        page.keyboard.type("C")
        page.keyboard.press("Enter")
        expect(button(dialog, "Empty")).to_be_disabled()
        page.keyboard.press("Backspace")
        page.keyboard.type("c")
        assert depths(cluster, topic, "c") == [5, 5]
        page.keyboard.press("Enter")
        finish(page, 2)
        assert depths(cluster, topic, "c") == [0, 0]
        assert depths(cluster, topic, "kept") == [5, 5]
        expect(page.get_by_label("The channel in numbers").get_by_text("0").first).to_be_visible()

    def test_a_channel_is_created_and_deleted(
        self, admin: Daemon, cluster: Cluster, open_page: "Opener", topic: str
    ) -> None:
        cluster.make_topic(topic)
        page = open_page(admin, f"/topics/{topic}")
        button(page, "New channel").click()
        page.get_by_label("Channel", exact=True).fill("made#ephemeral")
        button(page, "Create").click()
        outcomes = page.get_by_role("list", name="Result per node").get_by_role("listitem")
        expect(outcomes.filter(has_text="done")).to_have_count(3)
        button(page, "Open it").click()
        expect(page.get_by_role("heading", level=1, name="made#ephemeral")).to_be_visible()
        assert all(nsqd.channel_stats(topic, "made#ephemeral") for nsqd in cluster.nsqds)
        button(page, "Delete…").click()
        page.get_by_label("Type made#ephemeral to confirm").fill("made#ephemeral")
        button(page.get_by_role("dialog"), "Delete").click()
        finish(page, 2, cluster.lookupd)
        expect(page.get_by_text("The channel is deleted")).to_be_visible()
        assert not any(nsqd.channel_stats(topic, "made#ephemeral") for nsqd in cluster.nsqds)


class TestTopic:
    def test_a_topic_is_removed_from_one_node_then_deleted(
        self, admin: Daemon, cluster: Cluster, open_page: "Opener", topic: str
    ) -> None:
        cluster.make_topic(topic, "c", messages=2)
        page = open_page(admin, f"/topics/{topic}")
        gone, kept = cluster.nsqds
        button(page, f"Tombstone on {gone.http_address}").click()
        page.get_by_label(f"Type {topic} to confirm").fill(topic)
        button(page, "Tombstone and delete").click()
        finish(page, 1, cluster.lookupd)
        assert gone.topic_stats(topic) is None
        assert kept.topic_stats(topic) is not None
        expect(page.get_by_role("link", name=gone.http_address)).to_have_count(0)
        button(page, "Delete…").click()
        page.get_by_label(f"Type {topic} to confirm").fill(topic)
        button(page.get_by_role("dialog"), "Delete").click()
        finish(page, 1, cluster.lookupd)
        expect(page.get_by_text("The topic is deleted")).to_be_visible()
        assert kept.topic_stats(topic) is None
        page.get_by_role("link", name="All topics").click()
        expect(page.get_by_role("heading", level=1, name="Topics")).to_be_visible()
        expect(page.get_by_role("link", name=topic)).to_have_count(0)

    def test_an_inactive_topic_is_created_and_deleted(
        self, admin: Daemon, cluster: Cluster, open_page: "Opener", topic: str
    ) -> None:
        page = open_page(admin, "/lookup")
        button(page, "New topic").click()
        page.get_by_label("Topic", exact=True).fill(topic)
        page.get_by_label("Channel (optional)").fill("c")
        button(page, "Create").click()
        finish(page, 0, cluster.lookupd)
        expect(page.get_by_role("cell", name=topic, exact=True)).to_be_visible()
        button(page, f"Delete topic {topic}").click()
        page.get_by_label(f"Type {topic} to confirm").fill(topic)
        button(page.get_by_role("dialog"), "Delete").click()
        finish(page, 0, cluster.lookupd)
        expect(page.get_by_role("cell", name=topic, exact=True)).to_have_count(0)

    def test_a_created_topic_is_listed_at_once(
        self, cluster: Cluster, fleet: Fleet, open_page: "Opener", topic: str
    ) -> None:
        # The next poll is a minute away.
        admin = fleet.nsqadmin(
            "nsqx",
            f"--lookupd-http-address={cluster.lookupd.http_address}",
            "--poll-interval=1m",
            "--history-window=1h",
        )
        page = open_page(admin, "/topics")
        button(page, "New topic").click()
        page.get_by_label("Topic", exact=True).fill(topic)
        button(page, "Create").click()
        finish(page, 0, cluster.lookupd)
        expect(page.get_by_role("row", name=re.compile(topic))).to_contain_text("No nsqd")
        page.get_by_role("link", name=topic).click()
        expect(page.get_by_text("No nsqd has this topic yet")).to_be_visible()
        admin.request("DELETE", f"/api/topics/{topic}")

    def test_an_invalid_name_is_not_sent(self, admin: Daemon, open_page: "Opener") -> None:
        page = open_page(admin, "/topics")
        button(page, "New topic").click()
        page.get_by_label("Topic", exact=True).fill("no spaces")
        button(page, "Create").click()
        assert page.get_by_label("Topic", exact=True).evaluate("(input) => input.validity.patternMismatch")

    def test_actions_are_listed(self, admin: Daemon, cluster: Cluster, open_page: "Opener", topic: str) -> None:
        cluster.make_topic(topic)
        page = open_page(admin, f"/topics/{topic}")
        button(page, "Pause").click()
        page.keyboard.press("Enter")
        finish(page, 2)
        page.get_by_role("link", name="Activity").click()
        row = page.get_by_role("row", name=re.compile(rf"pause topic {topic}"))
        expect(row).to_contain_text("done")


class TestLoss:
    @pytest.fixture
    def frail(self, fleet: Fleet, tmp_path: Path) -> Cluster:
        """A cluster in which one nsqd keeps its data across restarts."""
        cluster = Cluster(fleet, nsqd_count=1)
        cluster.nsqds.append(cluster.start_nsqd(data_path=tmp_path))
        return cluster

    def test_an_nsqd_stops_and_returns(
        self, chromium: object, frail: Cluster, open_page: "Opener", topic: str, tmp_path: Path
    ) -> None:
        frail.make_topic(topic, "c")
        admin = frail.admin()
        leaving = frail.nsqds[1]
        with Traffic(frail) as traffic:
            traffic.publish(topic, 20)
            page = open_page(admin, f"/topics/{topic}")
            health = page.get_by_role("region", name="Health of the cluster")
            traffic.consume(topic, "c")
            expect(health).to_contain_text("Healthy")
            expect(page.get_by_role("link", name=leaving.http_address)).to_be_visible()
            leaving.kill()
            expect(health).to_contain_text("Degraded")
            expect(health).to_contain_text(leaving.http_address)
            button(page, "Details").click()
            expect(page.get_by_role("dialog", name="Problems")).to_contain_text(leaving.http_address)
            page.keyboard.press("Escape")
            expect(page.get_by_role("link", name=leaving.http_address)).to_have_count(0)
            # The numbers of the other nsqd continue.
            chart = page.locator("figure", has_text="Messages")
            points = int(chart.get_attribute("data-points") or 0)
            wait_until(lambda: int(chart.get_attribute("data-points") or 0) > points, "the chart continues")
            page.get_by_role("link", name="Nodes", exact=True).click()
            expect(page.get_by_role("row", name=re.compile(leaving.http_address))).to_contain_text("Missing")
            page.go_back()
            addresses = (f"--tcp-address={leaving.tcp_address}", f"--http-address={leaving.http_address}")
            frail.nsqds[1] = frail.start_nsqd(*addresses, data_path=tmp_path)
            expect(health).to_contain_text("Healthy")
            expect(page.get_by_role("link", name=leaving.http_address)).to_be_visible()

    def test_nsqadmin_stops_and_returns(self, cluster: Cluster, fleet: Fleet, open_page: "Opener", topic: str) -> None:
        cluster.make_topic(topic)
        flags = (f"--lookupd-http-address={cluster.lookupd.http_address}", "--poll-interval=250ms")
        admin = fleet.nsqadmin("nsqx", *flags)
        page = open_page(admin, "/topics", complains_of=("net::ERR_",))
        health = page.get_by_role("region", name="Health of the cluster")
        expect(page.get_by_role("link", name=topic)).to_be_visible()
        address = admin.http_address
        admin.kill()
        expect(health).to_contain_text("nsqadmin does not answer")
        expect(page.get_by_role("link", name=topic)).to_be_visible()
        fleet.nsqadmin("nsqx", f"--http-address={address}", *flags)
        expect(health).to_contain_text(re.compile("Healthy|Trouble"))

    def test_every_view_reports_that_nsqadmin_does_not_answer(
        self, cluster: Cluster, fleet: Fleet, open_page: "Opener", topic: str
    ) -> None:
        cluster.make_topic(topic, "c")
        admin = fleet.nsqadmin("nsqx", f"--lookupd-http-address={cluster.lookupd.http_address}")
        page = open_page(admin, "/activity", complains_of=("net::ERR_", "Failed to load resource"))
        expect(page.get_by_text("No actions yet")).to_be_visible()
        node = cluster.nsqds[0].http_address
        admin.kill()
        for path in (
            "/topics",
            f"/topics/{topic}",
            f"/topics/{topic}/c",
            "/nodes",
            f"/nodes/{node}",
            "/lookup",
            "/activity",
        ):
            page.evaluate(
                "(path) => { history.pushState(null, '', path); dispatchEvent(new PopStateEvent('popstate')); }", path
            )
            expect(page.locator("main").get_by_text("nsqadmin does not answer").first).to_be_visible()
            expect(page.locator("[aria-label^=Loading]")).to_have_count(0)
            for name in ("Delete…", "Empty…"):
                expect(button(page, name)).to_have_count(0)
            said = page.locator("body").inner_text()
            assert not re.search(r"(^|\n)\s*[,;:]|[,;]\s*(\n|$)|undefined|null|NaN", said), (path, said)

    def test_the_page_retries_if_the_settings_fail(self, cluster: Cluster, admin: Daemon, open_page: "Opener") -> None:
        page = open_page(admin, "/ping", complains_of=("Failed to load resource", "net::ERR_"))
        page.route("**/api/settings", lambda route: route.abort())
        page.goto(f"http://{admin.http_address}/topics")
        expect(page.get_by_text("nsqadmin does not answer")).to_be_visible()
        expect(page.get_by_role("contentinfo")).to_have_text(re.compile(r"^nsqx\s*Licences$"))

    def test_a_lost_node_is_missing_until_it_is_forgotten(
        self, chromium: object, frail: Cluster, open_page: "Opener", topic: str
    ) -> None:
        frail.make_topic(topic, "c")
        lost = frail.nsqds[1]
        lost.post("/mpub", b"\n".join([b"x"] * 1234), topic=topic)
        admin = frail.admin()
        page = open_page(admin, f"/topics/{topic}", complains_of=("404 (Not Found)",))
        health = page.get_by_role("region", name="Health of the cluster")
        depth = page.locator("figure", has_text="Depth")
        expect(health).to_contain_text("1 channel or topic has messages and no consumer")
        expect(health).not_to_contain_text("Healthy")
        expect(depth).to_have_attribute("data-marked", "false")
        expect(depth.get_by_role("img")).to_have_attribute("aria-label", re.compile("channels 1,234"))
        lost.kill()
        # The depth falls to 0, and the page explains why.
        expect(health).to_contain_text(f"1 nsqd is missing, with 1,234 messages when last seen: {lost.http_address}")
        background = re.compile("channels 0. The background is shaded where a node was missing")
        expect(depth.get_by_role("img")).to_have_attribute("aria-label", background)
        expect(depth).to_have_attribute("data-marked", "true")
        expect(page.get_by_text("1 nsqd that had it is missing, with 1,234 messages when last seen.")).to_be_visible()
        page.goto(f"http://{admin.http_address}/topics?filter=trouble")
        expect(page.get_by_role("row", name=re.compile(topic))).to_contain_text("Node missing")
        page.goto(f"http://{admin.http_address}/nodes/{lost.http_address}")
        expect(page.get_by_text("This nsqd is missing")).to_be_visible()
        expect(page.get_by_role("row", name=re.compile(topic))).to_contain_text("c 1,234")
        if AXE.exists():
            for path in (f"/nodes/{lost.http_address}", f"/topics/{topic}", "/topics", "/nodes"):
                page.goto(f"http://{admin.http_address}{path}")
                expect(page.locator("[aria-label^=Loading]")).to_have_count(0)
                button(page, "Details").click()
                assert not accessibility_faults(page), path
                page.keyboard.press("Escape")
                page.set_viewport_size({"width": 360, "height": 740})
                assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
                page.set_viewport_size({"width": 1280, "height": 860})
        page.goto(f"http://{admin.http_address}/nodes")
        button(page, f"Forget {lost.http_address}").click()
        dialog = page.get_by_role("dialog", name=f"Forget {lost.http_address}")
        expect(dialog).to_contain_text("It had 1,234 messages when it last answered.")
        button(dialog, "Forget").click()
        expect(health).to_contain_text("Healthy")
        expect(page.get_by_text(lost.http_address)).to_have_count(0)
        page.get_by_role("link", name="Activity").click()
        expect(page.get_by_role("row", name=re.compile(rf"forget node.*{lost.http_address}"))).to_contain_text("done")

    def test_trouble_is_listed(self, chromium: object, frail: Cluster, open_page: "Opener", topic: str) -> None:
        frail.make_topic(topic, "c")
        page = open_page(frail.admin(), "/topics")
        health = page.get_by_role("region", name="Health of the cluster")
        expect(health).to_contain_text("Healthy")
        frail.nsqds[0].post("/pub", b"x", topic=topic)
        expect(health).to_contain_text("Trouble")
        button(page, "Details").click()
        entry = page.get_by_role("list", name="Topics and channels in trouble").get_by_role("listitem")
        expect(entry).to_contain_text(f"{topic} / c")
        expect(entry).to_contain_text("No consumer")
        entry.get_by_role("link").click()
        expect(page.get_by_role("heading", level=1, name="c")).to_be_visible()

    def test_an_unreachable_cluster_is_reported(self, fleet: Fleet, chromium: object, open_page: "Opener") -> None:
        lookupd = fleet.nsqlookupd("nsqx")
        admin = fleet.nsqadmin("nsqx", f"--lookupd-http-address={lookupd.http_address}", "--poll-interval=250ms")
        page = open_page(admin, "/topics", complains_of=("502 (Bad Gateway)",))
        expect(page.get_by_text("No topics yet")).to_be_visible()
        lookupd.kill()
        health = page.get_by_role("region", name="Health of the cluster")
        expect(health).to_contain_text("connection refused")
        page.get_by_role("link", name="Nodes", exact=True).click()
        expect(page.get_by_text("The cluster does not answer", exact=True)).to_be_visible()
