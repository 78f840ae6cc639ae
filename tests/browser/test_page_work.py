"""nsqadmin's page: actions on many topics and channels, tables as files, pinned topics, and several clusters."""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browsers import AXE, accessibility_faults

from daemons import Daemon, Fleet, wait_until
from rawclient import RawClient

if TYPE_CHECKING:
    from browsers import Opener
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.timeout(180)

SIZES = (360, 768, 1440)


def expect(locator: Any) -> Any:
    from playwright.sync_api import expect

    return expect(locator)


class Work:
    """Two clusters with one nsqadmin: one of two nsqds, one of one nsqd."""

    def __init__(self, fleet: Fleet, path: Path) -> None:
        self.nsqds = [fleet.nsqd("nsqx"), fleet.nsqd("nsqx")]
        self.other = fleet.nsqd("nsqx")
        self.other.post("/topic/create", topic="elsewhere")
        config = path / "nsqadmin.toml"
        config.write_text(
            f'cluster_name = "live"\n[[cluster]]\nname = "staging"\nnsqd_http_addresses = '
            f'["{self.other.http_address}"]\n'
        )
        addresses = (f"--nsqd-http-address={each.http_address}" for each in self.nsqds)
        self.admin: Daemon = fleet.nsqadmin(
            "nsqx", *addresses, "--poll-interval=200ms", "--history-window=1m", f"--config={config}"
        )

    def make(self, *topics: str, messages: int = 2) -> None:
        for topic in topics:
            for nsqd in self.nsqds:
                nsqd.post("/topic/create", topic=topic)
                nsqd.post("/channel/create", topic=topic, channel="c")
                nsqd.post("/mpub", b"\n".join([b"x"] * messages), topic=topic)
        wait_until(lambda: set(topics) <= self.names(), "the topics are listed", 60)

    def names(self) -> set[str]:
        return {row["name"] for row in self.admin.request("GET", "/api/overview").json()["topics"]}


@pytest.fixture(scope="module")
def work(chromium: "Browser", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Work]:
    fleet = Fleet()
    yield Work(fleet, tmp_path_factory.mktemp("work"))
    fleet.close()


def saved(page: "Page", what: str, kind: str) -> str:
    """Export a table and return the content of the file."""
    with page.expect_download() as download:
        page.get_by_role("group", name=f"Export the {what}").get_by_role("button", name=kind).click()
    path = download.value.path()
    return Path(path).read_text(encoding="utf-8")


def test_several_topics_are_paused_and_deleted_at_once(work: Work, open_page: "Opener") -> None:
    work.make("bulk.a", "bulk.b", "bulk.kept")
    page = open_page(work.admin, "/topics?q=bulk")
    page.get_by_role("button", name="Select topics").click()
    bar = page.get_by_role("toolbar", name="Actions on the selected topics")
    expect(bar.get_by_role("button", name="Pause…")).to_be_disabled()
    page.get_by_role("checkbox", name="Select bulk.a").check()
    page.get_by_role("checkbox", name="Select bulk.b").check()
    expect(bar).to_contain_text("2 topics selected")
    bar.get_by_role("button", name="Pause…").click()
    dialog = page.get_by_role("dialog", name="Pause 2 topics")
    expect(dialog.get_by_role("listitem")).to_have_count(2)
    expect(dialog).to_contain_text("on all their nodes")
    dialog.get_by_role("button", name="Pause", exact=True).click()
    expect(dialog.get_by_role("status")).to_have_text("Paused 2 topics.")
    item = dialog.get_by_role("listitem").first
    for nsqd in work.nsqds:
        expect(item).to_contain_text(f"{nsqd.http_address}: done")
        assert [nsqd.topic_stats(topic)["paused"] for topic in ("bulk.a", "bulk.b", "bulk.kept")] == [True, True, False]
    dialog.get_by_role("button", name="Close").last.click()

    bar.get_by_role("button", name="Select all listed").click()
    expect(bar).to_contain_text("3 topics selected")
    page.get_by_role("checkbox", name="Select bulk.kept").uncheck()
    bar.get_by_role("button", name="Delete…").click()
    dialog = page.get_by_role("dialog", name="Delete 2 topics")
    button = dialog.get_by_role("button", name="Delete", exact=True)
    expect(button).to_be_disabled()
    dialog.get_by_label("Type the number of topics").fill("3")
    expect(button).to_be_disabled()
    dialog.get_by_label("Type the number of topics").fill("2")
    button.click()
    expect(dialog.get_by_role("status")).to_have_text("Deleted 2 topics.")
    dialog.get_by_role("button", name="Close").last.click()
    wait_until(lambda: not {"bulk.a", "bulk.b"} & work.names(), "the topics are gone", 60)
    assert "bulk.kept" in work.names()


def test_several_channels_are_emptied_and_a_failure_is_shown(work: Work, open_page: "Opener") -> None:
    work.make("empty.a", "empty.b")
    page = open_page(work.admin, "/channels?q=empty", complains_of=("502 (Bad Gateway)", "404 (Not Found)"))
    page.get_by_role("button", name="Select channels").click()
    page.get_by_role("button", name="Select all listed").click()
    bar = page.get_by_role("toolbar", name="Actions on the selected channels")
    expect(bar).to_contain_text("2 channels selected")
    bar.get_by_role("button", name="Empty…").click()
    dialog = page.get_by_role("dialog", name="Empty 2 channels")
    expect(dialog).to_contain_text("Now 8 messages.")
    for nsqd in work.nsqds:
        nsqd.post("/topic/delete", topic="empty.b")
    dialog.get_by_label("Type the number of channels").fill("2")
    dialog.get_by_role("button", name="Empty", exact=True).click()
    expect(dialog.get_by_role("status")).to_have_text("Emptied 1 of 2 channels. 1 failure.")
    expect(dialog.get_by_role("listitem").nth(0)).to_contain_text("done")
    expect(dialog.get_by_role("listitem").nth(1)).to_contain_text("failed")
    assert [nsqd.channel_stats("empty.a", "c")["depth"] for nsqd in work.nsqds] == [0, 0]


def test_tables_are_saved_as_they_are_filtered_and_sorted(work: Work, open_page: "Opener") -> None:
    work.make("export.few", messages=1)
    work.make("export.many", messages=5)
    work.make("-export.formula", messages=3)
    page = open_page(work.admin, "/topics?q=export&sort=-channels_depth")
    expect(page.get_by_role("link", name="export.many")).to_be_visible()
    rows = list(csv.DictReader(io.StringIO(saved(page, "topics", "CSV"))))
    assert [row["name"] for row in rows] == ["export.many", "'-export.formula", "export.few"]
    assert [row["channels_depth"] for row in rows] == ["10", "6", "2"]
    assert "sparkline" not in rows[0]
    document = json.loads(saved(page, "topics", "JSON"))
    assert [row["name"] for row in document] == ["export.many", "-export.formula", "export.few"]
    page.goto(f"http://{work.admin.http_address}/channels?q=export&sort=topic")
    expect(page.get_by_role("link", name="export.many")).to_be_visible()
    rows = list(csv.DictReader(io.StringIO(saved(page, "channels", "CSV"))))
    assert {row["topic"] for row in rows} == {"'-export.formula", "export.few", "export.many"}


def test_every_table_of_a_cluster_is_saved(work: Work, open_page: "Opener") -> None:
    work.make("kept.orders", messages=2)
    page = open_page(work.admin, "/topics/kept.orders")
    (row,) = csv.DictReader(io.StringIO(saved(page, "channels", "CSV")))
    assert (row["name"], row["depth"]) == ("c", "4")
    assert len(json.loads(saved(page, "nodes", "JSON"))) == 2
    page.goto(f"http://{work.admin.http_address}/nodes")
    rows = list(csv.DictReader(io.StringIO(saved(page, "nodes", "CSV"))))
    assert {row["http_port"] for row in rows} == {nsqd.http_address.rpartition(":")[2] for nsqd in work.nsqds}
    with RawClient(work.nsqds[0].tcp_address) as consumer:
        consumer.sub("kept.orders", "c")
        page.goto(f"http://{work.admin.http_address}/topics/kept.orders/c")
        (client,) = json.loads(saved(page, "consumers", "JSON"))
        page.goto(f"http://{work.admin.http_address}/consumers?q=kept.orders")
        (row,) = csv.DictReader(io.StringIO(saved(page, "consumers", "CSV")))
        assert row["channel"] == "c"
        assert client["remote_address"] in row["remote_addresses"]


def test_pinned_topics_are_first_and_stay(work: Work, open_page: "Opener") -> None:
    work.make("pin.a", "pin.b", "pin.z")
    page = open_page(work.admin, "/topics?q=pin.&sort=name")
    links = page.get_by_role("table", name="Topics").get_by_role("link")
    expect(links).to_have_text(["pin.a", "pin.b", "pin.z"])
    page.get_by_role("button", name="Pin pin.z").click()
    expect(links).to_have_text(["pin.z", "pin.a", "pin.b"])
    page.reload()
    expect(links).to_have_text(["pin.z", "pin.a", "pin.b"])
    page.get_by_role("button", name="Unpin pin.z").click()
    expect(links).to_have_text(["pin.a", "pin.b", "pin.z"])


def test_the_cluster_is_chosen_in_the_header(work: Work, open_page: "Opener") -> None:
    page = open_page(work.admin, "/topics")
    choice = page.get_by_role("combobox", name="Cluster")
    expect(choice).to_have_value("live")
    choice.select_option("staging")
    expect(page.get_by_role("link", name="elsewhere")).to_be_visible()
    assert page.url == f"http://{work.admin.http_address}/clusters/staging"
    page.reload()
    expect(page.get_by_role("link", name="elsewhere")).to_be_visible()
    expect(choice).to_have_value("staging")
    choice.select_option("live")
    expect(page.get_by_role("link", name="elsewhere")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_controls_are_accessible_and_fit_every_width(work: Work, open_page: "Opener", scheme: str) -> None:
    work.make("wide.topic-with-quite-a-long-name-for-a-phone")
    page = open_page(work.admin, "/topics?q=wide", color_scheme=scheme, bypass_csp=True)
    page.get_by_role("button", name="Select topics").click()
    page.get_by_role("button", name="Select all listed").click()
    for dialog in (False, True):
        if dialog:
            page.get_by_role("button", name="Empty…").click()
            expect(page.get_by_role("dialog")).to_be_visible()
        for width in SIZES:
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (dialog, width)
            if AXE.exists():
                assert not accessibility_faults(page), (dialog, width)
