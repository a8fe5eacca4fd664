"""The shipped Prometheus rules name existing series and pass promtool's unit tests."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy.prometheus.make_prometheus_rule import RESULT, SOURCES, prometheus_rule
from tests.support.peers import debian_program

from ingero.core.alerts import alert as own

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "prometheus"
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((FOLDER / "ingero-rules.yml").read_text())["groups"]
    for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]


def test_rules_use_only_series_that_are_documented() -> None:
    """The tests of the documentation check that the services serve what it lists."""
    known = set(re.findall(r"`(ingero_[a-z_]+)`", (ROOT / "docs" / "metrics.md").read_text()))
    known |= {rule["record"] for rule in RULES if "record" in rule}
    names = r"\b(ingero[a-z_:]*[a-z])(?=[{\[)\s]|$)"
    used = {name for rule in RULES for name in re.findall(names, rule["expr"])}
    assert used - {"ingero_job"} <= known
    assert len(used) > 10


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_says_how_bad_it_is_what_happened_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"]["summary"] and rule["annotations"]["description"]
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    headings = re.findall(r"^## (\w+)$", (ROOT / page).read_text(), re.MULTILINE)
    assert anchor == rule["alert"].lower()
    assert rule["alert"] in headings


def test_fleet_and_the_rules_share_names_labels_and_runbooks() -> None:
    """An Alertmanager that gets both sees one alert."""
    own_names = {own.RANK_STRAGGLER, own.NODE_STRAGGLER, own.FLEET_EVENT, own.STOPPED}
    rules = {rule["alert"]: rule for rule in ALERTS if rule["alert"] in own_names}
    assert set(rules) == own_names
    labels = {"cluster_id", "episode", "ingero_job", "node_id", "rank"}
    for rule in rules.values():
        [kept] = re.findall(r"max by \(([^)]*)\)", rule["expr"])
        assert set(kept.split(", ")) <= labels
        assert rule["labels"] == {"severity": own.SEVERITY}


def test_every_alert_has_a_unit_test_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    tests = yaml.safe_load((FOLDER / "ingero-rules.test.yml").read_text())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    for fires in (True, False):
        covered = {case["alertname"] for case in cases if bool(case["exp_alerts"]) is fires}
        assert covered == {rule["alert"] for rule in ALERTS}


def test_the_prometheus_rule_is_what_the_script_writes() -> None:
    assert RESULT.read_text() == prometheus_rule()
    assert set(SOURCES) == set(FOLDER.glob("*-rules.yml"))
    groups = [g for path in SOURCES for g in yaml.safe_load(path.read_text())["groups"]]
    assert yaml.safe_load(RESULT.read_text())["spec"]["groups"] == groups


def test_promtool_accepts_the_rules_and_their_unit_tests() -> None:
    """F059: a replica that receives nothing is among them."""
    promtool = debian_program("promtool")
    for args in (
        ["check", "rules", "ingero-rules.yml"],
        ["test", "rules", "ingero-rules.test.yml"],
        ["check", "config", "--syntax-only", "prometheus.yml"],
    ):
        done = subprocess.run(
            [promtool, *args], cwd=FOLDER, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
