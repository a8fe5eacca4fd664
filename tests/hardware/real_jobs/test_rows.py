"""What was said about a job is compared with what the job measured itself."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.hardware.real_jobs.plan import Phase
from tests.hardware.real_jobs.rows import Heard, Passed, Run, is_settled, remarks, rows_of
from tests.hardware.real_jobs.steps import Steps, read_steps

CALM_MS, SLOW_MS = 40.0, 44.0
BEGAN_S = 1000.0
PHASES = [
    Phase("healthy", "calm", 60.0, {}),
    Phase("rank_2_gpu", "gpu", 30.0, {"rank": 2, "gpu": 0.06}),
    Phase("calm_after_gpu", "calm", 30.0, {}),
]


def passed() -> list[Passed]:
    found, at_s = [], BEGAN_S
    for phase in PHASES:
        found.append(Passed(phase, at_s, at_s + phase.seconds))
        at_s += phase.seconds
    return found


def steps(slow_ms: float = SLOW_MS) -> Steps:
    ended, took, at_s = [], [], BEGAN_S
    rng = np.random.default_rng(3)
    while at_s < BEGAN_S + 120:
        slow = BEGAN_S + 60 <= at_s < BEGAN_S + 90
        ms = (slow_ms if slow else CALM_MS) * (1 + rng.normal(0, 0.01))
        at_s += ms / 1e3
        ended.append(at_s)
        took.append(ms)
    changes = [{"at": BEGAN_S + 60.2, "step": 1500, "fault": PHASES[1].fault}]
    return Steps(np.array(ended), np.array(took), changes)


def verdict(rank: int = 2, **more: Any) -> dict[str, Any]:
    usual = {"episode": f"e{rank}", "state": "straggler", "class": "compute", "loss": 0.09}
    return usual | {"rank": rank, "loss_error": 0.01} | more


def run(heard: list[Heard], slow_ms: float = SLOW_MS) -> Run:
    return Run("ddp", passed(), heard, [steps(slow_ms) for _ in range(8)])


def test_a_fault_told_right() -> None:
    named = Heard(BEGAN_S + 70.2, [verdict(loss=0.2)])
    later = Heard(BEGAN_S + 85, [verdict()])
    over = Heard(BEGAN_S + 95, [verdict(state="recovering")])
    healthy, fault, calm = rows_of(run([named, later, over]))
    assert fault["truth"] == pytest.approx(1 - CALM_MS / SLOW_MS, abs=0.003)
    assert 0 < fault["truth_error"] < 0.005
    assert (fault["named_s"], fault["class"], fault["loss"]) == (10.0, "compute", 0.09)
    assert fault["story"] == [
        [10.0, "straggler", "compute", 0.2],
        [24.8, "straggler", "compute", 0.09],
    ]
    assert (fault["right"], fault["remarks"], fault["others"]) == (True, [], [])
    assert (healthy["right"], calm["right"]) == (True, True)
    assert healthy["step_ms_median"] == pytest.approx(CALM_MS, rel=0.01)
    assert len(healthy["pace_ms"]) == 60


def test_what_is_wrong_is_remarked() -> None:
    late = Heard(BEGAN_S + 80.2, [verdict(**{"class": "host"}, loss=0.2), verdict(5)])
    _, fault, _ = rows_of(run([late]))
    assert fault["remarks"] == [
        "rank 5 named too",
        "named after 20 s",
        "class host",
        "loss 20.0%",
    ]
    assert not fault["right"]
    assert rows_of(run([]))[1]["remarks"] == ["not named"]


def test_a_fault_that_costs_nothing_must_not_be_called_slow() -> None:
    named = Heard(BEGAN_S + 70, [verdict()])
    listed = Heard(BEGAN_S + 70, [verdict(state="late", loss=0.0)])
    assert rows_of(run([named], CALM_MS))[1]["right"] is False
    assert rows_of(run([listed], CALM_MS))[1]["right"] is True
    assert rows_of(run([], CALM_MS))[1]["right"] is True


def test_names_in_calm_phases_are_false_unless_the_fault_was_just_over() -> None:
    early = Heard(BEGAN_S + 30, [verdict(2, episode="a")])
    soon = Heard(BEGAN_S + 93, [verdict(2, episode="b")])
    other = Heard(BEGAN_S + 100, [verdict(6, episode="c")])
    healthy, _, calm = rows_of(run([early, soon, other]))
    assert [each["rank"] for each in healthy["others"]] == [2]
    assert [each["rank"] for each in calm["others"]] == [6]


def test_an_upper_bound_may_be_twice_the_truth() -> None:
    row = {"truth": 0.06, "named_s": 5.0, "others": [], "class": "host", "kind": "host"}
    assert remarks(row | {"loss": 0.14, "at_most": True}) == []
    assert remarks(row | {"loss": 0.16, "at_most": True}) == ["loss 16.0%"]
    assert remarks(row | {"loss": 0.04, "at_most": True}) == ["loss 4.0%"]
    assert remarks(row) == ["no loss said"]


def test_step_files_are_read_up_to_an_incomplete_line(tmp_path: Path) -> None:
    path = tmp_path / "steps_0.jsonl"
    lines = [{"at": 100.0, "first": 0, "ms": [10, 20]}, {"at": 100.5, "step": 2, "fault": {}}]
    path.write_text("\n".join(map(json.dumps, lines)) + '\n{"at": 101')
    found = read_steps(path)
    assert found.ms.tolist() == [10, 20]
    assert found.ended_s.tolist() == pytest.approx([99.98, 100.0])
    assert found.changes == [lines[1]]
    assert len(read_steps(tmp_path / "none").ms) == 0


def test_a_drift_is_no_loss_but_part_of_its_error() -> None:
    """Calm steps grow from 40 to 44 ms across a fault that costs nothing."""
    ended = np.arange(BEGAN_S, BEGAN_S + 120, 0.042)
    ms = np.interp(ended, [BEGAN_S + 60, BEGAN_S + 90], [40.0, 44.0])
    changes = [{"at": BEGAN_S + 60.2, "step": 1500, "fault": PHASES[1].fault}]
    drifting = Run("ddp", passed(), [], [Steps(ended, ms, changes) for _ in range(8)])
    fault = rows_of(drifting)[1]
    assert abs(fault["truth"]) < 0.005 < 0.04 < fault["truth_error"]


def test_what_a_gpu_fault_costs_its_host_is_measured() -> None:
    every = []
    for rank in range(8):
        known = steps()
        slow = (known.ended_s >= BEGAN_S + 60.2) & (known.ended_s < BEGAN_S + 90) & (rank == 2)
        launched, own = 20 + 0.3 * slow, 0.05 * slow
        every.append(replace(known, launched_ms=launched, fault_host_ms=own))
    fault = rows_of(Run("ddp", passed(), [], every))[1]
    assert fault["fault_host_ms"] == 0.05
    assert fault["launched_late_ms"] == pytest.approx(0.3)
    assert fault["fault_gpu_ms"] == pytest.approx(0.06 * CALM_MS, rel=0.01)


def test_a_fault_ends_when_its_rank_has_been_named_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calm, named = Heard(1000.0, []), Heard(1008.0, [verdict()])
    for now_s, heard, settled in (
        (1013.5, [calm, named], False),
        (1014.5, [calm, named], True),
        (1016.9, [calm, Heard(1008.0, [verdict(5)])], False),
    ):
        monkeypatch.setattr(time, "time", lambda at_s=now_s: at_s)
        assert is_settled(PHASES[1], heard) is settled
    assert not is_settled(PHASES[0], [calm, named])
