"""What a job loses: the headline of a verdict, measured on the steps and not on own times."""

import numpy as np
import pytest
from tests.support.verdict_world import ONSET, blamed, noise, run, slowed, span_of, states

from ingero.contract.verdict import CauseClass, Verdict, VerdictState
from ingero.core.verdict.engine import VerdictEngine


def last(found: list[tuple[int, Verdict]]) -> Verdict:
    return found[-1][1]


def overlapped(effect: float, seconds: int = 260) -> tuple[np.ndarray, np.ndarray]:
    """Return own times and steps of a job whose peers compute while they wait for rank 3.

    The culprit's own time grows by three times what the step does, and that of its peers falls.
    """
    own = noise(seconds, 8, seed=3)
    span = 0.3 + np.exp(own).max(axis=1, keepdims=True)
    own[ONSET:, 3] += np.log1p(3 * effect)
    own[ONSET:, np.arange(8) != 3] -= 2 * effect
    span[ONSET:] *= 1 + effect
    return own, np.repeat(span, 8, axis=1)


def steady(seconds: int) -> np.ndarray:
    """Return steps of a second and a half that vary by half a percent."""
    lengths = 1.5 * np.exp(np.random.default_rng(9).normal(0, 0.005, (seconds, 1)))
    return np.repeat(lengths, 8, axis=1)


@pytest.mark.parametrize("effect", [0.05, 0.10])
def test_the_headline_is_the_change_of_the_step_where_own_times_overstate_it(
    effect: float,
) -> None:
    own, span = overlapped(effect)
    engine = VerdictEngine()
    run(own, engine, {"span_s": span}, usd_per_gpu_hour=2.0)
    (verdict,) = engine.current()
    assert (verdict.rank, verdict.state) == (3, VerdictState.STRAGGLER)
    truth = effect / (1 + effect)
    assert verdict.loss == pytest.approx(truth, rel=0.25)
    assert verdict.loss_error is not None
    assert abs(verdict.loss - truth) <= verdict.loss_error
    assert not verdict.at_most
    assert verdict.excess > 2 * verdict.loss
    assert verdict.usd_per_hour == pytest.approx(8 * 2.0 * verdict.loss, abs=0.01)
    assert verdict.evidence.startswith("steps take ")


def test_without_the_length_of_steps_the_loss_is_an_upper_bound() -> None:
    engine = VerdictEngine()
    run(slowed(effect=0.2), engine)
    (verdict,) = engine.current()
    assert verdict.at_most
    assert verdict.loss_error is None
    assert verdict.loss == pytest.approx(0.2 / 1.2, rel=0.15)


def test_a_rank_behind_its_peers_is_late_where_the_step_does_not_change() -> None:
    own = slowed(effect=0.10)
    span = steady(len(own))
    engine = VerdictEngine()
    found = run(own, engine, {"span_s": span}, usd_per_gpu_hour=2.0)
    assert blamed(found) == set()
    (verdict,) = engine.current()
    assert (verdict.rank, verdict.state) == (3, VerdictState.LATE)
    assert verdict.loss is not None
    assert verdict.loss < 0.015
    assert verdict.next_step == "nothing: the job does not lose time by it"


def test_what_was_late_becomes_a_straggler_when_it_costs_time_and_is_resolved_when_over() -> None:
    own = slowed(effect=0.10, seconds=420)
    span = steady(len(own))
    span[220:] *= 1.10
    own[340:, 3] -= np.log1p(0.10)
    found = run(own, None, {"span_s": span})
    assert states(found, 3) == ["suspect", "late", "straggler", "recovering", "resolved"]
    assert len({verdict.episode for _, verdict in found}) == 1


def test_noise_that_all_ranks_share_does_not_blur_the_loss() -> None:
    """Own times explain it: the common mode wanders by 3 %, the loss is 4 %."""
    rng = np.random.default_rng(7)
    common = np.zeros(400)
    for second in range(1, 400):
        common[second] = 0.99 * common[second - 1] + rng.normal(0, 0.03 * np.sqrt(1 - 0.99**2))
    own = rng.normal(0, 0.008, (400, 8)) + common[:, None]
    without = span_of(own)
    own[300:, 3] += np.log1p(0.06)
    engine = VerdictEngine()
    run(own, engine, {"span_s": span_of(own)})
    (verdict,) = engine.current()
    truth = 1 - float((without[320:, 0] / span_of(own)[320:, 0]).mean())
    assert verdict.state is VerdictState.STRAGGLER
    assert verdict.loss == pytest.approx(truth, rel=0.3)


def test_two_slow_ranks_share_one_loss() -> None:
    own = noise(260, 8, seed=5)
    own[ONSET:, 2] += np.log1p(0.2)
    own[ONSET:, 6] += np.log1p(0.2)
    engine = VerdictEngine()
    run(own, engine, {"span_s": span_of(own)})
    verdicts = engine.current()
    assert {verdict.rank for verdict in verdicts} == {2, 6}
    assert sum(verdict.loss or 0.0 for verdict in verdicts) == pytest.approx(0.2 / 1.35, rel=0.25)


def test_means_are_compared_where_a_rank_stalls_now_and_then() -> None:
    own = noise(420, 8, seed=9)
    own[ONSET::10, 5] += np.log(2.0)
    engine = VerdictEngine()
    found = run(own, engine, {"span_s": span_of(own)})
    (verdict,) = engine.current()
    assert (verdict.rank, verdict.cause_class, verdict.period) == (5, CauseClass.STALL, 10)
    assert verdict.loss == pytest.approx(0.1 / 1.25, rel=0.2)
    assert blamed(found) == {5}


def test_the_class_stays_for_the_whole_episode() -> None:
    own = slowed(effect=0.2, seconds=300)
    idle = np.full(own.shape, 0.05)
    idle[220:, 3] += 0.19  # later the host is slow, too
    found = run(own, None, {"idle_s": idle, "span_s": span_of(own)})
    named = [v for _, v in found if v.state is not VerdictState.SUSPECT]
    assert {v.cause_class for v in named} == {CauseClass.COMPUTE}
