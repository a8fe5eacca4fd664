"""Writes the Grafana dashboards of this folder, as classic JSON that Grafana 10 and later load.

python deploy/grafana/make_dashboards.py
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
CLUSTER = 'cluster_id=~"$cluster_id"'
JOB = f'{CLUSTER}, ingero_job=~"$ingero_job"'
Panel = dict[str, Any]


def panel(
    kind: str, title: str, description: str, unit: str, *queries: tuple[str, str], width: int = 12
) -> Panel:
    """Return a panel; each query is an expression and the name of its series."""
    targets = [
        {
            "datasource": SOURCE,
            "expr": expression,
            "legendFormat": legend,
            "refId": chr(ord("A") + number),
            "instant": kind in ("table", "stat"),
            "range": kind not in ("table", "stat"),
            **({"format": "table"} if kind == "table" else {}),
        }
        for number, (expression, legend) in enumerate(queries)
    ]
    return {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": SOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "gridPos": {"w": width, "h": 8, "x": 0, "y": 0},
        "options": {},
    }


def variable(name: str, label: str, query: str) -> dict[str, Any]:
    """Return a variable with the values of a label."""
    return {
        "type": "query", "name": name, "label": label, "datasource": SOURCE, "refresh": 2,
        "query": {"query": query, "refId": name},
        "includeAll": True, "multi": True, "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip


VARIABLES = [
    {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus"},
    variable("cluster_id", "Cluster", "label_values(ingero_fleet_active_nodes, cluster_id)"),
    variable("ingero_job", "Job", f"label_values(ingero_job_info{{{CLUSTER}}}, ingero_job)"),
]
CURRENCY = [
    {"type": "custom", "name": "currency", "label": "Currency", "query": "USD,EUR,GBP,JPY",
     "current": {"text": "USD", "value": "USD"},
     "options": [{"text": name, "value": name, "selected": name == "USD"}
                 for name in ("USD", "EUR", "GBP", "JPY")]},
    {"type": "textbox", "name": "per_usd", "label": "of it for one USD", "query": "1",
     "current": {"text": "1", "value": "1"}},
]  # fmt: skip

CLUSTER_PANELS = [
    panel("table", "Who is slow", "Each rank or node that holds its job up now.", "short",
          (f'ingero_fleet_verdict{{{JOB}, state="straggler"}}', ""), width=16),
    panel("stat", "Slow ranks and nodes", "Empty while nobody is slow.", "short",
          (f'count(ingero_fleet_verdict{{{JOB}, state="straggler"}})', "slow"), width=8),
    panel("state-timeline", "Episodes", "One row per rank or node, while it has an open verdict.",
          "short", (f"max by (cluster_id, node_id, rank) (ingero_fleet_verdict{{{JOB}}})",
                    "{{node_id}} {{rank}}"), width=24),
    panel("timeseries", "What jobs lose", "Share of the slow step that a calm step would save.",
          "percentunit", (f"max by (ingero_job, node_id, rank) "
                          f"(ingero_fleet_verdict_loss_ratio{{{JOB}}})", "{{node_id}} {{rank}}")),
    panel("timeseries", "Cost of slow ranks in $currency per hour",
          "What all slow ranks of a job cost; only where prices are known.", "short",
          (f"sum by (ingero_job) (ingero_fleet_verdict_cost_usd_per_hour{{{JOB}}}) * $per_usd",
           "{{ingero_job}}")),
    panel("stat", "Cost in the chosen time, $currency",
          "Price per hour, averaged over the time chosen above, times its hours.", "short",
          (f"sum(avg_over_time(ingero_fleet_verdict_cost_usd_per_hour{{{JOB}}}[$__range])"
           f" * count_over_time(ingero_fleet_verdict_cost_usd_per_hour{{{JOB}}}[$__range])"
           f" / scalar(max(count_over_time(ingero_fleet_active_nodes{{{CLUSTER}}}[$__range]))))"
           " * $per_usd * $__range_s / 3600", "cost"), width=8),
    panel("timeseries", "Nodes", "Nodes of each cluster by what they do.", "short",
          *((f"sum by (cluster_id) (ingero_fleet_{state}_nodes{{{CLUSTER}}})", state)
            for state in ("active", "idle", "calibrating", "silent")), width=16),
]  # fmt: skip
JOB_PANELS = [
    panel("table", "Ranks", "Every rank that reports, with its node.", "short",
          (f"ingero_job_info{{{JOB}}}", "")),
    panel("timeseries", "What the job loses", "Share of the slow step that a calm step would save.",
          "percentunit", (f"max by (node_id, rank) (ingero_fleet_verdict_loss_ratio{{{JOB}}})",
                          "{{node_id}} {{rank}}")),
    panel("timeseries", "Late ranks", "How late the latest 20 ranks arrived at their collectives.",
          "ms", (f"topk(20, ingero_collective_lateness_ms{{{CLUSTER}}})", "{{node_id}} {{rank}}")),
    panel("timeseries", "Time in collectives above the peers",
          "Negative for a rank that others wait for.", "ms",
          (f"bottomk(20, nccl_collective_peer_lag_ms{{{CLUSTER}}})", "{{node_id}} {{rank}}")),
    panel("timeseries", "Ranks judged and learning",
          "Ranks with a baseline, and ranks whose baseline is still learned.", "short",
          (f"sum by (state) (ingero_fleet_verdict_ranks{{{CLUSTER}}})", "{{state}}")),
    panel("timeseries", "Excess of the slow rank", "Own time above the peers, as a share.",
          "percentunit", (f"ingero_fleet_verdict_excess_ratio{{{JOB}}}", "{{node_id}} {{rank}}")),
]  # fmt: skip
AGENT_PANELS = [
    panel("timeseries", "Silent nodes", "Nodes that pushed before and have stopped.", "short",
          (f"sum by (cluster_id) (ingero_fleet_silent_nodes{{{CLUSTER}}})", "{{cluster_id}}")),
    panel("timeseries", "Coverage", "Active share of the nodes that should be active.",
          "percentunit", (f"min by (cluster_id) (ingero_fleet_coverage{{{CLUSTER}}})",
                          "{{cluster_id}}")),
    panel("timeseries", "Health scores", "The lowest 20 scores, with threshold and median.",
          "percentunit",
          (f"bottomk(20, ingero_node_health_score{{{CLUSTER}}})", "{{node_id}}"),
          (f"max by (cluster_id) (ingero_fleet_threshold{{{CLUSTER}}})", "threshold"),
          (f"max by (cluster_id) (ingero_fleet_median{{{CLUSTER}}})", "median")),
    panel("stat", "Quorum", "1 if enough nodes are active to compare them.", "short",
          (f"min by (cluster_id) (ingero_fleet_quorum_met{{{CLUSTER}}})", "{{cluster_id}}")),
    panel("timeseries", "Measurements that no verdict could use", "By reason, per second.", "ops",
          (f"sum by (reason) (rate(ingero_fleet_verdict_unused_total{{{CLUSTER}}}"
           "[$__rate_interval]))", "{{reason}}")),
    panel("timeseries", "Panic", "1 while the scores of the whole cluster have dropped at once.",
          "short", (f"max by (cluster_id) (ingero_fleet_panic_mode{{{CLUSTER}}})",
                    "{{cluster_id}}")),
]  # fmt: skip


def dashboard(
    uid: str, title: str, panels: Sequence[Panel], more_variables: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """Return a dashboard with its panels in rows of 24 columns."""
    placed, x, y = [], 0, 0
    for each in panels:
        width = each["gridPos"]["w"]
        if x + width > 24:
            x, y = 0, y + 8
        placed.append({**each, "gridPos": {**each["gridPos"], "x": x, "y": y}})
        x += width
    return {
        "uid": uid,
        "title": title,
        "tags": ["ingero"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [*VARIABLES, *more_variables]},
        "panels": placed,
    }


DASHBOARDS = {
    "ingero-cluster.json": dashboard("ingero-cluster", "Ingero: cluster", CLUSTER_PANELS, CURRENCY),
    "ingero-job.json": dashboard("ingero-job", "Ingero: job", JOB_PANELS),
    "ingero-agents.json": dashboard("ingero-agents", "Ingero: agents", AGENT_PANELS),
}


def encode(content: dict[str, Any]) -> str:
    """Return a dashboard as it is written."""
    return json.dumps(content, indent=2) + "\n"


if __name__ == "__main__":
    for name, content in DASHBOARDS.items():
        (FOLDER / name).write_text(encode(content), encoding="utf-8")
