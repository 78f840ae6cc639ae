"""Every command and snippet of README and docs/ runs as its page says. markdown_pages.py explains the marks."""

import shutil
import subprocess
from pathlib import Path

import pytest
from markdown_pages import ROOT, BadMark, Mark, pages_with_snippets, parse_mark, read_page
from page_runner import matches
from run_page import SKIPPED, command, why_no_namespace

PAGES = {str(path.relative_to(ROOT)): path for path in pages_with_snippets()}


@pytest.fixture(scope="module")
def namespace() -> None:
    reason = why_no_namespace()
    if reason:
        pytest.skip(reason)


def run(page: Path) -> tuple[int, str]:
    done = subprocess.run(command(page), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", PAGES)
@pytest.mark.usefixtures("namespace")
def test_the_snippets_of_a_page_run(name: str) -> None:
    if not read_page(PAGES[name]).blocks:
        return
    code, printed = run(PAGES[name])
    assert code == 0, printed
    left_out = [line for line in printed.splitlines() if line.startswith(SKIPPED)]
    if left_out:
        pytest.skip(f"everything else ran; {'; '.join(left_out)}")


@pytest.mark.usefixtures("namespace")
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```sh\nfalse\n```\n", "exit code 1"),
        ("```sh\necho one\n```\n<!-- output -->\n```text\ntwo\n```\n", "the output is different"),
        ("<!-- run: fails -->\n```sh\ntrue\n```\n", "exit code 0"),
        ("<!-- run: skip, because it is slow -->\n```sh\nif\n```\n", "syntax error"),
        ("```python\nraise SystemExit(3)\n```\n", "exit code 3"),
        ("```json\n{\n```\n", "not json"),
        ("```toml\na = \n```\n", "not toml"),
        pytest.param(
            "```go\nfunc (\n```\n",
            "not formatted by gofmt",
            marks=pytest.mark.skipif(shutil.which("gofmt") is None, reason="gofmt is not installed: install Go"),
        ),
        ("```rust\n```\n", "cannot be checked"),
        ("`examples/publish.py`:\n\n```python\nprint()\n```\n", "differs from"),
        ('<!-- run: background until "never" -->\n```sh\necho ended\n```\n', "ended with 0"),
        (
            "```sh\nexport WORD=here\nmkdir d\ncd d\n```\n```sh\ntest $WORD/$(basename $PWD) = here/e\n```\n",
            "exit code 1",
        ),
    ],
)
def test_a_wrong_snippet_is_reported(tmp_path: Path, text: str, complaint: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    code, printed = run(page)
    assert (code, complaint in printed) == (1, True), printed


@pytest.mark.usefixtures("namespace")
def test_a_correct_page_passes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        '```toml title="nsqd.toml"\nlog_level = "info"\ndata_path = "here"\n```\n\n'
        "```sh\nmkdir here\nexport WORD=there\n```\n\n"
        "```sh\n# a daemon\nnsqd --config=nsqd.toml\n```\n\n"
        "```sh\ncurl -s -d hello http://localhost:4151/pub?topic=t\necho\necho $WORD\n```\n"
        "<!-- output -->\n```text\nO…\n…\n```\n\n"
        "<!-- run: stop -->\n\n"
        "```sh\ntouch after-stop\n```\n\n"
        "<!-- run: fails -->\n```sh\ncurl -s http://localhost:4151/ping\n```\n\n"
        "<!-- run: together -->\n```python\nword = 'ab'\n```\n\n<!-- run: together -->\n```python\nprint(word)\n```\n"
        "<!-- output -->\n```text\nab\n```\n\n"
        "```sh\nrm after-stop\n```\n\n"
        "```console\n$ ls here\nbroker.id\nnsqd.dat\n…\n```\n"
        "<!-- run: needs no-such-program -->\n```sh\nfalse\n```\n\n<!-- output -->\n```text\nnothing\n```\n"
    )
    code, printed = run(page)
    assert code == 0, printed
    assert printed.startswith(f"{SKIPPED}{page}:")
    assert printed.endswith(": needs no-such-program, which is not installed\n")
    assert printed.count("\n") == 1


def test_marks_are_parsed_and_invalid_ones_rejected() -> None:
    assert parse_mark('background until "a, b"') == Mark(background=True, until="a, b")
    assert parse_mark("together, needs java, needs pyspark") == Mark(together=True, needs=("java", "pyspark"))
    assert parse_mark("skip, because it installs things, slowly").skip_reason == "it installs things, slowly"
    for wrong in ("skip", "skip, because", "backgruond"):
        with pytest.raises(BadMark):
            parse_mark(wrong)


def test_a_mark_that_does_not_precede_a_block_is_rejected(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- run: fails -->\n\nSome text.\n\n```sh\nfalse\n```\n")
    with pytest.raises(BadMark):
        read_page(page)


def test_an_ellipsis_matches_any_output() -> None:
    assert matches("a\n…\nd", "a\nb\nc\nd\n")
    assert matches("a\n…\nd", "a\nd\n")
    assert matches("nsqd …:4150 ok", "nsqd 127.0.0.1:4150 ok\n")
    assert not matches("a", "a\nb\n")
    assert not matches("a…c", "a\nc\n")
