"""Writes values.schema.json of every chart from its values.yaml: the same keys and types.

Run it after a change of a values.yaml. A misspelt key or a value of another type then stops
`helm install`.
"""

import json
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
CHOICES = {
    "pullPolicy": ["Always", "IfNotPresent", "Never"],
    "seccompProfile": ["RuntimeDefault", "Unconfined"],
}
# by the path of a value; that several replicas share a log or a lake is checked when rendered
LIMITS: dict[str, dict[str, Any]] = {
    "ingero-fleet/replicaCount": {"type": "integer", "minimum": 1, "maximum": 9},
    "ingero-echo/replicaCount": {"type": "integer", "minimum": 1, "maximum": 9},
}
# what Kubernetes, Fleet, Echo or a node define: any keys
OPEN = {
    *("extra", "annotations", "labels", "podAnnotations", "nodeSelector", "affinity", "resources"),
    *("updateStrategy",),
}


def schema_of(key: str, value: Any, path: str = "") -> dict[str, Any]:
    """Return the schema of a value that has this default."""
    if path in LIMITS:
        return LIMITS[path]
    if key in CHOICES:
        return {"type": "string", "enum": CHOICES[key]}
    if isinstance(value, dict):
        if key in OPEN or path == "ingero-agent/config":
            return {"type": "object"}
        inner = {name: schema_of(name, each, f"{path}/{name}") for name, each in value.items()}
        return {"type": "object", "additionalProperties": False, "properties": inner}
    if key == "maxUnavailable":
        return {"type": ["integer", "string"]}
    if key == "type" and value == "ClusterIP":
        return {"type": "string", "enum": ["ClusterIP", "LoadBalancer", "NodePort"]}
    if isinstance(value, float):  # `helm --set` makes a text of it
        return {"type": ["number", "string"], "pattern": r"^\d+(\.\d+)?$"}
    kinds = {bool: "boolean", int: "integer", str: "string", list: "array"}
    return {"type": kinds[type(value)]}


def chart_schema(chart: Path) -> str:
    """Return the schema of a chart as text."""
    values = yaml.safe_load((chart / "values.yaml").read_text())
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **schema_of("", values, chart.name),
    }
    schema["properties"]["global"] = {"type": "object"}  # Helm adds it
    return json.dumps(schema, indent=2) + "\n"


def charts() -> list[Path]:
    """Return the folders of all charts."""
    return sorted(path.parent for path in HERE.glob("*/Chart.yaml"))


if __name__ == "__main__":
    for each in charts():
        (each / "values.schema.json").write_text(chart_schema(each))
