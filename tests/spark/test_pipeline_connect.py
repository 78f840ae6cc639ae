"""Pipelines, archives and replays on a Spark Connect server, which is a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pipeline_runs import SLOW_S, read_rows, take_all
from streams import publish

from daemons import free_port, wait_until
from nsqx.pipeline.state import STATUS, PipelineState

pytest.importorskip("grpc", reason="grpc is missing: pip install 'nsqx[connect]'")

# Runs several commands of nsqx in one process, as starting one takes seconds.
COMMANDS = """
import json, sys
from nsqx.cli.main import main
for words in json.loads(sys.argv[1]):
    try:
        code = main(words)
    except SystemExit as error:
        code = error.code
    sys.stdout.flush()
    sys.stderr.flush()
    print(f"exit code {code or 0}", flush=True)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Run a Spark Connect server with the source of nsqx; return its address."""
    port = free_port()
    root = Path(__file__).resolve().parents[2]
    directory = tmp_path_factory.mktemp("connect")
    settings = {
        "spark.ui.enabled": "false",
        # The compiler of the JVM would take the time of Python processes that have 10 s to start.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    flags = [f"--conf={key}={value}" for key, value in settings.items()]
    program = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    kind = "org.apache.spark.sql.connect.service.SparkConnectServer"
    path = os.pathsep.join(filter(None, [str(root / "src"), os.environ.get("PYTHONPATH")]))
    env = {
        **os.environ,
        "PYTHONPATH": path,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    log = directory / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [program, "--master", "local[2]", "--class", kind, *flags],
            cwd=directory,
            env=env,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until(
            lambda: process.poll() is not None or "Spark Connect server started at" in log.read_text(),
            "the Spark Connect server has started",
            timeout_s=120,
        )
        assert process.poll() is None, log.read_text()[-3000:]
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def log_nsqd(fleet):
    return fleet.nsqd("nsqx", "--store=log")


def run_commands(*commands):
    """Run commands of nsqx in one process; return the exit code and the output of each."""
    process = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(commands)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SLOW_S - 50,
        check=False,
    )
    found = []
    text = ""
    for line in process.stdout.splitlines(keepends=True):
        if line.startswith("exit code "):
            found.append((int(line.removeprefix("exit code ")), text))
            text = ""
        else:
            text += line
    assert len(found) == len(commands), process.stdout[-5000:]
    return found


def bodies(first, last):
    return [json.dumps({"number": number, "kind": "ab"[number % 2]}).encode() for number in range(first, last)]


FILE = """
[pipeline]
name = "test"

[source.messages]
topic = "$topic"
schema = "infer"
require = ["number >= 0"]

[step.totals]
sql = "SELECT kind, count(*) AS n FROM messages GROUP BY kind"

[step.doubled]
from = "messages"
function = "$module:double"
schema = "number INT, twice INT, kind STRING"

[sink.files]
from = "doubled"
type = "parquet"
path = "files"
partition_by = "kind"

[sink.totals]
from = "totals"
type = "topic"
topic = "$topic_totals"
mode = "update"
"""

MODULE = """
def double(row):
    if row["number"] == 3:
        raise ValueError("three is unlucky")
    return {"number": row["number"], "twice": 2 * row["number"], "kind": row["kind"]}
"""

CASES = """
[test.doubled.messages]
messages = [{ number = 1, kind = "a" }, { number = 2, kind = "a" }]

[test.doubled.expect]
files = [{ number = 1, twice = 2 }, { number = 2, twice = 4 }]
totals = [{ kind = "a", n = 2 }]
"""

JDBC = ["sink.totals={from='totals', type='jdbc', url='jdbc:h2:x', table='t'}"]
WRONG = [
    (JDBC, "sink.totals.type: jdbc does not work over Spark Connect, because its transactions need"),
    (["sink.totals={from='totals', type='console'}"], "console does not work over Spark Connect"),
    (["spark.packages=a:b:1"], "spark.packages: packages cannot be added over Spark Connect: start the server"),
    (["spark.spark.driver.memory=1g"], "spark.driver.memory cannot be set over Spark Connect: set it where the server"),
    (["step.totals.sql=SELEC 1"], "step.totals.sql: Syntax error at or near 'SELEC'. (line 1, column 1)"),
    (["step.totals.sql=SELECT nombre FROM messages"], "step.totals.sql: A column, variable, or function parameter"),
    (["source.messages.require=nombre > 1"], "source.messages.require: invalid condition 'nombre > 1': "),
    (["sink.totals.mode=append"], "sink.totals.mode: append: without a watermark an aggregate is never final"),
    (["sink.files.partition_by=day"], "sink.files.partition_by: doubled has no column day"),
]


@pytest.mark.timeout(SLOW_S)
def test_a_pipeline_runs_on_a_server(server, tmp_path, log_nsqd, topic):
    module = f"functions_{topic}"
    path = tmp_path / "pipeline.toml"
    (tmp_path / f"{module}.py").write_text(MODULE)
    (tmp_path / "pipeline.test.toml").write_text(CASES)
    path.write_text(FILE.replace("$topic", topic).replace("$module", module))
    publish(log_nsqd, topic, [*bodies(0, 10), b"no json", b'{"number": -1}'])
    to = ["--nsqd", log_nsqd.tcp_address, "--master", server]
    first, explained, tested = run_commands(
        ["pipeline", "run", str(path), "--once", *to],
        ["pipeline", "explain", str(path), *to],
        ["pipeline", "test", str(path), "--master", server],
    )
    assert first[0] == 0, first[1]
    assert "files: stopped: 12 rows read, 9 written, 3 dead letters, " in first[1]
    assert "totals: stopped: 12 rows read, 2 written, 0 dead letters, " in first[1]
    rows = read_rows(tmp_path / "files")
    expected = [(n, 2 * n, "ab"[n % 2]) for n in range(10) if n != 3]
    assert sorted((row["number"], row["twice"], row["kind"]) for row in rows) == expected
    letters = read_rows(tmp_path / "test.state" / "dead-letters")
    assert sorted(letter["origin"] for letter in letters) == ["source.messages", "source.messages", "step.doubled"]
    assert explained[0] == 0, explained[1]
    assert "columns: kind string, n bigint" in explained[1]
    assert tested[0] == 0, tested[1]
    assert "doubled: ok" in tested[1]

    publish(log_nsqd, topic, bodies(10, 14))
    wrong = [["pipeline", "check", str(path), *to, *(f"--set={each}" for each in settings)] for settings, _ in WRONG]
    second, checked, *refused = run_commands(
        ["pipeline", "run", str(path), "--once", *to], ["pipeline", "check", str(path), *to], *wrong
    )
    assert second[0] == 0, second[1]
    assert "files: stopped: 4 rows read, 4 written" in second[1]
    assert sorted(row["number"] for row in read_rows(tmp_path / "files")) == [0, 1, 2, *range(4, 14)]
    totals = [(each["kind"], each["n"]) for each in map(json.loads, take_all(log_nsqd, f"{topic}_totals", 4))]
    assert sorted(totals) == [("a", 5), ("a", 7), ("b", 5), ("b", 7)]
    assert checked == (0, f"{path}: no errors, sinks: files, totals\n")
    for (code, text), (settings, expected) in zip(refused, WRONG, strict=True):
        assert code == 1, settings
        assert expected in text, settings
        assert text.count("\n") == 1, text


SHARED = """
[pipeline]
name = "test"
trigger = "100ms"

[source.messages]
topic = "$topic"
schema = "number INT"
max_rows_per_batch = 50
share = true

[sink.files]
from = "messages"
type = "parquet"
path = "files"

[sink.copies]
from = "messages"
type = "topic"
topic = "$topic_copies"
"""


@pytest.mark.timeout(SLOW_S)
def test_the_next_run_goes_on_after_a_stop_and_after_the_client_is_killed(server, tmp_path, log_nsqd, topic):
    path = tmp_path / "pipeline.toml"
    path.write_text(SHARED.replace("$topic", topic))
    to = ["--nsqd", log_nsqd.tcp_address, "--master", server]
    state = PipelineState(str(tmp_path / "test.state"))

    def rows_out():
        status = state.read(STATUS) or {"sinks": {}}
        return min((each["rows_out"] for each in status["sinks"].values()), default=0)

    def start():
        state.delete(STATUS)
        words = ["pipeline", "run", str(path), *to]
        with (tmp_path / "output").open("a") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "nsqx.cli.main", *words], stdout=output, stderr=subprocess.STDOUT
            )

    for number, end in enumerate((signal.SIGTERM, signal.SIGKILL)):
        running = start()
        try:
            publish(
                log_nsqd, topic, [json.dumps({"number": n}).encode() for n in range(500 * number, 500 * number + 500)]
            )
            wait_until(
                lambda process=running: rows_out() >= 100 or process.poll() is not None,
                "rows are written",
                timeout_s=120,
            )
            assert running.poll() is None, (tmp_path / "output").read_text()
            running.send_signal(end)
            code = running.wait(120)
        finally:
            running.kill()
            running.wait()
        if end == signal.SIGTERM:
            assert code == 0, (tmp_path / "output").read_text()
            assert "stopping after the current batches" in (tmp_path / "output").read_text()
    # The queries of the killed client still run at the server; this run takes over.
    last, archived, replayed = run_commands(
        ["pipeline", "run", str(path), "--once", *to],
        ["archive", topic, "--to", str(tmp_path / "archive"), "--once", *to],
        ["replay", str(tmp_path / "archive"), "--to", f"{topic}_again", *to],
    )
    assert last[0] == 0, last[1]
    assert sorted(row["number"] for row in read_rows(tmp_path / "files")) == list(range(1000))
    copies = sorted(json.loads(body)["number"] for body in take_all(log_nsqd, f"{topic}_copies", 1000))
    assert copies == list(range(1000))
    assert archived[0] == 0, archived[1]
    assert len(read_rows(tmp_path / "archive")) == 1000
    assert replayed[0] == 0, replayed[1]
    assert log_nsqd.topic_stats(f"{topic}_again")["message_count"] == 1000
