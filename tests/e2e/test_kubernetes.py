"""The charts on a real kubelet and containerd: from `helm install` to a named rank, and back.

`make e2e-k8s` runs it; it needs root and the programs of `make peers-k8s`. IMAGE=name takes an
image that is there instead of building one.
Commands of the quickstart are run as they are printed. GPUs are advertised by hand, ranks are
stand-ins that call the real NCCL plugin; kubelet, containerd, probes, agent, Fleet and Echo are
real.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support import live_job, stand_in_trainer
from tests.support.charts import ALL, CHARTS
from tests.support.kubernetes import (
    PEERS,
    Cluster,
    pause_image,
    require_kubernetes,
    running_cluster,
    write_image,
)
from tests.support.kubernetes_node import NODE

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        os.environ.get("INGERO_TEST_K8S") != "1", reason="starts a node: `make e2e-k8s`"
    ),
]
ROOT = Path(__file__).parents[2]
IMAGE = "registry.example/ingero"
FAKE_NODES = 200
GROUPS = 10  # of probes
PROVIDER = """
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: encrypted}
provisioner: kubernetes.io/no-provisioner
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec:
  capacity: {storage: 100Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: encrypted
  local: {path: /var/lib/disk}  # the kubelet gives it to the group of the pod
  nodeAffinity:
    required:
      nodeSelectorTerms:
        - matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node-1]}]
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    require_kubernetes()
    work = tmp_path_factory.mktemp("k8s")
    (work / "images").mkdir()
    pause_image(work)
    own = work / "images" / "ingero.tar"
    tag = f"{IMAGE}:{version('ingero')}"
    built = os.environ.get("INGERO_TEST_IMAGE_TAG")
    if not built:
        subprocess.run([sys.executable, "-m", "release.image", "--tag", tag], check=True, cwd=ROOT)
    source, target = f"containers-storage:{built or tag}", f"docker-archive:{own}:{tag}"
    subprocess.run(["skopeo", "copy", "--quiet", source, target], check=True)
    files = {
        "opt/ingero/bin/torchrun": Path(stand_in_trainer.__file__).read_bytes(),
        "opt/train/live_job.py": Path(live_job.__file__).read_bytes(),
    }
    trainer = work / "images" / "train.tar"
    write_image("registry.example/train:1", files, [], trainer, own)
    with running_cluster(work) as started:
        ready = ("wait", "--for=condition=Ready", f"node/{NODE}", "--timeout=120s")
        started.kubectl(*ready)
        started.kubectl("label", "node", NODE, "nvidia.com/gpu.present=true")
        gpus = {"status": {"capacity": {"nvidia.com/gpu": "64"}}}
        patch = ("--subresource=status", "--type=merge", "-p", json.dumps(gpus))
        started.kubectl("patch", "node", NODE, *patch)
        started.kubectl("apply", "-f", "-", given=PROVIDER)
        for file in sorted((PEERS / "crds").glob("*.yaml")):
            started.kubectl("apply", "--server-side", "-f", str(file))
        yield started


def printed(heading: str) -> list[list[str]]:
    """The commands of one section of the quickstart."""
    text = (ROOT / "docs" / "quickstart-k8s.md").read_text()
    section = text.split(f"## {heading}", 1)[1].split("\n## ", 1)[0]
    blocks = re.findall(r"```bash\n(.*?)```", section, re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


def pod_of(cluster: Cluster, selector: str, namespace: str = "ingero") -> dict[str, Any]:
    (pod,) = [
        pod
        for pod in cluster.objects("pods", "-n", namespace, "-l", selector)
        if pod["spec"].get("nodeName") == NODE
    ]
    return pod


def is_ready(pod: dict[str, Any]) -> bool:
    return any(
        each["type"] == "Ready" and each["status"] == "True"
        for each in pod["status"].get("conditions", [])
    )


def ready(cluster: Cluster, name: str, what: str) -> None:
    selector = f"app.kubernetes.io/name={name}"
    took_s = cluster.until(lambda: is_ready(pod_of(cluster, selector)), what)
    print(f"{name} ready after {took_s:.0f} s")


def in_pod(cluster: Cluster, target: str, *words: str, check: bool = True) -> Any:
    """What a command in a pod prints as JSON."""
    inside = ("exec", "-n", "ingero", target, "--")
    return json.loads(cluster.kubectl(*inside, *words, check=check))


def fleet_status(cluster: Cluster) -> dict[str, Any]:
    """The cluster `train-a`, by the printed command; its exit status is about stragglers."""
    (words,) = printed("4.")
    said = cluster.run(*words[:-1], f"{words[-1]} --json", check=False)
    clusters = json.loads(said)["clusters"] if said.startswith("{") else []
    found: dict[str, Any] = next((c for c in clusters if c["cluster_id"] == "train-a"), {})
    return found


def test_the_api_server_accepts_every_object(cluster: Cluster) -> None:
    """Server-side dry run of every chart with all options; a misspelt field is refused."""
    apply = ("apply", "--server-side", "--dry-run=server", "-f", "-")
    for chart, values in ALL.items():
        text = cluster.run("helm", "template", chart, str(CHARTS / chart), "--set", values)
        known = [document for document in yaml.safe_load_all(text) if document]
        assert len(known) >= 4
        cluster.kubectl(*apply, given=yaml.safe_dump_all(known))
        workload = next(each for each in known if "template" in each.get("spec", {}))
        workload["spec"]["replicaz"] = 1
        assert "replicaz" in cluster.refused("kubectl", *apply, given=yaml.safe_dump(workload))
    rules = ROOT / "deploy/prometheus/ingero-prometheusrule.yaml"
    cluster.kubectl(*apply[:-1], str(rules))


def test_fleet_becomes_ready(cluster: Cluster) -> None:
    for words in printed("1."):
        cluster.run(*words)
    ready(cluster, "ingero-fleet", "Fleet is not ready")
    cluster.run("helm", "test", "ingero-fleet", "-n", "ingero")


def test_the_agent_loads_all_probes_and_its_pushes_arrive(cluster: Cluster) -> None:
    install, apply = printed("2.")
    cluster.run(*install)
    ready(cluster, "ingero-agent", "the agent is not ready")
    cluster.run("helm", "test", "ingero-agent", "-n", "ingero")
    cluster.run(*apply)  # the job, whose ranks become known meanwhile
    (container,) = pod_of(cluster, "app.kubernetes.io/name=ingero-agent")["spec"]["containers"]
    rights = container["securityContext"]
    assert rights["capabilities"] == {"drop": ["ALL"], "add": ["BPF", "PERFMON", "SYS_PTRACE"]}
    assert not rights["privileged"]
    checked = in_pod(cluster, "ds/ingero-agent", "ingero", "check", "--json", check=False)
    (probes,) = [each for each in checked["checks"] if each["name"] == "probes"]
    print(f"probes: {probes['value']}")
    assert probes["pass"], probes
    assert len(probes["value"].split(", ")) == GROUPS, probes
    health = in_pod(
        cluster, "ds/ingero-agent", "ingero", "agent", "--health", "--json",
        "--socket", "/run/ingero/agent.sock",
    )  # fmt: skip
    parts = {part["name"]: part for part in health["parts"]}
    assert [parts[name]["state"] for name in ("recorder", "pusher")] == ["running", "running"]
    assert not [note for note in parts["recorder"]["notes"] if "off" in note]
    cluster.until(
        lambda: [node["node_id"] for node in fleet_status(cluster).get("nodes", [])] == [NODE],
        "no push arrived",
    )


def test_echo_stores_what_fleet_sends_on(cluster: Cluster) -> None:
    for words in printed("3."):
        cluster.run(*words)
    ready(cluster, "ingero-echo", "Echo is not ready")
    cluster.run("helm", "test", "ingero-echo", "-n", "ingero")
    ready(cluster, "ingero-fleet", "Fleet is not ready again")
    sql = "sql=SELECT DISTINCT node_id FROM events"
    ask = ("ingero-echo", "ask", "run_analysis", sql, "--json")
    secret = "/etc/ingero/secret"
    how = ("--url", "https://localhost:8081", "--ca-cert", f"{secret}/ca.crt")
    token = ("--token-file", f"{secret}/echo.token")

    def stored() -> bool:
        said = in_pod(cluster, "sts/ingero-echo", *ask, *how, *token)
        return NODE in json.dumps(said["rows"])

    cluster.until(stored, "nothing arrived in Echo")


def test_a_straggler_is_named(cluster: Cluster) -> None:
    first = ("-l", "batch.kubernetes.io/job-completion-index=0")

    def pod() -> dict[str, Any]:
        return cluster.objects("pods", *first)[0]

    cluster.until(lambda: is_ready(pod()), "the job does not run")
    cluster.until(
        lambda: fleet_status(cluster).get("ranks", {}).get("judged", 0) == 8,
        "the ranks are not judged",
    )
    assert not fleet_status(cluster)["verdicts"]
    cluster.kubectl("exec", pod()["metadata"]["name"], "--", "touch", "/dev/shm/slow")

    def stragglers() -> list[dict[str, Any]]:
        verdicts = fleet_status(cluster).get("verdicts", [])
        return [each for each in verdicts if each["state"] == "straggler"]

    took_s = cluster.until(stragglers, "nobody is named")
    (named,) = stragglers()
    print(f"named after {took_s:.0f} s: {named}")
    assert (named["node"], named["rank"], named["job"]) == (NODE, 3, "train")


def test_an_upgrade_replaces_pods_and_keeps_the_secret(cluster: Cluster) -> None:
    def secret() -> Any:
        return cluster.objects("secrets", "-n", "ingero", "--field-selector=type=Opaque")

    before, pods = secret(), cluster.objects("pods", "-n", "ingero")
    kept = ("--namespace", "ingero", "--reuse-values")
    cluster.run(
        "helm", "upgrade", "ingero-agent", "./helm/ingero-agent", *kept,
        "--set", "config.agent.log_level=debug", "--set", "stragglerSink.enabled=true",
    )  # fmt: skip
    cluster.run(
        "helm", "upgrade", "ingero-fleet", "./helm/ingero-fleet", *kept,
        "--set", "config.threshold.k=2.5",
    )  # fmt: skip
    for what in ("ds/ingero-agent", "deploy/ingero-fleet"):
        cluster.kubectl("rollout", "status", "-n", "ingero", what, "--timeout=240s")
    ready(cluster, "ingero-agent", "the agent is not ready after the upgrade")
    assert [each["data"] for each in secret()] == [each["data"] for each in before]
    names = {each["metadata"]["name"] for each in pods}
    assert (
        len(names & {each["metadata"]["name"] for each in cluster.objects("pods", "-n", "ingero")})
        == 1
    )
    cluster.until(
        lambda: [node["node_id"] for node in fleet_status(cluster).get("nodes", [])] == [NODE],
        "no push arrived after the upgrade",
    )


def fake_nodes() -> str:
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "List",
            "items": [
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {
                        "name": f"gpu-{number}",
                        "labels": {"nvidia.com/gpu.present": "true", "type": "kwok"},
                        "annotations": {"kwok.x-k8s.io/node": "fake"},
                    },
                    "status": {
                        "capacity": {"cpu": "32", "memory": "256Gi", "pods": "110"},
                        "allocatable": {"cpu": "32", "memory": "256Gi", "pods": "110"},
                    },
                }
                for number in range(FAKE_NODES)
            ],
        }
    )


def test_every_gpu_node_gets_an_agent(cluster: Cluster) -> None:
    """Two hundred nodes that only the API server believes in."""
    stages = [f"--config={path}" for path in sorted((PEERS / "kwok-stages").glob("*.yaml"))]
    select = "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake"
    with (cluster.work / "log" / "kwok.log").open("w") as log:
        kwok = subprocess.Popen(
            cluster.command("kwok", f"--kubeconfig={cluster.work}/kubeconfig", select, *stages),
            stdout=log,
            stderr=log,
        )
    try:
        cluster.kubectl("create", "-f", "-", given=fake_nodes())

        def agents() -> int:
            status = cluster.objects("ds", "-n", "ingero")[0]["status"]
            return int(status.get("numberReady", 0))

        took_s = cluster.until(lambda: agents() == FAKE_NODES + 1, "agents are missing")
        print(f"{FAKE_NODES + 1} agents after {took_s:.0f} s")
        cluster.kubectl("delete", "nodes", "-l", "type=kwok", "--wait=false")
        cluster.until(lambda: agents() == 1, "agents of nodes that are gone stay")
    finally:
        kwok.terminate()
        kwok.wait()


def test_uninstall_leaves_nothing(cluster: Cluster) -> None:
    """Everything but Echo's volume and what lies in folders of the node."""
    cluster.kubectl("delete", "job", "train")
    for release in ("ingero-agent", "ingero-fleet", "ingero-echo"):
        cluster.run("helm", "uninstall", release, "-n", "ingero", "--wait")
    kinds = cluster.kubectl("api-resources", "--verbs=list", "--namespaced", "-o", "name").split()
    kinds = [kind for kind in kinds if not kind.startswith("events")]

    def left() -> set[str]:
        said = cluster.kubectl("get", ",".join(kinds), "-n", "ingero", "-o", "name")
        return set(said.split())

    expected = {
        "configmap/kube-root-ca.crt",
        "serviceaccount/default",
        "persistentvolumeclaim/data-ingero-echo-0",
    }
    cluster.until(lambda: left() == expected, f"left: {left() - expected}")
    ours = cluster.kubectl(
        "get", "clusterroles,clusterrolebindings", "-o", "name",
        "-l", "app.kubernetes.io/managed-by=Helm",
    )  # fmt: skip
    assert not ours
    processes = cluster.run("ps", "-eo", "args")
    assert "ingero agent" not in processes
    assert "ingero-fleet" not in processes
