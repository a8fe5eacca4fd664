"""Own times of all members that move with a fault: other work, or a reaction to the fault."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.support.step_tables import cohort_table, with_steps
from tests.support.verdict_tables import CALM
from tests.support.verdict_world import START_S, blamed, member, run

from ingero.contract.verdict import Verdict, VerdictState
from ingero.core.verdict.engine import VerdictEngine
from ingero.core.verdict.job_steps import Explained, find_calm, follow_jump
from ingero.core.verdict.loss import _explained_by_work, change_of_step
from ingero.core.verdict.own_times import make_batch
from ingero.core.verdict.table import FAST, STEP_SAMPLES, STRAGGLER, CohortRows

WHY = Explained(level=0.5, slope=0.5, rest=CALM, levels=np.zeros(20), usual_jump=0.02, shown=10)


@pytest.mark.parametrize(
    ("moved", "jump", "reaction", "expected", "unsure"),
    [
        (0.10, 0.0, 0.0, 0.05, 0.0),  # it moved before the fault, or later: that is work
        (0.10, 0.10, 0.0, 0.05, 0.0),  # nobody waits, so nobody reacts
        (0.02, 0.02, 0.10, 0.0086, 0.0051),  # no larger than usual: work in six of seven cases
        (-0.10, -0.10, 0.05, -0.0044, 0.0145),  # five times as far: a reaction, in 19 of 20
        (0.10, 0.20, 0.10, -0.044, 0.0236),  # of what moved, the jump alone is in doubt
    ],
)
def test_a_jump_with_the_fault_is_work_as_far_as_it_is_usual(
    moved: float, jump: float, reaction: float, expected: float, unsure: float
) -> None:
    found = _explained_by_work(replace(WHY, jump=jump), moved, reaction)
    assert found == (pytest.approx(expected, abs=5e-4), pytest.approx(unsure, abs=5e-4))


def test_the_error_of_a_loss_covers_the_doubt_what_own_times_mean() -> None:
    slow = with_steps(np.full(20, math.log(1.1)), FAST, levels=np.full(20, 0.4))
    sure = replace(CALM, explained=WHY)
    change = change_of_step(slow, 0, sure, 0.1)
    assert change is not None and change.calm_s == pytest.approx(math.exp(-0.05))
    doubtful = replace(CALM, explained=replace(WHY, jump=-0.1))
    other = change_of_step(slow, 0, doubtful, 0.1)
    assert other is not None and other.calm_s == pytest.approx(1.0, abs=0.005)
    assert other.error > 4 * change.error


def own_times_that_jump(levels: np.ndarray, *, calm: int, apart: int = 0) -> CohortRows:
    """Return steps that own times explain; `apart` samples before the last are not calm."""
    cohorts = cohort_table()
    count = len(levels)
    cohorts.step_log[1, :count], cohorts.step_level[1, :count] = 0.5 * levels, levels
    cohorts.step_is_calm[1, : calm - apart] = 1.0
    cohorts.step_samples[1] = count
    return cohorts


def jump_of(cohorts: CohortRows, calm: int) -> Explained:
    found = find_calm(cohorts, 1, calm, only_near=True)
    assert found is not None
    why = follow_jump(cohorts, 1, found).explained
    assert why is not None
    return why


def test_the_first_samples_of_an_episode_show_how_far_own_times_jumped() -> None:
    """A walk is known best next to it, where two samples differ by 0.01."""
    walk = 0.01 * np.arange(80.0)
    walk[60:] += 0.2
    why = jump_of(own_times_that_jump(walk, calm=60), 60)
    assert (why.shown, why.jump) == (10, pytest.approx(0.25, abs=1e-5))  # five apart
    assert why.usual_jump == pytest.approx(0.05, rel=1e-4)
    few = jump_of(own_times_that_jump(walk[:63], calm=60), 60)
    assert (few.shown, few.jump) == (3, pytest.approx(0.23, abs=1e-5))
    scatter = np.random.default_rng(5).normal(0, 0.1, 80)
    scatter[60:] += 0.3
    why = jump_of(own_times_that_jump(scatter, calm=60), 60)
    before, after = scatter[50:60], scatter[60:70]  # all ten
    assert why.jump == pytest.approx(np.median(after) - np.median(before), abs=1e-5)


def test_what_a_jump_was_stays_when_its_samples_are_gone() -> None:
    walk = 0.01 * np.arange(80.0)
    cohorts = own_times_that_jump(walk, calm=60)
    found = find_calm(cohorts, 1, 60, only_near=True)
    assert found is not None
    known = follow_jump(cohorts, 1, found)
    cohorts.step_level[1, 60:70] = 9.0  # later samples
    cohorts.step_samples[1] = 60 + STEP_SAMPLES + 1
    assert follow_jump(cohorts, 1, known) is known
    assert follow_jump(cohorts, 1, found) is found


def test_calm_own_times_of_long_ago_may_have_moved_further() -> None:
    walk = 0.01 * np.arange(90.0)
    near = jump_of(own_times_that_jump(walk, calm=60, apart=4), 60)
    assert near.usual_jump == pytest.approx(0.05, rel=1e-4)
    far = jump_of(own_times_that_jump(walk, calm=60, apart=5), 60)
    assert far.usual_jump == pytest.approx(math.sqrt(2) * walk[:55].std(), rel=1e-4)


JOBS, RANKS, CALM_S, SLOW_S = 40, 8, 60, 14


class _Jobs:
    """Jobs whose work wanders, each with one slow rank; `kind` says what its peers do then.

    Those of `waits` earn back a part of what they wait, those of `shares` slow each other down, and
    those of `work` get other work some seconds before the fault or after it.
    """

    def __init__(self, kind: str, seed: int) -> None:
        dice, seconds = np.random.default_rng(seed), CALM_S + SLOW_S
        keep = dice.choice([0.0, 0.5, 0.9, 0.98, 0.995], JOBS)
        spread = dice.uniform(0.005, 0.05, JOBS)
        work = np.zeros((seconds, JOBS))
        work[0] = dice.normal(0, spread)
        for second in range(1, seconds):
            moves = dice.normal(0, spread * np.sqrt(1 - keep**2))
            work[second] = keep * work[second - 1] + moves
        if kind == "work":
            begins = dice.integers(CALM_S - 30, CALM_S + 12, JOBS)
            changes = dice.uniform(0.04, 0.12, JOBS) * dice.choice([-1, 1], JOBS)
            work += np.where(np.arange(seconds)[:, None] >= begins, changes, 0.0)
        part, delay = dice.uniform(0.5, 0.9, JOBS), dice.uniform(0.04, 0.15, JOBS)
        noise = dice.normal(0, dice.uniform(0.002, 0.01, JOBS), (seconds, JOBS))
        self.healthy_s = (part * np.exp(work) + 1 - part) * np.exp(noise)
        scatter = dice.normal(0, 0.01, (seconds, JOBS, RANKS))
        self.own_s = part[:, None] * np.exp(work[..., None] + scatter)
        back = {"waits": dice.uniform(0.1, 1, JOBS), "shares": -dice.uniform(0.2, 0.9, JOBS)}
        self.culprits = dice.integers(1, RANKS, JOBS)
        self.own_s[CALM_S:] -= (back.get(kind, np.zeros(JOBS)) * delay)[:, None]
        own_s = self.healthy_s[CALM_S:] * part + 1.2 * delay
        self.own_s[CALM_S:, np.arange(JOBS), self.culprits] = own_s
        self.step_s = self.healthy_s.copy()
        self.step_s[CALM_S:] += delay
        self.advance_s = dice.exponential(0.01, (seconds, JOBS, RANKS))
        self.advance_s[CALM_S:, np.arange(JOBS), self.culprits] += delay

    def said(self) -> dict[int, Verdict]:
        engine = VerdictEngine()
        members = np.array(
            [
                engine.register(member(rank, job=str(job)), START_S)
                for job in range(JOBS)
                for rank in range(RANKS)
            ]
        )
        for second in range(len(self.step_s)):
            batch = make_batch(
                members,
                np.maximum(self.own_s[second], 0.05).ravel(),
                np.full(len(members), second),
                span_s=np.repeat(self.step_s[second], RANKS),
                advance_s=self.advance_s[second].ravel(),
            )
            engine.observe(batch, START_S + second)
            engine.tick(START_S + second)
        return {int(v.job or ""): v for v in engine.current() if v.state is VerdictState.STRAGGLER}


@pytest.mark.parametrize(("kind", "least"), [("waits", 0.85), ("shares", 0.85), ("work", 0.7)])
def test_losses_are_right_whether_peers_react_or_have_other_work(kind: str, least: float) -> None:
    """Within a quarter, a point or the error that is said: of four in ten this was not true."""
    jobs = _Jobs(kind, seed=13)
    said, right = jobs.said(), 0
    for job, verdict in said.items():
        assert verdict.rank == jobs.culprits[job] and verdict.loss is not None
        calm_s, slow_s = (
            float(np.median(steps[CALM_S:, job])) for steps in (jobs.healthy_s, jobs.step_s)
        )
        truth = 1 - calm_s / slow_s
        error = verdict.loss if verdict.at_most else verdict.loss_error or 0.0
        right += abs(verdict.loss - truth) <= max(0.25 * truth, 0.01, error)
    assert len(said) >= 0.9 * JOBS
    assert right >= least * len(said)


def groups_that_wait(*, slow: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return log own times and steps of two groups of four; rank 3 is slow from second 100 on.

    Rank 7 waits for it elsewhere and is late in its own group. The others compute while they wait.
    Without a `slow` rank everybody has less work then, and rank 7 a little more than the others.
    """
    own = np.random.default_rng(3).normal(0, 0.02, (130, 8))
    steps = np.exp(np.random.default_rng(4).normal(0, 0.004, (130, 1)))
    if slow:
        own[100:] += np.array([-0.3, -0.3, -0.3, 0.25, -1.3, -1.3, -1.3, -0.1])
        steps[100:] *= 1.06
    else:
        own[100:] += np.array([-0.3, -0.3, -0.3, -0.3, -0.3, -0.3, -0.3, -0.1])
        steps[100:] *= 0.8
    return own, np.repeat(1.5 * steps, 8, axis=1)


def test_a_rank_that_passes_a_delay_on_is_not_named() -> None:
    """Beside its group its own time is far too long, but it fell while the steps grew."""
    own, span = groups_that_wait(slow=True)
    found = run(own, None, {"span_s": span})
    assert blamed(found) == {3}
    assert 7 in {v.rank for _, v in found if v.state is VerdictState.SUSPECT}


def test_a_slow_rank_with_less_work_than_before_is_named_where_steps_did_not_grow() -> None:
    own, span = groups_that_wait(slow=False)
    engine = VerdictEngine()
    run(own, engine, {"span_s": span})
    assert engine.registry.rows.state[7] == STRAGGLER
