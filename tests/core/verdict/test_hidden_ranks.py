"""Fifty jobs with one slow rank each, in noise as measured on real DDP and FSDP jobs.

The steps of each job grow by 6 %. Peers react: they compute while they wait, so their own time
falls. The truth of the loss is known by construction and not computed as the engine does.
"""

import numpy as np
import pytest
from tests.support.verdict_world import START_S, member

from ingero.contract.verdict import CauseClass, Verdict, VerdictState
from ingero.core.verdict.engine import VerdictEngine
from ingero.core.verdict.own_times import make_batch

JOBS, RANKS, ONSET, SECONDS, GROWTH = 50, 8, 130, 175, 0.06
# Spread of own time per rank, of the step, and of the advance, as shares; fall of the peers.
DDP = (0.013, 0.004, 0.003, 0.20)
FSDP = (0.060, 0.020, 0.010, 0.05)


def first_named(
    shape: tuple[float, float, float, float], seed: int
) -> tuple[dict[str, tuple[int, Verdict]], dict[str, int], list[Verdict]]:
    """Return the first verdict of each job with its second, the truth, and what is open at last."""
    own_noise, step_noise, advance_noise, fall = shape
    rng, engine = np.random.default_rng(seed), VerdictEngine()
    culprits = rng.integers(0, RANKS, JOBS)
    members = np.array(
        [
            engine.register(member(r, job=f"j{j}"), START_S)
            for j in range(JOBS)
            for r in range(RANKS)
        ]
    )
    culprit = np.arange(RANKS) == culprits[:, None]
    named: dict[str, tuple[int, Verdict]] = {}
    for second in range(SECONDS):
        is_slow = second >= ONSET
        own = 0.6 * np.exp(rng.normal(0, own_noise, (JOBS, RANKS)))
        own *= np.where(culprit, 1.15, 1 - fall) if is_slow else 1.0
        span = np.exp(rng.normal(0, step_noise, (JOBS, 1))) * (1 + GROWTH * is_slow)
        advance = rng.exponential(advance_noise, (JOBS, RANKS))
        start = rng.normal(0, 0.002, (JOBS, RANKS))
        if is_slow:
            advance += culprit * 1.2 * GROWTH
            start += culprit * 1.2 * GROWTH
        batch = make_batch(
            members,
            own.ravel(),
            np.full(JOBS * RANKS, second),
            span_s=np.repeat(span, RANKS, axis=1).ravel(),
            advance_s=advance.ravel(),
            start_late_s=start.ravel(),
            enqueue_late_s=rng.normal(0, 0.002, JOBS * RANKS),
        )
        engine.observe(batch, START_S + second)
        for verdict in engine.tick(START_S + second):
            if verdict.state is VerdictState.STRAGGLER and verdict.job is not None:
                named.setdefault(verdict.job, (second, verdict))
    truth = {f"j{job}": int(rank) for job, rank in enumerate(culprits)}
    return named, truth, engine.current()


@pytest.mark.parametrize("shape", [DDP, FSDP])
def test_the_first_rank_named_is_the_hidden_one_in_fifty_of_fifty(
    shape: tuple[float, float, float, float],
) -> None:
    named, truth, open_verdicts = first_named(shape, 7)
    assert {job: verdict.rank for job, (_, verdict) in named.items()} == truth
    delays = np.array([second - ONSET for second, _ in named.values()])
    assert np.median(delays) <= 10
    assert np.percentile(delays, 90) <= 20
    assert {verdict.cause_class for _, verdict in named.values()} == {CauseClass.COMPUTE}
    losses = np.array([v.loss for v in open_verdicts if v.rank is not None], float)
    lost = GROWTH / (1 + GROWTH)
    assert np.mean(np.abs(losses / lost - 1) <= 0.25) >= 0.9
