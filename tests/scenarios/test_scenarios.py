"""Every scenario with 5, 8 and 64 nodes and several random push phases: who is named, and when."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.support.simulated_cluster import ClusterRun, Outcome, load_scenario

FILES = sorted(Path(__file__).parent.glob("*.toml"))
SEEDS = {5: range(4), 8: range(3), 64: range(1)}


def check(outcome: Outcome, expect: dict[str, Any], document: dict[str, Any]) -> None:
    named = set(expect["named"])
    assert outcome.named == named, outcome.episodes
    changes = document.get("change", [])
    for episode in outcome.episodes:
        own = [change["at_s"] for change in changes if change["nodes"] != "all"]
        assert min(own) < episode.raised_s <= min(own) + expect["within_s"], episode
        if "recovered_within_s" in expect:
            assert episode.closed_s is not None
            assert episode.closed_s <= max(own) + expect["recovered_within_s"], episode
            assert episode.reason == "recovered"
        else:
            assert episode.closed_s is None, episode
    assert len(outcome.episodes) == len(named)
    assert outcome.panicked or not expect.get("panicked")


@pytest.mark.parametrize("nodes", SEEDS)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path, nodes: int) -> None:
    document = tomllib.loads(path.read_text())
    expect = document["expect"]
    for seed in SEEDS[nodes]:
        outcome = ClusterRun(load_scenario(path, nodes), seed).run()
        check(outcome, expect, document)
        for modes in outcome.modes.values() if "modes" in expect else ():
            assert without_passing_modes(modes) == expect["modes"]


def without_passing_modes(modes: list[str]) -> list[str]:
    """Return the modes from the first threshold on, without `fleet-cached`.

    That mode may appear for a moment whenever quorum or a reply is late.
    """
    kept = [mode for mode in modes[modes.index("fleet") :] if mode != "fleet-cached"]
    return [mode for i, mode in enumerate(kept) if i == 0 or mode != kept[i - 1]]
