"""Scripted nodes: levels over time."""

import random
from pathlib import Path

import pytest
from tests.support.scripted_node import Change, Oscillation, Script, ScriptedSource
from tests.support.simulated_cluster import ClusterRun, Scenario, load_scenario

from ingero.errors import ConfigError
from ingero.sim.signals import HEALTHY_LAUNCHES


@pytest.mark.parametrize(
    ("script", "levels"),
    [
        (Script(), {0: 1.0, 100: 1.0}),
        (Script(changes=(Change(at_s=10, level=0.3),)), {9.9: 1.0, 10: 0.3, 100: 0.3}),
        (
            Script(changes=(Change(at_s=10, level=0.5, over_s=20),)),
            {10: 1.0, 20: 0.75, 30: 0.5, 100: 0.5},
        ),
        (
            Script(changes=(Change(at_s=10, level=0.4), Change(at_s=20, level=1.0))),
            {5: 1.0, 15: 0.4, 25: 1.0},
        ),
        (
            Script(oscillations=(Oscillation(period_s=40, depth=0.6, from_s=100),)),
            {99: 1.0, 100: 1.0, 120: 0.4, 140: 1.0},
        ),
    ],
)
def test_levels(script: Script, levels: dict[float, float]) -> None:
    assert {at: script.level("throughput", at) for at in levels} == pytest.approx(levels)
    assert script.level("cpu", 15) == 1.0


def test_a_scripted_source_feeds_the_agent() -> None:
    source = ScriptedSource(Script(noise=0.0), random.Random(1), lambda: 5.0)
    look = source.read(10**9)
    assert (look.launches, look.signals.throughput, look.at_s) == (HEALTHY_LAUNCHES, 100.0, 1.0)


def test_equal_seeds_give_equal_outcomes() -> None:
    scenario = Scenario(
        nodes=5, duration_s=150, scripts={2: Script(changes=(Change(at_s=100, level=0.3),))}
    )
    first, second = ClusterRun(scenario, 3).run(), ClusterRun(scenario, 3).run()
    assert first == second
    assert first.episodes


def test_a_wrong_scenario_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text("[[change]]\nat_s = 1\n")
    with pytest.raises(ConfigError, match=r"x\.toml"):
        load_scenario(path, 5)
