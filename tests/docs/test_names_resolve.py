"""Names in the documentation exist: identifiers, signatures, paths, flags, commands, routes and quoted messages.

Checks every code span of README.md, ARCHITECTURE.md, CONTRIBUTING.md and docs/, and every double-backticked span in the
docstrings of src/. A name that the project does not define must be in ``names_from_elsewhere.toml``.
"""

import re
from pathlib import Path

import pytest
from code_names import Code
from known_names import KnownNames, read_elsewhere
from markdown_pages import ROOT, code_spans, pages_with_snippets, read_page

from nsqx.cli.commands import COMMANDS

PAGES = [*pages_with_snippets(), ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"]
ELSEWHERE = Path(__file__).with_name("names_from_elsewhere.toml")
DOCSTRING_SPAN = re.compile(r"``(.+?)``", re.DOTALL)
DRAWN_NAME = re.compile(r"\b(?:[A-Z][a-z]+\.[a-z_]+|(?:[A-Z][a-z]+){2,})\b")
REPOSITORY_PATH = re.compile(r"(?<![\w./-])(?:tests|docs|src|deploy|examples|interop|ui)/[\w/.-]*\.[a-z]+\b")
FILE_AND_FUNCTION = re.compile(r"\| `([\w/]+\.py)` \| `([\w.]+)` \|$", re.MULTILINE)


def read_names(root: Path, elsewhere: dict[str, list[str]]) -> KnownNames:
    commands = {name: {flag.name for flag in command.flags} for name, command in COMMANDS.items()}
    return KnownNames(Code.read(root / "src" / "nsqx"), root, commands, elsewhere)


def unresolved(names: KnownNames, pages: list[Path]) -> list[str]:
    """Return a line for each span with an unknown name."""
    found = [
        f"{page.name}:{line}: {span}"
        for page in pages
        for scope in (snippet_words(page),)
        for line, span in [*code_spans(page), *drawn_names(page)]
        if not names.resolves(span, scope, page.parent)
    ]
    found += [
        f"{docstring.where}: {span}"
        for docstring in names.code.docstrings()
        for span in DOCSTRING_SPAN.findall(docstring.text)
        if not names.resolves(" ".join(span.split()), docstring.scope)
    ]
    return found


def drawn_names(page: Path) -> list[tuple[int, str]]:
    """Return the CamelCase and ``Class.member`` words of the diagrams on a page, each with the line of its diagram."""
    diagrams = [block for block in read_page(page).blocks if block.language in ("", "text") and not block.mark.output]
    return [(block.line, name) for block in diagrams for name in DRAWN_NAME.findall(block.text)]


def snippet_words(page: Path) -> set[str]:
    """Return the words of the snippets on a page, which other tests run; diagrams and printed output do not count."""
    snippets = [block.text for block in read_page(page).blocks if block.language not in ("", "text")]
    return {word for text in snippets for word in re.findall(r"[\w.@/-]+", text)}


@pytest.fixture(scope="module")
def names() -> KnownNames:
    return read_names(ROOT, read_elsewhere(ELSEWHERE))


@pytest.mark.timeout(300)  # reads the whole project
def test_every_name_exists_and_every_listed_name_is_needed(names: KnownNames) -> None:
    lines = unresolved(names, PAGES)
    assert not lines, f"correct the name, or add it to {ELSEWHERE.name}:\n" + "\n".join(lines)
    assert not names.unused(), f"remove from {ELSEWHERE.name}, no page or docstring needs it"


def misplaced(names: KnownNames, page: Path) -> list[str]:
    """Return the file and function of each table row of a page where the file does not define the function."""
    rows = FILE_AND_FUNCTION.findall(page.read_text(encoding="utf-8"))
    return [f"{page.name}: {path} {name}" for path, name in rows if not names.code.defines(path, name)]


def test_functions_are_in_the_files_that_tables_name(names: KnownNames) -> None:
    page = ROOT / "docs" / "internals" / "life-of-a-message.md"
    assert FILE_AND_FUNCTION.search(page.read_text(encoding="utf-8"))
    assert not [line for page in PAGES for line in misplaced(names, page)]


def missing_paths(root: Path, files: list[Path]) -> list[str]:
    """Return the paths of the repository that files mention, also in comments, and that do not exist."""
    found = [(file, path) for file in files for path in REPOSITORY_PATH.findall(file.read_text(encoding="utf-8"))]
    return [f"{file.relative_to(root)}: {path}" for file, path in found if not (root / path).exists()]


def test_paths_in_the_sources_exist() -> None:
    sources = [path for suffix in ("*.py", "*.pxd") for path in (ROOT / "src").rglob(suffix)]
    files = [*sources, *(ROOT / name for name in ("Makefile", "mkdocs.yml", "pyproject.toml", "setup.py"))]
    assert not missing_paths(ROOT, files)


def test_a_missing_path_is_found(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("# See docs/page.md and module.py.\nPATH = 'https://example.com/docs/other.md'\n")
    assert missing_paths(tmp_path, [module]) == ["module.py: docs/page.md"]


PACKAGE = '''
"""Owns ``Queue``. ``find_positions`` does not exist."""

import os

LIMIT = 10


class Queue:
    """Calls ``on_lost(queue, error)`` and ``on_lost(queue)`` of ``owner``."""

    def __init__(self, owner, size=LIMIT):
        """Keep ``size`` messages; ``limit`` is no parameter."""
        self.depth = 0

    def put(self, body, *, timeout=None):
        raise ValueError(f"queue {self.depth} is full: remove messages, E_FULL")


def on_lost(queue, error):
    """Open ``LIMIT`` files; ``/stats`` and ``/statistics``."""
    return os.environ.get("NSQX_QUEUE"), "/stats", "/topic/:topic", f"nsq_{queue}_depth_total"
'''
RIGHT = [
    *("Queue", "Queue.put", "queue.put", "queue.depth", "nsqx.store", "store.LIMIT", "on_lost", "LIMIT", "timeout"),
    *("Queue(owner, size=LIMIT)", "put(body)", "put(body, timeout=None)", "put(timeout=5)", "Queue()"),
    *("src/nsqx/store.py", "store.py", "nsqx/", "src/nsqx/*.py", "--size", "--size=3", "--si*", "-size", "nsqx keep"),
    *("nsqx keep --size=3 TOPIC", "keep --size", "make test", "make test ARGS=x", "kill -9", "asyncio.to_thread"),
    *("GET /stats", "/topic", "/topic/orders", "$NSQX_QUEUE", "E_FULL", "FULL", "nsq_store_depth_total"),
    *(
        "--size=3 --size=4",
        'put(b"", timeout=3)',
        "nsq_Queue_depth_total",
        "python src/nsqx/store.py",
        "len(queue)",
        "<name>_total",
    ),
    *(
        "queue … is full: remove messages",
        "queue seven is full: remove messages",
        "10m0s",
        "127.0.0.1:4150",
        "word",
        '{"queue": {"owner": 3}}',
    ),
]
WRONG = [
    *(
        "Queues",
        "Queue.get",
        "queue.length",
        "nsqx.shop",
        "store.MAXIMUM",
        "on_found",
        "NSQX_QUEUES",
        "nsq_topic_total",
    ),
    *("Queue(size)", "Queue(owner, size=3)", "put(message)", "on_lost(error, queue)", "on_lost(queue)"),
    *("src/nsqx/shop.py", "shop.py", "nsqd/", "src/nsqx/*.pyx", "--length", "--length=3", "--le*", "-length"),
    *("nsqx lose", "nsqx keep --length=3", "keep --length", "make tests", "make test WORDS=x", "asyncio.to_process"),
    *("GET /statistics", "/topics", "/channel/orders", "E_EMPTY", "EMPTY", "python tests/none.py", "another"),
    *(
        "--size=3 --length=4",
        'put(b"", patience=3)',
        "nsq_basket_depth_total",
        "nsqx keep other",
        "len(queues)",
        "/none/:topic",
    ),
    *(
        "queue … is empty: add messages",
        "queue seven was full: remove messages",
        "put(body, timeout=3)",
        '{"queue": {"owners": 3}}',
    ),
]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> KnownNames:
    """The names of a repository with one module, one command and a Makefile."""
    root = tmp_path_factory.mktemp("repository")
    (root / "src" / "nsqx").mkdir(parents=True)
    (root / "src" / "nsqx" / "store.py").write_text(PACKAGE.lstrip())
    (root / "Makefile").write_text("test: check\n\tpytest $(ARGS)\n")
    elsewhere = {"programs": ["kill", "python"], "words": ["word", "TOPIC", "old"]}
    return KnownNames(Code.read(root / "src" / "nsqx"), root, {"keep": {"size"}}, elsewhere)


@pytest.mark.parametrize("span", RIGHT)
def test_a_name_that_exists_resolves(small: KnownNames, span: str) -> None:
    assert small.resolves(span)


@pytest.mark.parametrize("span", WRONG)
def test_a_wrong_name_is_found(small: KnownNames, span: str) -> None:
    assert not small.resolves(span)


def test_wrong_names_in_pages_and_docstrings_are_listed_with_their_place(small: KnownNames, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# `Queue`\n\nUse `Queue.get` or\n`put(body)`.\n\n| `--length` | `word` |\n|---|---|\n| `local` | |\n"
    )
    page.write_text(
        page.read_text() + "\n```python\nlocal = 1\n```\n\n```\nQueue.put -> Queue.take -> DiskQueue\n```\n"
    )
    assert unresolved(small, [page]) == [
        "page.md:3: Queue.get",
        "page.md:6: --length",
        "page.md:14: Queue.take",
        "page.md:14: DiskQueue",
        "nsqx.store: find_positions",
        "nsqx.store.Queue: on_lost(queue)",
        "nsqx.store.Queue.__init__: limit",
        "nsqx.store.on_lost: /statistics",
    ]


def test_a_function_in_another_file_is_found(small: KnownNames, tmp_path: Path) -> None:
    rows = ["store.py` | `Queue.put", "store.py` | `on_lost", "store.py` | `Queue.get", "shop.py` | `on_lost"]
    page = tmp_path / "page.md"
    page.write_text("".join(f"| step | `{row}` |\n" for row in rows))
    assert misplaced(small, page) == ["page.md: store.py Queue.get", "page.md: shop.py on_lost"]


def test_a_listed_name_that_nothing_needs_is_found(small: KnownNames) -> None:
    small.used.clear()
    assert small.resolves("word")
    assert small.resolves("nsqx keep TOPIC")
    assert small.resolves("Queue")
    assert small.unused() == {"old", "TOPIC", "kill", "python"}


def test_a_built_folder_resolves_whether_it_exists_or_not(tmp_path: Path) -> None:
    (tmp_path / "src" / "nsqx").mkdir(parents=True)
    names = KnownNames(Code.read(tmp_path / "src" / "nsqx"), tmp_path, {}, {"built": ["dist/"]})
    assert names.resolves("dist/")
    (tmp_path / "dist").mkdir()
    names.used.clear()
    assert names.resolves("dist/")
    assert not names.unused()
