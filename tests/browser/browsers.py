"""Starts Chromium for the browser tests and the screenshots."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Opener = Callable[..., "Page"]
"""Opens a view of an nsqadmin; takes the daemon, the path, and options of the browser context."""

_ROOT = Path(__file__).resolve().parents[2]
UI = _ROOT / "ui"
IMAGES = _ROOT / "docs" / "images"
AXE = UI / "node_modules" / "axe-core" / "axe.min.js"

_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Render graphs and fonts the same on every machine.
    "--font-render-hinting=none",
]


def chromium() -> str | None:
    """Return the path of Chromium: $CHROMIUM, else the system's."""
    named = os.environ.get("CHROMIUM")
    return named or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def what_is_missing() -> str:
    """Return the reason why the browser tests cannot run here; empty if they can."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed: pip install playwright"
    if chromium() is None:
        return "Chromium is not installed: install the package chromium, or set CHROMIUM to its path"
    from nsqx.nsqadmin.page import BUILT

    if not (Path(BUILT) / "index.html").exists():
        return "the page is not built: run make ui (needs npm)"
    return ""


@contextmanager
def browser(*flags: str) -> Iterator["Browser"]:
    """Run Chromium with additional ``flags``."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium(), args=[*_FLAGS, *flags])
        try:
            yield running
        finally:
            running.close()


def accessibility_faults(page: "Page", rules: str = "{}") -> list[tuple[str, list[str]]]:
    """Return the violations that axe-core reports: the rule and the first elements that break it."""
    page.evaluate(AXE.read_text())
    found = page.evaluate(f"async () => (await axe.run({rules})).violations")
    return [(each["id"], [node["html"] for node in each["nodes"]][:3]) for each in found]


def view(**options: Any) -> dict[str, Any]:
    """Return options of a browser context; the default is the screen of a laptop with light colours."""
    return {"viewport": {"width": 1280, "height": 860}, "color_scheme": "light", **options}
