"""Python functions of a pipeline process rows. Rows on which they fail become dead letters."""

import json
import sys

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'nsqx[spark]'")

import pyarrow as pa  # noqa: E402

from nsqx.errors import ConfigError  # noqa: E402
from nsqx.pipeline.functions import ForeachStage, MapStage, RowFunction, find_function, module_file  # noqa: E402

SCHEMA = {
    "type": "struct",
    "fields": [{"name": "twice", "type": "integer", "nullable": True, "metadata": {}}],
}


class Letters:
    """Records the dead letters."""

    def __init__(self):
        self.written = []

    def write(self, origin, letters):
        self.written += [(origin, json.loads(letter.value), letter.reason) for letter in letters]


@pytest.fixture
def module(tmp_path, monkeypatch):
    name = f"functions_of_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(
        "seen = []\n"
        "def double(row):\n"
        "    return None if row['n'] == 0 else {'twice': 2 * row['n']} if row['n'] != 3 else {'twice': 'x'}\n"
        "def fail(row):\n"
        "    if row['n'] == 1: raise ValueError('one')\n"
        "    seen.append(row['n'])\n"
        "text = 'no function'\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield name
    sys.modules.pop(name, None)


def rows(*numbers):
    return iter([pa.RecordBatch.from_pylist([{"n": number} for number in numbers])])


def test_a_step_function_returns_a_row_or_none_or_causes_a_dead_letter(module, tmp_path):
    letters = Letters()
    function = RowFunction(f"{module}:double", str(tmp_path), "step.x", letters)
    made = [row for batch in MapStage(function, SCHEMA)(rows(0, 1, 2, 3)) for row in batch.to_pylist()]
    assert made == [{"twice": 2}, {"twice": 4}]
    ((origin, value, reason),) = letters.written
    assert (origin, value) == ("step.x", {"twice": "x"})
    assert "does not match its schema" in reason


def test_a_sink_function_is_called_for_each_row_and_failures_are_counted(module, tmp_path):
    letters = Letters()
    function = RowFunction(f"{module}:fail", str(tmp_path), "sink.y", letters)
    assert [batch.to_pylist() for batch in ForeachStage(function)(rows(1, 2, 3))] == [[{"rows": 3, "failed": 1}]]
    assert sys.modules[module].seen == [2, 3]
    assert letters.written == [("sink.y", {"n": 1}, f"{module}:fail failed: ValueError: one")]


def test_functions_are_imported_from_the_directory_of_the_file(module, tmp_path):
    assert find_function(f"{module}:double", str(tmp_path))({"n": 2}) == {"twice": 4}
    assert module_file(f"{module}:double", str(tmp_path)) == str(tmp_path / f"{module}.py")
    assert module_file("json:loads", str(tmp_path)) is None
    for path, expected in (
        ("no_such_module:f", "No module named"),
        (f"{module}:none", "has no attribute"),
        (f"{module}:text", "is not a function"),
    ):
        with pytest.raises(ConfigError, match=expected):
            find_function(path, str(tmp_path))
