"""The pace of a job: how many steps make a sample, also where the first ones were unusual."""

import math

import numpy as np
import pytest
from tests.support.verdict_tables import world
from tests.support.verdict_world import START_S, blamed, member

from ingero.contract.verdict import Verdict, VerdictState
from ingero.core.verdict.engine import VerdictEngine
from ingero.core.verdict.members import MemberRegistry
from ingero.core.verdict.own_times import make_batch
from ingero.core.verdict.pace import follow_pace
from ingero.core.verdict.table import HEALTHY

RANKS, SLOW = 8, 5


def run_paced(
    paces: list[tuple[float, int]], slow_s: float, excess: float, span_s: float | None = None
) -> tuple[VerdictEngine, list[tuple[float, Verdict]]]:
    """Run a job with `paces` of (seconds, reports per second); one rank is slow from `slow_s` on.

    Reports are means of several steps where `span_s`, the length of a step, is given.
    """
    engine, rng = VerdictEngine(), np.random.default_rng(5)
    members = np.array([engine.register(member(rank), START_S) for rank in range(RANKS)])
    found, second, step = [], 0, 0
    for seconds, per_s in paces:
        for _ in range(int(seconds)):
            rows = np.repeat(np.arange(step, step + per_s), RANKS)
            log_own = rng.normal(0, 0.02 if per_s > 1 else 0.01, (per_s, RANKS))
            if second >= slow_s:
                log_own[:, SLOW] += np.log1p(excess)
            own_s = np.exp(log_own).ravel() / per_s
            spans_s = None
            if span_s is not None:
                own_s *= per_s * span_s / 2
                longer = 1 + excess / 2 if second >= slow_s else 1.0
                spans_s = span_s * longer * np.exp(rng.normal(0, 0.01, len(rows)))
            batch = make_batch(np.tile(members, per_s), own_s, rows, span_s=spans_s)
            engine.observe(batch, START_S + second)
            found += [(second, verdict) for verdict in engine.tick(START_S + second)]
            step, second = step + per_s, second + 1
    return engine, found


def steps_per_sample(engine: VerdictEngine) -> int:
    return int(engine.registry.cohorts.frames_per_sample[engine.registry.rows.cohort[0]])


@pytest.mark.parametrize("paces", [[(8, 1), (152, 16)], [(8, 16), (152, 1)]])
def test_a_job_whose_first_seconds_had_another_pace_is_sampled_once_a_second(
    paces: list[tuple[float, int]],
) -> None:
    engine, found = run_paced(paces, 145, 0.10)
    assert steps_per_sample(engine) == paces[-1][1]
    assert blamed(found) == {SLOW}
    first = next(at for at, verdict in found if verdict.state is VerdictState.STRAGGLER)
    assert 145 < first <= 157


@pytest.mark.parametrize("paces", [[(20, 16), (60, 8)], [(20, 8), (60, 16)]])
def test_a_job_whose_steps_are_only_grouped_otherwise_goes_on_learning(
    paces: list[tuple[float, int]],
) -> None:
    """Steps of 15.6 ms: a drift of one per mille decides about groups of four or of eight."""
    engine, found = run_paced(paces, 50, 0.15, span_s=0.0156)
    assert steps_per_sample(engine) == paces[-1][1]
    assert blamed(found) == {SLOW}
    first = next(at for at, verdict in found if verdict.state is VerdictState.STRAGGLER)
    assert 50 < first <= 62


def test_a_rank_that_makes_the_whole_job_slow_is_not_learned_as_normal() -> None:
    engine, found = run_paced([(100, 16), (60, 4)], 100, 3.0)
    assert steps_per_sample(engine) == 4
    states = [verdict.state for _, verdict in found if verdict.rank == SLOW]
    assert states[-1] is VerdictState.STRAGGLER
    assert blamed(found) == {SLOW}


def test_a_long_phase_of_short_steps_is_a_new_pace_and_a_short_one_is_not() -> None:
    engine, found = run_paced([(640, 1), (200, 4), (30, 1)], 1e9, 0.0)
    assert (steps_per_sample(engine), found) == (1, [])
    engine, found = run_paced([(640, 1), (340, 4), (60, 4)], 1e9, 0.0)
    assert (steps_per_sample(engine), found) == (4, [])


def test_pauses_are_no_pace() -> None:
    engine, _ = run_paced([(30, 8), (1, 0), (20, 0), (12, 8), (20, 0), (12, 8), (20, 0)], 1e9, 0.0)
    assert steps_per_sample(engine) == 8


def paced(away: int, steps: int, span_s: float = np.nan) -> MemberRegistry:
    """Return a cohort with ten steps per sample that had some steps in the last five seconds."""
    registry = world()
    rows, cohorts = registry.rows, registry.cohorts
    rows.state[:8], rows.baseline_samples[:8] = HEALTHY, 60
    rows.own_scale[:8] = 0.01
    cohorts.frames_per_sample[1], cohorts.sample_s[1], cohorts.paced_away[1] = 10, 1.0, away
    cohorts.window_s[1], cohorts.window_frame[1], cohorts.first_frame_s[1] = 95.0, 0, 0.0
    cohorts.frames[1], cohorts.paced_span_s[1], cohorts.span_s[1] = steps, 1.0, span_s
    follow_pace(registry, np.array([1]), 100.0)
    return registry


@pytest.mark.parametrize(
    ("away", "steps", "per_sample", "counted"),
    [
        (0, 200, 10, 1), (3, 200, 10, 4),  # four times as fast, but not for long
        (5, 200, 40, 0),  # in six windows in a row
        (5, 75, 10, 6),  # not worth what was learned
        (5, 60, 10, 0),  # hardly faster
        (5, 50, 10, 0),  # as before
        (5, 20, 4, 0),  # slower
    ],
)  # fmt: skip
def test_another_pace_is_followed_when_it_has_lasted(
    away: int, steps: int, per_sample: int, counted: int
) -> None:
    cohorts = paced(away, steps).cohorts
    assert (cohorts.frames_per_sample[1], cohorts.paced_away[1]) == (per_sample, counted)


@pytest.mark.parametrize(
    ("away", "steps", "per_sample"),
    [
        (0, 90, 10), (1, 90, 18),  # in two windows in a row
        (1, 80, 10), (1, 25, 5), (1, 35, 10),  # from 1.7 times as many or as few on
    ],
)  # fmt: skip
def test_steps_of_the_same_length_that_come_in_other_groups_are_followed_at_once(
    away: int, steps: int, per_sample: int
) -> None:
    registry = paced(away, steps, span_s=1.0)
    assert registry.cohorts.frames_per_sample[1] == per_sample
    assert registry.rows.baseline_samples[:8].tolist() == [60] * 8, "and what was learned holds"


def test_a_faster_pace_is_learned_anew_and_a_slower_one_is_noisier() -> None:
    faster, slower = paced(5, 200).rows, paced(5, 20).rows
    assert not faster.baseline_samples[:8].any()
    assert slower.baseline_samples[:8].tolist() == [60] * 8
    assert slower.own_scale[0] == pytest.approx(0.01 * math.sqrt(10 / 4))
