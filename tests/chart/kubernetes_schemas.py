"""JSON schemas of Kubernetes' objects, from the source packages of Kubernetes and of the operator of Prometheus.

Unknown fields are errors, as for an API server with strict validation.
"""

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft7Validator

# Definitions whose text in the document says less than the API server accepts.
_LOOSE = {
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": ["string", "integer"]},
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": ["string", "number"]},
}


class KubernetesSchemas:
    """Validates objects by their apiVersion and kind."""

    def __init__(self, kubernetes: Path, prometheus_operator: Path) -> None:
        self._document = kubernetes / "api" / "openapi-spec" / "swagger.json"
        self._crds = prometheus_operator / "example" / "prometheus-operator-crd"

    def errors(self, value: dict[str, Any]) -> list[str]:
        """Return what is wrong with an object, as lines with the place."""
        kind = (value.get("apiVersion", ""), value.get("kind", ""))
        schema = self._custom.get(kind) or self._builtin.get(kind)
        if schema is None:
            return [f"unknown kind {kind}"]
        found = Draft7Validator(schema).iter_errors(value)
        return [f"{kind[1]}/{'/'.join(map(str, each.absolute_path))}: {each.message[:300]}" for each in found]

    @cached_property
    def _builtin(self) -> dict[tuple[str, str], dict[str, Any]]:
        definitions = {**json.loads(self._document.read_text(encoding="utf-8"))["definitions"], **_LOOSE}
        schemas = {}
        for name, definition in definitions.items():
            if "properties" in definition:
                definition["additionalProperties"] = False
            for kind in definition.get("x-kubernetes-group-version-kind", ()):
                version = "/".join(filter(None, (kind["group"], kind["version"])))
                schemas[version, kind["kind"]] = {"$ref": f"#/definitions/{name}", "definitions": definitions}
        return schemas

    @cached_property
    def _custom(self) -> dict[tuple[str, str], dict[str, Any]]:
        schemas = {}
        for path in self._crds.glob("*_servicemonitors.yaml"):
            crd = yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]
            for version in crd["versions"]:
                schema = version["schema"]["openAPIV3Schema"]
                _close(schema, is_top=True)
                schemas[f"{crd['group']}/{version['name']}", crd["names"]["kind"]] = schema
        return schemas


def _close(schema: Any, *, is_top: bool = False) -> None:
    """Refuse unknown fields everywhere, except in the metadata of the object."""
    if not isinstance(schema, dict):
        return
    if "properties" in schema and schema.get("type") == "object":
        schema.setdefault("additionalProperties", False)
    for name, each in schema.get("properties", {}).items():
        if is_top and name == "metadata":
            schema["properties"][name] = {"type": "object"}
        else:
            _close(each)
    _close(schema.get("items"))
