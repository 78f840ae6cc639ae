"""A hook of MkDocs: brings what lies outside docs/ into the site, points links there, and lists folders in the menu.

The repository's pages link to each other as its readers need it: ``../ARCHITECTURE.md``, ``docs/client.md``. In the
site the first is a page like the others, and the second lies beside it. Files of examples/ and deploy/ are in it as
they are, and where a page links to a folder of them, a list. A ``folder/*`` in the menu stands for every page of it.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"ARCHITECTURE.md": "architecture.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
FOLDERS = ("deploy", "examples")

# The target of an inline link or image, without its anchor.
_TARGET = re.compile(r"(\]\()([^)\s#:]+)(?=[)#\s])")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Write out what the menu has as ``folder/*``."""
    config.nav = _listed(config.nav)
    return config


def _listed(entry: Any) -> Any:
    if isinstance(entry, str) and entry.endswith("/*"):
        docs = ROOT / "docs"
        return [path.relative_to(docs).as_posix() for path in sorted((docs / entry[:-2]).glob("*.md"))]
    if isinstance(entry, dict):
        return {title: _listed(content) for title, content in entry.items()}
    return [_listed(each) for each in entry] if isinstance(entry, list) else entry


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and files from outside."""
    for source, place in _places().items():
        if (ROOT / source).is_dir():
            files.append(File.generated(config, place, content=_list_of(ROOT / source)))
        else:
            files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    return files


def _list_of(folder: Path) -> str:
    names = [path.name + ("/index.md" if path.is_dir() else "") for path in sorted(folder.iterdir()) if _is_shown(path)]
    return "\n".join([f"# {folder.relative_to(ROOT).as_posix()}", "", *(f"- [{name}]({name})" for name in names)])


def _is_shown(path: Path) -> bool:
    return "__pycache__" not in path.parts and path.suffix != ".md"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Turn links between places of the repository into links between places of the site."""
    place = page.file.src_uri
    source = next((each for each, there in PAGES.items() if there == place), f"docs/{place}")
    places = _places()

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link.group(2)))
        there = places.get(target) or (target.removeprefix("docs/") if target.startswith("docs/") else "")
        return link.group(1) + (posixpath.relpath(there, posixpath.dirname(place) or ".") if there else link.group(2))

    parts = _FENCE.split(markdown)
    return "".join(part if part.startswith("```") else _TARGET.sub(moved, part) for part in parts)


def _places() -> dict[str, str]:
    """Where each file and folder from outside is in the site, by where it is in the repository."""
    places = dict(PAGES)
    for folder in FOLDERS:
        for path in (ROOT / folder, *sorted((ROOT / folder).rglob("*"))):
            if _is_shown(path):
                name = path.relative_to(ROOT).as_posix()
                places[name] = f"{name}/index.md" if path.is_dir() else name
    return places
