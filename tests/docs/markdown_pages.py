"""Parts of a Markdown page that a test can check: fenced blocks with their marks, anchors of headings, links, code.

Reads pages; runs nothing. Shell blocks run one after the other, Python blocks run as scripts, and a block that only
starts daemons runs in the background. A mark, which is an HTML comment right before a block, changes this:

    run: background             run each command in the background until the page ends
    run: background until "X"   the same; continue when X is in the output
    run: stop                   press Ctrl-C in every background command; stands alone
    run: fails                  the exit code of the command must not be 0
    run: together               run the blocks with this mark as one script, at the place of the last one
    run: needs NAME             skip the block if the program, module or file NAME is missing
    run: skip, because REASON   do not run the block; check its syntax
    output                      the text block is the output of the block before; "…" stands for anything

Commas separate several marks. ``title="NAME"`` after the language saves the block as a file for later commands.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]

_COMMENT = re.compile(r"<!--\s*(.*?)\s*-->", re.DOTALL)
_TITLE = re.compile(r'\btitle="([^"]+)"')
_QUOTED_EXAMPLE = re.compile(r"`(examples/\w+\.py)`:")
_ANCHOR = re.compile(r'<a (?:id|name)="([^"]+)">')
_WORD = re.compile(r'(?:[^,"]|"[^"]*")+')
_SKIP = re.compile(r"skip, because (.+)", re.DOTALL)
_UNTIL = re.compile(r'background until "(.+)"')


class BadMark(ValueError):
    """An unknown or misplaced mark."""


@dataclass(frozen=True)
class Mark:
    """How a block is run."""

    background: bool = False
    until: str = ""
    fails: bool = False
    together: bool = False
    needs: tuple[str, ...] = ()
    skip_reason: str = ""
    output: bool = False
    stop: bool = False


@dataclass(frozen=True)
class Block:
    """A fenced block; or a mark without a block, with an empty language and text."""

    language: str
    text: str
    line: int
    mark: Mark = Mark()
    title: str = ""
    example: str = ""
    """The file of examples/ that the block must be equal to, or empty."""


@dataclass(frozen=True)
class Link:
    """The target of a link or an image."""

    target: str
    line: int


@dataclass
class Page:
    """One Markdown file."""

    path: Path
    blocks: list[Block] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        """The path in the repository."""
        return str(self.path.relative_to(ROOT)) if self.path.is_relative_to(ROOT) else str(self.path)


def pages_with_snippets() -> list[Path]:
    """Return README.md and every page below docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def read_page(path: Path) -> Page:
    """Parse a page; raise BadMark for an unknown or misplaced mark."""
    page = Page(path)
    mark, paragraph = Mark(), ""
    headings: dict[str, int] = {}
    tokens = _parser().parse(path.read_text(encoding="utf-8"))
    for index, token in enumerate(tokens):
        line = token.map[0] + 1 if token.map else 0
        if token.type == "html_block":
            mark = _mark_of(token.content, f"{page.name}:{line}")
            if mark.stop:
                page.blocks.append(Block("", "", line, mark))
                mark = Mark()
        elif token.type == "fence":
            page.blocks.append(_block(token, line, mark, paragraph))
            mark, paragraph = Mark(), ""
        elif token.type == "inline":
            paragraph = token.content
            page.links.extend(_links(token, line))
            page.anchors.update(_ANCHOR.findall(token.content))
            if tokens[index - 1].type == "heading_open":
                page.anchors.add(_anchor(_plain_text(token), headings))
            if mark != Mark():
                raise BadMark(f"{page.name}:{line}: the mark before this line does not precede a block")
    return page


def code_spans(path: Path) -> list[tuple[int, str]]:
    """Return the inline code of a page, each with the line where its paragraph begins."""
    spans = []
    for token in _parser().parse(path.read_text(encoding="utf-8")):
        for child in token.children or ():
            if child.type == "code_inline":
                spans.append((token.map[0] + 1 if token.map else 0, child.content))
    return spans


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark").enable("table")
    parser.validateLink = lambda url: True  # type: ignore[method-assign]  # the test finds bad links
    return parser


def _block(token: Token, line: int, mark: Mark, paragraph: str) -> Block:
    language, _, rest = token.info.strip().partition(" ")
    title = _TITLE.search(rest)
    quoted = _QUOTED_EXAMPLE.search(paragraph) if language == "python" else None
    return Block(
        language, token.content, line, mark, title.group(1) if title else "", quoted.group(1) if quoted else ""
    )


def _mark_of(html: str, where: str) -> Mark:
    comment = _COMMENT.match(html.strip())
    text = comment.group(1) if comment else ""
    if text == "output":
        return Mark(output=True)
    if not text.startswith("run:"):
        return Mark()
    try:
        return parse_mark(text.removeprefix("run:").strip())
    except BadMark as error:
        raise BadMark(f"{where}: {error}") from None


def parse_mark(text: str) -> Mark:
    """Parse the words after ``run:``; raise BadMark."""
    given: dict[str, object] = {}
    needs: list[str] = []
    skipped = _SKIP.fullmatch(text)
    if skipped:
        return Mark(skip_reason=skipped.group(1))
    for word in map(str.strip, _WORD.findall(text)):
        until = _UNTIL.fullmatch(word)
        if until:
            given |= {"background": True, "until": until.group(1)}
        elif word in ("background", "fails", "together", "stop"):
            given[word] = True
        elif word.startswith("needs "):
            needs.append(word.removeprefix("needs ").strip())
        else:
            raise BadMark(f"{word!r} is not a mark (a skip needs a reason: `skip, because ...`)")
    return Mark(**given, needs=tuple(needs))  # type: ignore[arg-type]


def _links(token: Token, line: int) -> list[Link]:
    attributes = {"link_open": "href", "image": "src"}
    return [
        Link(str(child.attrGet(attributes[child.type])), line)
        for child in token.children or ()
        if child.type in attributes
    ]


def _plain_text(token: Token) -> str:
    return "".join(child.content for child in token.children or () if child.type in ("text", "code_inline"))


def _anchor(heading: str, seen: dict[str, int]) -> str:
    """Return the id that GitHub and the built site give to a heading."""
    slug = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
    seen[slug] = seen.get(slug, -1) + 1
    return f"{slug}-{seen[slug]}" if seen[slug] else slug
