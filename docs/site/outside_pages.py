"""A MkDocs hook that adds files from outside docs/ to the site.

Pages of the repository link to each other by their paths: ``../ARCHITECTURE.md``, ``docs/client.md``. In the site
ARCHITECTURE.md lies beside the other pages, so the hook rewrites these links. It also adds the files of examples/ and
deploy/, with a list of files for each folder, and replaces ``folder/*`` in the navigation with the pages of the folder.
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
    """Expand each ``folder/*`` of the navigation."""
    config.nav = _expand(config.nav)
    return config


def _expand(entry: Any) -> Any:
    if isinstance(entry, str) and entry.endswith("/*"):
        docs = ROOT / "docs"
        return [path.relative_to(docs).as_posix() for path in sorted((docs / entry[:-2]).glob("*.md"))]
    if isinstance(entry, dict):
        return {title: _expand(content) for title, content in entry.items()}
    return [_expand(each) for each in entry] if isinstance(entry, list) else entry


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and files from outside docs/."""
    for source, place in _site_paths().items():
        if (ROOT / source).is_dir():
            files.append(File.generated(config, place, content=_folder_page(ROOT / source)))
        else:
            files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    return files


def _folder_page(folder: Path) -> str:
    names = [path.name + ("/index.md" if path.is_dir() else "") for path in sorted(folder.iterdir()) if _is_shown(path)]
    return "\n".join([f"# {folder.relative_to(ROOT).as_posix()}", "", *(f"- [{name}]({name})" for name in names)])


def _is_shown(path: Path) -> bool:
    return "__pycache__" not in path.parts and path.suffix != ".md"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Rewrite links between paths of the repository as links between paths of the site."""
    place = page.file.src_uri
    source = next((each for each, there in PAGES.items() if there == place), f"docs/{place}")
    places = _site_paths()

    def rewrite(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link.group(2)))
        there = places.get(target) or (target.removeprefix("docs/") if target.startswith("docs/") else "")
        return link.group(1) + (posixpath.relpath(there, posixpath.dirname(place) or ".") if there else link.group(2))

    parts = _FENCE.split(markdown)
    return "".join(part if part.startswith("```") else _TARGET.sub(rewrite, part) for part in parts)


def _site_paths() -> dict[str, str]:
    """Return the path in the site of each file and folder from outside docs/, by its path in the repository."""
    places = dict(PAGES)
    for folder in FOLDERS:
        for path in (ROOT / folder, *sorted((ROOT / folder).rglob("*"))):
            if _is_shown(path):
                name = path.relative_to(ROOT).as_posix()
                places[name] = f"{name}/index.md" if path.is_dir() else name
    return places
