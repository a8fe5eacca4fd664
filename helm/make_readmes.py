"""Writes README.md of every chart: its values with their defaults and the comments beside them.

Run it after a change of a values.yaml.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

HERE = Path(__file__).parent
KEY = re.compile(r"^(?P<indent> *)(?P<key>[\w.-]+):(?P<value>.*?)(?:\s+#\s(?P<note>.*))?$")
# what means the same in every chart, and has no comment there
COMMON = {
    "image": "The image of all services.",
    "image.repository": "Where the image lies.",
    "image.pullPolicy": "When nodes pull it.",
    "imagePullSecrets": "Secrets for a private registry.",
    "nameOverride": "Replaces the chart's name in names of objects.",
    "fullnameOverride": "Replaces the whole name of objects.",
    "service.type": "Type of the Service.",
    "service.annotations": "Annotations of the Service.",
    "ingress.enabled": "Adds an Ingress for page and API.",
    "ingress.className": "IngressClass to use.",
    "ingress.annotations": "Annotations of the Ingress.",
    "ingress.host": "Name under which it is reached.",
    "ingress.tlsSecretName": "Secret with the certificate of that name.",
    "httpRoute.enabled": "Adds an HTTPRoute of the Gateway API.",
    "httpRoute.parentRefs": "Gateways it is attached to.",
    "httpRoute.hostnames": "Names under which it is reached.",
    "serviceMonitor.enabled": "Adds a ServiceMonitor of the Prometheus Operator.",
    "serviceMonitor.interval": "Time between two scrapes.",
    "serviceMonitor.labels": "Labels by which your Prometheus selects it.",
    "podMonitor.enabled": "Adds a PodMonitor of the Prometheus Operator.",
    "podMonitor.interval": "Time between two scrapes.",
    "podMonitor.labels": "Labels by which your Prometheus selects it.",
    "podDisruptionBudget.enabled": "Adds a PodDisruptionBudget.",
    "podDisruptionBudget.maxUnavailable": "Pods that a drain may end at a time.",
    "networkPolicy.enabled": "Adds a NetworkPolicy that denies egress by default.",
    "networkPolicy.extraEgress": "Rules for other addresses that may be reached.",
    "resources": "Requests and limits of the container.",
    "nodeSelector": "Nodes on which pods may run.",
    "tolerations": "Taints that pods tolerate.",
    "affinity": "Affinity of the pods.",
    "podAnnotations": "Annotations of the pods.",
    "priorityClassName": "Priority of the pods.",
    "updateStrategy": "How pods are replaced.",
    "persistence.size": "Size of the volume.",
    "persistence.storageClassName": "StorageClass of the volume; the cluster's default if empty.",
}


class Value(NamedTuple):
    """One value of a chart."""

    path: str
    default: str
    meaning: str


def values_of(text: str) -> Iterator[Value]:
    """Read the values of a chart with the comments above or beside them."""
    parents: list[tuple[int, str]] = []
    above: list[str] = []
    for line in text.splitlines():
        if line.strip().startswith("#"):
            above.append(line.strip()[1:].strip())
            continue
        match = KEY.match(line)
        if match is None or line.lstrip().startswith("- "):
            above = []
            continue
        indent = len(match["indent"])
        parents = [(at, key) for at, key in parents if at < indent]
        path = ".".join([*(key for _, key in parents), match["key"]])
        meaning = match["note"] or " ".join(above) or COMMON.get(path, "")
        meaning = meaning[:1].upper() + meaning[1:].removesuffix(".")
        parents.append((indent, match["key"]))
        above = []
        yield Value(path, match["value"].strip(), meaning)


def rows_of(text: str) -> list[Value]:
    """Return the values that a README lists: every value, and every group that says something."""
    known = yaml.safe_load(text)

    def is_group(path: str) -> bool:
        value = known
        for key in path.split("."):
            value = value[key]
        return isinstance(value, dict) and bool(value)

    found, covered = [], ""
    for each in values_of(text):
        if covered and each.path.startswith(f"{covered}."):
            continue
        covered = ""
        if is_group(each.path) and each.path in COMMON and each.path != "image":
            covered = each.path  # Kubernetes defines what is in it
        if is_group(each.path) and not each.meaning:
            continue
        found.append(each)
    return found


def chart_readme(chart: Path) -> str:
    """Return the README of a chart."""
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    rows = "\n".join(
        f"| `{each.path}` | {f'`{each.default}`' if each.default else ''} | {each.meaning}. |"
        for each in rows_of((chart / "values.yaml").read_text())
    )
    name = about["name"]
    return (
        f"# {name}\n\n{about['description']}. "
        f"Needs Kubernetes {about['kubeVersion'][2:-2]} or newer;\n"
        "`docs/quickstart-k8s.md` of the project installs it step by step.\n\n"
        f"```bash\nhelm install {name} {name}-{about['version']}.tgz --namespace ingero "
        f"--create-namespace --values values.yaml\nhelm test {name} --namespace ingero\n```\n\n"
        "A key that is not in this table is refused.\n\n"
        f"| value | default | meaning |\n|---|---|---|\n{rows}\n"
    )


def charts() -> list[Path]:
    """Return the folders of all charts."""
    return sorted(path.parent for path in HERE.glob("*/Chart.yaml"))


if __name__ == "__main__":
    for each in charts():
        (each / "README.md").write_text(chart_readme(each))
