"""The six demo scenarios: production code finds what each of them is about."""

from pathlib import Path

import pytest

from ingero.errors import ConfigError
from ingero.sim.incidents import INCIDENTS, Tick, run_incident
from ingero.storage.trace.chains import read_chains
from ingero.storage.trace.reading import connect_readonly


@pytest.mark.parametrize("name", INCIDENTS)
@pytest.mark.parametrize("seed", [1, 7])
def test_every_scenario_shows_its_point(name: str, seed: int) -> None:
    result = run_incident(name, seed=seed)
    assert result.finding.holds, result.finding.text


def test_the_incident_is_explained_with_cause_and_fix() -> None:
    result = run_incident("incident")
    chain = next(chain for chain in result.chains if chain.cuda_op == "cudaStreamSync")
    assert chain.severity == "HIGH"
    assert "high CPU utilization" in chain.root_cause
    assert any("stress-ng (pid 812)" in line for line in chain.recommendations)


@pytest.mark.parametrize("name", ["cold-start", "memcpy-bottleneck", "periodic-spike", "gpu-steal"])
def test_a_calm_host_is_blamed_for_nothing(name: str) -> None:
    assert run_incident(name).chains == []


def test_speed_paces_the_story_and_ticks_tell_it() -> None:
    naps: list[float] = []
    ticks: list[Tick] = []
    result = run_incident("incident", 20, ticks.append, sleep=naps.append)
    assert naps == [0.05] * len(ticks)
    assert [tick.elapsed_s for tick in ticks] == list(range(1, len(ticks) + 1))
    assert ticks[-1].elapsed_s >= result.elapsed_s


def test_a_scenario_can_be_recorded_and_explained(tmp_path: Path) -> None:
    run_incident("cpu-contention", db=tmp_path / "demo.db")
    connection = connect_readonly(tmp_path / "demo.db")
    chains = read_chains(connection)
    calls = connection.execute(
        "SELECT sum(count) FROM event_aggregates WHERE source = 1"
    ).fetchone()
    connection.close()
    assert chains[0].id.startswith("demo:tail-")
    assert calls == (400,)


def test_names() -> None:
    assert run_incident("contention").name == run_incident("gpu-contention").name == "gpu-steal"
    assert next(iter(INCIDENTS)) == "incident"
    with pytest.raises(ConfigError, match="choose one of incident, cold-start"):
        run_incident("earthquake")
