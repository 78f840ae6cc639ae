"""The direction of imports: cli -> daemons, tools, spark -> client, net -> queues -> wire -> errors and names."""

import ast
from pathlib import Path

import pytest

import nsqx

ROOT = Path(nsqx.__file__).parent

# What stands beside errors and names at the bottom: modules that anyone may use.
BOTTOM = {"errors", "names", "version", "gotext", "log", "flags", "__init__", "__main__"}

# What each package may import besides itself and the bottom.
ALLOWED = {
    "wire": set(),
    "queues": {"wire"},
    "net": {"wire", "queues"},
    "client": {"wire", "queues", "net"},
    "nsqd": {"wire", "queues", "net", "client"},
    "nsqlookupd": {"wire", "queues", "net", "client"},
    "nsqadmin": {"wire", "queues", "net", "client"},
    "tools": {"wire", "queues", "net", "client"},
    "bench": {"wire", "queues", "net", "client"},
    "spark": {"wire", "queues", "net", "client"},
    "pipeline": {"wire", "queues", "net", "client", "spark"},
    "doctor": {"wire", "queues", "nsqd"},
    "cli": {
        *("wire", "queues", "net", "client", "nsqd", "nsqlookupd", "nsqadmin"),
        *("tools", "spark", "pipeline", "bench", "doctor"),
    },
}

# They know no event loop, no socket and no clock: bytes and the time come in as arguments.
PURE = {"wire", "queues"}
FORBIDDEN_IN_PURE = {"asyncio", "uvloop", "socket", "ssl", "select", "selectors", "time", "datetime", "httptools"}

SOURCES = sorted(ROOT.rglob("*.py"))


def layer_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0]


def imported_modules(path):
    """The full name of every module that the file imports, wherever in it."""
    package = ["nsqx", *path.relative_to(ROOT).parent.parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            # ``from nsqx import log`` imports nsqx.log.
            yield from (f"{module}.{alias.name}" for alias in node.names) if module == "nsqx" else (module,)


def imported_layers(path):
    for module in imported_modules(path):
        first, _, rest = module.partition(".")
        if first == "nsqx":
            yield rest.partition(".")[0]


def relative(path):
    return str(path.relative_to(ROOT))


def test_the_sources_are_found():
    assert {"wire", "queues", "net", "nsqd", "cli", "errors", "names"} <= {layer_of(path) for path in SOURCES}


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_imports_point_downward(path):
    layer = layer_of(path)
    assert layer in ALLOWED or layer in BOTTOM, f"say in this test where {layer} stands"
    own = {layer} if layer in ALLOWED else set()
    wrong = set(imported_layers(path)) - BOTTOM - own - ALLOWED.get(layer, set())
    # The package itself re-exports its client library.
    if relative(path) == "__init__.py":
        wrong -= {"client"}
    assert not wrong


@pytest.mark.parametrize("path", [path for path in SOURCES if layer_of(path) in PURE], ids=relative)
def test_wire_and_queues_know_neither_loop_nor_socket_nor_clock(path):
    assert not {module.partition(".")[0] for module in imported_modules(path)} & FORBIDDEN_IN_PURE


def test_an_import_upward_would_be_seen(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    path = tmp_path / "queues" / "bad.py"
    path.parent.mkdir()
    path.write_text(
        "import asyncio.events\n"
        "from typing import TYPE_CHECKING\n"
        "from nsqx import log\n"
        "from ..net import address\n"
        "from . import files\n"
        "if TYPE_CHECKING:\n"
        "    def f():\n"
        "        import nsqx.nsqd.broker\n"
    )
    assert set(imported_layers(path)) == {"log", "net", "nsqd", "queues"}
    assert "asyncio.events" in set(imported_modules(path))
