"""A class name is used once in the package, so that a search for it finds one class."""

import ast
from collections import defaultdict
from pathlib import Path

import nsqx

ROOT = Path(nsqx.__file__).parent
# The blocking client has the interface of the asyncio client, under the same names.
SHARED = {
    name: ["client/blocking.py", f"client/{module}.py"]
    for name, module in (("Consumer", "consumer"), ("Message", "subscription"), ("Producer", "producer"))
}
# Each framework calls its class for NSQ a broker.
SHARED["NSQBroker"] = ["adapters/faststream/broker.py", "adapters/taskiq.py"]


def test_every_public_class_name_is_unique():
    places = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(statement, ast.ClassDef) and not statement.name.startswith("_"):
                places[statement.name].append(path.relative_to(ROOT).as_posix())
    assert len(places) > 100
    assert {name: found for name, found in places.items() if len(found) > 1} == SHARED
