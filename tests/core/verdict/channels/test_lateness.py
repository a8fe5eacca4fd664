"""Where own times say nothing, who comes late since the steps grew is behind them."""

import numpy as np
import pytest
from tests.support.verdict_world import START_S, blamed, member

from ingero.contract.verdict import Verdict, VerdictState
from ingero.core.verdict.engine import VerdictEngine
from ingero.core.verdict.own_times import make_batch

RANKS, SLOW, CALM_S, STEP_S = 8, 5, 90, 0.1
PER_S, WHOLE = 10, 5  # steps in a second, and every which one is sent whole
MS = 1e-3
NOBODY = (0.0,) * RANKS


def only(rank: int, late_ms: float) -> tuple[float, ...]:
    return tuple(late_ms if each == rank else 0.0 for each in range(RANKS))


def run_late(
    start_ms: tuple[float, ...] = NOBODY,
    alone_ms: tuple[float, ...] = NOBODY,
    mean_ms: tuple[float, ...] = NOBODY,
    *,
    rise: float = 0.06,
    seconds: int = 12,
    last: int = 10**9,
    noise_ms: float = 1.0,
) -> list[tuple[int, Verdict]]:
    """Run a job whose steps grow by `rise` after CALM_S seconds, and `seconds` more.

    GPUs then begin so much later than those of their peers, the job waits so much longer for them
    alone, and they are later at the mean of all collectives, for `last` steps that are sent whole.
    Own times say nothing.
    """
    engine, rng = VerdictEngine(), np.random.default_rng(5)
    members = np.array([engine.register(member(rank), START_S) for rank in range(RANKS)])
    found = []
    for second in range(CALM_S + seconds):
        step = np.arange(second * PER_S, (second + 1) * PER_S)
        is_slow = step >= CALM_S * PER_S
        is_late = is_slow & (step < (CALM_S * PER_S) + last * WHOLE)
        is_whole = np.where(step % WHOLE == 0, 1.0, np.nan)[:, None]
        span = STEP_S * np.exp(rng.normal(0, 0.01, (PER_S, 1))) * (1 + rise * is_slow[:, None])
        start = rng.normal(0, noise_ms, (PER_S, RANKS)) + is_late[:, None] * np.array(start_ms)
        alone = np.abs(rng.normal(0, noise_ms, (PER_S, RANKS))) + is_late[:, None] * np.array(
            alone_ms
        )
        late = [(each * is_whole * MS).ravel() for each in (start, alone)]
        # The mean over all collectives is measured once a second.
        mean = rng.normal(0, noise_ms, RANKS) + is_late.any() * np.array(mean_ms)
        batch = make_batch(
            np.tile(members, PER_S),
            (0.04 * np.exp(rng.normal(0, 0.4, (PER_S, RANKS)))).ravel(),
            np.repeat(step, RANKS),
            span_s=np.repeat(span, RANKS, axis=1).ravel(),
            lateness_s=np.tile(mean * MS, PER_S),
            advance_s=late[1],
            start_late_s=late[0],
            enqueue_late_s=0 * late[0],
            queue_s=0 * late[0] + 0.02,
            near_late_s=0 * late[0],
            far_late_s=0 * late[0],
        )
        engine.observe(batch, START_S + second)
        found += [(second, verdict) for verdict in engine.tick(START_S + second)]
    return found


def named(found: list[tuple[int, Verdict]]) -> set[int | None]:
    return {v.rank for _, v in found if v.state is VerdictState.STRAGGLER}


@pytest.mark.parametrize("kind", ["start", "alone", "mean"])
def test_who_comes_late_since_the_steps_grew_is_behind_them(kind: str) -> None:
    late = only(SLOW, 5.0)
    little = {"alone_ms": only(SLOW, 1.0), "mean_ms": only(SLOW, 1.0)}
    found = run_late(**(little | {f"{kind}_ms": late}), seconds=12)
    assert blamed(found) == {SLOW}
    first = next(v for _, v in found if v.state is VerdictState.STRAGGLER)
    if kind != "alone":  # that is evidence of its own
        assert " later than usual; own time " in first.evidence
        assert first.confidence is not None and first.confidence > 0.99
    assert named(run_late(late, late, late, rise=0.0)) == set(), (
        "where steps did not grow, nobody is"
    )


def test_nobody_is_behind_steps_when_a_whole_group_is_late() -> None:
    assert named(run_late((0.0,) * 4 + (4.0, 5.0, 4.0, 4.0))) == set()


def test_who_is_late_by_a_small_part_of_what_steps_grew_by_is_not_behind_them() -> None:
    assert named(run_late(only(SLOW, 4.0), rise=0.20)) == set()


def test_a_few_late_steps_are_not_enough() -> None:
    assert named(run_late(only(SLOW, 20.0), last=5)) == set()


def test_a_mean_that_is_repeated_counts_once() -> None:
    assert named(run_late(mean_ms=only(SLOW, 20.0), last=7)) == set()


def test_lateness_within_its_noise_says_nothing() -> None:
    assert named(run_late(only(SLOW, 5.0), noise_ms=8.0)) == set()
