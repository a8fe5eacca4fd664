"""Uneven batches, hiccups and bursts: what happens to all ranks now and then blames nobody."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import floats, integers
from numpy.typing import NDArray
from tests.support.member_tables import member_table
from tests.support.verdict_world import ONSET, blamed, noise, run, slowed

from ingero.contract.verdict import VerdictState
from ingero.core.scale import qn, thinned
from ingero.core.verdict.baseline import filled
from ingero.core.verdict.channels.fast import plain_effect, recent_effect
from ingero.core.verdict.channels.stall import update_stalls
from ingero.core.verdict.channels.stall_rates import stall_limit, stalls_more_than_peers
from ingero.core.verdict.policy import VerdictPolicy
from ingero.core.verdict.table import MemberRows


def test_rotating_data_imbalance_blames_nobody() -> None:
    rng = np.random.default_rng(10)
    own = noise(400, 16, seed=10) + np.log1p(rng.exponential(0.15, (400, 16)))
    assert blamed(run(own)) == set()


def _rare(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Return extra time of batches of which one in twenty is much longer."""
    return np.where(rng.random(shape) < 0.05, rng.exponential(0.3, shape), 0.0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ranks", [3, 16])
def test_long_batches_on_changing_ranks_blame_nobody_whatever_their_tails(
    seed: int, ranks: int
) -> None:
    rng = np.random.default_rng(seed)
    shape = (600, ranks)
    for extra in (rng.exponential(0.03, shape), rng.lognormal(-2.5, 1.0, shape), _rare(rng, shape)):
        assert blamed(run(noise(600, ranks, seed) + np.log1p(extra))) == set()


def test_a_slow_rank_is_named_among_uneven_batches_because_it_is_slow_with_every_one() -> None:
    rng = np.random.default_rng(12)
    own = noise(500, 16, seed=12) + np.log1p(rng.exponential(0.10, (500, 16)))
    own[300:, 5] += np.log(1.30)
    found = run(own)
    assert blamed(found) == {5}
    first = min(second for second, v in found if v.state is VerdictState.STRAGGLER)
    assert first - 300 >= 10  # it must last first


def with_bursts(own: np.ndarray, share: float, length: float, seed: int) -> np.ndarray:
    """Make ranks 3 to 30 % slower for a few seconds now and then.

    That is `share` of the time, for `length` samples on average.
    """
    rng = np.random.default_rng(seed)
    seconds, ranks = own.shape
    slow = np.zeros(ranks, bool)
    for second in range(seconds):
        slow = np.where(
            slow,
            rng.random(ranks) < 1 - 1 / length,
            rng.random(ranks) < share / length / (1 - share),
        )
        own[second] += slow * rng.uniform(0.03, 0.3, ranks)
    return own


@pytest.mark.parametrize("length", [1.0, 2.0, 3.0])
def test_short_bursts_on_all_ranks_blame_nobody(length: float) -> None:
    assert not blamed(run(with_bursts(noise(1500, 16, 5), 0.02, length, 6)))


def test_a_slow_rank_is_named_soon_on_hosts_that_hiccup() -> None:
    """Hiccups of one sample show the cohort that a longer slowdown is not a hiccup."""
    found = run(with_bursts(slowed(effect=0.05), 0.03, 1.0, 7))
    assert blamed(found) == {3}
    assert next(s for s, v in found if v.state is VerdictState.STRAGGLER) <= ONSET + 15


@given(rate=floats(0.001, 0.05), ranks=integers(8, 64), seed=integers(0, 1000))
@settings(max_examples=20)
def test_stalls_as_rare_events_come_in_bunches_that_blame_nobody(
    rate: float, ranks: int, seed: int
) -> None:
    """Some rank always has the most stalls; the likelihood of a fault keeps it from being named."""
    rng = np.random.default_rng(seed)
    stalls = rng.random((400, ranks)) < rate
    assert not _named(stalls)
    stalls[300:, 3] |= np.arange(100) % 5 == 0
    stalls[300:, 3] |= rng.random(100) < 10 * rate
    assert _named(stalls) == {3}


def _named(stalls: NDArray[np.bool_]) -> set[int]:
    """Return who stalls more than its peers in the end; stalls are of a second and a half."""
    ranks = stalls.shape[1]
    rows, cohorts = member_table(ranks)
    cohorts.expected[1], rows.baseline_log_own[:ranks] = ranks, 0.0
    for step, row in enumerate(stalls):
        excess = np.log(np.where(row, 2.5, 1.0))
        cohorts.frames[1] += 1
        update_stalls(
            rows, cohorts, np.arange(ranks), excess, np.full(ranks, step), np.full(ranks, np.nan),
            np.exp(excess),
        )  # fmt: skip
    over = np.flatnonzero(rows.stall_cusum[:ranks] > stall_limit(cohorts, VerdictPolicy())[1])
    return set(over[stalls_more_than_peers(rows, cohorts, over, VerdictPolicy())].tolist())


def test_a_hiccup_of_three_samples_is_no_plain_effect() -> None:
    rows = MemberRows()
    for _ in range(3):
        rows.append()
    rows.recent_excess[:3] = [
        [0.03, 0.02, 0.25, 0.28, 0.24],
        [0.05, 0.06, 0.04, 0.05, 0.01],
        [0.05, np.nan, 0.06, 0.05, 0.05],
    ]
    assert plain_effect(rows, np.arange(3)).tolist() == [0.03, 0.04, -np.inf]
    assert recent_effect(rows, np.arange(3)).tolist() == [0.24, 0.05, -np.inf]


def test_samples_left_out_under_suspicion_do_not_make_a_member_look_calm() -> None:
    """With medians in their place, the scale of a member would shrink, and its limit with it."""
    samples = np.random.default_rng(3).normal(0, 0.01, (4, 240))
    gaps = samples.copy()
    gaps[1, 40:140] = np.nan
    gaps[2, ::2] = np.nan
    spread = qn(thinned(filled(gaps)))
    assert not np.isnan(gaps).any()
    assert spread == pytest.approx(qn(thinned(samples)), rel=0.4)
