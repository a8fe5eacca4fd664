"""Charts: rendered by the real Helm; our services accept what the charts configure."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.charts import ALL, CHARTS, ROOT

from ingero.config.echo import EchoConfig
from ingero.config.fleet import FleetConfig
from ingero.config.ingero import IngeroConfig
from ingero.config.loader import load_file

PEERS = Path(os.environ.get("INGERO_PEERS") or Path.home() / ".cache/ingero/peers") / "bin"


def program(name: str) -> str:
    found = shutil.which(name, path=f"{PEERS}:{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"{name} is not installed: `make peers-charts`")
    return found


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program("helm"), *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def rendered(chart: str, *arguments: str) -> list[dict[str, Any]]:
    done = helm("template", chart, str(CHARTS / chart), "--namespace", "gpu", *arguments)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def kinds(chart: str) -> dict[str, dict[str, Any]]:
    return {document["kind"]: document for document in rendered(chart, "--set", ALL[chart])}


@pytest.mark.parametrize("chart", ALL)
def test_charts_pass_lint(chart: str) -> None:
    done = helm("lint", "--strict", str(CHARTS / chart), "--set", ALL[chart])
    assert done.returncode == 0, done.stdout


def test_f057_a_bare_install_has_one_replica() -> None:
    (deployment,) = [d for d in rendered("ingero-fleet") if d["kind"] == "Deployment"]
    assert deployment["spec"]["replicas"] == 1


def test_f077_echo_is_a_stateful_set_with_a_claim() -> None:
    echo = kinds("ingero-echo")["StatefulSet"]
    assert echo["spec"]["volumeClaimTemplates"][0]["spec"]["storageClassName"] == "encrypted"


@pytest.mark.parametrize("chart", ["ingero-fleet", "ingero-echo"])
def test_f102_monitor_ingress_budget_and_policy(chart: str) -> None:
    found = kinds(chart)
    assert {"ServiceMonitor", "Ingress", "HTTPRoute", "PodDisruptionBudget"} <= found.keys()
    assert "Egress" in found["NetworkPolicy"]["spec"]["policyTypes"]


def test_f103_echo_without_encrypted_storage_is_not_rendered() -> None:
    for values in ((), ("--set", "persistence.encrypted=true")):
        done = helm("template", "e", str(CHARTS / "ingero-echo"), *values)
        assert done.returncode != 0
        assert "encrypts its volumes" in done.stderr


@pytest.mark.parametrize("chart", ["ingero-fleet", "ingero-echo"])
def test_f130_services_are_reached_inside_the_cluster(chart: str) -> None:
    assert kinds(chart)["Service"]["spec"]["type"] == "ClusterIP"


@pytest.mark.parametrize("chart", ALL)
@pytest.mark.parametrize("values", ["resourcez={}", "image.tagg=1", "image.tag=true"])
def test_misspelt_keys_and_wrong_types_are_refused(chart: str, values: str) -> None:
    given = ["--set-json", values] if "{" in values else ["--set", values]
    done = helm("template", "x", str(CHARTS / chart), "--set", ALL[chart], *given)
    assert done.returncode != 0
    assert "values don't meet the specifications" in done.stderr


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, CHARTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_schemas_are_made_from_the_values() -> None:
    """`python helm/make_schemas.py` brings them up to date."""
    module = script("make_schemas")
    for chart in module.charts():
        assert (chart / "values.schema.json").read_text() == module.chart_schema(chart)


def test_every_value_is_explained_in_the_readme() -> None:
    """`python helm/make_readmes.py` brings them up to date."""
    module = script("make_readmes")
    for chart in module.charts():
        rows = module.rows_of((chart / "values.yaml").read_text())
        assert [row.path for row in rows if not row.meaning] == []
        assert (chart / "README.md").read_text() == module.chart_readme(chart)


@pytest.mark.parametrize("chart", ALL)
def test_the_pod_of_helm_test_is_not_taken_for_a_pod_of_the_service(chart: str) -> None:
    documents = rendered(chart, "--set", ALL[chart])
    (pod,) = [each for each in documents if each["kind"] == "Pod"]
    selectors = [each["spec"].get("selector") for each in documents if "spec" in each]
    selectors += [each["spec"].get("podSelector") for each in documents if "spec" in each]
    wanted = [each.get("matchLabels", each) for each in selectors if each]
    assert len(wanted) >= 2
    assert not [each for each in wanted if each.items() <= pod["metadata"]["labels"].items()]


def test_the_services_accept_what_the_charts_configure(tmp_path: Path) -> None:
    settings = {
        "ingero-fleet": ("config.yaml", FleetConfig),
        "ingero-echo": ("config.yaml", EchoConfig),
        "ingero-agent": ("ingero.yaml", IngeroConfig),
    }
    for chart, (key, kind) in settings.items():
        text = kinds(chart)["ConfigMap"]["data"][key]
        file = tmp_path / f"{chart}.yaml"
        file.write_text(text)
        load_file(kind, file)


def test_echo_is_asked_only_what_it_answers() -> None:
    text = json.dumps(rendered("ingero-echo", "--set", ALL["ingero-echo"]))
    assert re.findall(r'"path": "(/\w+z)"|8080(/\w+)', text) == [("/healthz", "")] * 3 + [
        ("", "/healthz")
    ]


def test_the_agent_is_never_privileged() -> None:
    text = json.dumps(kinds("ingero-agent")["DaemonSet"])
    assert '"privileged": true' not in text
    assert '"add": ["BPF", "PERFMON", "SYS_PTRACE"]' in text


@pytest.mark.parametrize("chart", ALL)
def test_unit_tests_of_the_charts(chart: str) -> None:
    done = subprocess.run(
        [program("helm-unittest"), str(CHARTS / chart)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("chart", ALL)
def test_services_of_the_namespace_set_no_variables_of_ours(chart: str) -> None:
    """A Service `ingero-fleet` would set INGERO_FLEET_PORT and others in every pod."""
    specs = [
        each["spec"]["template"]["spec"]
        for each in rendered(chart, "--set", ALL[chart])
        if "template" in each.get("spec", {})
    ]
    assert [spec["enableServiceLinks"] for spec in specs] == [False]


def conform(documents: str) -> subprocess.CompletedProcess[str]:
    """Judge objects by the schemas of Kubernetes and of the CRDs that charts use."""
    schemas = PEERS.parent / "schemas"
    if not schemas.is_dir():
        pytest.skip("there are no schemas: `make peers-charts`")
    place = f"{schemas}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"
    return subprocess.run(
        [program("kubeconform"), "-strict", "-summary", "-schema-location", place, "-"],
        input=documents,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("chart", ALL)
def test_every_object_conforms_to_the_schemas_of_kubernetes(chart: str) -> None:
    documents = rendered(chart, "--set", ALL[chart])
    done = conform(yaml.safe_dump_all(documents))
    assert done.returncode == 0, done.stdout
    assert f"Valid: {len(documents)}, Invalid: 0, Errors: 0, Skipped: 0" in done.stdout
    workload = next(each for each in documents if "template" in each.get("spec", {}))
    workload["spec"]["template"]["spec"]["hostPid"] = True
    assert "hostPid" in conform(yaml.safe_dump(workload)).stdout


@pytest.mark.parametrize(
    "file", ["examples/kubernetes-job.yaml", "deploy/prometheus/ingero-prometheusrule.yaml"]
)
def test_objects_that_people_apply_conform_too(file: str) -> None:
    done = conform((ROOT / file).read_text())
    assert done.returncode == 0, done.stdout
