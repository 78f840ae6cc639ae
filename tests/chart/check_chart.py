"""The Helm chart: helm renders it, Kubernetes' schemas accept it, and nsqx accepts the flags in it.

`make chart` runs these tests. They are not part of `make test`, because they need helm and the schemas, which it builds
and downloads.
"""

import io
import json
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_schemas import KubernetesSchemas

from nsqx.cli import drain
from nsqx.gotext import parse_duration_ns
from nsqx.nsqadmin.options import options_from_argv as nsqadmin_options
from nsqx.nsqd.http import route_group
from nsqx.nsqd.options import options_from_argv as nsqd_options
from nsqx.nsqlookupd.options import options_from_argv as nsqlookupd_options
from nsqx.pipeline.parser import read_pipeline
from nsqx.version import VERSION

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "nsqx"
HELM = os.environ.get("HELM", "helm")
KUBERNETES = Path(os.environ["KUBERNETES_SOURCE"])
OPERATOR = Path(os.environ["PROMETHEUS_OPERATOR_SOURCE"])

EVERYTHING = """\
image: {tag: test, pullPolicy: Always}
imagePullSecrets: [{name: registry}]
nsqd:
  config: |
    [[topic]]
    match = "orders*"
    store = "log"
  flags: [--max-msg-size=5242880, "--tls-cert=/tls/tls.crt", "--tls-key=/tls/tls.key"]
  env: [{name: TZ, value: UTC}]
  volumes: [{name: tls, secret: {secretName: nsqd-tls}}]
  volumeMounts: [{name: tls, mountPath: /tls, readOnly: true}]
  storage: {className: fast, size: 1Ti}
  podAnnotations: {a: b}
  nodeSelector: {disk: ssd}
  tolerations: [{key: nsqd, operator: Exists}]
  affinity: {nodeAffinity: {}}
nsqlookupd:
  env: [{name: TZ, value: UTC}]
  podAnnotations: {a: b}
  volumes: [{name: tls, secret: {secretName: tls}}]
  volumeMounts: [{name: tls, mountPath: /tls}]
nsqadmin:
  env: [{name: TZ, value: UTC}]
  podAnnotations: {a: b}
  volumes: [{name: tls, secret: {secretName: tls}}]
  volumeMounts: [{name: tls, mountPath: /tls}]
networkPolicy:
  clients: [{namespaceSelector: {matchLabels: {team: shop}}}]
  admins: []
  monitoring: [{namespaceSelector: {matchLabels: {name: monitoring}}}]
serviceMonitor:
  enabled: true
  labels: {release: prometheus}
  authorization: {credentials: {name: nsq-tokens, key: read}}
"""
CASES = {
    "default": "",
    "everything": EVERYTHING,
    "no drain": "nsqd: {drainSeconds: 0, store: classic, replicas: 1}",
    "no nsqadmin": "nsqadmin: {enabled: false}\nnetworkPolicy: {enabled: false}",
    "restricted": "networkPolicy: {clients: [], admins: []}",
}


def helm(*words: str) -> str:
    done = subprocess.run([HELM, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def render(values: str, tmp_path: Path, release: str = "shop") -> list[dict[str, Any]]:
    (tmp_path / "values.yaml").write_text(values)
    words = ("template", release, str(CHART), "--namespace=prod", "--kube-version=1.31.3")
    text = helm(*words, f"--values={tmp_path / 'values.yaml'}")
    return [each for each in yaml.safe_load_all(text) if each]


@pytest.fixture(scope="module")
def schemas() -> KubernetesSchemas:
    return KubernetesSchemas(KUBERNETES, OPERATOR)


@pytest.fixture(params=CASES)
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> list[dict[str, Any]]:
    return render(CASES[request.param], tmp_path)


def one(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = (each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name)
    return found


def container(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = one(objects, kind, name)["spec"]["template"]["spec"]["containers"]
    return found


def test_helm_finds_no_mistake() -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART))


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)


def test_a_mistake_in_the_values_is_named(tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text("nsqd: {replica: 2, drainSeconds: soon}\nnsqlookupd: {replicas: 0}\n")
    done = subprocess.run(
        [HELM, "template", str(CHART), f"--values={tmp_path / 'values.yaml'}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    for text in ("property replica is not allowed", "nsqd.drainSeconds: Invalid type", "nsqlookupd.replicas: Must be"):
        assert text in done.stderr


def test_the_schema_of_the_values_has_every_value() -> None:
    def names(tree: dict[str, Any]) -> dict[str, Any]:
        return {name: names(each) if isinstance(each, dict) and each else {} for name, each in tree.items()}

    def properties(schema: dict[str, Any]) -> dict[str, Any]:
        return {name: properties(each) for name, each in schema.get("properties", {}).items()}

    values = names(yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8")))
    for each in ("nsqd", "nsqlookupd", "nsqadmin"):
        values[each]["resources"] = {}
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    # helm adds the table of global values.
    assert properties(schema) == {**values, "global": {}}


def test_the_schemas_accept_every_object(objects: list[dict[str, Any]], schemas: KubernetesSchemas) -> None:
    assert len(objects) >= 6
    assert [error for each in objects for error in schemas.errors(each)] == []
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(set(names)) == len(names)


def test_the_schemas_refuse_a_mistake(tmp_path: Path, schemas: KubernetesSchemas) -> None:
    objects = render(EVERYTHING, tmp_path)
    container(objects, "StatefulSet", "shop-nsqx-nsqd")["readyProbe"] = {}
    (monitor, *_) = (each for each in objects if each["kind"] == "ServiceMonitor")
    monitor["spec"]["endpoints"][0]["route"] = "/metrics"
    errors = [error for each in objects for error in schemas.errors(each)]
    assert len(errors) == 2
    assert "readyProbe" in errors[0] + errors[1]
    assert "route" in errors[0] + errors[1]


def expanded(container: dict[str, Any]) -> list[str]:
    """Return the arguments of a container as Kubernetes gives them to the first pod."""
    values = {"POD_NAME": "shop-nsqx-nsqd-0", "POD_NAMESPACE": "prod", "POD_NUMBER": "0"}
    return [re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], word) for word in container["args"]]


def test_the_daemons_accept_their_flags(objects: list[dict[str, Any]]) -> None:
    program, *flags = expanded(container(objects, "StatefulSet", "shop-nsqx-nsqd"))
    assert program == "nsqd"
    nsqd = nsqd_options([each for each in flags if not each.startswith("--config=")], io.StringIO())
    assert nsqd.broadcast_address == "shop-nsqx-nsqd-0.shop-nsqx-nsqd.prod.svc.cluster.local"
    assert nsqd.id == 0
    program, *flags = expanded(container(objects, "StatefulSet", "shop-nsqx-nsqlookupd"))
    assert program == "nsqlookupd"
    nsqlookupd_options(flags, io.StringIO())
    if any(each["kind"] == "Deployment" for each in objects):
        program, *flags = expanded(container(objects, "Deployment", "shop-nsqx-nsqadmin"))
        assert program == "nsqadmin"
        nsqadmin_options(flags, io.StringIO())


def test_every_address_is_a_name_that_a_headless_service_gives_to_a_pod(objects: list[dict[str, Any]]) -> None:
    services = {each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] == "Service"}
    for kind, name in (("StatefulSet", "shop-nsqx-nsqd"), ("StatefulSet", "shop-nsqx-nsqlookupd")):
        workload = one(objects, kind, name)["spec"]
        service = services[workload["serviceName"]]
        assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
        assert service["selector"] == workload["selector"]["matchLabels"]
        assert service["selector"].items() <= workload["template"]["metadata"]["labels"].items()
    replicas = one(objects, "StatefulSet", "shop-nsqx-nsqlookupd")["spec"]["replicas"]
    args = container(objects, "StatefulSet", "shop-nsqx-nsqd")["args"]
    lookupds = [arg.partition("=")[2] for arg in args if arg.startswith("--lookupd-tcp-address=")]
    pods = [f"shop-nsqx-nsqlookupd-{number}" for number in range(replicas)]
    assert lookupds == [f"{pod}.shop-nsqx-nsqlookupd.prod.svc.cluster.local:4160" for pod in pods]


def test_there_is_time_for_the_drain_and_the_exit(objects: list[dict[str, Any]]) -> None:
    pod = one(objects, "StatefulSet", "shop-nsqx-nsqd")["spec"]["template"]["spec"]
    (nsqd,) = pod["containers"]
    (shutdown,) = (word.partition("=")[2] for word in nsqd["args"] if word.startswith("--shutdown-timeout="))
    needed_ns = parse_duration_ns(shutdown)
    hook = nsqd.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
    if hook is not None:
        assert hook[:2] == ["nsqx", "drain"]
        options = drain.read_options(hook[2:])
        assert options.wait
        needed_ns += options.timeout
    assert pod["terminationGracePeriodSeconds"] * 10**9 >= needed_ns + 10 * 10**9


def test_no_probe_of_nsqd_needs_a_token(objects: list[dict[str, Any]]) -> None:
    nsqd = container(objects, "StatefulSet", "shop-nsqx-nsqd")
    for probe in ("startupProbe", "readinessProbe"):
        assert route_group("GET", nsqd[probe]["httpGet"]["path"]) == ""
    assert nsqd["livenessProbe"]["exec"]["command"] == ["nsq-health", "--alive"]


def test_the_pods_have_no_rights(objects: list[dict[str, Any]]) -> None:
    for each in objects:
        if each["kind"] in ("StatefulSet", "Deployment"):
            pod = each["spec"]["template"]["spec"]
            assert pod["securityContext"]["runAsNonRoot"] is True
            assert pod["automountServiceAccountToken"] is False
            (only,) = pod["containers"]
            assert only["securityContext"]["readOnlyRootFilesystem"] is True
            assert only["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_the_policies_name_ports_of_the_pods(tmp_path: Path) -> None:
    objects = render(EVERYTHING, tmp_path)
    policies = [each["spec"] for each in objects if each["kind"] == "NetworkPolicy"]
    assert len(policies) == 3
    for policy in policies:
        component = policy["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        kind = "Deployment" if component == "nsqadmin" else "StatefulSet"
        ports = {port["name"] for port in container(objects, kind, f"shop-nsqx-{component}")["ports"]}
        assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} <= ports


def test_a_release_named_like_the_chart_has_short_names(tmp_path: Path) -> None:
    names = {each["metadata"]["name"] for each in render("", tmp_path, release="nsqx")}
    assert {"nsqx-nsqd", "nsqx-publish", "nsqx-nsqlookupd", "nsqx-nsqadmin"} <= names


def test_the_manifest_of_a_pipeline_is_valid(schemas: KubernetesSchemas, tmp_path: Path) -> None:
    path = CHART.parents[1] / "kubernetes" / "pipeline.yaml"
    objects = [each for each in yaml.safe_load_all(path.read_text(encoding="utf-8")) if each]
    assert [error for each in objects for error in schemas.errors(each)] == []
    text = one(objects, "ConfigMap", "pipeline")["data"]["shop.toml"]
    (tmp_path / "shop.toml").write_text(text)
    assert list(read_pipeline(str(tmp_path / "shop.toml")).sinks) == ["orders"]
    service = one(objects, "Service", "pipeline")
    ports = {str(port["port"]) for port in service["spec"]["ports"]}
    settings = tomllib.loads(text)["spark"]
    assert {settings["spark.driver.port"], settings["spark.driver.blockManager.port"]} == ports
    assert settings["spark.driver.host"] == "pipeline.prod.svc.cluster.local"
    driver = one(objects, "StatefulSet", "pipeline")
    assert settings["spark.kubernetes.driver.pod.name"] == f"{driver['metadata']['name']}-0"
