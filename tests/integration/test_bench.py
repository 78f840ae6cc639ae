"""nsqx bench on real brokers: every workload runs and reports its figures. The runs are too short to measure speed."""

import json
import shutil

import pytest

from bench.peers.catalog import find_launcher
from daemons import GO_PROGRAMS, require_go, start_nsqd
from nsqx.bench.workloads import WORKLOADS
from nsqx.cli.bench import main

# The names of the figures of each workload.
FIGURES = {
    "mem": ["mpub-mem", "sub-mem"],
    "mpub-16": ["mpub-16"],
    "spill": ["mpub-spill", "sub-spill"],
    "disk": ["mpub-disk", "sub-disk"],
    "pub-2": ["pub-2"],
    "pub-50": ["pub-50"],
    "flow": ["flow", *(f"flow {rate} {share}" for rate in ("10k", "100k") for share in ("p50", "p99", "p99.9"))],
    "fan-10": ["fan-10"],
    "http-pub": ["http-pub"],
    "large": ["large"],
    "many-1": [f"many-1{what}" for what in ("", " publish p50", " publish p99", " memory before")],
    "many-100": [f"many-100{what}" for what in ("", " publish p50", " publish p99", " memory before")],
    "many-10000": [f"many-10000{what}" for what in ("", " publish p50", " publish p99", " memory before")],
    "defer": [f"defer late {share}" for share in ("p50", "p99", "p99.9")],
    "log": ["mpub-log", "sub-log"],
    "mpub-fsync": ["mpub-fsync"],
    "pub-2-fsync": ["pub-2-fsync"],
    "pub-50-fsync": ["pub-50-fsync"],
    "fan-10-log": ["fan-10-log"],
    "many-100-fsync": [f"many-100-fsync{what}" for what in ("", " publish p50", " publish p99", " memory before")],
    "idle": ["idle"],
    **{
        f"fair-{flood}": [f"fair-{flood} {what}" for what in ("p99", "worst", "flood")]
        for flood in ("pub", "dpub", "fin", "rdy", "ping", "mpub")
    },
}


@pytest.fixture(scope="module")
def nsqd():
    with start_nsqd("nsqx", "--store-rule=bench_log*=log", "--store-rule=bench_*fsync*=log") as daemon:
        yield daemon


def run(nsqd, tmp_path, *words):
    """Run nsqx bench. Return the exit code and the figures by name."""
    result = tmp_path / "result.json"
    addresses = [f"--nsqd-tcp-address={nsqd.tcp_address}", f"--nsqd-http-address={nsqd.http_address}"]
    code = main(["run", *words, *addresses, f"--pid={nsqd.pid}", "--processes=1", f"--json={result}"])
    return code, {each["name"]: each for each in json.loads(result.read_bytes())["figures"]} if code == 0 else {}


@pytest.mark.parametrize("workload", [each.id for each in WORKLOADS])
def test_every_workload_reports_its_figures(nsqd, tmp_path, workload):
    code, figures = run(nsqd, tmp_path, workload, "--count=60")
    assert code == 0
    assert list(figures) == FIGURES[workload]
    rates = [each["value"] for each in figures.values() if each["unit"] == "msg/s"]
    assert all(value > 0 for value in rates)


def test_every_published_message_is_finished(nsqd, tmp_path):
    code, _ = run(nsqd, tmp_path, "mem", "--count=1000", "--size=20")
    assert code == 0
    topics = [each for each in nsqd.stats()["topics"] if each["topic_name"].startswith("bench_mem_")]
    found = {each["message_count"]: each["channels"][0] for each in topics}
    assert (found[1000]["depth"], found[1000]["in_flight_count"]) == (0, 0)


def test_runfor_limits_the_duration_of_a_run(nsqd, tmp_path):
    code, figures = run(nsqd, tmp_path, "pub-2", "--count=1000000000", "--runfor=200ms")
    assert code == 0
    assert figures["pub-2"]["value"] > 0


def test_a_broker_that_is_down_is_reported(tmp_path, capsys):
    assert main(["run", "pub-2", "--nsqd-tcp-address=127.0.0.1:1", "--count=1"]) == 1
    assert capsys.readouterr().err == "nsqx bench: cannot connect to 127.0.0.1:1: Connection refused\n"


def test_an_http_port_is_reported_as_an_error(nsqd, capsys):
    assert main(["run", "pub-2", f"--nsqd-tcp-address={nsqd.http_address}", "--count=1"]) == 1
    assert capsys.readouterr().err.startswith("nsqx bench: ")


@pytest.mark.interop
@pytest.mark.parametrize("client", ["nsqx", "go"])
def test_nsqx_is_compared_with_go_nsqd(tmp_path, capsys, client):
    require_go()
    result, chart = tmp_path / "result.json", tmp_path / "chart.svg"
    words = ["compare", "mem", "--rounds=1", "--count=400", "--runfor=300ms", f"--client={client}"]
    files = [f"--json={result}", f"--chart={chart}", f"--data-path={tmp_path}"]
    assert main([*words, f"--peer={GO_PROGRAMS / 'nsqd'}", *files]) == 0
    compared = json.loads(result.read_bytes())
    assert compared["brokers"] == ["nsqx", "Go nsqd"]
    assert [each["name"] for each in compared["figures"]] == ["mpub-mem", "sub-mem"]
    assert all(each["ratio"] > 0 for each in compared["figures"])
    assert "mpub-mem" in capsys.readouterr().out
    assert chart.read_text().startswith("<svg ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chart.svg", "result.json"]


@pytest.mark.interop
@pytest.mark.parametrize(("program", "name"), [("redis-server", "Redis"), ("nats-server", "NATS")])
def test_nsqx_is_compared_with_other_brokers(tmp_path, program, name):
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed")
    result = tmp_path / "result.json"
    words = ["compare", "mem", "pub-2", "fan-10", "--rounds=1", "--count=400", "--processes=1"]
    assert main([*words, f"--peer={path}", f"--json={result}"], find_launcher) == 0
    compared = json.loads(result.read_bytes())
    assert compared["brokers"] == ["nsqx", name]
    assert [each["name"] for each in compared["figures"]] == ["mpub-mem", "sub-mem", "pub-2"]
    assert all(each["ratio"] > 0 for each in compared["figures"])
