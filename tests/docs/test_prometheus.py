"""Prometheus with the files of deploy/ scrapes a cluster: targets answer, rules work, and the dashboard has data.

Only the addresses, the intervals and the waiting times of the alerts differ from the files. Grafana itself is not run.
"""

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from markdown_pages import ROOT

from daemons import Daemon, Fleet, free_port, wait_until
from rawclient import RawClient

DEPLOY = ROOT / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARD = json.loads((DEPLOY / "grafana" / "nsq.json").read_text(encoding="utf-8"))
# Each configuration with the services of its targets.
CONFIGURATIONS = {
    "prometheus": {"nsqd-1", "nsqd-2", "nsqlookupd-1"},
    "compose": {"nsqd-1", "nsqd-2", "nsqd-3", "nsqlookupd-1", "nsqlookupd-2"},
}
WAIT_S = 40.0

# What Grafana puts for a variable with all its values.
_VARIABLES = {"$__rate_interval": "20s", "$instance": ".*", "$topic": ".*", "$channel": ".*"}
_LABEL_VALUES = re.compile(r"label_values\((.+), *(\w+)\)")


@pytest.fixture(scope="module", autouse=True)
def yaml() -> Any:
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed (Debian: prometheus)")
    return pytest.importorskip("yaml", reason="PyYAML is not installed: pip install 'nsqx[docs]'")


@pytest.fixture(scope="module")
def daemons() -> Iterator[dict[str, Daemon]]:
    """The daemons of compose.yaml. The channel clicks/used has a consumer, and clicks/left has a message and none."""
    fleet = Fleet()
    try:
        found = {f"nsqlookupd-{number}": fleet.nsqlookupd("nsqx") for number in (1, 2)}
        flags = [f"--lookupd-tcp-address={each.tcp_address}" for each in found.values()]
        flags += ["--store=log", "--e2e-processing-latency-percentile=0.99,0.5"]
        lookupds = list(found.values())
        found |= {f"nsqd-{number}": fleet.nsqd("nsqx", *flags) for number in (1, 2, 3)}
        nsqd = found["nsqd-1"]
        for lookupd in lookupds:
            wait_until(lambda at=lookupd: b"nsqlookupd_producers 3.0" in at.request("GET", "/metrics").body, "3 nsqds")
        with RawClient(nsqd.tcp_address) as consumer:
            consumer.sub("clicks", "used")
            nsqd.post("/channel/create", topic="clicks", channel="left")
            nsqd.post("/pub", b"home", topic="clicks")
            consumer.rdy(1)
            consumer.fin(consumer.read_message().id)
            wait_until(lambda: nsqd.channel_stats("clicks", "used")["e2e_processing_latency"]["count"], "finished")
            yield found
    finally:
        fleet.close()


@dataclass(frozen=True)
class Prometheus:
    """A Prometheus with the targets that its configuration names."""

    port: int
    targets: set[str]

    def get(self, path: str, **query: str) -> Any:
        """Return the data of an answer, or None while Prometheus starts; raise HTTPError if the request is invalid."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:
                return None
            raise
        except (urllib.error.URLError, ConnectionError):
            return None

    def wait(self, condition: Callable[[Any], Any], what: str, path: str, **query: str) -> Any:
        """Repeat a request until ``condition`` is true for its data; return the data."""

        def data() -> Any:
            found = self.get(path, **query)
            return found if found and condition(found) else None

        return wait_until(data, what, WAIT_S)


@pytest.fixture(scope="module", params=CONFIGURATIONS)
def prometheus(
    request: pytest.FixtureRequest, daemons: dict[str, Daemon], yaml: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    directory = tmp_path_factory.mktemp("prometheus")
    text = (DEPLOY / request.param / "prometheus.yml").read_text(encoding="utf-8")
    configuration = yaml.safe_load(text)
    configuration["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    targets = set()
    for job in configuration["scrape_configs"]:
        for group in job["static_configs"]:
            names = [each.partition(":")[0].partition(".")[0] for each in group["targets"]]
            assert all(name.startswith(f"{job['job_name']}-") for name in names)
            group["targets"] = [daemons[name].http_address for name in names]
            targets |= set(names)
    assert targets == CONFIGURATIONS[request.param]
    rules = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("for", None)
    (directory / "prometheus.yml").write_text(json.dumps(configuration))  # JSON is YAML
    (directory / "alerts.yml").write_text(json.dumps(rules))
    port = free_port()
    command = ["prometheus", f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data"]
    with (
        (directory / "log").open("wb") as log,
        subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log) as process,
    ):
        try:
            yield Prometheus(port, {daemons[name].http_address for name in targets})
        finally:
            process.terminate()


def test_every_target_answers(prometheus: Prometheus) -> None:
    def all_up(data: dict[str, Any]) -> bool:
        return {each["health"] for each in data["activeTargets"]} == {"up"}

    found = prometheus.wait(all_up, "all targets answer", "targets")["activeTargets"]
    assert {each["labels"]["instance"] for each in found} == prometheus.targets
    assert {each["lastError"] for each in found} == {""}


def test_every_rule_works(prometheus: Prometheus, yaml: Any) -> None:
    def evaluated(data: dict[str, Any]) -> bool:
        return all(rule["health"] != "unknown" for group in data["groups"] for rule in group["rules"])

    groups = prometheus.wait(evaluated, "all rules were evaluated", "rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    written = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    assert {rule["name"] for rule in rules} == {rule["alert"] for group in written for rule in group["rules"]}
    assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []


def test_a_channel_without_consumer_gives_an_alert(prometheus: Prometheus) -> None:
    def named(data: dict[str, Any], name: str) -> list[dict[str, Any]]:
        return [each for each in data["alerts"] if each["labels"]["alertname"] == name and each["state"] == "firing"]

    expected = "NsqChannelWithoutConsumer"
    data = prometheus.wait(lambda found: named(found, expected), f"the alert {expected}", "alerts")
    (alert,) = named(data, expected)
    assert alert["labels"] == {"alertname": expected, "severity": "warning", "topic": "clicks", "channel": "left"}
    assert alert["annotations"]["summary"] == "clicks/left has 1 waiting messages and no consumer"
    healthy = ("NsqdDown", "NsqdCannotWrite", "NsqlookupdDown", "NsqdNotRegistered", "NsqTopicWithoutChannel")
    assert [each for name in healthy for each in named(data, name)] == []


def panel_expressions() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]


def with_values(expression: str) -> str:
    for name, value in _VARIABLES.items():
        expression = expression.replace(name, value)
    assert "$" not in expression
    return expression


def test_every_panel_of_the_dashboard_has_data(prometheus: Prometheus) -> None:
    assert len(panel_expressions()) > 20
    for expression in panel_expressions():
        text = with_values(expression)
        prometheus.wait(lambda data: data["result"], f"an answer to {text}", "query", query=text)


def test_every_variable_of_the_dashboard_has_values(prometheus: Prometheus, daemons: dict[str, Daemon]) -> None:
    values = {}
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            found = _LABEL_VALUES.fullmatch(variable["query"]["query"])
            assert found is not None
            metric, label = with_values(found[1]), found[2]
            query = {"match[]": metric}
            values[variable["name"]] = set(
                prometheus.wait(bool, f"values of {label}", f"label/{label}/values", **query)
            )
    nsqds = {each.http_address for name, each in daemons.items() if name.startswith("nsqd-")}
    assert values == {"instance": nsqds & prometheus.targets, "topic": {"clicks"}, "channel": {"left", "used"}}
