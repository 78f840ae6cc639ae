"""Takes the screenshots of nsqadmin's page for the documentation, from a real, busy cluster.

    python tests/browser/take_screenshots.py [--out docs/images] [--warm-up-s 75] [--only topics,channel]

Has the same requirements as the browser tests. With a longer warm-up the graphs show more.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from browsers import IMAGES, browser, view, what_is_missing
from scene import Cluster, Traffic, fail, reading

from daemons import Fleet

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

UNREAD = "carts.abandoned"
LOGGED = "payments"
PHONE = {"viewport": {"width": 360, "height": 740}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True}

QUIET_TOPICS = (
    "audit.log", "billing.invoices", "carts.abandoned", "catalog.reindex", "emails.bounced", "emails.outgoing",
    "fraud.reviews", "images.resize", "inventory.low", "payments.failed", "push.notifications", "refunds",
    "search.queries", "sessions.expired", "shipping.labels", "users.signup", "webhooks.retry",
)  # fmt: skip


def set_the_scene(cluster: Cluster, traffic: Traffic) -> None:
    """Create busy and quiet topics, one without a consumer, one that is paused, and two that no nsqd has."""
    for number, topic in enumerate(QUIET_TOPICS):
        channels = ["archive", "worker"][: 1 + number % 2]
        cluster.make_topic(topic, *channels, messages=number % 5)
        traffic.publish(topic, 0.2 + number % 4, wave_s=20 + 5 * (number % 5))
        if topic != UNREAD:
            for channel in channels:
                traffic.consume(topic, channel, client_id=f"{channel}-0")
    for topic, channels in (("orders", ("billing", "shipping", "archive")), ("clickstream", ("sessions",))):
        cluster.make_topic(topic, *channels)
    cluster.make_topic("sensor.readings", "alerts")
    traffic.publish("orders", 120, wave_s=40)
    traffic.publish("clickstream", 260, wave_s=25)
    traffic.publish("sensor.readings", 30, reading)
    for number in range(3):
        traffic.consume("orders", "billing", per_s=36, client_id=f"billing-{number}", user_agent="shop-billing/4.2")
    traffic.consume("orders", "shipping", snappy=True, client_id="shipping-0", user_agent="shop-shipping/1.9")
    traffic.consume("orders", "archive", sample_rate=25, client_id="archive-0")
    traffic.consume("clickstream", "sessions", client_id="sessions-0", user_agent="sessions/0.3")
    make_a_log(cluster, traffic)
    cluster.nsqds[0].post("/channel/pause", topic="orders", channel="archive")
    for nsqd in cluster.nsqds:
        nsqd.post("/topic/pause", topic="refunds")
    for topic, channel in (("legacy.exports", "ftp"), ("beta.experiment", "")):
        cluster.lookupd.post("/topic/create", topic=topic)
        if channel:
            cluster.lookupd.post("/channel/create", topic=topic, channel=channel)


def make_a_log(cluster: Cluster, traffic: Traffic) -> None:
    """Create a topic with a log, with channels in different places and with dead letters."""
    cluster.make_topic(LOGGED, "archive", "fraud-check", "ledger")
    for nsqd in cluster.nsqds:
        nsqd.request("PUT", f"/topic/config?topic={LOGGED}", b'{"max_attempts": 2, "max_bytes": 10737418240}')
    traffic.publish(LOGGED, 40, wave_s=30)
    for nsqd in cluster.nsqds:
        fail(nsqd, LOGGED, "fraud-check", 3)
    traffic.consume(LOGGED, "ledger", client_id="ledger-0", user_agent="ledger/2.0")
    traffic.consume(LOGGED, "fraud-check", per_s=20, client_id="fraud-0", user_agent="fraud/1.1")


def follow(page: "Page") -> None:
    page.get_by_role("button", name="Follow").click()
    page.get_by_role("article").nth(3).wait_for()


def confirm(page: "Page") -> None:
    page.get_by_role("button", name="Empty…").click()
    page.get_by_label("Type shipping to confirm").fill("shipping")


def pause_everywhere(page: "Page") -> None:
    page.get_by_role("button", name="Pause", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    page.get_by_role("list", name="Result per node").wait_for()


def show_stored(page: "Page") -> None:
    page.get_by_role("button", name="Show", exact=True).click()
    page.get_by_role("article").nth(3).wait_for()


def select_letters(page: "Page") -> None:
    page.get_by_role("article").nth(3).wait_for()
    for number in range(2):
        page.get_by_role("article").nth(number).get_by_role("checkbox").check()


def preview_seek(page: "Page") -> None:
    page.get_by_role("button", name="Seek…").click()
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("table", name="Effect per node").wait_for()


def has_rows(page: "Page") -> None:
    page.get_by_role("row").nth(3).wait_for()


Preparation = Callable[["Page"], None] | None

PICTURES: dict[str, tuple[str, Preparation]] = {
    "topics": ("topics", has_rows),
    "topic": ("topics/orders?span=5+min", None),
    "channel": ("topics/orders/billing?span=5+min", None),
    "messages": ("topics/orders?view=messages", follow),
    "binary": ("topics/sensor.readings?view=messages", follow),
    "confirm": ("topics/orders/shipping?span=5+min", confirm),
    "outcome": ("topics/orders/shipping?span=5+min", pause_everywhere),
    "log": (f"topics/{LOGGED}?view=log", None),
    "browse": (f"topics/{LOGGED}?view=browse", show_stored),
    "seek": (f"topics/{LOGGED}/fraud-check", preview_seek),
    "dead": (f"topics/{LOGGED}?view=dead", select_letters),
    "channels": ("channels", has_rows),
    "consumers": ("consumers", has_rows),
    "nodes": ("nodes", None),
    "node": ("nodes/{node}", None),
    "lookup": ("lookup", None),
    "counter": ("counter", None),
    "activity": ("activity", None),
}

LOOKS = {"light": {}, "dark": {"color_scheme": "dark"}, "phone": PHONE}
IN_THE_DOCUMENTATION = {
    "light": (
        *("topics", "topic", "channel", "messages", "confirm", "outcome", "nodes", "activity", "channels", "consumers"),
        *("log", "browse", "seek", "dead"),
    ),
    "dark": ("topics", "topic"),
    "phone": ("topics", "topic", "messages"),
}


def take(chromium: "Browser", base: str, node: str, look: str, name: str, out: Path) -> None:
    context = chromium.new_context(**view(**LOOKS[look]))
    page = context.new_page()
    target, prepare = PICTURES[name]
    page.goto(base + target.format(node=node), wait_until="load")
    page.get_by_role("heading", level=1).wait_for()
    page.locator("[aria-label^=Loading]").first.wait_for(state="detached")
    page.evaluate("document.fonts.ready")
    if prepare:
        prepare(page)
    page.wait_for_timeout(1200)  # one or two polls, so that all numbers are present
    path = out / f"nsqadmin-{name}-{look}.png"
    page.screenshot(path=path)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB", flush=True)
    context.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=IMAGES)
    parser.add_argument("--warm-up-s", type=float, default=75.0)
    parser.add_argument("--only", default="", help="names of screenshots, separated by commas; in every variant")
    arguments = parser.parse_args()
    if missing := what_is_missing():
        print(missing, file=sys.stderr)
        return 1
    arguments.out.mkdir(parents=True, exist_ok=True)
    only = arguments.only.split(",") if arguments.only else []
    fleet = Fleet()
    try:
        flags = (f"--store-rule={LOGGED}=log", "--log-retain-age=72h")
        cluster = Cluster(fleet, nsqd_count=3, nsqd_flags=flags)
        where = f"--lookupd-http-address={cluster.lookupd.http_address}"
        admin = fleet.nsqadmin("nsqx", where, "--poll-interval=1s")
        with Traffic(cluster) as traffic, browser() as chromium:
            set_the_scene(cluster, traffic)
            time.sleep(arguments.warm_up_s)
            base = f"http://{admin.http_address}/"
            for look in LOOKS:
                for name in only or IN_THE_DOCUMENTATION[look]:
                    take(chromium, base, cluster.nsqds[0].http_address, look, name, arguments.out)
    finally:
        fleet.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
