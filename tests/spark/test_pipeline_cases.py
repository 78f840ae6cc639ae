"""``nsqx pipeline test`` runs a pipeline on sample messages and prints how the rows differ from the expected ones."""

from __future__ import annotations

import pytest
from pipeline_runs import SLOW_S, PipelineFile


@pytest.fixture
def pipeline(tmp_path, capsys):
    # No nsqd is needed: nothing listens at this address.
    class Nowhere:
        tcp_address = "127.0.0.1:1"

    return PipelineFile(tmp_path, Nowhere(), capsys)


FILE = """
[pipeline]
name = "test"

[source.orders]
topic = "orders"
schema = "id INT, user STRING, amount DOUBLE, time TIMESTAMP"
require = ["amount > 0"]
watermark = { column = "time", delay = "1m" }

[source.users]
topic = "users"
schema = "infer"

[step.large]
sql = "SELECT id, user, amount, date(time) AS day, _topic AS topic_read FROM orders WHERE amount > 100"

[step.minutes]
sql = "SELECT window.start AS minute, count(*) AS n FROM orders GROUP BY window(time, '1 minute')"

[sink.large]
from = "large"
type = "parquet"
path = "out"

[sink.minutes]
from = "minutes"
type = "jdbc"
url = "jdbc:postgresql://127.0.0.1:1/nowhere"
table = "minutes"

[sink.users]
from = "users"
type = "console"
"""

CASES = """
[test.rows_are_selected.messages]
orders = [
  { id = 1, user = "ann", amount = 120.5, time = "2026-11-15T08:00:00Z", _topic = "elsewhere" },
  { id = 2, user = "bob", amount = 80, time = "2026-11-15T08:00:00Z" },
  { id = 3, amount = 1e3, time = "2026-11-15T23:59:59Z" },
  "no json",
  { id = 4, amount = -1 },
  { _value_base64 = "/w==" },
]
users = [{ name = "ann", age = 7 }]

[test.rows_are_selected.expect]
large = [
  { id = 3, amount = 1000, day = 2026-11-15, topic_read = "orders" },
  { id = 1, user = "ann", amount = 120.5, day = "2026-11-15", topic_read = "elsewhere" },
]
users = [{ age = 7, name = "ann" }]
dead_letters = [
  { value = "no json" },
  { value = '{"id":4,"amount":-1}' },
  { value = "/w==" },
]

[[test.late_rows_are_dropped.batch]]
orders = [{ id = 1, amount = 1, time = "2026-11-15T08:00:10Z" }, { id = 2, amount = 1, time = "2026-11-15T08:05:00Z" }]
users = ["{}", '{"name": "x"}']
[[test.late_rows_are_dropped.batch]]
orders = [{ id = 3, amount = 1, time = "2026-11-15T08:00:20Z" }, { id = 4, amount = 1, time = "2026-11-15T08:20:00Z" }]

[test.late_rows_are_dropped.expect]
minutes = [{ minute = 2026-11-15T08:00:00Z, n = 1 }, { minute = "2026-11-15T08:05:00Z", n = 1 }]
"""

WRONG = """
[test.wrong.messages]
orders = [{ id = 1, user = "ann", amount = 120.5, time = "2026-11-15T08:00:00Z" }, "no json"]
users = [{ name = "ann" }]

[test.wrong.expect]
large = [{ id = 1, user = "bob" }, { id = 2 }]
minutes = [{ count = 1 }]
"""


@pytest.mark.timeout(SLOW_S)
def test_cases_are_run_and_differences_printed(spark, pipeline):
    pipeline.write(FILE)
    assert pipeline.call("test") == 1
    assert f"{pipeline.directory / 'pipeline.test.toml'} does not exist: write tests to it" in pipeline.err
    (pipeline.directory / "pipeline.test.toml").write_text(CASES + WRONG)
    assert pipeline.call("test") == 1, pipeline.err
    assert pipeline.out.splitlines() == [
        "rows_are_selected: ok",
        "late_rows_are_dropped: ok",
        "wrong: FAILED",
        "  large: 2 missing (-), 1 not expected (+)",
        '    - id=1, user="bob"',
        "    - id=2, user=null",
        '    + id=1, user="ann"',
        "  minutes: no column count",
        "  dead_letters: 0 missing (-), 1 not expected (+)",
        *[line for line in pipeline.out.splitlines() if line.startswith('    + value="no json"')],
        "3 tests, 1 failed",
    ]
    assert pipeline.call("test", "late_rows_are_dropped") == 0
    assert pipeline.out.splitlines() == ["late_rows_are_dropped: ok", "1 test, 0 failed"]
    assert pipeline.call("test", "nothing") == 1
    assert "no test 'nothing'" in pipeline.err
    # Nothing was written outside of the temporary directory.
    assert {path.name for path in pipeline.directory.iterdir()} == {"pipeline.toml", "pipeline.test.toml"}
