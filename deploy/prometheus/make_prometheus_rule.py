"""Writes the rules of this folder as a PrometheusRule, for clusters with the Prometheus Operator.

python deploy/prometheus/make_prometheus_rule.py
"""

from pathlib import Path

import yaml

FOLDER = Path(__file__).parent
SOURCES = (FOLDER / "ingero-rules.yml", FOLDER / "ingero-cost-rules.yml")
RESULT = FOLDER / "ingero-prometheusrule.yaml"
HEAD = "# Made by make_prometheus_rule.py from the rules beside it; change those files instead.\n"


def prometheus_rule() -> str:
    """Return the object as YAML."""
    groups = [
        group
        for source in SOURCES
        for group in yaml.safe_load(source.read_text(encoding="utf-8"))["groups"]
    ]
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "ingero", "labels": {"app.kubernetes.io/name": "ingero"}},
        "spec": {"groups": groups},
    }
    return HEAD + yaml.safe_dump(rule, sort_keys=False, width=200)


if __name__ == "__main__":
    RESULT.write_text(prometheus_rule(), encoding="utf-8")
