"""Imports point downward: cli -> daemons, tools, spark -> client -> cluster -> net, queues -> wire -> the bottom.

The table of allowed imports is exact. An import outside of the table fails, and so does a permission without an import.
"""

import ast
import re
from pathlib import Path

import pytest

import nsqx

ROOT = Path(nsqx.__file__).parent

# The modules at the bottom. Every module may import them; they import only each other.
BOTTOM = {"errors", "names", "version", "gotext", "log", "flags", "units"}

# The layers that each layer imports, besides itself and the bottom. "__init__" is the package itself, which exports
# the names of the client.
ALLOWED = {
    "__init__": {"client", "blocking", "codecs", "middlewares", "telemetry"},
    "blocking": {"client"},
    "codecs": {"client"},
    "middlewares": {"client"},
    "telemetry": {"client"},
    "wire": set(),
    "queues": {"wire"},
    "net": {"wire"},
    "cluster": {"wire", "net"},
    "client": {"wire", "net", "cluster"},
    "nsqd": {"wire", "queues", "net", "cluster"},
    "nsqlookupd": {"wire", "net"},
    "nsqadmin": {"wire", "net", "client", "cluster"},
    "tools": {"net", "client", "cluster"},
    "bench": {"wire", "net"},
    "spark": {"wire", "queues", "net", "client", "cluster"},
    "pipeline": {"client", "spark", "cluster"},
    "adapters": {"client"},
    "doctor": {"wire", "queues", "nsqd"},
    "testing": {"net", "nsqd", "nsqlookupd"},
    "cli": {
        "wire",
        "queues",
        "net",
        "client",
        "cluster",
        "nsqd",
        "nsqlookupd",
        "nsqadmin",
        "tools",
        "spark",
        "pipeline",
        "bench",
        "doctor",
    },
}

# These layers, and the session of nsqd, use no event loop, no socket and no clock. Bytes and the time are arguments.
PURE = {"wire", "queues"}
SESSION = [ROOT / "nsqd" / f"{name}.py" for name in ("session", "effects", "protocol_states", "negotiation")]
FORBIDDEN_IN_PURE = {"asyncio", "uvloop", "socket", "ssl", "select", "selectors", "time", "datetime", "httptools"}

# NSQ's own headers and media type. They belong to ``wire``; ``net`` is HTTP and TLS.
NSQ_HEADER = re.compile(r"x-nsq|vnd\.nsq|nsq; version", re.IGNORECASE)

SOURCES = sorted(ROOT.rglob("*.py"))

# The only module that uses Spark's private attributes: those that start with _j, and these.
SPARK_PRIVATE_MODULE = ROOT / "spark" / "jvm.py"
SPARK_PRIVATE = re.compile(r"_j[a-z]\w*|_sc|_gateway|_active_spark_context|_instantiatedSession")


def layer_of(path):
    """Return the first folder of a module, or the module's own name if it lies directly in the package."""
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imported_modules(path):
    """Yield the full name of every module that the file imports, at any depth of its code."""
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


def imports_between_layers(paths):
    """Return the layers that each layer imports, besides itself and the bottom."""
    found = {}
    for path in paths:
        layer = layer_of(path)
        found.setdefault(layer, set()).update(set(imported_layers(path)) - BOTTOM - {layer})
    return found


def nsq_headers(path):
    """Return the string and bytes literals of the file that contain a header of NSQ; docstrings included."""
    literals = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
    texts = [value.decode("latin-1") if isinstance(value, bytes) else value for value in literals]
    return [text for text in texts if isinstance(text, str) and NSQ_HEADER.search(text)]


def relative(path):
    return str(path.relative_to(ROOT))


def test_every_module_has_a_place_in_the_table():
    assert {layer_of(path) for path in SOURCES} == ALLOWED.keys() | BOTTOM


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_imports_point_downward(path):
    layer = layer_of(path)
    assert not set(imported_layers(path)) - BOTTOM - {layer} - ALLOWED.get(layer, set())


@pytest.mark.parametrize("layer", ALLOWED)
def test_every_allowed_import_is_used(layer):
    unused = ALLOWED[layer] - imports_between_layers(SOURCES)[layer]
    assert not unused, f"{layer} does not import {', '.join(sorted(unused))}: remove the permission"


@pytest.mark.parametrize("path", [*(path for path in SOURCES if layer_of(path) in PURE), *SESSION], ids=relative)
def test_wire_queues_and_the_session_import_no_event_loop_no_socket_and_no_clock(path):
    assert not {module.partition(".")[0] for module in imported_modules(path)} & FORBIDDEN_IN_PURE


@pytest.mark.parametrize("path", SESSION, ids=relative)
def test_the_session_does_not_import_net(path):
    assert "net" not in set(imported_layers(path))


@pytest.mark.parametrize("path", [path for path in SOURCES if layer_of(path) == "net"], ids=relative)
def test_net_defines_no_header_of_nsq(path):
    assert not nsq_headers(path)


def test_an_import_upward_is_found(tmp_path, monkeypatch):
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
    assert imports_between_layers([path]) == {"queues": {"net", "nsqd"}}


def test_a_header_of_nsq_is_found(tmp_path):
    path = tmp_path / "bad.py"
    path.write_text('A = "X-NSQ-Content-Type"\nB = {"Accept": b"application/vnd.nsq; version=1.0"}\nC = "X-Id"\n')
    assert nsq_headers(path) == ["X-NSQ-Content-Type", "application/vnd.nsq; version=1.0"]


def spark_private_uses(path):
    """Yield the private attributes of Spark that a file reads, and imports of py4j."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and SPARK_PRIVATE.fullmatch(node.attr):
            if not (isinstance(node.value, ast.Name) and node.value.id == "self"):
                yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and SPARK_PRIVATE.fullmatch(node.value):
            yield node.value
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
            yield from (name for name in names if name.partition(".")[0] == "py4j")


def test_only_one_module_uses_private_attributes_of_spark():
    folders = ROOT / "spark", ROOT / "pipeline", ROOT / "cli", ROOT.parent / "pyspark_nsq"
    found = {path for folder in folders for path in folder.rglob("*.py") if any(spark_private_uses(path))}
    assert found == {SPARK_PRIVATE_MODULE}
