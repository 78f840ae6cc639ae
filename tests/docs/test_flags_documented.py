"""The tables of docs/operations.md list exactly the flags of the daemons, with their defaults."""

import importlib
import re

import pytest
from markdown_pages import ROOT

from nsqx.flags import Flag

PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `([a-z0-9-]+)` \| (.*?) \| .+ \|$", re.MULTILINE)
TABLES = {
    "nsqd's flags": "nsqx.nsqd.options",
    "nsqlookupd's flags": "nsqx.nsqlookupd.options",
    "nsqadmin's flags": "nsqx.nsqadmin.options",
    "nsqx up's flags": "nsqx.cli.up",
}
# Defaults that depend on the machine, and defaults that the tables write differently from the usage text.
IN_WORDS = {"node-id": "a hash of this host's name", "broadcast-address": "this host's name"}
SPELLED = {"INFO": "info", "WARNING": "warn"}


def default_text(flag: Flag) -> str:
    """Return a default as the tables show it."""
    if flag.name in IN_WORDS:
        return IN_WORDS[flag.name]
    text = flag.kind.show(flag.default).strip('"').strip()
    if flag.kind.is_switch:
        text = "true" if flag.default else "false"
    text = SPELLED.get(text, text)
    return f"`{text}`" if text not in ("", "[]") else ""


def documented(heading: str) -> dict[str, str]:
    """Return the rows below a second-level heading: flag and default."""
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert section, f"docs/operations.md has no heading {heading!r}"
    rows = ROW.findall(section.group(1))
    assert len(rows) == len(dict(rows)), "a flag is listed twice"
    return {name: default.strip() for name, default in rows}


@pytest.mark.parametrize("heading", TABLES)
def test_the_table_lists_every_flag_with_its_default(heading: str) -> None:
    flags = {flag.name: flag for flag in importlib.import_module(TABLES[heading]).FLAGS}
    rows = documented(heading)
    missing = [f"| `{name}` | {default_text(flag)} | {flag.help} |" for name, flag in flags.items() if name not in rows]
    assert not missing, "rows to add:\n" + "\n".join(missing)
    assert set(rows) - set(flags) == set(), "no such flag"
    assert rows == {name: default_text(flags[name]) for name in rows}


def test_keys_whose_names_differ_from_their_flags() -> None:
    documented_keys = dict(re.findall(r"^\| `([a-z0-9-]+)` \| `([a-z0-9_]+)` \|$", PAGE, re.MULTILINE))
    real = {
        flag.name: flag.config_key
        for module in TABLES.values()
        for flag in importlib.import_module(module).FLAGS
        if flag.config_key
    }
    assert documented_keys == real
