"""The Helm charts."""

from pathlib import Path

ROOT = Path(__file__).parents[2]


CHARTS = ROOT / "helm"
ALL = {
    "ingero-fleet": "serviceMonitor.enabled=true,ingress.enabled=true,httpRoute.enabled=true,"
    "persistence.enabled=true,echo.endpoint=https://ingero-echo:4318,"
    "kubernetesAlerts.enabled=true,kubernetesAlerts.nodeCondition=true",
    "ingero-echo": "serviceMonitor.enabled=true,ingress.enabled=true,httpRoute.enabled=true,"
    "persistence.encrypted=true,persistence.storageClassName=encrypted",
    "ingero-agent": "podMonitor.enabled=true,stragglerSink.enabled=true,networkPolicy.enabled=true",
}
