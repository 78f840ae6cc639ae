"""Logs, stored messages, seeks and dead letters on nsqadmin's page, and their effect on the nsqds."""

import re
from typing import TYPE_CHECKING, Any

import pytest
from browsers import AXE, accessibility_faults
from scene import Cluster, fail, order, reading

from daemons import Daemon, Fleet, wait_until
from rawclient import RawClient

if TYPE_CHECKING:
    from browsers import Opener
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.timeout(120)

VIEW_TOKEN = "view-0123456789abcdef"
CONSUME_TOKEN = "consume-0123456789abcdef"
WIDTHS = (360, 768, 1280, 2560)


@pytest.fixture(scope="module")
def cluster(module_fleet: Fleet) -> Cluster:
    """Two nsqds whose topics have logs."""
    return Cluster(module_fleet, nsqd_flags=("--store=log", "--log-retain-age=24h", "--max-attempts=2"))


def expect(locator: Any) -> Any:
    from playwright.sync_api import expect

    return expect(locator)


def button(page: "Page | Locator", name: str) -> "Locator":
    return page.get_by_role("button", name=name, exact=True)


def depths(cluster: Cluster, topic: str, channel: str) -> list[int]:
    return [nsqd.channel_stats(topic, channel)["depth"] for nsqd in cluster.nsqds]


def config(nsqd: Daemon, topic: str) -> dict[str, Any]:
    settings: dict[str, Any] = nsqd.request("GET", f"/topic/config?topic={topic}").json()["settings"]
    return settings


def finish(nsqd: Daemon, topic: str, channel: str, count: int) -> None:
    """Consume and finish the next messages of a channel."""
    with RawClient(nsqd.tcp_address) as consumer:
        consumer.sub(topic, channel)
        consumer.rdy(1)
        for number in range(count):
            message_id = consumer.read_message().id
            if number == count - 1:
                consumer.rdy(0)
            consumer.fin(message_id)
        wait_until(
            lambda: (
                nsqd.channel_stats(topic, channel)["cursor"]["floor"] >= count
                and not nsqd.channel_stats(topic, channel)["in_flight_count"]
            ),
            "the messages are finished",
        )


def letters(nsqd: Daemon, topic: str) -> int:
    stats = nsqd.channel_stats(f"{topic}.dead", "dead")
    return stats["depth"] if stats else 0


def published(cluster: Cluster, topic: str, *channels: str, messages: int) -> None:
    """Create a topic with channels; then publish, so that every channel gets the messages."""
    cluster.make_topic(topic, *channels)
    for nsqd in cluster.nsqds:
        nsqd.post("/mpub", b"\n".join(order(number) for number in range(messages)), topic=topic)


def show(page: "Page") -> "Locator":
    """Click on Show and return the messages."""
    button(page, "Show").click()
    return page.get_by_role("article")


class TestLog:
    def test_the_log_has_a_bar_for_every_channel(
        self, admin: Daemon, cluster: Cluster, open_page: "Opener", topic: str
    ) -> None:
        published(cluster, topic, "billing", "archive", messages=5)
        finish(cluster.nsqds[0], topic, "billing", 3)
        page = open_page(admin, f"/topics/{topic}")
        button(page, "Log").click()
        numbers = page.get_by_label("The log in numbers")
        expect(numbers).to_contain_text("10")
        expect(numbers).to_contain_text("Kept for replay")
        first = page.get_by_role("region", name=f"Log on {cluster.nsqds[0].http_address}")
        second = page.get_by_role("region", name=f"Log on {cluster.nsqds[1].http_address}")
        expect(first).to_contain_text("5 messages")
        bar = first.get_by_role("img", name="billing: finished before offset 3, next offset 3, 2 messages wait")
        expect(bar).to_be_visible()
        expect(first.get_by_role("img", name="archive: finished before offset 0")).to_be_visible()
        expect(second.get_by_role("img", name="billing: finished before offset 0")).to_be_visible()
        expect(page.get_by_role("region", name="Settings")).to_contain_text("24h")

    def test_a_topic_without_a_log_has_no_view_of_it(
        self, admin: Daemon, cluster: Cluster, open_page: "Opener", topic: str
    ) -> None:
        name = f"{topic}#ephemeral"
        cluster.make_topic(name, "c#ephemeral")
        page = open_page(admin, f"/topics/{topic}%23ephemeral")
        expect(button(page, "Browse")).to_be_visible()
        expect(page.get_by_role("link", name=cluster.nsqds[0].http_address)).to_be_visible()
        expect(button(page, "Log")).to_have_count(0)

    def test_settings_are_changed_and_returned_to_the_configuration(
        self, admin: Daemon, cluster: Cluster, open_page: "Opener", topic: str
    ) -> None:
        published(cluster, topic, "c", messages=1)
        page = open_page(admin, f"/topics/{topic}?view=log")
        button(page, "Change settings…").click()
        dialog = page.get_by_role("dialog", name=f"Settings of {topic}")
        expect(button(dialog, "Change")).to_be_disabled()
        dialog.get_by_label("Keep finished messages for").fill("a day")
        expect(dialog).to_contain_text("Not a duration")
        expect(button(dialog, "Change")).to_be_disabled()
        dialog.get_by_label("Keep finished messages for").fill("48h")
        dialog.get_by_label("Largest size of the log").fill("1 GiB")
        dialog.get_by_label("When the log is full").select_option("drop-oldest")
        button(dialog, "Change").click()
        expect(dialog.get_by_role("list", name="Result per node").get_by_role("listitem")).to_have_count(2)
        button(dialog, "Close").last.click()
        for nsqd in cluster.nsqds:
            settings = config(nsqd, topic)
            assert (settings["retain_age"], settings["max_bytes"]) == ("48h0m0s", 1 << 30)
            assert settings["when_full"] == "drop-oldest"
        section = page.get_by_role("region", name="Settings")
        expect(section).to_contain_text("48h")
        expect(section.get_by_text("changed")).to_have_count(3)
        button(page, "Change settings…").click()
        dialog.get_by_label("Back to the configuration").first.check()
        dialog.get_by_label("Where").select_option(cluster.nsqds[1].http_address)
        button(dialog, "Change").click()
        expect(dialog.get_by_role("list", name="Result per node").get_by_role("listitem")).to_have_count(1)
        button(dialog, "Close").last.click()
        assert [config(nsqd, topic)["retain_age"] for nsqd in cluster.nsqds] == ["48h0m0s", "24h0m0s"]
        expect(section).to_contain_text(f"24h {cluster.nsqds[1].http_address}")
        page.get_by_role("link", name="Activity").click()
        expect(page.get_by_role("row", name=re.compile(rf"set topic config {topic}")).first).to_contain_text("done")

    def test_a_rejected_setting_is_explained(
        self, admin: Daemon, cluster: Cluster, open_page: "Opener", topic: str
    ) -> None:
        published(cluster, topic, "c", messages=1)
        page = open_page(admin, f"/topics/{topic}?view=log", complains_of=("502 (Bad Gateway)",))
        button(page, "Change settings…").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Drop messages older than").fill("1h")
        button(dialog, "Change").click()
        expect(dialog).to_contain_text("Nothing was changed.")
        expect(dialog).to_contain_text("a retention must not exceed its limit")

    def test_a_log_is_trimmed_after_a_preview(
        self, admin: Daemon, cluster: Cluster, open_page: "Opener", topic: str
    ) -> None:
        published(cluster, topic, "c", messages=4)
        page = open_page(admin, f"/topics/{topic}?view=log")
        button(page, "Trim…").click()
        dialog = page.get_by_role("dialog", name=f"Trim the log of {topic}")
        dialog.get_by_label("Delete messages before").select_option("offset")
        dialog.get_by_label("Offset", exact=True).fill("3")
        dialog.get_by_label("Where").select_option(cluster.nsqds[1].http_address)
        button(dialog, "Preview").click()
        expect(dialog.get_by_role("table", name="Effect per node")).to_contain_text("c 3")
        expect(dialog).to_contain_text("3 messages that are not finished are lost.")
        expect(button(dialog, "Trim")).to_be_disabled()
        assert depths(cluster, topic, "c") == [4, 4]
        dialog.get_by_label(f"Type {topic} to confirm").fill(topic)
        button(dialog, "Trim").click()
        expect(dialog).to_contain_text("The log was trimmed.")
        button(dialog, "Close").last.click()
        assert depths(cluster, topic, "c") == [4, 1]


class TestBrowse:
    def test_the_newest_messages_are_shown_and_nothing_changes(
        self, admin: Daemon, cluster: Cluster, open_page: "Opener", topic: str
    ) -> None:
        published(cluster, topic, "c", messages=25)
        page = open_page(admin, f"/topics/{topic}")
        button(page, "Browse").click()
        expect(page.get_by_text("Looking changes nothing")).to_be_visible()
        articles = show(page)
        expect(articles).to_have_count(40)
        expect(articles.first).to_contain_text("offset 24")
        expect(articles.first).to_contain_text('"customer": "c-')
        button(page, "Show older").click()
        expect(articles).to_have_count(50)
        expect(articles.last).to_contain_text("offset 0")
        expect(button(page, "Show older")).to_have_count(0)
        expect(page.get_by_role("status").get_by_text("50 messages shown")).to_be_visible()
        assert depths(cluster, topic, "c") == [25, 25]
        page.get_by_role("link", name="Activity").click()
        expect(page.get_by_role("row", name=re.compile(rf"browse topic {topic}")).first).to_be_visible()

    def test_messages_are_found_by_offset_time_and_id(
        self, admin: Daemon, cluster: Cluster, open_page: "Opener", topic: str
    ) -> None:
        published(cluster, topic, "c", messages=30)
        nsqd = cluster.nsqds[1]
        nsqd.post("/pub", reading(1), topic=topic)
        page = open_page(admin, f"/topics/{topic}?view=browse", timezone_id="UTC")
        page.get_by_label("From").select_option("offset")
        expect(page.get_by_label("Node")).to_have_value(cluster.nsqds[0].http_address)
        page.get_by_label("Node").select_option(nsqd.http_address)
        page.get_by_label("Offset", exact=True).fill("9")
        articles = show(page)
        expect(articles).to_have_count(20)
        expect(articles.first).to_contain_text("offset 9")
        button(page, "Show more").click()
        expect(articles).to_have_count(22)
        expect(articles.last).to_contain_text("binary")
        expect(articles.last).to_contain_text("000000  25 4a")
        expect(button(page, "Show more")).to_have_count(0)
        message_id = articles.nth(3).get_attribute("aria-label").removeprefix("Message ")
        page.get_by_label("From").select_option("id")
        page.get_by_label("ID", exact=True).fill(message_id)
        expect(show(page)).to_have_count(1)
        expect(articles).to_contain_text("offset 12")
        page.get_by_label("Node").select_option("")
        page.get_by_label("From").select_option("time")
        page.get_by_label("Time (in your time zone)").fill("2020-01-01T00:00:00")
        expect(show(page)).to_have_count(40)
        expect(articles.first).to_contain_text("offset 0")
        page.get_by_label("From").select_option("offset")
        page.get_by_label("Offset", exact=True).fill("99")
        button(page, "Show").click()
        expect(page.get_by_text("The log does not have this offset yet. Its end is 30.")).to_be_visible()

    def test_bodies_are_searched_on_the_nsqds(
        self, admin: Daemon, cluster: Cluster, open_page: "Opener", topic: str
    ) -> None:
        published(cluster, topic, "c", messages=25)
        cluster.nsqds[0].post("/pub", "Grüße aus Köln".encode(), topic=topic)
        page = open_page(admin, f"/topics/{topic}?view=browse")
        page.get_by_label("From").select_option("first")
        page.get_by_label("Contains").fill("KÖLN")
        expect(show(page)).to_have_count(1)
        expect(page.get_by_role("article")).to_contain_text("Grüße aus Köln")
        expect(page.get_by_role("status").get_by_text(re.compile("51 searched"))).to_be_visible()
        page.get_by_label("From").select_option("last")
        expect(show(page)).to_have_count(1)
        expect(page.get_by_text("Only the newest 1,000 messages of each node are searched.")).to_be_visible()
        page.get_by_label("Contains").fill("nowhere to be found")
        button(page, "Show").click()
        expect(page.get_by_text("No searched message contains this text")).to_be_visible()

    def test_the_unfinished_messages_of_a_channel_are_shown(
        self, admin: Daemon, cluster: Cluster, open_page: "Opener", topic: str
    ) -> None:
        published(cluster, topic, "c", "other", messages=3)
        nsqd = cluster.nsqds[0]
        finish(nsqd, topic, "c", 1)
        with RawClient(nsqd.tcp_address) as consumer:
            consumer.sub(topic, "c")
            consumer.rdy(1)
            consumer.read_message()
            page = open_page(admin, f"/topics/{topic}/c")
            page.get_by_role("link", name="Browse").click()
            expect(page.get_by_role("combobox", name="Messages")).to_have_value("c")
            page.get_by_label("Node").select_option(nsqd.http_address)
            articles = show(page)
            expect(articles).to_have_count(2)
            expect(articles.first).to_contain_text("in flight")
            expect(articles.last).to_contain_text("waiting")
            page.get_by_label("State").select_option("in_flight")
            expect(show(page)).to_have_count(1)
            stats = nsqd.channel_stats(topic, "c")
            assert (stats["depth"], stats["in_flight_count"]) == (1, 1)

    def test_the_messages_of_a_classic_topic_are_shown(
        self, admin: Daemon, cluster: Cluster, open_page: "Opener", topic: str
    ) -> None:
        name = f"{topic}#ephemeral"
        cluster.make_topic(name, messages=12)
        page = open_page(admin, f"/topics/{topic}%23ephemeral?view=browse")
        expect(page.get_by_label("From").get_by_role("option")).to_have_text(["Oldest first", "Message ID"])
        page.get_by_label("Node").select_option(cluster.nsqds[0].http_address)
        articles = show(page)
        expect(articles).to_have_count(12)
        expect(articles.first).not_to_contain_text("offset")
        assert [nsqd.topic_stats(name)["depth"] for nsqd in cluster.nsqds] == [12, 12]


class TestSeek:
    def test_a_channel_is_moved_after_a_preview(
        self, admin: Daemon, cluster: Cluster, open_page: "Opener", topic: str
    ) -> None:
        published(cluster, topic, "c", "other", messages=5)
        finish(cluster.nsqds[0], topic, "c", 3)
        page = open_page(admin, f"/topics/{topic}/c")
        button(page, "Seek…").click()
        dialog = page.get_by_role("dialog", name="Seek channel c")
        expect(button(dialog, "Seek")).to_have_count(0)
        button(dialog, "Preview").click()
        effects = dialog.get_by_role("table", name="Effect per node")
        row = effects.get_by_role("row", name=re.compile(cluster.nsqds[0].http_address))
        expect(row).to_contain_text("3 → 0")
        expect(row).to_contain_text("2 → 5")
        expect(dialog).to_contain_text("Up to 3 messages are delivered again.")
        assert depths(cluster, topic, "c") == [2, 5]
        dialog.get_by_label("Continue at").select_option("end")
        expect(effects).to_have_count(0)
        expect(button(dialog, "Seek")).to_have_count(0)
        dialog.get_by_label("Continue at").select_option("beginning")
        button(dialog, "Preview").click()
        button(dialog, "Seek").click()
        expect(dialog).to_contain_text("The channel was moved.")
        expect(dialog.get_by_role("table", name="Result per node").get_by_role("row")).to_have_count(3)
        button(dialog, "Close").last.click()
        assert depths(cluster, topic, "c") == [5, 5]
        assert depths(cluster, topic, "other") == [5, 5]
        page.get_by_role("link", name="Activity").click()
        expect(page.get_by_role("row", name=re.compile(rf"seek channel {topic}"))).to_contain_text("done")

    def test_a_channel_is_moved_to_an_offset_of_one_node(
        self, admin: Daemon, cluster: Cluster, open_page: "Opener", topic: str
    ) -> None:
        published(cluster, topic, "c", messages=5)
        page = open_page(admin, f"/topics/{topic}/c")
        button(page, "Seek…").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Continue at").select_option("offset")
        expect(dialog.get_by_label("Where")).to_have_value(cluster.nsqds[0].http_address)
        dialog.get_by_label("Offset", exact=True).fill("99")
        button(dialog, "Preview").click()
        expect(dialog).to_contain_text("The log does not have this offset yet. Its end is 5.")
        expect(button(dialog, "Seek")).to_be_disabled()
        dialog.get_by_label("Offset", exact=True).fill("4")
        button(dialog, "Preview").click()
        expect(dialog).to_contain_text("4 messages are skipped.")
        button(dialog, "Seek").click()
        expect(dialog).to_contain_text("The channel was moved.")
        assert depths(cluster, topic, "c") == [1, 5]

    def test_a_channel_is_moved_to_a_time(
        self, admin: Daemon, cluster: Cluster, open_page: "Opener", topic: str
    ) -> None:
        published(cluster, topic, "c", messages=5)
        page = open_page(admin, f"/topics/{topic}/c")
        button(page, "Seek…").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Continue at").select_option("time")
        expect(button(dialog, "Preview")).to_be_disabled()
        dialog.get_by_label("Time (in your time zone)").fill("2200-01-01T00:00:00")
        button(dialog, "Preview").click()
        expect(dialog).to_contain_text("10 messages are skipped.")
        button(dialog, "Seek").click()
        expect(dialog).to_contain_text("The channel was moved.")
        assert depths(cluster, topic, "c") == [0, 0]


class TestDeadLetters:
    def test_letters_are_listed_redriven_and_purged(
        self, admin: Daemon, cluster: Cluster, open_page: "Opener", topic: str
    ) -> None:
        published(cluster, topic, "c", "other", messages=3)
        first, second = cluster.nsqds
        for nsqd in cluster.nsqds:
            fail(nsqd, topic, "c", 3)
        page = open_page(admin, f"/topics/{topic}")
        button(page, "Dead letters").click()
        articles = page.get_by_role("article")
        expect(articles).to_have_count(6)
        expect(page.get_by_text(f"6 dead letters in {topic}.dead, 6 shown.")).to_be_visible()
        expect(articles.first).to_contain_text("requeued in channel c after 2 attempts")
        expect(articles.first).to_contain_text('"customer": "c-')
        expect(button(page, "Redrive selected…")).to_be_disabled()
        articles.filter(has_text=first.http_address).first.get_by_role("checkbox").check()
        button(page, "Redrive selected…").click()
        dialog = page.get_by_role("dialog", name="Redrive 1 dead letter")
        expect(dialog).to_contain_text("goes back to the channel that failed")
        button(dialog, "Redrive").click()
        expect(dialog).to_contain_text("1 letter was redriven; 2 letters are left.")
        button(dialog, "Close").last.click()
        expect(articles).to_have_count(5)
        assert depths(cluster, topic, "c") == [1, 0]
        assert depths(cluster, topic, "other") == [3, 3], "the other channel does not get it again"
        page.get_by_label("Select all shown").check()
        button(page, "Purge selected…").click()
        dialog = page.get_by_role("dialog", name="Purge 5 dead letters")
        expect(button(dialog, "Purge")).to_be_disabled()
        dialog.get_by_label(f"Type {topic} to confirm").fill(topic)
        button(dialog, "Purge").click()
        expect(dialog).to_contain_text("5 letters were purged; 0 letters are left.")
        expect(dialog.get_by_role("list", name="Result per node").get_by_role("listitem")).to_have_count(2)
        button(dialog, "Close").last.click()
        expect(page.get_by_text("No dead letters", exact=True)).to_be_visible()
        assert (letters(first, topic), letters(second, topic)) == (0, 0)
        page.get_by_role("link", name="Activity").click()
        row = page.get_by_role("row", name=re.compile(rf"purge dead letters {topic}"))
        expect(row).to_contain_text("done")

    def test_all_letters_of_a_channel_are_redriven(
        self, admin: Daemon, cluster: Cluster, open_page: "Opener", topic: str
    ) -> None:
        published(cluster, topic, "c", "other", messages=2)
        nsqd = cluster.nsqds[0]
        fail(nsqd, topic, "c", 2)
        page = open_page(admin, f"/topics/{topic}?view=dead")
        expect(page.get_by_role("article")).to_have_count(2)
        page.get_by_label("Failed in").select_option("other")
        expect(page.get_by_text("No dead letters of channel other")).to_be_visible()
        page.get_by_label("Failed in").select_option("c")
        expect(page.get_by_role("article")).to_have_count(2)
        button(page, "Redrive all…").click()
        dialog = page.get_by_role("dialog", name="Redrive all dead letters")
        expect(dialog).to_contain_text("All dead letters that channel c has failed go back")
        button(dialog, "Redrive").click()
        expect(dialog).to_contain_text("2 letters were redriven")
        assert nsqd.channel_stats(topic, "c")["depth"] == 2

    def test_a_topic_without_letters_shows_its_attempt_limit(
        self, admin: Daemon, cluster: Cluster, open_page: "Opener", topic: str
    ) -> None:
        published(cluster, topic, "c", messages=1)
        page = open_page(admin, f"/topics/{topic}?view=dead")
        expect(page.get_by_text("No dead letters", exact=True)).to_be_visible()
        settings = page.get_by_role("region", name="Settings")
        expect(settings).to_contain_text(re.compile("Attempt limit ?2"))
        expect(settings).to_contain_text(f"{topic}.dead")
        expect(button(page, "Purge all…")).to_have_count(0)

    def test_a_channel_gets_its_own_attempt_limit(
        self, admin: Daemon, cluster: Cluster, open_page: "Opener", topic: str
    ) -> None:
        published(cluster, topic, "c", messages=1)
        page = open_page(admin, f"/topics/{topic}/c")
        settings = page.get_by_role("region", name="Settings")
        expect(settings).to_contain_text(re.compile("Attempt limit ?2"))
        button(page, "Change settings…").click()
        dialog = page.get_by_role("dialog", name="Settings of c")
        dialog.get_by_label("Attempt limit").fill("70000")
        expect(dialog).to_contain_text("Use a number from 0 to 65535.")
        dialog.get_by_label("Attempt limit").fill("7")
        button(dialog, "Change").click()
        expect(dialog.get_by_role("list", name="Result per node").get_by_role("listitem")).to_have_count(2)
        button(dialog, "Close").last.click()
        expect(settings).to_contain_text(re.compile("Attempt limit ?7 changed"))
        for nsqd in cluster.nsqds:
            own = nsqd.request("GET", f"/channel/config?topic={topic}&channel=c").json()
            assert (own["settings"]["max_attempts"], own["changed"]) == (7, ["max_attempts"])
            assert config(nsqd, topic)["max_attempts"] == 2


class TestRights:
    def test_a_reader_sees_messages_and_changes_nothing(
        self, cluster: Cluster, open_page: "Opener", topic: str
    ) -> None:
        published(cluster, topic, "c", messages=2)
        fail(cluster.nsqds[0], topic, "c", 1)
        admin = cluster.admin(f"--view-token={VIEW_TOKEN}", f"--consume-token={CONSUME_TOKEN}")
        page = open_page(admin, f"/topics/{topic}?view=dead", complains_of=("401 (Unauthorized)",))
        page.get_by_label("Token").fill(CONSUME_TOKEN)
        page.keyboard.press("Enter")
        expect(page.get_by_text("Read only")).to_be_visible()
        expect(page.get_by_role("article")).to_have_count(1)
        expect(page.get_by_role("checkbox")).to_have_count(0)
        expect(page.get_by_role("button", name=re.compile("Redrive|Purge|Change|Delete"))).to_have_count(0)
        button(page, "Browse").click()
        expect(show(page)).to_have_count(4)
        button(page, "Log").click()
        expect(page.get_by_role("region", name="Settings")).to_contain_text("24h")
        expect(page.get_by_role("button", name=re.compile("Trim|Change"))).to_have_count(0)
        button(page, "Messages").click()
        expect(button(page, "Follow")).to_be_visible()
        expect(page.get_by_role("form", name="Publish a test message")).to_have_count(0)
        page.goto(f"http://{admin.http_address}/topics/{topic}/c")
        expect(page.get_by_role("link", name="Browse")).to_be_visible()
        expect(button(page, "Seek…")).to_have_count(0)

    def test_a_viewer_sees_the_log_and_no_messages(self, cluster: Cluster, open_page: "Opener", topic: str) -> None:
        published(cluster, topic, "c", messages=2)
        admin = cluster.admin(f"--view-token={VIEW_TOKEN}", f"--consume-token={CONSUME_TOKEN}")
        page = open_page(admin, f"/topics/{topic}?view=log", complains_of=("401 (Unauthorized)",))
        page.get_by_label("Token").fill(VIEW_TOKEN)
        page.keyboard.press("Enter")
        expect(page.get_by_text("View only")).to_be_visible()
        expect(page.get_by_label("The log in numbers")).to_contain_text("4")
        expect(page.get_by_role("button", name=re.compile("Browse|Dead letters|Messages|Trim|Change"))).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_views_are_accessible_and_fit_every_width(
    scheme: str, admin: Daemon, cluster: Cluster, open_page: "Opener", topic: str
) -> None:
    published(cluster, topic, "billing", "a-channel-with-quite-a-long-name", messages=3)
    fail(cluster.nsqds[0], topic, "billing", 2)
    page = open_page(admin, f"/topics/{topic}?view=log", color_scheme=scheme)

    def check(what: str) -> None:
        expect(page.locator("[aria-label^=Loading]")).to_have_count(0)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 860})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (what, width)
            if AXE.exists() and width in (360, 1280):
                assert not accessibility_faults(page), (what, width)

    expect(page.get_by_role("img", name=re.compile("billing: "))).to_have_count(2)
    check("log")
    button(page, "Change settings…").click()
    check("settings")
    page.keyboard.press("Escape")
    button(page, "Trim…").click()
    page.get_by_label("Delete messages before").select_option("end")
    button(page, "Preview").click()
    expect(page.get_by_role("table", name="Effect per node")).to_be_visible()
    check("trim")
    page.keyboard.press("Escape")
    button(page, "Browse").click()
    check("browse before messages are shown")
    expect(show(page)).to_have_count(6)
    check("browse")
    button(page, "Dead letters").click()
    expect(page.get_by_role("article")).to_have_count(2)
    check("dead letters")
    button(page, "Purge all…").click()
    check("purge")
    page.goto(f"http://{admin.http_address}/topics/{topic}/billing")
    button(page, "Seek…").click()
    button(page, "Preview").click()
    expect(page.get_by_role("table", name="Effect per node")).to_be_visible()
    check("seek")
