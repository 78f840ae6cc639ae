"""Every link between pages of the repository leads to an existing file and heading."""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from markdown_pages import ROOT, Page, pages_with_snippets, read_page

from nsqx.nsqadmin.alert_rules import DEFAULT_RULES

LINKED_PAGES = [
    *pages_with_snippets(),
    *(ROOT / name for name in ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "deploy").rglob("*.md")),
]


def complaints(page: Page) -> list[str]:
    """Return a line for each broken link of a page."""
    return [
        f"{page.name}:{link.line}: {link.target}: {why}" for link in page.links if (why := _wrong(page, link.target))
    ]


def _wrong(page: Page, target: str) -> str:
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return "" if parts.scheme in ("http", "https", "mailto") else "the scheme is not http, https or mailto"
    if parts.path.startswith("/"):
        return "an absolute path"
    path = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path
    if not path.exists():
        return "no such file"
    if path.is_relative_to(ROOT) and any(part in ("build", "node_modules", ".venv") for part in path.parts):
        return "not in the repository"
    if parts.fragment and path.suffix == ".md" and parts.fragment not in read_page(path).anchors:
        return "no such heading"
    return ""


@pytest.mark.parametrize("path", LINKED_PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links(path: Path) -> None:
    assert complaints(read_page(path)) == []


def test_the_links_of_nsqadmin_lead_to_sections_of_the_manual() -> None:
    text = (ROOT / "ui" / "src" / "lib" / "manual.ts").read_text(encoding="utf-8")
    sections = set(re.findall(r'\w+: "([\w-]+)",', text))
    assert len(sections) >= 8
    assert sections | set(DEFAULT_RULES) <= set(read_page(ROOT / "docs" / "nsqadmin.md").anchors)


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A heading, of `code`\n\n## Twice\n\n## Twice\n")
    page = tmp_path / "page.md"
    good = ["other.md#a-heading-of-code", "other.md#twice-1", "https://example.com/", "#here"]
    bad = ["none.md", "other.md#nowhere", "/etc/passwd", "file:///etc/passwd", "other.md#twice-2"]
    page.write_text("# Here\n\n" + "\n\n".join(f"[x]({target})" for target in good + bad) + "\n\n![x](none.png)\n")
    found = [line.split(": ")[1] for line in complaints(read_page(page))]
    assert found == [*bad, "none.png"]
