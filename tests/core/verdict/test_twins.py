"""Twins: two replicas of a stage that wait for the same steps are compared with each other."""

import numpy as np
import pytest
from tests.support.verdict_world import START_S, blamed, member, steady

from ingero.contract.verdict import Verdict, VerdictState
from ingero.core.verdict import residuals
from ingero.core.verdict.engine import VerdictEngine
from ingero.core.verdict.own_times import make_batch
from ingero.core.verdict.table import RECENT_HISTORY
from ingero.core.verdict.twins import against_twins, find_twins

STAGES, FAULT_S = 4, 200


def pipeline(seed: int, shared: float, rank: int | None = None, by: float = 0.0) -> np.ndarray:
    """Return logarithms of own times of two replicas: those of a stage vary alike by `shared`."""
    own = steady(FAULT_S + 40, 2 * STAGES, seed, common=0.002)
    alike = np.random.default_rng(seed).normal(0, shared, (len(own), STAGES))
    own += np.tile(alike, 2) + np.tile(np.arange(STAGES), 2) * 0.3
    if rank is not None:
        own[FAULT_S:, rank] += np.log1p(by)
    return own


def watch(own: np.ndarray, engine: VerdictEngine, slow: int | None = None, grown: float = 0.05):
    """Feed a pipeline whose steps are longer since the replica of `slow` is late."""
    ranks = own.shape[1]
    members = np.array(
        [engine.register(member(r, role=f"stage{r % STAGES}"), START_S) for r in range(ranks)]
    )
    found: list[tuple[int, Verdict]] = []
    for second in range(len(own)):
        is_slow = slow is not None and second >= FAULT_S
        late = np.full(ranks, 1e-4)
        if is_slow:
            late[np.arange(ranks) // STAGES == slow // STAGES] += 0.1
        span = np.full(ranks, 8.0 * (1 + grown * is_slow))
        batch = make_batch(
            members, np.exp(own[second]), np.full(ranks, second), span_s=span, lateness_s=late
        )
        engine.observe(batch, START_S + second)
        found += [(second, verdict) for verdict in engine.tick(START_S + second)]
    return found


def twinned(engine: VerdictEngine) -> int:
    return int(engine.registry.cohorts.is_twinned[: engine.registry.cohorts.size].sum())


@pytest.mark.parametrize("rank", [1, 6])
def test_the_slow_one_of_two_that_vary_alike_is_named(rank: int) -> None:
    """Own times of a stage differ by 20 % from second to second, and those of its twin as well."""
    engine = VerdictEngine()
    found = watch(pipeline(3, 0.2, rank, 0.06), engine, rank)
    named = [(s, v) for s, v in found if v.state is VerdictState.STRAGGLER]
    assert ([v.rank for _, v in named], twinned(engine)) == ([rank], STAGES)
    assert 0 < named[0][0] - FAULT_S <= 12
    assert "against the other rank with its role" in named[0][1].evidence


@pytest.mark.parametrize("seed", range(3))
def test_twins_that_vary_alike_are_not_blamed_for_it(seed: int) -> None:
    assert blamed(watch(pipeline(seed, 0.2), VerdictEngine())) == set()


def test_members_that_vary_by_themselves_are_compared_with_their_own_past() -> None:
    engine = VerdictEngine()
    watch(pipeline(3, 0.0)[:100], engine)
    assert twinned(engine) == 0


def test_a_twin_that_is_left_alone_starts_over() -> None:
    engine = VerdictEngine()
    watch(pipeline(3, 0.2)[:100], engine)
    rows, later_s = engine.registry.rows, START_S + 100 + 10 * engine.policy.forget_s
    kept = np.flatnonzero(np.arange(2 * STAGES) != 5)
    batch = make_batch(kept, np.ones(len(kept)), np.full(len(kept), 500))
    engine.observe(batch, later_s)
    engine.tick(later_s)
    assert twinned(engine) == STAGES - 1
    assert rows.baseline_samples[[0, 1]].tolist() == [60, 0]


def pair(engine: VerdictEngine, samples: tuple[int, int] = (30, 30)) -> VerdictEngine:
    """Return an engine with two members of a role that differ by a hundredth of what both vary."""
    for rank in range(2):
        engine.register(member(rank, role="stage1"), START_S)
    rows, cohorts = engine.registry.rows, engine.registry.cohorts
    cohorts.is_small[1], cohorts.expected[1] = True, 2
    rows.samples[:2], rows.lateness_s[:2] = samples, 0.001
    noise = np.random.default_rng(1).normal(0, 0.2, RECENT_HISTORY)
    rows.latest[:2] = noise
    cohorts.apart[1], cohorts.apart_samples[1] = noise / 100, min(samples)
    return engine


def test_twins_begin_with_the_history_of_what_they_differed_by() -> None:
    engine = pair(VerdictEngine(), samples=(30, 31))
    rows, cohorts = engine.registry.rows, engine.registry.cohorts
    apart = cohorts.apart[1, :30].copy()
    find_twins(rows, cohorts, np.array([0]))
    assert cohorts.is_twinned[1]
    assert rows.samples[:2].tolist() == [30, 30]
    assert rows.history[0, :30].tolist() == apart.tolist()
    assert rows.history[1, :30].tolist() == (-apart).tolist()
    assert rows.lone_scale[:2] == pytest.approx(0.2, rel=0.4)


@pytest.mark.parametrize("case", ["one left", "late unknown", "seldom together"])
def test_who_cannot_be_told_apart_is_no_twin(case: str) -> None:
    """Without their arrivals, one of two that differ may be slow, or the other one fast."""
    engine = pair(VerdictEngine())
    rows, cohorts = engine.registry.rows, engine.registry.cohorts
    if case == "one left":
        cohorts.expected[1] = 1
    elif case == "late unknown":
        rows.lateness_s[1] = np.nan
    else:
        cohorts.apart_samples[1] = 20
    find_twins(rows, cohorts, np.arange(2))
    assert not cohorts.is_twinned[1]


def test_residuals_of_twins_are_those_against_each_other_and_unknown_alone() -> None:
    engine = pair(VerdictEngine())
    rows, cohorts = engine.registry.rows, engine.registry.cohorts
    rows.baseline_log_own[:2], cohorts.is_twinned[1] = (1.0, 3.0), True
    both, plain = np.arange(2), np.array([9.0, 9.0])
    found = against_twins(rows, cohorts, both, np.array([1.5, 3.2]), plain)
    assert found == pytest.approx([0.3, -0.3])
    assert np.isnan(against_twins(rows, cohorts, both[:1], np.array([1.5]), plain[:1])).all()
    cohorts.is_twinned[1] = False
    assert against_twins(rows, cohorts, both, np.array([1.5, 3.2]), plain) is plain


@pytest.mark.parametrize(("who", "counted"), [([0], 0), ([0, 1], 1)])
def test_a_step_that_one_of_two_reports_alone_is_not_judged(who: list[int], counted: int) -> None:
    registry = pair(VerdictEngine()).registry
    rows, cohorts = registry.rows, registry.cohorts
    rows.baseline_log_own[:2], cohorts.is_twinned[1] = 0.0, True
    batch = make_batch(np.array(who), np.ones(len(who)), np.full(len(who), 5))
    residuals.take_frame(registry, residuals.Frame(rows.cohort[who], batch), START_S)
    assert rows.residual_count[0] == counted
