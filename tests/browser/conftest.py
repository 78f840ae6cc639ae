"""Fixtures of the tests that open nsqadmin's page in a real browser.

The browser lives as long as one module: while Playwright runs, its event loop blocks other tests that need one.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browsers import browser, view, what_is_missing
from scene import Cluster, Traffic

from daemons import Daemon, Fleet

if TYPE_CHECKING:
    from browsers import Opener
    from playwright.sync_api import Browser, BrowserContext, Page

OPEN_TIMEOUT_MS = 15_000


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip every test here if a requirement is missing."""
    here = Path(__file__).parent
    for item in items if (missing := what_is_missing()) else ():
        if here in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=missing))


@pytest.fixture(scope="module")
def chromium() -> Iterator["Browser"]:
    from playwright.sync_api import expect

    expect.set_options(timeout=OPEN_TIMEOUT_MS)
    with browser() as running:
        yield running


@pytest.fixture(scope="module")
def module_fleet(chromium: "Browser") -> Iterator[Fleet]:
    fleet = Fleet()
    yield fleet
    fleet.close()


@pytest.fixture(scope="module")
def cluster(module_fleet: Fleet) -> Cluster:
    return Cluster(module_fleet)


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> Daemon:
    return cluster.admin()


@pytest.fixture(scope="module")
def traffic(cluster: Cluster) -> Iterator[Traffic]:
    with Traffic(cluster) as running:
        yield running


@pytest.fixture
def open_page(chromium: "Browser") -> Iterator["Opener"]:
    """Open views of an nsqadmin; the test fails if the browser reports an error."""
    contexts: list[BrowserContext] = []
    complaints: list[str] = []
    expected: list[str] = []

    def open_page(daemon: Daemon, target: str = "/", *, complains_of: tuple[str, ...] = (), **options: Any) -> "Page":
        context = chromium.new_context(**view(**options))
        context.set_default_timeout(OPEN_TIMEOUT_MS)
        contexts.append(context)
        expected.extend(complains_of)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
        page.goto(f"http://{daemon.http_address}{target}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [text for text in complaints if not any(each in text for each in expected)] == []
