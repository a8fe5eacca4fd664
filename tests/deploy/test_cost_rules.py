"""F075: recording rules turn waiting into money, as vector V8 says."""

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml
from tests.support.peers import debian_program

from ingero.config.rates import load_rates
from ingero.core.cost import barrier_idle_s, idle_cost
from ingero.core.health.threshold import ThresholdPolicy
from ingero.fleet.pricing.gpus import GpuPrices
from ingero.fleet.processor import FleetProcessor
from ingero.fleet.verdict_metrics import verdict_families
from ingero.fleet.verdicts import VerdictService

FOLDER = Path(__file__).parents[2] / "deploy" / "prometheus"


def test_f075_rules_use_only_series_that_fleet_serves() -> None:
    (group,) = yaml.safe_load((FOLDER / "ingero-cost-rules.yml").read_text())["groups"]
    served = [
        *verdict_families(VerdictService()),
        *GpuPrices(load_rates()).families(FleetProcessor(ThresholdPolicy())),
    ]
    known = {family.name for family in served} | {rule["record"] for rule in group["rules"]}
    used = {
        name
        for rule in group["rules"]
        for name in re.findall(r"ingero[_:][a-z0-9_:]*", rule["expr"])
        if name != "ingero_provider"
    }
    assert used <= known


@pytest.mark.parametrize("what", ["check rules ingero-cost-rules.yml", "test rules"])
def test_f075_promtool_computes_v8(what: str) -> None:
    promtool = debian_program("promtool")
    args = what.split() + ["ingero-cost-rules.test.yml"] * what.startswith("test")
    done = subprocess.run(
        [promtool, *args], cwd=FOLDER, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_f075_what_fleet_counts_is_what_v8_prices() -> None:
    """One late rank of 64: 63 wait 80 ms, at 2.49 an hour 0.003486."""
    groups, lateness_ms = np.zeros(64, np.int64), np.zeros(64)
    lateness_ms[41] = 80.0
    idle_s = barrier_idle_s(groups, lateness_ms, np.full(64, -1.0, np.float32))
    assert idle_s == pytest.approx(63 * 0.080)
    assert idle_cost(idle_s, 1, 2.49) == pytest.approx(0.003486, abs=1e-6)
    thinned = barrier_idle_s(groups, lateness_ms, np.full(64, 8.0, np.float32))
    assert thinned == pytest.approx(8 * 63 * 0.080)
