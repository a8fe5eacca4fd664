"""The shipped Prometheus rules name existing series and pass promtool's unit tests."""

import re
import subprocess
from pathlib import Path

import yaml
from tests.support.peers import debian_program

from ingero.fleet.verdict_metrics import verdict_families
from ingero.fleet.verdicts import VerdictService

FOLDER = Path(__file__).parents[2] / "deploy" / "prometheus"


def test_rules_use_only_series_that_fleet_serves() -> None:
    rules = [
        r
        for g in yaml.safe_load((FOLDER / "ingero-rules.yml").read_text())["groups"]
        for r in g["rules"]
    ]
    known = {family.name for family in verdict_families(VerdictService())} | {
        r["record"] for r in rules if "record" in r
    }
    used = {name for rule in rules for name in re.findall(r"ingero[a-z_:]*[a-z]", rule["expr"])}
    assert used <= known
    assert {"IngeroStraggler", "IngeroFleetEvent", "IngeroStopped", "IngeroCostly"} == {
        r["alert"] for r in rules if "alert" in r
    }


def test_promtool_accepts_the_rules_and_their_unit_tests() -> None:
    promtool = debian_program("promtool")
    for args in (
        ["check", "rules", "ingero-rules.yml"],
        ["test", "rules", "ingero-rules.test.yml"],
    ):
        done = subprocess.run(
            [promtool, *args], cwd=FOLDER, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
