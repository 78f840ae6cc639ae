"""Chromium, started as the tests and the screenshots need it."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Opener = Callable[..., "Page"]
"""Opens a view of an nsqadmin: the daemon, the path, and options of the browser's context."""

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
    # Graphs and fonts look the same everywhere.
    "--font-render-hinting=none",
]


def chromium() -> str | None:
    """Where the system's Chromium is; CHROMIUM names another."""
    named = os.environ.get("CHROMIUM")
    return named or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def what_is_missing() -> str:
    """Why the page cannot be looked at here; empty if it can."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed: pip install playwright"
    if chromium() is None:
        return "Chromium is not installed: install the package chromium, or name one by CHROMIUM"
    from nsqx.nsqadmin.page import BUILT

    if not (Path(BUILT) / "index.html").exists():
        return "the page is not built: run make ui (needs npm)"
    return ""


@contextmanager
def browser(*flags: str) -> Iterator["Browser"]:
    """A running Chromium, with ``flags`` beside the usual ones."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium(), args=[*_FLAGS, *flags])
        try:
            yield running
        finally:
            running.close()


def accessibility_faults(page: "Page", rules: str = "{}") -> list[tuple[str, list[str]]]:
    """What axe-core complains of: the rule, and the first elements that break it."""
    page.evaluate(AXE.read_text())
    found = page.evaluate(f"async () => (await axe.run({rules})).violations")
    return [(each["id"], [node["html"] for node in each["nodes"]][:3]) for each in found]


def view(**options: Any) -> dict[str, Any]:
    """The options of a browser context: a laptop's screen, light, unless told otherwise."""
    return {"viewport": {"width": 1280, "height": 860}, "color_scheme": "light", **options}
