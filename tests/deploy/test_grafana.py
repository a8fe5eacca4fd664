"""The shipped dashboards: made by their script, readable by Grafana, every expression valid."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from deploy.grafana.make_dashboards import DASHBOARDS, encode
from tests.support.dashboards import filled
from tests.support.peers import FOLDER as PEERS

FOLDER = Path(__file__).parents[2] / "deploy" / "grafana"
CORE_PANELS = {"stat", "table", "timeseries", "state-timeline"}


def panels() -> list[tuple[str, dict[str, Any]]]:
    return [(name, each) for name, content in DASHBOARDS.items() for each in content["panels"]]


def test_the_files_are_what_the_script_writes() -> None:
    """F028, F076: `python deploy/grafana/make_dashboards.py` brings them up to date."""
    assert {path.name for path in FOLDER.glob("*.json")} == set(DASHBOARDS)
    for name, content in DASHBOARDS.items():
        assert (FOLDER / name).read_text() == encode(content)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_has_its_variables_and_nothing_that_ties_it_to_one_grafana(name: str) -> None:
    content = DASHBOARDS[name]
    names = [each["name"] for each in content["templating"]["list"]]
    assert names[:3] == ["datasource", "cluster_id", "ingero_job"]
    assert ("currency" in names) == ("$currency" in json.dumps(content["panels"]))
    assert "id" not in content
    assert 39 <= content["schemaVersion"] <= 41
    uids = set(re.findall(r'"uid": "([^"]*)"', encode(content)))
    assert uids == {content["uid"], "${datasource}"}


@pytest.mark.parametrize(("name", "panel"), panels(), ids=lambda each: str(each)[:30])
def test_a_panel_follows_the_rules(name: str, panel: dict[str, Any]) -> None:
    assert panel["title"] and panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["type"] in CORE_PANELS
    assert panel["datasource"]["uid"] == "${datasource}"
    for target in panel["targets"]:
        expression = target["expr"]
        assert promql_parser.parse(filled(expression)) is not None
        selectors = re.findall(r"\{([^{}]*)\}", expression)
        assert selectors
        assert all('cluster_id=~"$cluster_id"' in each for each in selectors)
        assert re.findall(r"rate\([^\[]*\[([^\]]*)\]", expression) in ([], ["$__rate_interval"])


def test_grafanas_own_types_accept_the_dashboards(tmp_path: Path) -> None:
    modules = PEERS / "grafana" / "node_modules"
    compiler = modules / ".bin" / "tsc"
    if not compiler.exists():
        pytest.skip("needs Grafana's schema, which `make peers-grafana` installs")
    (tmp_path / "node_modules").symlink_to(modules)
    literals = [
        f"const d{number}: Dashboard = {json.dumps(content)};"
        for number, content in enumerate(DASHBOARDS.values())
    ]
    source = tmp_path / "dashboards.ts"
    source.write_text(
        "import type { Dashboard } from '@grafana/schema';\n"
        + "\n".join(literals)
        + "\nexport { d0, d1, d2 };\n"
    )
    flags = "--noEmit --strict --skipLibCheck --module esnext --moduleResolution bundler".split()
    done = subprocess.run(
        [str(compiler), *flags, str(source)], capture_output=True, text=True, check=False,
        timeout=120, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
