"""The steps of a job show that it is slower, and far less evidence then shows who is behind it."""

import numpy as np
import pytest
from tests.support.verdict_world import START_S, blamed, member

from ingero.contract.verdict import CauseClass, Verdict, VerdictState
from ingero.core.verdict.engine import VerdictEngine
from ingero.core.verdict.own_times import make_batch

RANKS, SLOW, CALM_S, STEP_S = 8, 5, 90, 0.1
PER_S = 10  # steps


def run_noisy(
    seconds: int,
    *,
    rise: float = 0.0,
    excess: tuple[float, ...] = (0.0,) * RANKS,
    every: int = 1,
    own_noise: float = 0.30,
    queue: float = 1.0,
) -> list[tuple[int, Verdict]]:
    """Run a job whose own times are far noisier than its steps.

    After CALM_S seconds its steps grow by `rise` and own times by `excess`, in every n-th step.
    """
    engine, rng = VerdictEngine(), np.random.default_rng(3)
    members = np.array([engine.register(member(rank), START_S) for rank in range(RANKS)])
    found = []
    for second in range(seconds):
        step = np.arange(second * PER_S, (second + 1) * PER_S)
        is_slow = ((second >= CALM_S) & (step % every == 0)).astype(float)[:, None]
        own = rng.normal(0, own_noise, (PER_S, RANKS)) + is_slow * np.log1p(np.array(excess))
        span = STEP_S * np.exp(rng.normal(0, 0.01, (PER_S, 1))) * (1 + rise * is_slow)
        queues = np.where(np.arange(RANKS) == SLOW, 1 + (queue - 1) * is_slow, 1.0) * 0.02
        batch = make_batch(
            np.tile(members, PER_S),
            (0.04 * np.exp(own)).ravel(),
            np.repeat(step, RANKS),
            span_s=np.repeat(span, RANKS, axis=1).ravel(),
            advance_s=np.abs(rng.normal(0, 0.03, PER_S * RANKS)),
            start_late_s=np.zeros(PER_S * RANKS),
            enqueue_late_s=np.zeros(PER_S * RANKS),
            queue_s=(queues * np.exp(rng.normal(0, 0.02, (PER_S, RANKS)))).ravel(),
        )
        engine.observe(batch, START_S + second)
        found += [(second, verdict) for verdict in engine.tick(START_S + second)]
    return found


def slow_rank(excess: float) -> tuple[float, ...]:
    return tuple(excess if rank == SLOW else 0.0 for rank in range(RANKS))


def test_a_rank_in_noise_is_named_soon_because_the_steps_of_its_job_grew() -> None:
    found = run_noisy(CALM_S + 20, rise=0.06, excess=slow_rank(0.35))
    assert blamed(found) == {SLOW}
    first, verdict = next((s, v) for s, v in found if v.state is VerdictState.STRAGGLER)
    assert first - CALM_S <= 9
    assert verdict.loss == pytest.approx(0.06 / 1.06, abs=0.01)
    steady = run_noisy(CALM_S + 20, rise=0.0, excess=slow_rank(0.35))
    assert not [s for s, v in steady if v.state is VerdictState.STRAGGLER and s - CALM_S <= 9]


def test_nobody_is_behind_steps_that_grow_for_all() -> None:
    assert blamed(run_noisy(CALM_S + 40, rise=0.06)) == set()
    assert blamed(run_noisy(CALM_S + 40, rise=0.06, excess=(0.10,) * RANKS)) == set()


def test_of_two_that_may_be_behind_it_none_is_named_for_it() -> None:
    both = tuple(0.30 if rank in (2, SLOW) else 0.0 for rank in range(RANKS))
    found = run_noisy(CALM_S + 9, rise=0.06, excess=both)
    assert blamed(found) == set()


def test_a_rank_whose_excess_cannot_explain_the_steps_is_not_behind_them() -> None:
    found = run_noisy(CALM_S + 15, rise=0.50, excess=slow_rank(0.10), own_noise=0.10)
    assert not [s for s, v in found if v.state is VerdictState.STRAGGLER and s - CALM_S <= 9]


def test_a_hiccup_of_four_seconds_names_nobody() -> None:
    engine_rows = run_noisy(CALM_S + 4, rise=0.2, excess=slow_rank(1.0))
    assert blamed(engine_rows) == set()


def test_single_long_steps_are_stalls_and_steady_ones_are_not() -> None:
    found = run_noisy(CALM_S + 15, rise=1.2, excess=slow_rank(6.0), every=10, own_noise=0.1)
    named = [v for _, v in found if v.state is VerdictState.STRAGGLER]
    assert {(v.rank, v.cause_class, v.period) for v in named} == {(SLOW, CauseClass.STALL, 10)}


@pytest.mark.parametrize(("queue", "cause"), [(1.08, CauseClass.COMPUTE), (0.6, CauseClass.HOST)])
def test_the_queue_of_the_gpu_says_whether_host_or_gpu_is_late(
    queue: float, cause: CauseClass
) -> None:
    """Where the GPU is slower, it falls behind its host; a late host loses its lead."""
    found = run_noisy(CALM_S + 15, rise=0.06, excess=slow_rank(0.35), queue=queue)
    assert {v.cause_class for _, v in found if v.state is VerdictState.STRAGGLER} == {cause}
