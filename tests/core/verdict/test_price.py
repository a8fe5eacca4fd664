"""The price of a slow rank against the truth: the same job simulated without it."""

import numpy as np
import pytest
from tests.support.verdict_world import START_S, member, run, slowed

from ingero.contract.verdict import Verdict
from ingero.core.verdict.engine import VerdictEngine
from ingero.core.verdict.own_times import make_batch

RANKS, SLOW, HEALTHY_S, USD = 8, 3, 110, 2.0
# Forward and backward seconds of a bucket, number of buckets, transfer seconds of a bucket.
SERIAL = (0.3, 0.0, 1, 0.01)
OVERLAPPED = (0.1, 0.02, 10, 0.01)
HALF = (0.2, 0.02, 5, 0.01)


def one_step(
    rng: np.random.Generator,
    shape: tuple[float, float, int, float],
    slower: float,
    slow: tuple[int, ...],
) -> tuple[np.ndarray, float]:
    """Return the own time of each rank and the length of the step.

    Bucket n is reduced during the backward of bucket n + 1.
    """
    forward, backward, buckets, transfer = shape
    compute = np.full((buckets + 1, RANKS), backward) * np.exp(
        rng.normal(0, 0.004, (buckets + 1, RANKS))
    )
    compute[0] *= forward / backward if backward else 0.0
    compute[0] += 0.0 if backward else forward * np.exp(rng.normal(0, 0.004, RANKS))
    compute[:, slow] *= 1 + slower
    ready = np.cumsum(compute, axis=0)[1:]
    own, free = np.zeros(RANKS), np.zeros(RANKS)
    for bucket in ready:
        own += np.maximum(bucket - free, 0.0)
        free = np.full(RANKS, np.maximum(bucket, free).max() + transfer)
    return own, float(free[0])


def priced(
    shape: tuple[float, float, int, float], slower: float, slow: tuple[int, ...] = (SLOW,)
) -> tuple[list[Verdict], float]:
    """Return the open verdicts on the slow ranks, and what those ranks really cost together."""
    rng, engine = np.random.default_rng(4), VerdictEngine()
    members = np.array(
        [engine.register(member(rank, usd_per_gpu_hour=USD), START_S) for rank in range(RANKS)]
    )
    lengths: tuple[list[float], list[float]] = ([], [])
    for second in range(HEALTHY_S + 60):
        is_slow = second >= HEALTHY_S
        own, length = one_step(rng, shape, slower if is_slow else 0.0, slow)
        lengths[is_slow].append(length)
        batch = make_batch(members, own, np.full(RANKS, second), span_s=np.full(RANKS, length))
        engine.observe(batch, START_S + second)
        engine.tick(START_S + second)
    before_s, after_s = np.mean(lengths[0]), np.mean(lengths[1])
    return engine.current(), float((after_s - before_s) / after_s * RANKS * USD)


@pytest.mark.parametrize("slower", [0.1, 0.3, 1.0])
def test_without_overlap_the_price_is_the_loss(slower: float) -> None:
    (verdict,), truth = priced(SERIAL, slower)
    assert verdict.usd_per_hour == pytest.approx(truth, rel=0.05)
    assert verdict.excess == pytest.approx(slower, rel=0.05)


@pytest.mark.parametrize("slower", [0.05, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("shape", [OVERLAPPED, HALF])
def test_compute_hidden_in_the_wait_is_not_charged(
    shape: tuple[float, float, int, float], slower: float
) -> None:
    """Compared with the own time of waiting peers, the price was 1.1 to 6 times the loss."""
    (verdict,), truth = priced(shape, slower)
    assert verdict.rank == SLOW
    assert verdict.usd_per_hour == pytest.approx(truth, rel=0.35)
    assert "whose compute is hidden while they wait for it" in verdict.evidence


@pytest.mark.parametrize("shape", [SERIAL, OVERLAPPED, HALF])
def test_two_slow_ranks_share_one_loss(shape: tuple[float, float, int, float]) -> None:
    verdicts, truth = priced(shape, 0.3, (2, 6))
    assert {v.rank for v in verdicts} == {2, 6}
    assert sum(v.usd_per_hour or 0.0 for v in verdicts) == pytest.approx(truth, rel=0.35)


def test_shorter_batches_hide_nothing() -> None:
    """All own times fall by 15 % as one rank becomes slow: its peers are faster than before."""
    own = slowed(effect=0.1)
    own[150:] += np.log(0.85)
    engine = VerdictEngine()
    run(own, engine, usd_per_gpu_hour=USD)
    (verdict,) = engine.current()
    assert verdict.excess == pytest.approx(0.1, rel=0.1)
    assert verdict.usd_per_hour == pytest.approx(RANKS * USD * 0.1 / 1.1, rel=0.15)
    assert "hidden" not in verdict.evidence


def test_time_in_collectives_is_no_part_of_what_stalls_cost() -> None:
    """A stall doubles the own time of every 14th step; half of a calm step is own time."""
    own = slowed(effect=0.0, seconds=330)
    own[130:, 5] += np.where(np.arange(200) % 14 == 0, np.log(2.0), 0.0)
    engine = VerdictEngine()
    members = np.array(
        [engine.register(member(rank, usd_per_gpu_hour=USD), START_S) for rank in range(RANKS)]
    )
    for second, row in enumerate(np.exp(own)):
        span = np.full(RANKS, np.median(row) + row.max())
        engine.observe(
            make_batch(members, row, np.full(RANKS, second), span_s=span), START_S + second
        )
        engine.tick(START_S + second)
    (verdict,) = engine.current()
    assert verdict.period == 14
    assert verdict.usd_per_hour == pytest.approx(RANKS * USD * (1 / 14) / (2 + 1 / 14), rel=0.15)
