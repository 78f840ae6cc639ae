"""The manual builds as a site: every page is in the navigation, every link works, no other host is used."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from markdown_pages import ROOT

import nsqx
from nsqx.client.options import OptionKeywords

_LOADED = re.compile(r"<(?:script|img|iframe|source)[^>]*\ssrc=\"(?:https?:)?//|<link[^>]*\shref=\"(?:https?:)?//")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not all(map(importlib.util.find_spec, ("mkdocs", "material", "mkdocstrings", "mkdocstrings_handlers"))):
        pytest.skip("MkDocs is not installed: pip install 'nsqx[docs]'")
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    return directory


def test_the_site_has_every_page(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs")).with_suffix(".html").is_file(), page
    assert (site / "architecture.html").is_file()
    assert (site / "deploy" / "grafana" / "nsq.json").is_file()


def test_the_client_api_page_covers_every_public_name(site: Path) -> None:
    page = (site / "client-api.html").read_text(encoding="utf-8")
    anchors = set(re.findall(r'id="(nsqx\.[\w.]+)"', page))
    modules = {f"nsqx.{name}" for name in nsqx.__all__ if isinstance(getattr(nsqx, name), ModuleType)}
    classes = {f"nsqx.{name}" for name in nsqx.__all__} - {"nsqx.__version__"} - modules
    assert anchors >= classes | {"nsqx.Producer.publish", "nsqx.Message.touch", "nsqx.blocking.Consumer.take"}
    assert anchors >= {"nsqx.codecs.JSONCodec", "nsqx.middlewares.retry"}
    assert set(re.findall(r"<code>(?:<span[^>]*>)?(\w+)", page)) >= set(OptionKeywords.__annotations__)


def test_no_page_loads_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert pages
    assert [str(page) for page in pages if _LOADED.search(page.read_text(encoding="utf-8"))] == []


def test_no_link_points_out_of_the_site(site: Path) -> None:
    for page in site.rglob("*.html"):
        for target in re.findall(r'<a\s[^>]*\bhref="([^"#:?]+)["#]', page.read_text(encoding="utf-8")):
            if page.name != "404.html":
                assert (page.parent / target).exists(), f"{page.name}: {target}"
