"""docs/monitoring.md lists exactly the existing metrics; the dashboard and the alerts are valid and use only those."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from live_metrics import Measured, measured_cluster, metric_names
from markdown_pages import ROOT

DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
DASHBOARD = json.loads((DEPLOY / "grafana" / "nsq.json").read_text(encoding="utf-8"))
ALERTS = DEPLOY / "prometheus" / "alerts.yml"

# The parts of an expression that contain no metric: strings, matchers, ranges, lists of labels.
_NO_METRICS = re.compile(r'"[^"]*"|\{[^}]*\}|\[[^\]]*\]|\b(?:by|without|on|ignoring)\s*\([^)]*\)')
_IDENTIFIER = re.compile(r"\b[a-z_:][a-z0-9_:]*\b(?!\s*\()", re.IGNORECASE)
_OPERATORS = {"and", "or", "unless", "offset"}
# Prometheus adds this metric itself.
_OF_PROMETHEUS = {"up", "ALERTS"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Measured]:
    with measured_cluster() as measured:
        yield measured


@pytest.fixture(scope="module")
def existing(cluster: Measured) -> set[str]:
    return metric_names(cluster.nsqd) | metric_names(cluster.nsqlookupd)


def metrics_of(expression: str) -> set[str]:
    """Return the metrics that a PromQL expression uses."""
    return set(_IDENTIFIER.findall(_NO_METRICS.sub(" ", expression))) - _OPERATORS - _OF_PROMETHEUS


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def dashboard_expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def alert_rules() -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install 'nsqx[docs]'")
    rules: list[dict[str, Any]] = []
    for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]:
        rules.extend(group["rules"])
    return rules


def test_the_page_lists_exactly_the_existing_metrics(existing: set[str]) -> None:
    listed = set(re.findall(r"^\| `(nsq\w+)` \|", PAGE, re.MULTILINE))
    histograms = {name.removesuffix("_bucket") for name in existing if name.endswith("_bucket")}
    parts = {f"{name}_{part}" for name in histograms for part in ("bucket", "count", "sum")}
    families = (existing - parts) | histograms
    assert listed == {name for name in families if name.startswith("nsq")}


def test_the_process_metrics_on_the_page_exist(existing: set[str]) -> None:
    assert set(re.findall(r"`(process_\w+)`", PAGE)) <= existing


def test_metrics_of_an_expression() -> None:
    text = 'sum by (topic) (rate(nsq_a_total{x="y"}[5m])) > 2 and on (z) max(nsq_b) or up == 0'
    assert metrics_of(text) == {"nsq_a_total", "nsq_b"}


def test_the_dashboard_uses_only_existing_metrics(existing: set[str]) -> None:
    variables = [each["definition"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query"]
    variable_metrics = {re.sub(r"label_values\(([a-z_]+).*", r"\1", text) for text in variables}
    used = set().union(*map(metrics_of, dashboard_expressions())) | variable_metrics
    assert used - existing == set()


def test_no_panel_of_the_dashboard_overlaps_another() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert not cells & taken, f"{panel['title']} overlaps another panel"
        taken |= cells


def test_the_alerts_use_only_existing_metrics(existing: set[str]) -> None:
    rules = alert_rules()
    assert set().union(*(metrics_of(rule["expr"]) for rule in rules)) - existing == set()
    assert all(rule["annotations"]["summary"] and rule["labels"]["severity"] for rule in rules)


def test_the_page_lists_exactly_the_existing_alerts() -> None:
    listed = re.findall(r"^\| `(Nsq\w+)` \|", PAGE, re.MULTILINE)
    assert sorted(listed) == sorted(rule["alert"] for rule in alert_rules())


def test_promtool_accepts_the_alerts_and_their_tests_pass() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    for arguments in (["check", "config", "prometheus.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run(
            ["promtool", *arguments], cwd=DEPLOY / "prometheus", capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_scrape_configuration_is_the_one_on_the_page() -> None:
    on_page = re.search(r'```yaml title="prometheus.yml"\n(.*?)```', PAGE, re.DOTALL)
    file = (DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
    assert on_page is not None
    assert file.partition("\n")[2] == on_page.group(1)
